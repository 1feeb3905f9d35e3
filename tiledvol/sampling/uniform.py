"""UniformSampler: every position of every subject alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tiledvol.sampling.cohort import Cohort
from tiledvol.sampling.draw import Draw, centred
from tiledvol.sampling.protocols import Subject
from tiledvol.sampling.rng import Numbers, Stream


@dataclass(frozen=True)
class UniformSampler:
    """Patches at positions uniform over those that keep the patch inside the volume.

    Subjects are equally likely, or by the weights given to the loader. Endless.
    """

    finite: ClassVar[bool] = False

    def bind(
        self,
        subjects: Sequence[Subject],
        patch_size: tuple[int, int, int],
        reference: str,
        *,
        weights: Mapping[str, float] | None = None,
        patches_per_subject: int = 1,
    ) -> BoundUniform:
        """Return the sampler over these subjects, see `Sampler.bind`."""
        return BoundUniform(
            self, Cohort(subjects, patch_size, reference, weights, patches_per_subject)
        )


@dataclass(frozen=True)
class BoundUniform:
    """A `UniformSampler` that knows its subjects."""

    sampler: object
    cohort: Cohort
    length: ClassVar[None] = None

    @property
    def fingerprint(self) -> dict[str, Any]:
        """See `BoundSampler.fingerprint`."""
        return self.cohort.fingerprint(self.sampler)

    def draw(self, seed: int, epoch: int, index: int) -> Draw:
        """Return the draw of an index."""
        position = self.cohort.draw(seed, epoch, index)
        numbers = Numbers(seed, epoch, index, Stream.POSITION)
        x, y, z = (
            numbers.below(n - p + 1) if n >= p else centred(n, p)
            for n, p in zip(self.cohort.shapes[position], self.cohort.patch_size, strict=True)
        )
        return Draw(self.cohort.subjects[position].id, (x, y, z), None)
