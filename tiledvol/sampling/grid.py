"""GridSampler: patches side by side that cover whole volumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, ClassVar, overload

import numpy as np

from tiledvol.geometry import Box
from tiledvol.sampling.cohort import Cohort
from tiledvol.sampling.draw import Draw, Triple, as_triple
from tiledvol.sampling.finite import check_index, refuse_chance
from tiledvol.sampling.layout import GridLayout
from tiledvol.sampling.protocols import Subject, Volume


class GridSampler:
    """Patches that cover every voxel of every subject, subject after subject.

    ``GridSampler(overlap)`` are settings for a loader; an epoch has every patch once.
    ``GridSampler(volume, patch_size, overlap)`` is a `PatchGrid`, the patches of one volume.

    Parameters
    ----------
    overlap : int or (3,) int
        Voxels that neighbouring patches share at least, less than the patch size.

    Raises
    ------
    ValueError
        If it is negative or not whole.
    """

    finite: ClassVar[bool] = True
    _overlap: Triple

    @overload
    def __new__(cls, overlap: int | Sequence[int] = 0) -> GridSampler: ...
    @overload
    def __new__(
        cls, volume: Volume, patch_size: int | Sequence[int], overlap: int | Sequence[int] = 0
    ) -> PatchGrid: ...
    def __new__(cls, *args: Any, **kwargs: Any) -> GridSampler:
        """Return settings, or given a volume its `PatchGrid`."""
        if len(args) > 1 or "volume" in kwargs or "patch_size" in kwargs:
            return PatchGrid(*args, **kwargs)
        return cls._settings(*args, **kwargs)

    @classmethod
    def _settings(cls, overlap: int | Sequence[int] = 0) -> GridSampler:
        self = object.__new__(cls)
        self._overlap = as_triple(overlap, "overlap", 0)
        return self

    @property
    def overlap(self) -> Triple:
        """Voxels that neighbouring patches share at least, (3,)."""
        return self._overlap

    def __repr__(self) -> str:
        return f"GridSampler(overlap={self.overlap})"

    def __eq__(self, other: object) -> bool:
        return type(other) is GridSampler and other.overlap == self.overlap

    def __hash__(self) -> int:
        return hash(self._overlap)

    def bind(
        self,
        subjects: Sequence[Subject],
        patch_size: tuple[int, int, int],
        reference: str,
        *,
        weights: Mapping[str, float] | None = None,
        patches_per_subject: int = 1,
    ) -> BoundGrid:
        """Return the sampler over these subjects, see `Sampler.bind`."""
        refuse_chance(self, weights, patches_per_subject)
        return BoundGrid(self, Cohort(subjects, patch_size, reference))


class PatchGrid(GridSampler, Sequence[Box]):
    """The patches that cover one volume, as boxes of the patch size in C order.

    Parameters
    ----------
    volume : Volume
        Channels in front are left aside: boxes have 3 axes.
    patch_size : int or (3,) int
        In voxels. Where the volume is shorter, the box reaches outside on both sides.
    overlap : int or (3,) int
        Voxels that neighbouring patches share at least.

    Raises
    ------
    ValueError
        If the overlap is not less than the patch size, or a number is out of range.
    """

    volume: Volume
    _layout: GridLayout

    def __new__(
        cls, volume: Volume, patch_size: int | Sequence[int], overlap: int | Sequence[int] = 0
    ) -> PatchGrid:
        """Return the grid."""
        self = object.__new__(cls)
        x, y, z = volume.shape[-3:]
        self.volume = volume
        self._overlap = as_triple(overlap, "overlap", 0)
        self._layout = GridLayout((x, y, z), as_triple(patch_size, "patch_size", 1), self._overlap)
        return self

    def __getnewargs__(self) -> tuple[Volume, Triple, Triple]:
        return self.volume, self.patch_size, self._overlap

    @property
    def patch_size(self) -> Triple:
        """Extent of every patch in voxels, (3,)."""
        return self._layout.patch_size

    def __repr__(self) -> str:
        return f"GridSampler({self.volume}, patch_size={self.patch_size}, overlap={self.overlap})"

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __len__(self) -> int:
        return prod(self._layout.counts)

    @overload
    def __getitem__(self, index: int) -> Box: ...
    @overload
    def __getitem__(self, index: slice) -> list[Box]: ...
    def __getitem__(self, index: int | slice) -> Box | list[Box]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        start = self._layout.start(range(len(self))[index])
        return Box(start, tuple(a + p for a, p in zip(start, self.patch_size, strict=True)))


class BoundGrid:
    """A `GridSampler` that knows its subjects."""

    def __init__(self, sampler: GridSampler, cohort: Cohort) -> None:
        self._cohort = cohort
        self._layouts = [
            GridLayout(shape, cohort.patch_size, sampler.overlap) for shape in cohort.shapes
        ]
        self._ends = np.cumsum([prod(layout.counts) for layout in self._layouts])
        self.fingerprint = cohort.fingerprint(sampler)

    @property
    def length(self) -> int:
        """Number of patches of all subjects."""
        return int(self._ends[-1])

    def draw(self, seed: int, epoch: int, index: int) -> Draw:
        """Return the draw of an index, the same for every seed and epoch.

        Raises
        ------
        IndexError
            If the index is not below `length`.
        """
        check_index(index, self.length)
        at = int(np.searchsorted(self._ends, index, side="right"))
        first = int(self._ends[at - 1]) if at else 0
        return Draw(self._cohort.subjects[at].id, self._layouts[at].start(index - first), None)
