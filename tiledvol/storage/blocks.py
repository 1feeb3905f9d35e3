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
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tiledvol.errors import StoreError
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

    def add(self, first: Sequence[int], slab: Array) -> None:
        """Add a slab of whole blocks."""
        for position, block in _blocks(slab, self._chunk, first):
            self._ranges[position] = _value_range(block)
            self._sums[position] = block.sum(dtype=np.float64)
        self._statistics.add(slab)

    def finish(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return ranges and sums, and ``{"statistics": ...}``."""
        arrays = {"range": self._ranges, "sum": self._sums}
        return arrays, {"statistics": self._statistics.finish()}


class LabelIndexBuilder:
    """Voxels per class and block."""

    def __init__(self, shape: Sequence[int], chunk: Sequence[int], dtype: np.dtype[Any]) -> None:
        self._chunk = tuple(chunk)
        self._grid = grid_shape(shape, chunk)
        self._dtype = dtype
        self._rows: list[npt.NDArray[np.int64]] = []

    def add(self, first: Sequence[int], slab: Array) -> None:
        """Add a slab of whole blocks."""
        for position, block in _blocks(slab, self._chunk, first):
            classes, counts = count_classes(block)
            number = int(np.ravel_multi_index(position, self._grid))
            self._rows.append(np.stack([classes, np.full(classes.size, number), counts], axis=1))

    def finish(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return the rows; of a label there are no further facts."""
        rows = np.concatenate(self._rows)
        return {"counts": rows[np.lexsort((rows[:, 1], rows[:, 0]))]}, {}


def _blocks(
    slab: Array, chunk: Sequence[int], first: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], Array]]:
    """Yield the grid position and the voxels of each block of a slab."""
    for offset in np.ndindex(*grid_shape(slab.shape, chunk)):
        where = tuple(slice(o * c, (o + 1) * c) for o, c in zip(offset, chunk, strict=True))
        yield tuple(f + o for f, o in zip(first, offset, strict=True)), slab[where]


def _value_range(block: Array) -> tuple[Any, Any]:
    """Return the least and greatest voxel that is not NaN; NaN if all are."""
    low, high = block.min(), block.max()
    if block.dtype.kind == "f" and np.isnan(low):
        low, high = np.fmin.reduce(block, axis=None), np.fmax.reduce(block, axis=None)
    return low, high


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
        return {int(c): int(self.of(int(c))[1].sum()) for c in self.classes}

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
