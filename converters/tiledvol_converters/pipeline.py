"""Conversion of many subjects: what is unchanged is skipped, what fails stops nothing else."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

from tiledvol.errors import NamingError, SourceError, StoreError, TiledvolError
from tiledvol.storage import catalogue
from tiledvol.storage.dataset import Subject
from tiledvol.storage.store import Store
from tiledvol.storage.writer import create_dataset
from tiledvol_converters.convert import Converted, Options, Plan, convert_subject, stat_record
from tiledvol_converters.discover import Discovery, StrPath, discover
from tiledvol_converters.names import fold
from tiledvol_converters.report import DatasetProgress, Outcome, Report, Silent

CATALOGUE_SECONDS = 10.0
"""How often, at most, the catalogue is written while subjects are converted."""

HASH_BYTES = 2**20
"""How much of a file is read at once to compare its content."""

STORE_TROUBLE = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.EROFS: "the dataset lies on a read-only file system; make it writable",
    errno.EACCES: "the dataset cannot be written; correct its permissions",
}
"""What no further subject can be written after, by the system's error number, and the remedy."""


def convert_dataset(
    inputs: StrPath | Iterable[StrPath | Plan] | Discovery,
    url: StrPath,
    *,
    options: Options | None = None,
    labels: Sequence[str] = (),
    checksum: bool = False,
    force: bool = False,
    on_error: Literal["continue", "stop"] = "continue",
    progress: DatasetProgress | None = None,
) -> Report:
    """Convert many subjects into a dataset, which is created if need be.

    A subject that the dataset has already is skipped where options, images and source files are
    unchanged, and replaced otherwise, once its successor is complete. Any failure leaves it as it
    was. Interrupted at whatever moment, the same call finishes the job.

    Parameters
    ----------
    inputs : path, iterable of paths or `Plan`, or `Discovery`
        Files, folders and globs, from which subjects are made by the rules of
        `tiledvol_converters.discover`; or the subjects themselves.
    url : str or path
        The dataset.
    options : Options, optional
        How volumes are stored.
    labels : sequence of str
        Patterns of what is a label among files found.
    checksum : bool
        Tell a changed source file by its content, not by size and time of modification.
    force : bool
        Convert also what is unchanged, e.g. a subject whose blocks were damaged.
    on_error : {"continue", "stop"}
        Whether a failure stops what comes after it.
    progress : DatasetProgress, optional
        Is told how it goes on.

    Returns
    -------
    Report
        What became of each subject: failures do not raise.

    Raises
    ------
    StoreError
        If there is something else at ``url``, or it cannot be written at all.
    """
    if on_error not in ("continue", "stop"):
        raise ValueError(f"on_error={on_error!r}: choose continue or stop")
    found = _find(inputs, labels)
    outcomes = [Outcome(f.name, "failed", f.reason) for f in found.failures]
    told = progress or Silent()
    told.begin(len(outcomes) + len(found.plans))
    for outcome in outcomes:
        told.finished(outcome)
    waiting = list(found.plans)
    if waiting and not (outcomes and on_error == "stop"):
        run = _Run(create_dataset(url), options or Options(), checksum, force, told)
        try:
            while waiting:
                outcome = run.outcome_of(waiting.pop(0))
                outcomes.append(outcome)
                told.finished(outcome)
                if outcome.status == "failed" and (on_error == "stop" or run.store_fails):
                    break
        finally:
            outcomes += run.close()
    return Report(tuple(outcomes), tuple(p.subject for p in waiting), found.ignored)


def _find(
    inputs: StrPath | Iterable[StrPath | Plan] | Discovery, labels: Sequence[str]
) -> Discovery:
    """Return the subjects that inputs of any kind stand for."""
    if isinstance(inputs, Discovery):
        return inputs
    given = [inputs] if isinstance(inputs, str | os.PathLike) else list(inputs)
    plans = tuple(i for i in given if isinstance(i, Plan))
    found = discover((i for i in given if not isinstance(i, Plan)), labels=labels)
    return Discovery(plans + found.plans, found.failures, found.ignored)


