"""numpy's basic indexing, turned into a forward region to read and what to do with the result."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

PAD_MODES = ("constant", "edge", "reflect")


@dataclass(frozen=True)
class Selection:
    """What ``array[key]`` selects.

    Attributes
    ----------
    region : tuple of slice
        For each axis of the array a forward slice within bounds, of positive step, not negative.
    finish : tuple
        Index to apply to the voxels of ``region``: reverses axes, drops the axes of integers,
        adds those of ``None``. An ellipsis is kept: with it numpy gives an array even of rank 0.
    """

    region: tuple[slice, ...]
    finish: tuple[Any, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the region."""
        return tuple(len(range(s.start, s.stop, s.step)) for s in self.region)


def select(key: Any, shape: Sequence[int]) -> Selection:
    """Interpret an index as numpy's basic indexing does.

    Raises
    ------
    IndexError
        For indices out of bounds, too many of them, and for anything but integers, slices,
        ``...`` and ``None``.
    """
    parts = list(key) if isinstance(key, tuple) else [key]
    if sum(p is Ellipsis for p in parts) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    given = sum(p is not None and p is not Ellipsis for p in parts)
    if given > len(shape):
        raise IndexError(f"too many indices: the volume has {len(shape)} axes, {given} were given")
    whole = [slice(None)] * (len(shape) - given)
    at = next((i + 1 for i, p in enumerate(parts) if p is Ellipsis), len(parts))
    parts[at:at] = whole
    region: list[slice] = []
    finish: list[Any] = []
    for part in parts:
        if part is None or part is Ellipsis:
            finish.append(part)
            continue
        axis = len(region)
        if isinstance(part, slice):
            forward, reverse = _forward(part, shape[axis])
            finish.append(slice(None, None, -1) if reverse else slice(None))
        else:
            index = _integer(part, axis, shape[axis])
            forward = slice(index, index + 1, 1)
            finish.append(0)
        region.append(forward)
    return Selection(tuple(region), tuple(finish))


def _integer(part: Any, axis: int, size: int) -> int:
    """Return an integer index as not negative."""
    if isinstance(part, (bool, np.bool_)):
        raise IndexError("a boolean is no index here; read the region, then mask it")
    try:
        index = operator.index(part)
    except TypeError:
        raise IndexError(
            f"index {part!r} of type {type(part).__name__}: only integers, slices, '...' and "
            f"None select from a volume; read the region, then index the array"
        ) from None
    if not -size <= index < size:
        raise IndexError(f"index {index} is out of bounds for axis {axis} with size {size}")
    return index % size


def _forward(part: slice, size: int) -> tuple[slice, bool]:
    """Return the forward slice that selects the same voxels, and whether to reverse them."""
    indices = range(size)[part]
    if len(indices) == 0:
        return slice(0, 0, 1), False
    reverse = indices.step < 0
    first, last = (indices[-1], indices[0]) if reverse else (indices[0], indices[-1])
    return slice(first, last + 1, abs(indices.step)), reverse


def padded_indices(start: int, stop: int, size: int, mode: str) -> npt.NDArray[np.intp]:
    """Return for positions ``start`` to ``stop`` the voxel that stands there after padding.

    Parameters
    ----------
    start, stop : int
        Half-open range of positions, which may lie outside 0 to ``size``.
    size : int
        Extent of the axis, at least 1.
    mode : str
        ``"edge"``, or ``"reflect"`` about the outer voxels, as in ``numpy.pad``.
    """
    positions = np.arange(start, stop)
    if mode == "edge" or size == 1:
        return positions.clip(0, size - 1)
    period = 2 * (size - 1)
    folded = positions % period
    return np.minimum(folded, period - folded)
