"""The per-block index: voxel counts per class for labels, value ranges and sums for images.

Blocks are numbered in C order over the grid of an array's chunks, channels first where there are
any. The index is a few small arrays beside the voxels, so that samplers and readers learn what is
where without decoding a block:

- of an image ``range``, shape (grid..., 2), the image's dtype: least and greatest voxel that is
  not NaN; and ``sum``, shape (grid...), float64: the sum of the voxels, those that are NaN too;
- of a label ``counts``, shape (n, 3), int64: rows (class, block, voxels), sorted, no zero counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tiledvol.errors import StoreError
from tiledvol.storage.reorder import memory_axes
from tiledvol.storage.statistics import Statistics

Array = npt.NDArray[Any]


def grid_shape(shape: Sequence[int], chunk: Sequence[int]) -> tuple[int, ...]:
    """Return how many chunks an array has along each axis."""
    return tuple(-(-n // c) for n, c in zip(shape, chunk, strict=True))


class IndexBuilder(Protocol):
    """Collects the index of a volume while its slabs are written."""

    def add(self, first: Sequence[int], slab: Array) -> None:
        """Add a slab of whole blocks.

        Parameters
        ----------
        first : sequence of int
            Grid position of the slab's first block, of the array's rank.
        slab : array
            Voxels, of the array's rank.
        """
        ...

    def finish(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return the index arrays by name, and what goes into the image's metadata."""
        ...