class _Run:
    """The conversion of subjects, one after the other, into one store.

    Attributes
    ----------
    store_fails : bool
        Whether the store cannot be written, so that there is no use in going on.
    """

    def __init__(
        self,
        store: Store,
        options: Options,
        checksum: bool,
        force: bool,
        progress: DatasetProgress,
    ) -> None:
        self._store = store
        self._options = options
        self._checksum = checksum
        self._force = force
        self._progress = progress
        catalogued = catalogue.decode(store.read(catalogue.KEY), store.url) or {}
        self._committed = catalogue.read_entries(store)
        self._spellings = {fold(name): name for name in self._committed}
        # What an earlier run committed and did not live to catalogue.
        missing = self._committed.keys() - catalogued.keys()
        self._pending = {name: json.loads(self._committed[name]) for name in missing}
        self._catalogue_written = time.monotonic()
        self.store_fails = False

    def outcome_of(self, plan: Plan) -> Outcome:
        """Convert or skip a subject; whatever goes wrong becomes part of the outcome."""
        started = time.perf_counter()
        try:
            self._check_names(plan.subject)
            self._check_place(plan)
            there = self._subject(plan.subject)
            if there is not None:
                _check_kept(there, plan)
                if not self._force and _unchanged(
                    there.provenance, plan, self._options, self._checksum
                ):
                    return Outcome(plan.subject, "skipped", seconds=time.perf_counter() - started)
            converted = self._convert(plan)
        except StoreError as error:
            text = str(error)
            advice = [a for code, a in STORE_TROUBLE.items() if os.strerror(code) in text]
            self.store_fails = bool(advice)
            reason = f"{advice[0]}, and run the same again ({text})" if advice else text
        except (TiledvolError, OSError) as error:
            reason = str(error)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            reason = (
                f"{type(error).__name__} in {Path(place.filename).name}:{place.lineno}: {error}; "
                f"this is a fault of tiledvol: please report it, with this message"
            )
        else:
            return Outcome(
                plan.subject,
                "converted",
                warnings=converted.warnings,
                seconds=time.perf_counter() - started,
                nbytes=converted.nbytes,
            )
        return Outcome(plan.subject, "failed", reason, seconds=time.perf_counter() - started)

    def _convert(self, plan: Plan) -> Converted:
        progress = partial(self._progress.volume, plan.subject)
        converted = convert_subject(self._store, plan, self._options, progress)
        self._committed[plan.subject] = catalogue.entry_text(converted.entry)
        self._spellings[fold(plan.subject)] = plan.subject
        self._pending[plan.subject] = converted.entry
        if time.monotonic() - self._catalogue_written > CATALOGUE_SECONDS:
            with suppress(StoreError):  # tried again at the end
                catalogue.update(self._store, add=self._pending)
                self._pending = {}
            self._catalogue_written = time.monotonic()
        return converted

    def _subject(self, name: str) -> Subject | None:
        """Return a committed subject, also one that an object store's catalogue lacks."""
        if name not in self._committed and not self._store.local_path:
            for found, text in catalogue.read_markers(self._store, [name]).items():
                self._committed[found] = text
                self._pending[found] = json.loads(text)
        if name not in self._committed:
            return None
        return Subject(self._store, name, self._committed[name])

    def _check_names(self, name: str) -> None:
        """Refuse a name that differs from one in the dataset by case or Unicode form alone."""
        there = self._spellings.get(fold(name), name)
        if there != name:
            raise NamingError(
                f"the dataset has a subject {there!r}, which some file systems take for the same "
                f"as {name!r}: rename one"
            )

    def _check_place(self, plan: Plan) -> None:
        """Refuse sources inside the dataset, where making room for a subject may delete them."""
        root = self._store.local_path
        for _, _, path in plan.sources:
            if root and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
                raise SourceError(f"{path}: lies in the dataset itself; move it out")

    def close(self) -> list[Outcome]:
        """Write the catalogue; return what is to be reported if that fails."""
        try:
            catalogue.update(self._store, add=self._pending)
        except StoreError as error:
            reason = f"{error}; run `tiledvol reindex` on the dataset once it can be written"
            return [Outcome(catalogue.KEY, "failed", reason)]
        return []


def _check_kept(there: Subject, plan: Plan) -> None:
    """Refuse to replace a subject by one that lacks some of its images."""
    lacking = sorted(set(there) - {name for name, _, _ in plan.sources})
    if lacking:
        raise SourceError(
            f"the dataset has {', '.join(lacking)} of {plan.subject} too, which would be lost: "
            f"give all files of a subject together, or delete it first"
        )


def _unchanged(provenance: Mapping[str, Any], plan: Plan, options: Options, checksum: bool) -> bool:
    """Tell whether a subject was made with the same options from the same files."""
    sources: Mapping[str, Any] = provenance.get("sources", {})
    return (
        provenance.get("options") == options.to_json()
        and {name: record["kind"] for name, record in sources.items()}
        == {name: kind for name, kind, _ in plan.sources}
        and all(_same_files(path, sources[name], checksum) for name, _, path in plan.sources)
    )


def _same_files(path: Path, record: Mapping[str, Any], checksum: bool) -> bool:
    """Tell whether a source's files, which lie side by side, are those that a record describes."""
    files: list[dict[str, Any]] = record["files"]
    paths = [path.with_name(file["name"]) for file in files]
    if path not in paths:
        return False
    try:
        found = [stat_record(p) for p in paths]
    except SourceError:
        return False
    if not checksum:
        return found == files
    sizes = [file["size"] for file in files]
    return [f["size"] for f in found] == sizes and _digest(paths) == record["digest"]


def _digest(paths: Iterable[Path]) -> str:
    """Return the hex BLAKE2b-256 of the contents of files, one after the other."""
    digest = hashlib.blake2b(digest_size=32)
    for path in paths:
        with path.open("rb") as file:
            while data := file.read(HASH_BYTES):
                digest.update(data)
    return digest.hexdigest()
