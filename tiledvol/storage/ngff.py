"""OME-NGFF 0.5 metadata, so that other viewers open an image."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiledvol.geometry import Affine, spacing_of

AXIS_ALIGNED = 1e-6
"""Greatest off-diagonal part of an affine, relative to the spacing, that counts as none."""


def multiscales(name: str, affine: Affine, channels: bool) -> dict[str, Any]:
    """Return the ``ome`` attribute of an image with one resolution level.

    NGFF 0.5 knows scale and translation only. The translation is given where the affine is no
    more than these; elsewhere an offset without its rotation would be wrong, and only the scale
    is given. The full affine is in the ``tiledvol`` attribute.

    Parameters
    ----------
    name : str
        Name of the image.
    affine : (4, 4) float64
        Voxel centre -> RAS+ mm.
    channels : bool
        Whether the array's first axis is channels.
    """
    spacing = spacing_of(affine)
    lead = [1.0] if channels else []
    transforms: list[dict[str, Any]] = [{"type": "scale", "scale": lead + spacing.tolist()}]
    if (np.abs(affine[:3, :3] - np.diag(spacing)) <= AXIS_ALIGNED * spacing).all():
        offset = [0.0] * len(lead) + affine[:3, 3].tolist()
        transforms.append({"type": "translation", "translation": offset})
    axes = [{"name": axis, "type": "space", "unit": "millimeter"} for axis in "xyz"]
    return {
        "version": "0.5",
        "multiscales": [
            {
                "name": name,
                "axes": ([{"name": "c", "type": "channel"}] if channels else []) + axes,
                "datasets": [{"path": "0", "coordinateTransformations": transforms}],
            }
        ],
    }
