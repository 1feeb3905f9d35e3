"""What subject and image a file becomes: the rules of names.

What it is called, `STEM` being the file's name without ``.nii.gz`` and the like
    1. In a folder ``images`` or ``labels`` or ``masks`` (also ``imagesTr``, ``labels_test``, ...):
       the subject is `STEM`, after the names of the folders around it; the image is ``image``, or
       ``label`` in the latter two. So ``imagesTr/x.nii.gz`` and ``labelsTr/x.nii.gz`` pair up.
    2. Elsewhere in a sub-folder of the folder given: the subject is the folders' names joined by
       ``_``; the image is `STEM`, without the folders' names where it begins with these. So
       ``case_001/case_001_ct.nii.gz`` is ``case_001/ct``. The folders ``anat``, ``func``,
       ``dwi``, ``fmap`` and ``perf`` of BIDS are left out, and so is ``segmentations``, which
       makes its files labels.
    3. A file right in the folder given, or named itself: where `STEM` ends with a known word
       (`LABEL_WORDS`, `IMAGE_WORDS`), that is the image, and what is before it the subject:
       ``p1_T1w.nii.gz`` is ``p1/T1w``. Else the subject is `STEM`, the image ``image``.

    Known words are also split off in rule 1, and whatever the rule, a `STEM` of known words alone
    takes the name of the folder that the file lies in for its subject.

Which files are the channels of one subject
    Where ``images*`` holds ``p1_0000``, and ``labels*`` or ``masks*`` beside it ``p1`` but not
    ``p1_0000``, the files of that dataset, which is the folder above, are numbered as nnU-Net's raw
    data: of every `STEM` in its ``images*`` that ends so, labelled or not, the number is no part of
    the subject but of the image, ``p1/image_0000`` and so on; plain ``p1/image`` where no other
    number than 0000 occurs.

What is a label
    What rules 1 and 2 say is one; what ends with a word of `LABEL_WORDS`; and what matches a
    pattern given as ``labels``: a pattern with a slash is compared with the path or its end,
    another with the name of the image, the name of the file and `STEM`, all without regard to
    case. A pattern that does not begin with a wildcard is a known word as well: ``lesion`` makes
    of ``p1_lesion.nii.gz`` the label ``p1/lesion``.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

LABEL_WORDS = frozenset([
    "seg", "dseg", "segm", "segmentation", "segmentations", "label", "labels", "lbl", "mask",
    "masks", "gt", "groundtruth", "aseg", "aparc+aseg",
])  # fmt: skip
"""Last words of a file's name that say it is a label."""

IMAGE_WORDS = frozenset([
    "image", "img", "volume", "vol", "ct", "cta", "cbct", "pt", "pet", "mr", "mri", "t1", "t1w",
    "t1c", "t1ce", "t1gd", "t1n", "t2", "t2w", "t2f", "t2star", "t2starw", "flair", "pd", "pdw",
    "dwi", "adc", "bold", "dce", "swi",
])  # fmt: skip
"""Last words of a file's name that say which image it is."""

BIDS_FOLDERS = frozenset(["anat", "func", "dwi", "fmap", "perf"])
"""Folders of BIDS that sort the images of one subject."""

LABEL_FOLDER = "segmentations"
"""Folder of TotalSegmentator that holds the labels of one subject."""

SUFFIXES = frozenset([
    ".nii", ".nia", ".hdr", ".img", ".nrrd", ".nhdr", ".mha", ".mhd", ".mgh", ".mgz", ".dcm",
    ".gz", ".bz2", ".zst", ".xz",
])  # fmt: skip
"""Endings that are not part of a name."""

_ROLE_FOLDER = re.compile(
    r"(images|labels|masks)[-_]?(tr|train|training|ts|test|testing|va|val|validation)?"
)
_WORD_BREAK = re.compile(r"[-_. ]")
_NUMBERED = re.compile(r"(?P<case>.+)_(?P<number>[0-9]{4})")


@dataclass(frozen=True)
class FoundFile:
    """A volume, and where in the input it lies.

    Attributes
    ----------
    path : Path
        The file.
    base : str
        Name of the folder given, or of that of a file given, or above it where it only sorts.
    folders : tuple of str
        Names of the folders from there down to the file, and of sorting ones just above.
    """

    path: Path
    base: str
    folders: tuple[str, ...] = ()


@dataclass(frozen=True)
class NamedFile:
    """A volume and its names.

    Attributes
    ----------
    path : Path
        The file.
    subject, image : str
        Names that it gets, not checked yet.
    kind : {"image", "label"}
        Whether voxels are intensities or class ids.
    """

    path: Path
    subject: str
    image: str
    kind: str


@dataclass(frozen=True)
class _Channel:
    """A numbered file: the folder of its dataset, and the two parts of its stem."""

    dataset: Path
    case: str
    number: str


def place_of(folder: Path) -> tuple[str, tuple[str, ...]]:
    """Return the name that a folder gives to subjects, and those of sorting folders below it."""
    below: list[str] = []
    while folder.name.lower() in BIDS_FOLDERS | {LABEL_FOLDER} or _role(folder.name):
        below.insert(0, folder.name)
        folder = folder.parent
    return folder.name, tuple(below)


