"""What the parts of the loader benchmark share: the data's place, and what a contender is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Batch = Any
"""(image, label) tensors, (B, 1, X, Y, Z) each; None from the ceiling, which assembles nothing."""

CLASSES = {"background": 0, "lung": 1, "organ": 2, "bone": 3}
"""The phantom's."""

FOREGROUND = 1 / 3
"""Share of patches around a voxel of a class but background."""


@dataclass(frozen=True)
class Work:
    """The benchmark's data and task.

    Attributes
    ----------
    folder : Path
        Holds ``nifti``, and for each group of contenders a folder of its name.
    patch : int
        Edge of the patches in voxels.
    batch : int
        Patches per batch.
    """

    folder: Path
    patch: int
    batch: int

    @cached_property
    def subjects(self) -> list[str]:
        """Ids, rising."""
        found = (self.folder / "nifti").glob("*_ct.nii.gz")
        return sorted(path.name.removesuffix("_ct.nii.gz") for path in found)

    @property
    def store(self) -> Path:
        """The tiledvol dataset."""
        return self.folder / "tiledvol" / "ct.tvol"

    @property
    def patch_size(self) -> tuple[int, int, int]:
        """Of a patch."""
        return (self.patch,) * 3

    def nifti(self, subject: str, name: str) -> Path:
        """Return the file of a subject's ``ct`` or ``seg``."""
        return self.folder / "nifti" / f"{subject}_{name}.nii.gz"

    def load(self, subject: str) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.uint8]]:
        """Return a subject's image and label, (X, Y, Z)."""
        import nibabel as nib

        load: Any = nib.load
        image, label = (np.asarray(load(self.nifti(subject, n)).dataobj) for n in ("ct", "seg"))
        return image, label


def one_batch(_: Work) -> int:
    """Return 1: batches come evenly, none is dearer than others."""
    return 1


@dataclass(frozen=True)
class Contender:
    """One way to load patches.

    Attributes
    ----------
    title : str
        For the table.
    open : callable
        Returns batches without end; called, and all of its batches taken, in one process.
    cycle : callable
        Batches after which the work of filling a queue has been paid for once more, so that only
        whole cycles are timed.
    slow : bool
        Measured in the first round only.
    """

    title: str
    open: Callable[[Work], Iterator[Batch]]
    cycle: Callable[[Work], int] = one_batch
    slow: bool = False


@dataclass(frozen=True)
class Group:
    """Contenders of one library.

    Attributes
    ----------
    needs : mapping of str to str
        Distributions that must be installed, each with what its version must begin with.
    imports : sequence of str
        Modules that the contenders import.
    contenders : mapping of str to Contender
        By a name that begins with the group's.
    prepare : callable
        Writes the data in the library's own format, into a folder of the group's name.
    """

    needs: Mapping[str, str]
    imports: Sequence[str]
    contenders: Mapping[str, Contender]
    prepare: Callable[[Work], None] = field(default=lambda _: None)


def repeat(epoch: Callable[[], Iterable[Batch]]) -> Iterator[Batch]:
    """Yield one epoch after the other."""
    while True:
        yield from epoch()
