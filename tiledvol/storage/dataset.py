"""Dataset and Subject: what is committed in a store, as mappings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import tensorstore as ts

from tiledvol.errors import StoreError
from tiledvol.storage import catalogue
from tiledvol.storage.attributes import ImageSummary, check_is_dataset, loads, parse_attributes
from tiledvol.storage.spec import TIMEOUT_S, default_context
from tiledvol.storage.store import Store
from tiledvol.storage.volume import Volume


class Subject(Mapping[str, Volume]):
    """The images and labels of one subject, by name.

    Attributes
    ----------
    id : str
        Name within the dataset.
    """

    def __init__(self, store: Store, subject_id: str, entry_text: str) -> None:
        self._store = store
        self._entry_text = entry_text
        self._volumes: dict[str, Volume] = {}
        self.id = subject_id

    @cached_property
    def _entry(self) -> dict[str, Any]:
        try:
            entry = dict(loads(self._entry_text))
            dict(entry["images"])
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{self._store.url}: the catalogue's entry of {self.id} is malformed; run "
                f"`tiledvol reindex`"
            ) from error
        return entry

    def __getitem__(self, name: str) -> Volume:
        if name not in self._volumes:
            if name not in self._entry["images"]:
                raise KeyError(f"subject {self.id!r} has no image {name!r}, only {list(self)}")
            summary = ImageSummary.from_json(
                self._entry["images"][name], f"{self._store.url}: {self.id}/{name}"
            )
            self._volumes[name] = Volume(self._store, self.id, name, summary)
        return self._volumes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entry["images"])

    def __len__(self) -> int:
        return len(self._entry["images"])

    def __repr__(self) -> str:
        return f"<Subject {self.id}: {', '.join(self)}>"

    @property
    def provenance(self) -> Mapping[str, Any]:
        """What the subject was made from: sources with size and time, options, digests."""
        found: Mapping[str, Any] = self._entry.get("provenance", {})
        return found


class Dataset(Mapping[str, Subject]):
    """The committed subjects of a store, by id, in sorted order; as they were when opened."""

    def __init__(self, store: Store, entries: catalogue.Entries) -> None:
        self._store = store
        self._entries = dict(sorted(entries.items()))
        self._subjects: dict[str, Subject] = {}

    def __getitem__(self, subject_id: str) -> Subject:
        if subject_id not in self._subjects:
            if subject_id not in self._entries:
                raise KeyError(f"{self._store.url} has no subject {subject_id!r}")
            self._subjects[subject_id] = Subject(self._store, subject_id, self._entries[subject_id])
        return self._subjects[subject_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<Dataset {self._store.url}: {len(self)} subjects>"

    def with_cache(self, cache_bytes: int) -> Dataset:
        """Return the same dataset, reading through a block cache of its own of this size."""
        context = ts.Context(
            {"cache_pool": {"total_bytes_limit": cache_bytes}},
            parent=self._store.context or default_context(),
        )
        return Dataset(Store(self._store.url, context, self._store.timeout), self._entries)

    def entry_text(self, subject_id: str) -> str:
        """Return a subject's catalogue entry as JSON text."""
        return self._entries[subject_id]

    @property
    def url(self) -> str:
        """Path or URL that the dataset was opened by."""
        return self._store.url


def open(
    url: str | os.PathLike[str],
    *,
    context: ts.Context | None = None,
    timeout: float = TIMEOUT_S,
) -> Dataset:
    """Open a dataset for reading.

    Parameters
    ----------
    url : str or path
        Folder, or ``memory://``, ``s3://``, ``gs://``, ``http(s)://`` URL of the dataset.
    context : tensorstore.Context, optional
        Threads and block cache to use (`tiledvol.make_context`); by default all datasets opened
        in a process share one with a small cache.
    timeout : float
        Seconds after which a read that has not finished raises `ReadTimeoutError`.

    Raises
    ------
    StoreError
        If there is no dataset at this place, or it was written by a newer format.
    """
    store = Store(url, context, timeout)
    data = store.read("zarr.json")
    if data is None:
        raise StoreError(f"{store.url}: no tiledvol dataset here (there is no zarr.json)")
    check_is_dataset(parse_attributes(data, f"{store.url}: zarr.json"), store.url)
    return Dataset(store, catalogue.read_entries(store))


def reindex(url: str | os.PathLike[str]) -> int:
    """Rebuild a dataset's catalogue from its subjects; return how many there are."""
    dataset = open(url)
    dataset._store.check_writable()
    return len(catalogue.rebuild(dataset._store))
