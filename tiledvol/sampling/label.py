"""LabelSampler: a fixed share of patches around voxels of the foreground."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tiledvol.errors import StoreError
from tiledvol.sampling.cache import IndexCache
from tiledvol.sampling.choice import Quota, as_fraction
from tiledvol.sampling.cohort import Cohort
from tiledvol.sampling.draw import Draw, LabelPick, voxel_at
from tiledvol.sampling.foreground import AnyClass, Foreground, GivenClasses
from tiledvol.sampling.protocols import Subject
from tiledvol.sampling.rng import Numbers, Stream
from tiledvol.sampling.uniform import BoundUniform
from tiledvol.storage.blocks import LabelBlocks


@dataclass(frozen=True)
class LabelSampler:
    """Patches of which an exact share is centred at voxels of a label's classes.

    Of any n consecutive indices, floor or ceil of n * foreground are foreground draws; the others
    are uniform over valid positions, as by `UniformSampler`. A foreground draw takes a class, a
    subject that has it, and exactly uniformly one of the voxels of the class in that subject.
    Endless.

    Parameters
    ----------
    label : str
        Name of the label. Subjects without it have no foreground.
    classes : sequence of int, or mapping of int to float, optional
        By default a subject with any foreground is drawn first, then one of its classes but 0,
        all alike: a small lesion is as likely as a large one. With classes, a class is drawn
        first, all alike or by the weights of a mapping, then a subject that has it.
    foreground : float or Fraction
        Share of foreground draws, 0 to 1.

    Raises
    ------
    ValueError
        If an argument has no meaning.
    """

    label: str
    classes: Mapping[int, float] | Sequence[int] | None = field(default=None, hash=False)
    foreground: float | Fraction = 1 / 3

    finite: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if as_fraction(self.foreground, "foreground") > 1:
            raise ValueError(f"foreground={self.foreground}: a share is at most 1")
        if self.classes is not None:
            object.__setattr__(self, "classes", _weighted(self.classes))

    def bind(
        self,
        subjects: Sequence[Subject],
        patch_size: tuple[int, int, int],
        reference: str,
        *,
        weights: Mapping[str, float] | None = None,
        patches_per_subject: int = 1,
    ) -> BoundLabel:
        """Return the sampler over these subjects, see `Sampler.bind`.

        Class counts come from the catalogue, or of labels with many classes from the block index.

        Raises
        ------
        StoreError
            If no subject has any of the foreground; it names the label.
        """
        cohort = Cohort(subjects, patch_size, reference, weights, patches_per_subject)
        return BoundLabel(self, cohort)


class BoundLabel:
    """A `LabelSampler` that knows its subjects."""

    length: ClassVar[None] = None

    def __init__(self, sampler: LabelSampler, cohort: Cohort) -> None:
        self._label = sampler.label
        self._cohort = cohort
        self._quota = Quota(as_fraction(sampler.foreground, "foreground"))
        self._background = BoundUniform(sampler, cohort)
        self._indices = IndexCache(self._index, lambda index: index.rows.nbytes)
        counts = cohort.read(self._classes)
        self.fingerprint = cohort.fingerprint(sampler, counts)
        present = [c[:, 0].copy() for c in counts]
        self._foreground: Foreground | None = None
        if self._quota.share:
            classes = sampler.classes
            self._foreground = (
                GivenClasses(cohort, present, self._label, classes)
                if isinstance(classes, Mapping)
                else AnyClass(cohort, present, self._label)
            )

    def _classes(self, subject: Subject) -> npt.NDArray[np.int64]:
        """Return the class ids of a subject, rising, and the voxels of each, (n, 2)."""
        if self._label not in subject:
            return np.zeros((0, 2), np.int64)
        if subject[self._label].kind != "label":
            raise StoreError(
                f"{subject.id}/{self._label} is an image; LabelSampler needs a label: convert it "
                f"as one, or use WeightedSampler({self._label!r})"
            )
        return np.array(sorted(subject[self._label].classes.items()), np.int64)

    def _index(self, position: int) -> LabelBlocks:
        found = self._cohort.subjects[position][self._label].blocks()
        assert isinstance(found, LabelBlocks)
        return found

    def draw(self, seed: int, epoch: int, index: int) -> Draw:
        """Return the draw of an index."""
        if self._foreground is None or not self._quota.chooses(index):
            return self._background.draw(seed, epoch, index)
        numbers = Numbers(seed, epoch, index, Stream.FOREGROUND)
        position, class_id = self._foreground.draw(numbers, seed, epoch, index)
        subject = self._cohort.subjects[position]
        blocks = self._indices[position]
        where, counts = blocks.of(class_id)
        if not counts.size:
            raise StoreError(
                f"{subject.id}/{self._label} has no class {class_id}, though the catalogue says "
                f"so; run `tiledvol reindex` on the dataset"
            )
        cumulative = np.cumsum(counts)
        rank = numbers.below(int(cumulative[-1]))
        at = int(np.searchsorted(cumulative, rank, side="right"))
        rank -= int(cumulative[at] - counts[at])
        block = tuple(int(i) for i in np.unravel_index(where[at], blocks.grid))
        volume = subject[self._label]
        box = volume.block_box(block)
        if counts[at] == box.size:  # every voxel is of the class: which one needs no read
            return Draw(
                subject.id, self._cohort.start_around(position, voxel_at(box, rank), volume), None
            )
        return Draw(subject.id, None, LabelPick(self._label, block, box, class_id, rank))


def _weighted(classes: Mapping[int, float] | Sequence[int]) -> dict[int, float]:
    """Return the weights above zero by class id, rising.

    Raises
    ------
    ValueError
        If an id is not a whole number of at least 0, a weight is negative or not finite, or no
        weight is above zero.
    """
    given = dict(classes) if isinstance(classes, Mapping) else dict.fromkeys(classes, 1.0)
    for class_id, weight in given.items():
        if not isinstance(class_id, (int, np.integer)) or class_id < 0:
            raise ValueError(f"classes={classes!r}: {class_id!r} is no class id")
        if not 0 <= weight < np.inf:
            raise ValueError(f"classes={classes!r}: weight {weight} is not at least 0 and finite")
    weights = {int(c): float(given[c]) for c in sorted(given) if given[c] > 0}
    if not weights:
        raise ValueError(f"classes={classes!r} names no class to draw; leave it out for all")
    return weights
