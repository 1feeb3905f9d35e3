"""Cohort: the subjects that a sampler draws from, and how one of them is drawn."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tiledvol.errors import StoreError
from tiledvol.sampling.choice import Choice
from tiledvol.sampling.draw import Triple, as_triple, patch_start, transfer
from tiledvol.sampling.protocols import Subject, Volume
from tiledvol.sampling.rng import Numbers, Stream

MAX_READERS = 16
"""Threads that read block indices of different subjects at construction."""

MAX_LISTED = 5
"""Names that a message gives in full."""

Array = npt.NDArray[Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Members:
    """Some of a cohort's subjects, by position, and the choice among them."""

    positions: npt.NDArray[np.int64]
    choice: Choice

    def __contains__(self, position: int) -> bool:
        at = np.searchsorted(self.positions, position)
        return bool(at < self.positions.size and self.positions[at] == position)

    def draw(self, numbers: Numbers) -> int:
        """Return the position of a subject."""
        return int(self.positions[self.choice.draw(numbers)])


class Cohort:
    """The subjects of a bound sampler, with the arguments that `Sampler.bind` describes.

    Attributes
    ----------
    subjects : tuple of Subject
        In the order given.
    shapes : list of (3,) int
        Of each subject's reference image, without channels.
    patch_size : (3,) int
        In voxels of the reference image.
    """

    def __init__(
        self,
        subjects: Sequence[Subject],
        patch_size: Triple,
        reference: str,
        weights: Mapping[str, float] | None = None,
        patches_per_subject: int = 1,
    ) -> None:
        self.subjects = tuple(subjects)
        self.patch_size = as_triple(patch_size, "patch_size", 1)
        if patches_per_subject < 1:
            raise ValueError(f"patches_per_subject={patches_per_subject}: it must be at least 1")
        self._check_subjects(reference)
        self._reference = reference
        self._repeat = patches_per_subject
        self._weights = None if weights is None else self._ordered(weights)
        self.shapes: list[Triple] = []
        for subject in self.subjects:
            x, y, z = subject[reference].shape[-3:]
            self.shapes.append((x, y, z))
        self._everyone = self.members(range(len(self.subjects)))

    def _check_subjects(self, reference: str) -> None:
        if not self.subjects:
            raise ValueError("There are no subjects to draw from")
        if len({s.id for s in self.subjects}) < len(self.subjects):
            raise ValueError("Two subjects have the same id; to draw one more often use weights=")
        missing = [s.id for s in self.subjects if reference not in s]
        if missing:
            raise StoreError(f"no image {reference!r} in {listed(missing)}")

    def _ordered(self, weights: Mapping[str, float]) -> npt.NDArray[np.float64]:
        """Return the weights in the order of the subjects."""
        missing = [s.id for s in self.subjects if s.id not in weights]
        if missing:
            raise ValueError(f"weights= has no weight for {listed(missing)}")
        wrong = [f"{s.id}: {w}" for s in self.subjects if not 0 <= (w := weights[s.id]) < np.inf]
        if wrong:
            raise ValueError(f"weights= must be numbers of at least 0, unlike {listed(wrong)}")
        ordered = np.array([weights[s.id] for s in self.subjects], np.float64)
        if not ordered.any():
            raise ValueError("weights= are all 0: no subject could be drawn")
        return ordered

    def members(self, positions: Iterable[int]) -> Members | None:
        """Return those of the subjects that can be drawn; None if none can."""
        chosen = np.fromiter(positions, np.int64)
        weights = None
        if self._weights is not None:
            chosen = chosen[self._weights[chosen] > 0]
            weights = self._weights[chosen]
        return Members(chosen, Choice(chosen.size, weights)) if chosen.size else None

    def draw(self, seed: int, epoch: int, index: int, among: Members | None = None) -> int:
        """Return the position of the subject of an index.

        A subject of all is drawn once for every run of ``patches_per_subject`` indices. Where it
        is not ``among`` those asked for, one of those is drawn instead, which leaves each of them
        exactly its share: w/W + (1 - A/W) w/A = w/A, with its weight w, the sum A of theirs and W
        of all.
        """
        assert self._everyone is not None
        run = index // self._repeat
        found = self._everyone.draw(Numbers(seed, epoch, run, Stream.SUBJECT))
        if among is None or found in among:
            return found
        return among.draw(Numbers(seed, epoch, run, Stream.SUBJECT_AMONG))

    def start_around(self, position: int, voxel: Triple, volume: Volume) -> Triple:
        """Return where the patch around a voxel of an image of a subject starts."""
        reference = self.subjects[position][self._reference]
        centre = transfer(voxel, volume, reference)
        return patch_start(centre, self.patch_size, self.shapes[position])

    def read(self, function: Callable[[Subject], T]) -> list[T]:
        """Return ``function`` of each subject, called from several threads: it may do I/O."""
        with ThreadPoolExecutor(MAX_READERS) as pool:
            return list(pool.map(function, self.subjects))

    def fingerprint(self, sampler: object, content: Iterable[Array] = ()) -> dict[str, Any]:
        """Return what `BoundSampler.fingerprint` promises.

        Parameters
        ----------
        sampler : object
            The settings; their ``repr`` tells them.
        content : iterable of arrays
            What else the draws depend on.
        """
        weights = None if self._weights is None else self._weights.tolist()
        facts = [[s.id for s in self.subjects], self.shapes, weights]
        digest = hashlib.sha256(json.dumps(facts).encode())
        for array in content:
            digest.update(f"{array.shape}".encode() + array.tobytes())
        return {
            "sampler": repr(sampler),
            "reference": self._reference,
            "patch_size": list(self.patch_size),
            "patches_per_subject": self._repeat,
            "subjects": len(self.subjects),
            "digest": digest.hexdigest(),
        }


def listed(names: Sequence[object]) -> str:
    """Return names for a message: the first few, and how many more there are."""
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(str(name) for name in names[:MAX_LISTED]) + more
