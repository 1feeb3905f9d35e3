"""GridLayout: where the patches that cover a volume start."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tiledvol.sampling.draw import Triple, centred


@dataclass(frozen=True)
class GridLayout:
    """Where the patches of a grid over one volume start.

    Along each axis they start at multiples of ``patch_size - overlap``, the last one flush with
    the border; a volume shorter than the patch takes one patch with the volume in its middle.

    Attributes
    ----------
    shape, patch_size, overlap : (3,) int
        In voxels; each overlap is less than its patch size.

    Raises
    ------
    ValueError
        If an overlap is not less than the patch size.
    """

    shape: Triple
    patch_size: Triple
    overlap: Triple

    def __post_init__(self) -> None:
        if any(o >= p for o, p in zip(self.overlap, self.patch_size, strict=True)):
            raise ValueError(
                f"overlap={self.overlap} must be less than the patch size {self.patch_size} along "
                f"each axis"
            )

    @property
    def counts(self) -> Triple:
        """Number of patches along each axis."""
        x, y, z = (
            1 + max(0, -(-(n - p) // (p - o)))
            for n, p, o in zip(self.shape, self.patch_size, self.overlap, strict=True)
        )
        return (x, y, z)

    def start(self, index: int) -> Triple:
        """Return the first voxel of a patch; patches are numbered in C order."""
        at = np.unravel_index(index, self.counts)
        x, y, z = (
            min(int(i) * (p - o), n - p) if n >= p else centred(n, p)
            for i, n, p, o in zip(at, self.shape, self.patch_size, self.overlap, strict=True)
        )
        return (x, y, z)
