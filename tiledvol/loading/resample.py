"""Interpolation of a patch from the voxels around it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812

from tiledvol.geometry import Affine

Array = npt.NDArray[Any]


def resample(
    source: Array, matrix: Affine, shape: tuple[int, int, int], nearest: bool
) -> torch.Tensor:
    """Return a patch interpolated from a box of voxels.

    Parameters
    ----------
    source : array of shape (C, X, Y, Z)
        The box.
    matrix : (4, 4) float64
        Patch voxel -> voxel of the box.
    shape : (3,) int
        Of the patch.
    nearest : bool
        For labels: the nearest voxel; else trilinear.

    Returns
    -------
    float32 or, for labels, int64 tensor of shape (C, *shape)
        Positions beyond the box take its border.
    """
    if nearest:
        return torch.from_numpy(_nearest(source, matrix, shape))
    # grid_sample counts axes in reverse, from -1 at the first voxel's centre to 1 at the last's.
    size = np.array(source.shape[1:])
    scale = 2 / np.maximum(size - 1, 1)
    theta = np.zeros((3, 4))
    extent = (np.array(shape) - 1) / 2
    linear = matrix[:3, :3] * extent
    theta[:, :3] = linear * scale[:, None]
    theta[:, 3] = (matrix[:3, :3] @ extent + matrix[:3, 3]) * scale - 1
    reverse = theta[::-1, [2, 1, 0, 3]].astype(np.float32)
    grid = F.affine_grid(torch.from_numpy(reverse)[None], [1, 1, *shape], align_corners=True)
    values = torch.from_numpy(source.astype(np.float32))[None]
    return F.grid_sample(values, grid, mode="bilinear", padding_mode="border", align_corners=True)[
        0
    ]


def _nearest(source: Array, matrix: Affine, shape: tuple[int, int, int]) -> npt.NDArray[np.int64]:
    """Return the nearest voxels, exact for class ids of any size."""
    grid = np.indices(shape).reshape(3, -1)
    places = matrix[:3, :3] @ grid + matrix[:3, 3:]
    limit = np.array(source.shape[1:])[:, None] - 1
    x, y, z = np.clip(np.floor(places + 0.5).astype(np.int64), 0, limit)
    return source[:, x, y, z].reshape(source.shape[0], *shape).astype(np.int64)
