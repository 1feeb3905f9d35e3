"""What an input format implements: geometry first, then voxels in slabs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tiledvol.errors import SourceError
from tiledvol.geometry import Affine

SNIFF_BYTES = 4096
"""How much of a file's beginning a format is shown to tell whether the file is its own."""


@dataclass(frozen=True)
class SourceInfo:
    """What is known of a volume before its voxels are read.

    Attributes
    ----------
    shape : tuple of int
        Spatial shape (X, Y, Z) in the source's own axis order.
    channels : int or None
        Number of channels or time points; None for a plain 3D volume.
    affine : (4, 4) float64
        Voxel centre -> RAS+ mm, in the source's own axis order.
    slow_axis : int
        The spatial axis along which slabs stream.
    dtypes : tuple of numpy.dtype
        Types in native byte order that the stored voxels may have, the preferred one first. Where
        values turn out not to fit, ``slabs`` raises `DoesNotFitError` and the next is tried.
    attributes : dict
        JSON-able facts to keep with the image: header, scaling, units, geometry codes.
    warnings : tuple of str
        What a user should know of this file though it can be converted.
    """

    shape: tuple[int, int, int]
    channels: int | None
    affine: Affine
    slow_axis: int
    dtypes: tuple[np.dtype[Any], ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class SlabRange:
    """A request for voxels: some channels, and a half-open range along the slow axis."""

    channels: tuple[int, int]
    start: int
    stop: int


class DoesNotFitError(Exception):
    """A voxel value does not fit the dtype asked for; ``needed`` is one that holds it."""

    def __init__(self, needed: np.dtype[Any]) -> None:
        super().__init__(f"needs {needed}")
        self.needed = needed


class Source(Protocol):
    """One volume in some format.

    Invariants
    ----------
    - ``info`` is read at construction, from headers alone; a file that cannot be converted raises
      `SourceError` there, before any voxel is allocated.
    - ``slabs(dtype, ranges)`` yields one array per range, in order, of shape
      (C, X, Y, Z) with C the range's channels (1 where ``info.channels`` is None) and the slow
      axis cut to the range, in native byte order, dtype ``dtype``, scaled to real-world values.
      Ranges are given in the order in which the file holds them. An array yielded may not be
      used after two further ones have been: its memory may serve again.
    - After the last slab the whole input has been read: checksums are verified, ``digest`` is the
      hex BLAKE2b-256 of the input's bytes, ``late_warnings`` holds what only a full read shows.
    - Damage raises `SourceError`, naming the file; values beyond ``dtype`` raise
      `DoesNotFitError`. ``slabs`` can be called again, and starts again from the beginning.
    """

    files: tuple[Path, ...]
    info: SourceInfo
    digest: str
    late_warnings: list[str]
    exact: bool
    """After the last slab: whether the stored voxels give back the file's own, bit for bit."""

    def ranges(self, bounds: Sequence[int]) -> list[SlabRange]:
        """Return, in file order, the ranges between successive ``bounds`` of all channels."""
        ...

    def slabs(
        self, dtype: np.dtype[Any], ranges: Iterable[SlabRange]
    ) -> Iterator[npt.NDArray[Any]]:
        """Yield the voxels of each range."""
        ...


class Format(Protocol):
    """A file format: how to recognise it, and how to open it.

    Third parties register one under the entry point group ``tiledvol.sources``.
    """

    name: str

    def matches(self, path: Path, head: bytes) -> bool:
        """Tell from the first `SNIFF_BYTES` bytes whether the file is of this format."""
        ...

    def open(self, path: Path, *, label: bool, float_dtype: np.dtype[Any]) -> Source:
        """Open one volume.

        Parameters
        ----------
        label : bool
            Whether voxels are class ids: rounded to, and stored as, unsigned integers.
        float_dtype : numpy.dtype
            float32 or float64: the type of voxels that are not integers.
        """
        ...


@cache
def formats() -> tuple[Format, ...]:
    """Return the registered formats."""
    return tuple(point.load() for point in sorted(entry_points(group="tiledvol.sources")))


def find_format(path: Path) -> Format | None:
    """Return the format that recognises the file, or None."""
    with path.open("rb") as file:
        head = file.read(SNIFF_BYTES)
    return next((format_ for format_ in formats() if format_.matches(path, head)), None)


def open_source(
    path: Path, *, label: bool = False, float_dtype: npt.DTypeLike = np.float32
) -> Source:
    """Open a file with the format that recognises its content.

    Raises
    ------
    SourceError
        If the file cannot be read, no format recognises it, or it cannot be converted.
    """
    try:
        format_ = find_format(path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
    if format_ is None:
        names = ", ".join(f.name for f in formats())
        raise SourceError(f"{path}: not a format that tiledvol knows ({names})")
    return format_.open(path, label=label, float_dtype=np.dtype(float_dtype))
