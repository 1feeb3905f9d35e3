"""PatchRequest: where a patch lies in the world, and what of an image it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import add
from typing import TYPE_CHECKING

import numpy as np

from tiledvol.geometry import Affine, Box, apply_affine, spacing_of

if TYPE_CHECKING:
    from tiledvol.sampling.protocols import Volume

Triple = tuple[int, int, int]

ON_GRID = 1e-3
"""How far, in voxels, a patch's corner may lie from a voxel centre and still be cut, not resampled.

Headers hold affines in float32: of two images on one grid they differ by less than this."""


@dataclass(frozen=True)
class SourceRegion:
    """What a patch needs of one image.

    Attributes
    ----------
    box : Box
        Voxels of the image to read (3 axes), which may reach outside it.
    matrix : (4, 4) float64 array, or None
        Patch voxel -> voxel of the box, where the patch is to be interpolated; None where it is
        the box as it is.
    """

    box: Box
    matrix: Affine | None


@dataclass(frozen=True)
class PatchRequest:
    """A patch to be made: a grid in the world.

    Attributes
    ----------
    subject : str
        Id of the subject.
    shape : (3,) int
        Extent in voxels.
    affine : (4, 4) float64
        Voxel centre of the patch -> RAS+ mm.
    """

    subject: str
    shape: Triple
    affine: Affine

    @classmethod
    def on_grid(cls, subject: str, grid: Volume, start: Triple, shape: Triple) -> PatchRequest:
        """Return the request of a patch that begins at voxel ``start`` of a grid."""
        affine = grid.affine
        affine[:3, 3] = apply_affine(affine, start)
        return cls(subject, shape, affine)

    def source(self, affine: Affine) -> SourceRegion:
        """Return what the patch needs of an image with this affine.

        Where the grids are the same up to a whole number of voxels the box is the patch; else it
        holds all voxels between which the patch's are interpolated linearly.
        """
        to_image = np.asarray(np.linalg.inv(affine), np.float64) @ self.affine
        first = to_image[:3, 3]
        last = np.array(self.shape) - 1
        reach = to_image[:3, :3] * last  # of each patch axis (column), in voxels of the image
        start = np.round(first)
        if (np.abs(reach - np.diag(last)).sum(axis=1) + np.abs(first - start) <= ON_GRID).all():
            begin = tuple(start.astype(int).tolist())
            return SourceRegion(Box(begin, tuple(map(add, begin, self.shape))), None)
        low = np.floor(np.round(first + np.minimum(reach, 0).sum(axis=1), 6)).astype(int)
        high = np.ceil(np.round(first + np.maximum(reach, 0).sum(axis=1), 6)).astype(int) + 1
        to_image[:3, 3] -= low
        return SourceRegion(Box(tuple(low), tuple(high)), to_image)


class ResampledGrid:
    """The grid that a volume has at another spacing; stands in for it as a place for patches.

    The outer faces of the first voxels stay where they are.

    Attributes
    ----------
    shape : (3,) int
        As many voxels as are nearest to the volume's extent, at least one.
    affine : (4, 4) float64
        Voxel centre -> RAS+ mm.
    """

    def __init__(self, volume: Volume, spacing: Sequence[float]) -> None:
        ratio = np.asarray(spacing, np.float64) / spacing_of(volume.affine)
        extent = np.array(volume.shape[-3:]) / ratio
        self._affine = volume.affine
        self._affine[:3, 3] = apply_affine(volume.affine, 0.5 * (ratio - 1))
        self._affine[:3, :3] *= ratio
        x, y, z = np.maximum(1, np.round(extent)).astype(int).tolist()
        self.shape: Triple = (x, y, z)

    @property
    def affine(self) -> Affine:
        """A copy of the affine."""
        return self._affine.copy()
