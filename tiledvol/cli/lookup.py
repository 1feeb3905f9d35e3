"""From names on the command line to what they stand for in a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiledvol.errors import StoreError

if TYPE_CHECKING:
    from tiledvol import Dataset, Subject, Volume

MOST_LISTED = 10
"""How many of the names that there are a message repeats."""


def find_subject(dataset: Dataset, name: str) -> Subject:
    """Return a subject, or raise `StoreError` saying which there are."""
    if name not in dataset:
        raise StoreError(f"{dataset.url} has no subject {name!r}; {_those(list(dataset))}")
    return dataset[name]


def find_volume(dataset: Dataset, name: str) -> Volume:
    """Return the volume called ``SUBJECT/IMAGE``, or raise `StoreError` saying which there are."""
    subject_name, _, image = name.partition("/")
    subject = find_subject(dataset, subject_name)
    if image not in subject:
        raise StoreError(f"{subject_name} has no image {image!r}; {_those(list(subject))}")
    return subject[image]


def _those(names: list[str]) -> str:
    if not names:
        return "there is none"
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return f"there is {', '.join(names[:MOST_LISTED])}{more}"