class ImageIndexBuilder:
    """Value range and sum per block, and statistics of the whole."""

    def __init__(self, shape: Sequence[int], chunk: Sequence[int], dtype: np.dtype[Any]) -> None:
        self._chunk = tuple(chunk)
        self._ranges = np.zeros((*grid_shape(shape, chunk), 2), dtype)
        self._sums = np.zeros(grid_shape(shape, chunk))
        self._statistics = Statistics(dtype)
        # fmin and fmax leave out NaN; for integers they are slower.
        floating = dtype.kind == "f"
        self._min: np.ufunc = np.fmin if floating else np.minimum
        self._max: np.ufunc = np.fmax if floating else np.maximum

    def add(self, first: Sequence[int], slab: Array) -> None:
        """Add a slab of whole blocks."""
        with np.errstate(invalid="ignore"):  # infinities of both signs, signalling NaN
            self._add(first, _MemoryOrder(slab, self._chunk))

    def _add(self, first: Sequence[int], ordered: _MemoryOrder) -> None:
        low = ordered.reduce_blocks(self._min)
        where = tuple(slice(f, f + n) for f, n in zip(first, low.shape, strict=True))
        self._ranges[where] = np.stack([low, ordered.reduce_blocks(self._max)], axis=-1)
        self._sums[where] = ordered.reduce_blocks(np.add, np.float64)
        self._statistics.add(ordered.voxels)

    def finish(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return ranges and sums, and ``{"statistics": ...}``."""
        arrays = {"range": self._ranges, "sum": self._sums}
        return arrays, {"statistics": self._statistics.finish()}


class LabelIndexBuilder:
    """Voxels per class and block."""

    def __init__(self, shape: Sequence[int], chunk: Sequence[int], dtype: np.dtype[Any]) -> None:
        self._chunk = tuple(chunk)
        self._grid = grid_shape(shape, chunk)
        self._rows: list[npt.NDArray[np.int64]] = []

    def add(self, first: Sequence[int], slab: Array) -> None:
        """Add a slab of whole blocks."""
        for offset, block in _MemoryOrder(slab, self._chunk).blocks():
            position = tuple(f + o for f, o in zip(first, offset, strict=True))
            number = int(np.ravel_multi_index(position, self._grid))
            classes, counts = count_classes(block)
            self._rows.append(np.stack([classes, np.full(classes.size, number), counts], axis=1))

    def finish(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return the rows; of a label there are no further facts."""
        rows = np.concatenate(self._rows)
        return {"counts": rows[np.lexsort((rows[:, 1], rows[:, 0]))]}, {}


class _MemoryOrder:
    """A slab seen with its axes in the order of memory, where reductions are many times faster.

    A reoriented slab is a view with permuted and reversed axes of what the source holds.

    Attributes
    ----------
    voxels : array
        The view: strides fall from axis to axis, and none is negative.
    """

    def __init__(self, slab: Array, chunk: Sequence[int]) -> None:
        self._order, self._turned = memory_axes(slab)
        self.voxels: Array = np.flip(slab.transpose(self._order), self._turned)
        self._reversed = [i in self._turned for i in range(slab.ndim)]
        self._bounds = []
        for axis, reverse in zip(self._order, self._reversed, strict=True):
            size = slab.shape[axis]
            bounds = [*range(0, size, chunk[axis]), size]
            self._bounds.append([size - b for b in reversed(bounds)] if reverse else bounds)

    def blocks(self) -> Iterator[tuple[tuple[int, ...], Array]]:
        """Yield each block's grid offset within the slab, and its voxels in memory order."""
        counts = [len(b) - 1 for b in self._bounds]
        for at in np.ndindex(*counts):
            region = tuple(slice(b[i], b[i + 1]) for b, i in zip(self._bounds, at, strict=True))
            offset = [0] * len(at)
            for axis, i, n, reverse in zip(self._order, at, counts, self._reversed, strict=True):
                offset[axis] = n - 1 - i if reverse else i
            yield tuple(offset), self.voxels[region]

    def reduce_blocks(self, ufunc: np.ufunc, dtype: npt.DTypeLike | None = None) -> Array:
        """Return the reduction of each block, on the slab's grid and in its axis order."""
        outer = self._bounds[0]
        # The outermost axis by whole planes, which is where the bulk goes at memory speed.
        result: Array = np.stack(
            [ufunc.reduce(self.voxels[a:b], axis=0, dtype=dtype) for a, b in pairwise(outer)]
        )
        for axis, bounds in enumerate(self._bounds[1:], start=1):
            result = ufunc.reduceat(result, bounds[:-1], axis=axis)
        result = np.flip(result, self._turned)
        return result.transpose([self._order.index(axis) for axis in range(result.ndim)])


def count_classes(labels: Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the class ids in an unsigned integer array, rising, and the voxels of each."""
    low, high = int(labels.min()), int(labels.max())
    if high > np.iinfo(np.int64).max:
        raise StoreError(f"class id {high} is too large: ids go up to 2^63 - 1")
    if low == high:
        return np.array([low]), np.array([labels.size])
    if high - low >= 4 * labels.size:
        ids, counts = np.unique(labels, return_counts=True)
        return ids.astype(np.int64), counts.astype(np.int64)
    flat = labels.ravel(order="K")
    counts = np.bincount(flat if low < 1024 else (flat - labels.dtype.type(low)).astype(np.intp))
    ids = np.flatnonzero(counts)
    return ids + (0 if low < 1024 else low), counts[ids]


@dataclass(frozen=True)
class ImageBlocks:
    """Value ranges and sums of an image's blocks.

    Attributes
    ----------
    min, max : arrays of shape ``grid``
        Least and greatest voxel of each block, NaN left out, in the image's dtype.
    sum : float64 array of shape ``grid``
        Sum of each block's voxels; NaN where one is.
    """

    min: Array
    max: Array
    sum: npt.NDArray[np.float64]


@dataclass(frozen=True)
class LabelBlocks:
    """Where the classes of a label are.

    Attributes
    ----------
    rows : (n, 3) int64
        (class, block, voxels), sorted by class, then block.
    grid : tuple of int
        Blocks along each axis; blocks are numbered in C order.
    """

    rows: npt.NDArray[np.int64]
    grid: tuple[int, ...]

    @cached_property
    def classes(self) -> npt.NDArray[np.int64]:
        """The class ids that occur, rising, 0 (background) included."""
        return np.unique(self.rows[:, 0])

    @cached_property
    def totals(self) -> dict[int, int]:
        """Voxels of each class in the whole label."""
        if not self.rows.size:
            return {}
        classes, starts = np.unique(self.rows[:, 0], return_index=True)
        sums = np.add.reduceat(self.rows[:, 2], starts)
        return dict(zip(classes.tolist(), sums.tolist(), strict=True))

    def of(self, class_id: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the numbers of the blocks that hold a class, rising, and its voxels in each."""
        start, stop = np.searchsorted(self.rows[:, 0], [class_id, class_id + 1])
        return self.rows[start:stop, 1], self.rows[start:stop, 2]

    def counts(self) -> Array:
        """Return the counts as a dense array of shape (*grid, number of classes)."""
        dense = np.zeros((int(np.prod(self.grid)), self.classes.size), np.int64)
        column = np.searchsorted(self.classes, self.rows[:, 0])
        dense[self.rows[:, 1], column] = self.rows[:, 2]
        return dense.reshape(*self.grid, -1)
