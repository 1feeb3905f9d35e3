"""WholeSampler: each subject once, uncut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tiledvol.sampling.cohort import Cohort
from tiledvol.sampling.draw import Draw
from tiledvol.sampling.finite import check_index, refuse_chance
from tiledvol.sampling.protocols import Subject


@dataclass(frozen=True)
class WholeSampler:
    """Each subject once and whole, for data already cut into chips.

    The patch is the volume, whatever the patch size; an epoch has every subject once.
    """

    finite: ClassVar[bool] = True

    def bind(
        self,
        subjects: Sequence[Subject],
        patch_size: tuple[int, int, int],
        reference: str,
        *,
        weights: Mapping[str, float] | None = None,
        patches_per_subject: int = 1,
    ) -> BoundWhole:
        """Return the sampler over these subjects, see `Sampler.bind`."""
        refuse_chance(self, weights, patches_per_subject)
        return BoundWhole(self, Cohort(subjects, patch_size, reference))


@dataclass(frozen=True)
class BoundWhole:
    """A `WholeSampler` that knows its subjects."""

    sampler: WholeSampler
    cohort: Cohort

    @property
    def length(self) -> int:
        """Number of subjects."""
        return len(self.cohort.subjects)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """See `BoundSampler.fingerprint`."""
        return self.cohort.fingerprint(self.sampler)

    def draw(self, seed: int, epoch: int, index: int) -> Draw:
        """Return the draw of an index, the same for every seed and epoch.

        Raises
        ------
        IndexError
            If the index is not below `length`.
        """
        check_index(index, self.length)
        return Draw(self.cohort.subjects[index].id, (0, 0, 0), None, self.cohort.shapes[index])
