"""Draws: where a patch lies, or the one block whose voxels will tell."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tiledvol.errors import StoreError
from tiledvol.geometry import Box, apply_affine
from tiledvol.sampling.choice import inverse_cdf

if TYPE_CHECKING:
    from tiledvol.sampling.protocols import Volume

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class LabelPick:
    """A voxel of a class, to be found in one block of a label.

    Attributes
    ----------
    image : str
        Name of the label.
    block : tuple of int
        Grid position of the block, of the array's rank.
    box : Box
        The block's voxels, of the array's rank: what to read.
    class_id : int
        The class.
    rank : int
        Which of the block's voxels of the class, counted in C order from 0.
    """

    image: str
    block: tuple[int, ...]
    box: Box
    class_id: int
    rank: int

    def locate(self, values: npt.NDArray[Any]) -> Triple:
        """Return the voxel (3,) within the volume, from the values of `box`.

        Raises
        ------
        StoreError
            If the block does not hold as many voxels of the class as the index says.
        """
        _check_shape(self, values)
        found = np.flatnonzero(values.ravel() == self.class_id)
        if self.rank >= found.size:
            raise StoreError(
                f"block {self.block} of {self.image} has {found.size} voxels of class "
                f"{self.class_id}, fewer than its index says; run `tiledvol verify`"
            )
        return voxel_at(self.box, int(found[self.rank]))


@dataclass(frozen=True)
class WeightPick:
    """A voxel drawn in proportion to its value, to be found in one block of a map.

    Attributes
    ----------
    image : str
        Name of the map.
    block : tuple of int
        Grid position of the block, of the array's rank.
    box : Box
        The block's voxels, of the array's rank: what to read.
    u : float
        Uniform number in [0, 1): which voxel, by cumulative weight in C order.
    """

    image: str
    block: tuple[int, ...]
    box: Box
    u: float

    def locate(self, values: npt.NDArray[Any]) -> Triple:
        """Return the voxel (3,) within the volume, from the values of `box`.

        Raises
        ------
        StoreError
            If the block's sum is not above zero, as the index says it is.
        """
        _check_shape(self, values)
        cumulative = np.cumsum(values.ravel(), dtype=np.float64)
        if not cumulative[-1] > 0:
            raise StoreError(
                f"block {self.block} of {self.image} sums to {cumulative[-1]}, unlike what its "
                f"index says; run `tiledvol verify`"
            )
        return voxel_at(self.box, inverse_cdf(cumulative, self.u))


Pick = LabelPick | WeightPick


@dataclass(frozen=True)
class Draw:
    """Where a patch lies: either ``start`` or ``pick`` is None.

    Attributes
    ----------
    subject : str
        Id of the subject.
    start : (3,) int, or None
        The patch's first voxel on the grid of the reference image. Negative along an axis where
        the volume is smaller than the patch.
    pick : LabelPick or WeightPick, or None
        A block to read: `locate` gives a voxel of the image that it names, `transfer` takes that
        to the reference image, `patch_start` makes it the patch's start.
    shape : (3,) int, or None
        Extent of the patch in voxels; None: the size that the sampler was bound with.
    """

    subject: str
    start: Triple | None
    pick: Pick | None
    shape: Triple | None = None


def patch_start(voxel: Triple, patch_size: Triple, shape: Sequence[int]) -> Triple:
    """Return the first voxel of a patch around ``voxel``, moved inside the volume.

    Parameters
    ----------
    voxel : (3,) int
        Becomes voxel ``patch_size // 2`` of the patch where the volume leaves room.
    patch_size : (3,) int
        Extent of the patch.
    shape : sequence of int
        Of the volume: its last three axes count. Along an axis shorter than the patch the volume
        is centred, and the start is negative.
    """
    x, y, z = (
        min(max(v - p // 2, 0), n - p) if n >= p else centred(n, p)
        for v, p, n in zip(voxel, patch_size, shape[-3:], strict=True)
    )
    return (x, y, z)


def centred(extent: int, patch: int) -> int:
    """Return where a patch starts that holds an axis of ``extent`` < ``patch`` in its middle."""
    return -((patch - extent) // 2)


def transfer(voxel: Triple, source: Volume, target: Volume) -> Triple:
    """Return the voxel of ``target`` nearest in the world to a voxel of ``source``.

    On one grid it is the same voxel; what lies outside ``target`` is moved to its border.
    """
    here, there = source.affine, target.affine
    moved = np.asarray(voxel, np.int64)
    if not np.array_equal(here, there):
        inverse = np.asarray(np.linalg.inv(there), np.float64)
        moved = np.floor(apply_affine(inverse @ here, voxel) + 0.5).astype(np.int64)
    x, y, z = np.clip(moved, 0, np.array(target.shape[-3:]) - 1).tolist()
    return (x, y, z)


def voxel_at(box: Box, offset: int) -> Triple:
    """Return the spatial coordinates (3,) of a box's voxel number ``offset`` in C order."""
    within = np.unravel_index(offset, box.shape)
    x, y, z = (int(a + w) for a, w in zip(box.start[-3:], within[-3:], strict=True))
    return (x, y, z)


def as_triple(value: int | Sequence[int], name: str, least: int) -> Triple:
    """Return one whole number per axis; one number stands for all three.

    Raises
    ------
    ValueError
        If it is anything else, or a number is below ``least``.
    """
    values = (value,) * 3 if isinstance(value, (int, np.integer)) else value
    try:
        x, y, z = (operator.index(v) for v in values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}={value!r}: give three whole numbers of voxels") from error
    if min(x, y, z) < least:
        raise ValueError(f"{name}={value!r}: each number must be at least {least}")
    return (x, y, z)


def _check_shape(pick: Pick, values: npt.NDArray[Any]) -> None:
    if values.shape != pick.box.shape:
        raise ValueError(f"{pick} needs the values of its box, not of shape {values.shape}")
