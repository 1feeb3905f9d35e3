"""What samplers whose epoch has a length of its own refuse."""

from __future__ import annotations

from collections.abc import Mapping


def refuse_chance(
    sampler: object, weights: Mapping[str, float] | None, patches_per_subject: int
) -> None:
    """Raise ValueError if a sampler that visits every subject is asked to draw subjects."""
    if weights is not None or patches_per_subject != 1:
        raise ValueError(
            f"{sampler} visits every subject in turn: weights= and patches_per_subject= have no "
            f"meaning for it; leave them out"
        )


def check_index(index: int, length: int) -> None:
    """Raise IndexError if a finite sampler has no such draw."""
    if not 0 <= index < length:
        raise IndexError(f"index {index} is not among the {length} draws of an epoch")
