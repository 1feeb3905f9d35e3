"""Which files are volumes, and which of them are one subject.

An input is a file, a folder, or a glob (``*``, ``?``, ``[]``, and ``**`` for any depth), which is
expanded here too, so that it means the same in quotes as without.

What is taken
    Files that a registered format recognises. In a folder, searched with all below it, other files
    are counted and otherwise ignored; a file that is named, itself or by a glob, and not
    recognised is a failure. Hidden files and folders, and folders that are zarr stores, are left
    out; links to folders are followed, but no folder is entered twice. Of a pair ``.hdr`` and
    ``.img``, the ``.hdr`` stands for both. A file that is named twice counts once.

What it is called
    `tiledvol_converters.names` has the rules.

What is refused
    Two files that would become the same image, subjects that differ only by case or Unicode form,
    and names that `tiledvol.storage.naming.check_name` refuses: the whole subject is a failure.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from tiledvol.errors import SourceError, TiledvolError
from tiledvol_converters.convert import Plan
from tiledvol_converters.names import FoundFile, NamedFile, fold, name_files, place_of, stem_of
from tiledvol_converters.source import find_format

StrPath = str | os.PathLike[str]

_IMG = re.compile(r"(?P<stem>.+)\.img(\.(gz|bz2|zst))?", re.IGNORECASE)


@dataclass(frozen=True)
class Failure:
    """An input of which no subject comes.

    Attributes
    ----------
    name : str
        The input, file or subject.
    reason : str
        What is wrong, and what to do.
    """

    name: str
    reason: str


@dataclass(frozen=True)
class Discovery:
    """What was found in the inputs.

    Attributes
    ----------
    plans : tuple of Plan
        The subjects, by name.
    failures : tuple of Failure
        Inputs, files and subjects that cannot be used.
    ignored : int
        Files in folders that are no volumes.
    """

    plans: tuple[Plan, ...]
    failures: tuple[Failure, ...] = ()
    ignored: int = 0


def discover(
    inputs: Iterable[StrPath],
    *,
    labels: Sequence[str] = (),
    subject: str | None = None,
    image: str | None = None,
) -> Discovery:
    """Find the volumes in files, folders and globs, by the rules of this module and of `names`.

    Parameters
    ----------
    inputs : iterable of str or path
        Files, folders and globs.
    labels : sequence of str
        Patterns of what is a label.
    subject, image : str, optional
        Names to use instead of those that the rules give, where there is only one file.

    Raises
    ------
    SourceError
        If ``subject`` or ``image`` is given, and there is not exactly one file.
    """
    search = _Search()
    for given in inputs:
        search.add(os.fspath(given))
    files = list(search.files.values())
    named = name_files(files, tuple(p.casefold() for p in labels))
    remedy = "rename the file, or convert it alone with a name for it"
    if subject is not None or image is not None:
        if len(named) != 1:
            raise SourceError(
                f"a name for the subject or image can be given with one file, not {len(named)}"
            )
        only = named[0]
        named = [NamedFile(only.path, subject or only.subject, image or only.image, only.kind)]
        remedy = "give another name"
    plans, refused = _group(named, remedy)
    return Discovery(tuple(plans), (*search.failures, *refused), search.ignored)


class _Search:
    """Files collected from inputs."""

    def __init__(self) -> None:
        self.files: dict[str, FoundFile] = {}
        self.failures: list[Failure] = []
        self.ignored = 0

    def add(self, given: str) -> None:
        """Search one input."""
        if os.path.lexists(given) or not has_magic(given):
            self._add_path(given)
            return
        found = sorted(glob(given, recursive=True))  # noqa: PTH207 - may be absolute
        for path in found:
            self._add_path(path)
        if not found:
            self._fail(given, "nothing matches this pattern")

    def _fail(self, name: str | Path, reason: str) -> None:
        self.failures.append(Failure(str(name), reason))

    def _add_path(self, given: str) -> None:
        try:
            mode = os.stat(given).st_mode  # noqa: PTH116 - "" is no path to pathlib
        except OSError as error:
            self._fail(given, f"cannot be read: {error.strerror}")
            return
        path = Path(given)
        absolute = Path(os.path.abspath(path))  # noqa: PTH100 - links keep their names
        if S_ISDIR(mode):
            self._add_folder(path, *place_of(absolute))
        elif not S_ISREG(mode):
            self._fail(path, "neither a file nor a folder")
        elif not self._take(FoundFile(path, *place_of(absolute.parent)), given=True):
            self._fail(path, "not a volume in any format that tiledvol knows")

    def _add_folder(self, top: Path, base: str, above: tuple[str, ...]) -> None:
        failures, taken, ignored = len(self.failures), 0, 0
        for path, below in self._walk(top):
            if self._take(FoundFile(path, base, (*above, *below))):
                taken += 1
            else:
                ignored += 1
        self.ignored += ignored
        if not taken and len(self.failures) == failures:
            counted = f"{ignored} other file{'s' if ignored != 1 else ''}"
            self._fail(top, f"holds no volume in any format that tiledvol knows, but {counted}")

    def _walk(self, top: Path) -> Iterator[tuple[Path, tuple[str, ...]]]:
        """Yield all files below a folder, and the names of the folders in between."""
        entered: set[tuple[int, int]] = set()
        waiting: list[tuple[Path, tuple[str, ...]]] = [(top, ())]
        while waiting:
            folder, names = waiting.pop()
            try:
                stat = folder.stat()
                found = sorted(p for p in folder.iterdir() if p.name[0] != ".")
            except OSError as error:
                self._fail(folder, f"cannot be read: {error.strerror}")
                continue
            if any(p.name == "zarr.json" for p in found):
                if folder == top:
                    self._fail(top, "a zarr store; give the files that it was made from")
                continue
            if (stat.st_dev, stat.st_ino) in entered:
                continue
            entered.add((stat.st_dev, stat.st_ino))
            for path in reversed(found):
                if os.path.isdir(path):  # noqa: PTH112 - pathlib's raises where it may not look
                    waiting.append((path, (*names, path.name)))
                else:
                    yield path, names

    def _take(self, file: FoundFile, given: bool = False) -> bool:
        """Keep a file if it is a volume; tell whether it is one.

        One that cannot be read, and was given or is named like a volume, is kept as well, so
        that its subject becomes a failure that says why.
        """
        path = _header_of(file.path)
        key = os.path.abspath(path)  # noqa: PTH100 - links to one file are several volumes
        if key in self.files:
            return True
        try:
            # What is no ordinary file, such as a pipe, is not opened: that may never return.
            is_volume = S_ISREG(path.stat().st_mode) and find_format(path) is not None
        except OSError:
            is_volume = given or stem_of(path.name) != path.name
        if is_volume:
            self.files[key] = FoundFile(path, file.base, file.folders)
        return is_volume


def _header_of(path: Path) -> Path:
    """Return the ``.hdr`` file that the ``.img`` file at ``path`` belongs to, else ``path``."""
    if match := _IMG.fullmatch(path.name):
        for suffix in (".hdr", ".hdr.gz", ".hdr.bz2", ".hdr.zst", ".HDR"):
            header = path.with_name(match["stem"] + suffix)
            if header.is_file():
                return header
    return path


def _group(named: Iterable[NamedFile], remedy: str) -> tuple[list[Plan], list[Failure]]:
    """Make plans of files, one per subject, and failures of the subjects that cannot be.

    ``remedy`` says what to do about a name that cannot be used.
    """
    subjects: dict[str, list[NamedFile]] = defaultdict(list)
    for file in named:
        subjects[fold(file.subject)].append(file)
    plans: list[Plan] = []
    failures: list[Failure] = []
    for _, files in sorted(subjects.items()):
        name = files[0].subject
        if clash := _clash(files):
            failures.append(Failure(name, clash))
            continue
        by_kind = {
            kind: {f.image: f.path for f in files if f.kind == kind} for kind in ("image", "label")
        }
        try:
            plans.append(Plan(name, by_kind["image"], by_kind["label"]))
        except TiledvolError as error:
            failures.append(Failure(str(files[0].path), f"{error}; {remedy}"))
    return sorted(plans, key=lambda plan: plan.subject), failures


def _clash(files: list[NamedFile]) -> str | None:
    """Say which two files of a subject cannot both be, if there are such."""
    first: dict[str, NamedFile] = {}
    for file in files:
        if file.subject != files[0].subject:
            return (
                f"{files[0].path} and {file.path} become the subjects {files[0].subject!r} and "
                f"{file.subject!r}, which some file systems take for the same: rename one"
            )
        name = f"{file.subject}/{file.image}"
        other = first.setdefault(fold(file.image), file)
        if other is not file:
            remedy = "rename or move one"
            if other.path.parent != file.path.parent:
                remedy += (
                    ", or give the folder above them, whose sub-folders then name the subjects"
                )
            return f"{other.path} and {file.path} would both become {name}: {remedy}"
    return None
