"""Which class of which subject a foreground draw takes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tiledvol.errors import StoreError
from tiledvol.sampling.choice import Choice
from tiledvol.sampling.cohort import Cohort, Members, listed
from tiledvol.sampling.rng import Numbers

ClassIds = npt.NDArray[np.int64]


class Foreground(Protocol):
    """Draws a class and a subject that has it."""

    def draw(self, numbers: Numbers, seed: int, epoch: int, index: int) -> tuple[int, int]:
        """Return the subject's position in the cohort, and the class id."""


class AnyClass:
    """A subject with any foreground first, then one of its classes but 0, all alike.

    Parameters
    ----------
    cohort : Cohort
        The subjects.
    present : sequence of (n,) int64
        Class ids of each subject.
    label : str
        Name of the label, for messages.

    Raises
    ------
    StoreError
        If no subject that can be drawn has a class but 0.
    """

    def __init__(self, cohort: Cohort, present: Sequence[ClassIds], label: str) -> None:
        self._cohort = cohort
        self._present = [ids[ids != 0] for ids in present]
        found = cohort.members(i for i, ids in enumerate(self._present) if ids.size)
        if found is None:
            raise StoreError(
                f"no subject has any foreground in label {label!r}: every voxel is 0; name "
                f"another label, or use UniformSampler()"
            )
        self._members = found

    def draw(self, numbers: Numbers, seed: int, epoch: int, index: int) -> tuple[int, int]:
        """Return a subject's position in the cohort, and a class id."""
        position = self._cohort.draw(seed, epoch, index, self._members)
        ids = self._present[position]
        return position, int(ids[numbers.below(ids.size)])


class GivenClasses:
    """A class by weight first, then one of the subjects that have it.

    Parameters
    ----------
    cohort, present, label
        As for `AnyClass`.
    classes : mapping of int to float
        Weights above zero; those of classes that no subject has go to the others.

    Raises
    ------
    StoreError
        If no subject that can be drawn has any of the classes.
    """

    def __init__(
        self, cohort: Cohort, present: Sequence[ClassIds], label: str, classes: Mapping[int, float]
    ) -> None:
        self._cohort = cohort
        having: dict[int, list[int]] = {c: [] for c in classes}
        for position, ids in enumerate(present):
            for c in having.keys() & set(ids.tolist()):
                having[c].append(position)
        members = {c: cohort.members(positions) for c, positions in having.items()}
        absent = [c for c, found in members.items() if found is None]
        if len(absent) == len(members):
            raise StoreError(
                f"no subject has any of the classes {listed(absent)} in label {label!r}; give "
                f"classes= that occur, or none for all"
            )
        if absent:
            warnings.warn(
                f"no subject has class {listed(absent)} in label {label!r}: only the other "
                f"classes are drawn",
                stacklevel=4,
            )
        self._members: list[tuple[int, Members]] = [
            (c, found) for c, found in members.items() if found is not None
        ]
        weights = np.array([classes[c] for c, _ in self._members], np.float64)
        self._choice = Choice(weights.size, weights)

    def draw(self, numbers: Numbers, seed: int, epoch: int, index: int) -> tuple[int, int]:
        """Return a subject's position in the cohort, and a class id."""
        class_id, members = self._members[self._choice.draw(numbers)]
        return self._cohort.draw(seed, epoch, index, members), class_id