def _role(folder: str) -> str | None:
    """Return what a folder that sorts files by kind holds: images, labels or masks."""
    match = _ROLE_FOLDER.fullmatch(folder.lower())
    return match[1] if match else None


def name_files(files: Sequence[FoundFile], patterns: tuple[str, ...]) -> list[NamedFile]:
    """Give files their names, by the rules of this module.

    Parameters
    ----------
    files : sequence of FoundFile
        All files, since one may say what another is.
    patterns : tuple of str
        What is a label, in lower case (``str.casefold``).
    """
    named = [_name_file(file, patterns) for file in files]
    channels = _channels(files)
    numbers: dict[Path, set[str]] = defaultdict(set)
    for channel in channels.values():
        numbers[channel.dataset].add(channel.number)
    for place, channel in channels.items():
        file = files[place]
        case = _name_file(replace(file, path=file.path.with_name(channel.case)), patterns)
        image = case.image if case.kind == "image" else "image"
        if numbers[channel.dataset] != {"0000"}:
            image = f"{image}_{channel.number}"
        named[place] = replace(named[place], subject=case.subject, image=image)
    return named


def _channels(files: Sequence[FoundFile]) -> dict[int, _Channel]:
    """Return which files are channels of their datasets' cases, by their places in ``files``."""
    labelled: set[tuple[Path, str]] = set()
    candidates: dict[int, _Channel] = {}
    for place, file in enumerate(files):
        if not file.folders or not (role := _role(file.folders[-1])):
            continue
        dataset = Path(os.path.abspath(file.path)).parents[1]  # noqa: PTH100 - as links are named
        stem = stem_of(file.path.name)
        if role != "images":
            labelled.add((dataset, stem))
        elif numbered := _NUMBERED.fullmatch(stem):
            candidates[place] = _Channel(dataset, numbered["case"], numbered["number"])
    channels = {
        place: channel
        for place, channel in candidates.items()
        if (channel.dataset, f"{channel.case}_{channel.number}") not in labelled
    }
    datasets = {c.dataset for c in channels.values() if (c.dataset, c.case) in labelled}
    return {place: c for place, c in channels.items() if c.dataset in datasets}


def _name_file(file: FoundFile, patterns: tuple[str, ...]) -> NamedFile:
    """Give a file the names that its own place and stem say."""
    stem = stem_of(file.path.name)
    folders = tuple(f for f in file.folders if f.lower() not in BIDS_FOLDERS)
    outer, parent = folders[:-1], folders[-1] if folders else ""
    role = _role(parent)
    is_label = role in ("labels", "masks") or parent.lower() == LABEL_FOLDER
    if parent.lower() == LABEL_FOLDER:
        subject, image = "_".join(outer) or file.base, _without(stem, outer)
    elif folders and role is None:
        subject, image = "_".join(folders), _without(stem, folders)
    else:
        rest, image = _split(stem, patterns)
        subject = "_".join((*outer, rest) if rest else outer) or file.base
        if is_label and not _is_label_word(image, patterns):
            image = None
    last_word = _WORD_BREAK.split(image)[-1] if image else None
    is_label |= _is_label_word(last_word, patterns) or _matches(file.path, image, patterns)
    kind = "label" if is_label else "image"
    return NamedFile(file.path, subject, image or kind, kind)


def stem_of(name: str) -> str:
    """Return a file's name without its endings, e.g. without ``.nii.gz``."""
    while (suffix := Path(name).suffix).lower() in SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def _split(stem: str, patterns: tuple[str, ...]) -> tuple[str, str | None]:
    """Split a known last word off; nothing is left before it where all words are known."""
    words = _WORD_BREAK.split(stem)
    known = [w.lower() in IMAGE_WORDS or _is_label_word(w, patterns) for w in words]
    if all(known):
        return "", stem
    if not known[-1]:
        return stem, None
    return stem[: -len(words[-1]) - 1], words[-1]


def _is_label_word(word: str | None, patterns: tuple[str, ...]) -> bool:
    if not word:
        return False
    folded = word.casefold()
    return folded in LABEL_WORDS or any(
        fnmatchcase(folded, p) for p in patterns if p[:1] not in ("*", "?", "[")
    )


def _matches(path: Path, image: str | None, patterns: tuple[str, ...]) -> bool:
    """Tell whether a pattern of labels matches."""
    whole = path.as_posix().casefold()
    names = [path.name.casefold(), stem_of(path.name).casefold(), (image or "").casefold()]
    return any(
        fnmatchcase(whole, pattern) or fnmatchcase(whole, f"*/{pattern}")
        if "/" in pattern
        else any(fnmatchcase(name, pattern) for name in names)
        for pattern in patterns
    )


def _without(stem: str, folders: tuple[str, ...]) -> str | None:
    """Return a file's stem without the names of its folders before it; None if nothing is left."""
    for first in range(len(folders)):
        prefix = "_".join(folders[first:])
        if stem == prefix:
            return None
        if stem.startswith(prefix) and stem[len(prefix)] in "_-" and len(stem) > len(prefix) + 1:
            return stem[len(prefix) + 1 :]
    return stem


def fold(name: str) -> str:
    """Return what two names have in common that some file systems take for the same."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
