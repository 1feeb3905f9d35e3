"""PatchRequest: where a patch lies in the world, and what of an image it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
        last = np.array(self.shape) - 1
        corners = np.array(np.meshgrid(*[(0, n) for n in last], indexing="ij")).reshape(3, -1).T
        mapped = apply_affine(to_image, corners)
        start = np.round(mapped[0]).astype(int)
        if np.abs(mapped - corners - start).max() <= ON_GRID:
            stop = start + self.shape
            return SourceRegion(Box(tuple(start), tuple(stop)), None)
        low = np.floor(np.round(mapped.min(axis=0), 6)).astype(int)
        high = np.ceil(np.round(mapped.max(axis=0), 6)).astype(int) + 1
        matrix = to_image.copy()
        matrix[:3, 3] -= low
        return SourceRegion(Box(tuple(low), tuple(high)), matrix)


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
