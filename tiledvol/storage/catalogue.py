"""The catalogue: one read opens a dataset of any size.

It is derived from the subjects' commit markers and never ahead of them: a subject's entry is taken
out before its marker is, and put in after. So what it lists is committed; what it lacks may yet
be, and is found by listing the store where that is cheap.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from tiledvol.errors import StoreError
from tiledvol.storage.attributes import loads, parse_attributes
from tiledvol.storage.naming import LOCK_SUFFIX
from tiledvol.storage.spec import FORMAT
from tiledvol.storage.store import Store

KEY = "catalogue.json"

Entries = dict[str, str]
"""Per subject id the ``tiledvol`` attributes of its commit marker, as JSON text.

They are parsed when a subject is first looked at: parsing 10,000 of them takes half a second."""

_HEAD = f'{{"format":{FORMAT},"subjects":{{'
_TAIL = "}}"


def marker_key(subject: str) -> str:
    """Return the key of a subject's commit marker."""
    return f"{subject}/zarr.json"


def decode(data: bytes | None, where: str) -> Entries | None:
    """Return the entries of a catalogue, or None where it is missing or unreadable.

    An unreadable one is no error: it is derived, and is made again from the markers.
    """
    if data is None:
        return None
    try:
        lines = data.decode().split("\n")
        if lines[0] == _HEAD and lines[-1] == _TAIL:
            # Names hold no quotes, so a line is split safely where the first one closes.
            parts = (line[1:].partition('":') for line in lines[1:-1])
            return {name: text.removesuffix(",") for name, _, text in parts}
        content = loads(data)
        version, subjects = content["format"], content["subjects"]
        entries = {str(k): json.dumps(v) for k, v in subjects.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if not isinstance(version, int) or version > FORMAT:
        raise StoreError(f"{where}: catalogue format {version!r}: upgrade tiledvol")
    return entries


def encode(entries: Mapping[str, str]) -> bytes:
    """Return the bytes of a catalogue: JSON with one line per subject."""
    lines = ",\n".join(f'"{name}":{text}' for name, text in sorted(entries.items()))
    return f"{_HEAD}\n{lines}{lines and chr(10)}{_TAIL}".encode()


def entry_text(entry: Mapping[str, Any]) -> str:
    """Return a subject's entry as the catalogue holds it: JSON on one line."""
    return json.dumps(entry, separators=(",", ":"), allow_nan=False)


def read_entries(store: Store) -> Entries:
    """Return all committed subjects: those catalogued, and those found by listing."""
    found = decode(store.read(KEY), store.url)
    if store.local_path:
        names = _local_names(store)
        found = {k: v for k, v in (found or {}).items() if k in names}
        return found | read_markers(store, names - found.keys())
    return scan(store) if found is None else found


def scan(store: Store) -> Entries:
    """Return all committed subjects, from their markers alone."""
    if not store.writable:
        raise StoreError(
            f"{store.url}: no {KEY}, and an http store cannot be listed; run `tiledvol reindex` "
            f"where the dataset lies"
        )
    if store.local_path:
        return read_markers(store, _local_names(store))
    names = (k.partition("/") for k in store.list_keys() if k.count("/") == 1)
    return read_markers(
        store, {head for head, _, tail in names if tail == "zarr.json" and _may_be_subject(head)}
    )


def read_markers(
    store: Store, subjects: Iterable[str], problems: list[str] | None = None
) -> Entries:
    """Return the entries of those subjects that are committed.

    A marker that is damaged, or of something else such as a dataset, is left out: with a warning,
    or its error is added to ``problems``.
    """
    found = store.read_many(marker_key(name) for name in sorted(subjects))
    entries = {}
    for key, data in found.items():
        try:
            entries[key.partition("/")[0]] = _marker_text(data, f"{store.url}: {key}")
        except StoreError as error:
            if problems is None:
                warnings.warn(str(error), stacklevel=2)
            else:
                problems.append(str(error))
    return entries


def _marker_text(data: bytes, where: str) -> str:
    attributes = parse_attributes(data, where)
    if not isinstance(attributes.get("images"), dict):
        raise StoreError(f"{where} is not the marker of a subject")
    return entry_text(attributes)


def update(
    store: Store, add: Mapping[str, Mapping[str, Any]] | None = None, drop: Iterable[str] = ()
) -> None:
    """Put entries into the catalogue and take others out, whoever else writes to it."""
    added = {name: entry_text(entry) for name, entry in (add or {}).items()}
    dropped = set(drop)
    if not added and not dropped:
        return

    def change(data: bytes | None) -> bytes:
        entries = decode(data, store.url) or {}
        kept = {k: v for k, v in entries.items() if k not in dropped}
        return encode(kept | added)

    store.update(KEY, change)


def rebuild(store: Store) -> Entries:
    """Make the catalogue anew from the markers; return it."""
    entries = scan(store)
    store.update(KEY, lambda _: encode(entries))
    return entries


def _may_be_subject(name: str) -> bool:
    return name[0] != "." and not name.endswith(LOCK_SUFFIX)


def _local_names(store: Store) -> set[str]:
    """Return the names of the folders that may be subjects of a local dataset."""
    assert store.local_path is not None
    try:
        with os.scandir(store.local_path) as listing:
            return {e.name for e in listing if _may_be_subject(e.name) and e.is_dir()}
    except FileNotFoundError:
        return set()
