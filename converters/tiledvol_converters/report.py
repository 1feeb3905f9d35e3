"""What becomes of the subjects of a conversion, while it goes on and at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True)
class Outcome:
    """What became of a subject, or of an input of which no subject came.

    Attributes
    ----------
    name : str
        The subject, or the input.
    status : {"converted", "skipped", "failed"}
        Skipped is what was in the dataset already, and unchanged.
    reason : str
        Why it failed, and what to do.
    warnings : tuple of str
        What a user should know of the sources though they were converted, each after the path.
    seconds : float
        Time that it took.
    nbytes : int
        Bytes of the voxels converted, before compression.
    """

    name: str
    status: Literal["converted", "skipped", "failed"]
    reason: str = ""
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    nbytes: int = 0


@dataclass(frozen=True)
class Report:
    """What became of everything that was to be converted.

    Attributes
    ----------
    outcomes : tuple of Outcome
        One for each subject, and for each input of which no subject came.
    untried : tuple of str
        Subjects that were not reached because the conversion stopped.
    ignored : int
        Files in the folders given that are no volumes.
    """

    outcomes: tuple[Outcome, ...]
    untried: tuple[str, ...] = ()
    ignored: int = 0

    @property
    def converted(self) -> tuple[Outcome, ...]:
        """Subjects that were converted."""
        return tuple(o for o in self.outcomes if o.status == "converted")

    @property
    def skipped(self) -> tuple[Outcome, ...]:
        """Subjects that were there already, and unchanged."""
        return tuple(o for o in self.outcomes if o.status == "skipped")

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """Subjects and inputs that failed."""
        return tuple(o for o in self.outcomes if o.status == "failed")

    @property
    def complete(self) -> bool:
        """Whether everything is in the dataset now."""
        return not self.failed and not self.untried


class DatasetProgress(Protocol):
    """Is told how a conversion goes on."""

    def begin(self, outcomes: int) -> None:
        """So many outcomes are to come."""
        ...

    def volume(self, subject: str, image: str, done: int, total: int) -> None:
        """``done`` of ``total`` bytes of an image's voxels have been written."""
        ...

    def finished(self, outcome: Outcome) -> None:
        """Nothing more will become of a subject or input."""
        ...


class Silent:
    """A `DatasetProgress` that tells nobody."""

    def begin(self, outcomes: int) -> None:
        """Tell nobody."""

    def volume(self, subject: str, image: str, done: int, total: int) -> None:
        """Tell nobody."""

    def finished(self, outcome: Outcome) -> None:
        """Tell nobody."""
