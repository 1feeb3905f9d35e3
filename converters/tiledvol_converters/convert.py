"""Conversion of one subject: slabs from sources into the arrays of a store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from tiledvol.errors import NamingError, SourceError
from tiledvol.geometry import Reorientation, orientation_of
from tiledvol.storage import catalogue
from tiledvol.storage.naming import check_name
from tiledvol.storage.spec import CODECS, DEFAULT_CHUNK, slab_thickness
from tiledvol.storage.store import Store
from tiledvol.storage.writer import ImageWriter, SubjectWriter, create_dataset
from tiledvol_converters.source import DoesNotFitError, Source, open_source

Progress = Callable[[str, int, int], None]
"""Called with an image's name, the bytes of voxels written so far, and all of the image's."""


@dataclass(frozen=True)
class Options:
    """How volumes are stored.

    Attributes
    ----------
    orientation : str
        Code of the stored axes, e.g. ``"RAS"``, or ``"native"`` to keep the source's.
    chunk : int or 3 int
        Edge of the blocks in voxels.
    codec : {"lz4", "zstd", "none"}
        Compression of the blocks.
    float_dtype : {"float32", "float64"}
        Type of voxels that are not integers.
    """

    orientation: str = "RAS"
    chunk: int | tuple[int, int, int] = DEFAULT_CHUNK
    codec: str = "lz4"
    float_dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.orientation != "native":
            object.__setattr__(self, "orientation", self.orientation.upper())
            Reorientation.between("RAS", self.orientation)
        edges = tuple(self.chunk) if isinstance(self.chunk, Sequence) else (self.chunk,) * 3
        if len(edges) != 3 or any(not isinstance(e, Integral) or e < 1 for e in edges):
            raise ValueError(f"chunk={self.chunk!r}: give one edge in voxels, or three")
        same = not isinstance(self.chunk, Sequence)
        x, y, z = (int(e) for e in edges)
        object.__setattr__(self, "chunk", x if same else (x, y, z))
        if self.codec not in CODECS:
            raise ValueError(f"codec={self.codec!r}: choose one of {', '.join(CODECS)}")
        if self.float_dtype not in ("float32", "float64"):
            raise ValueError(f"float_dtype={self.float_dtype!r}: choose float32 or float64")

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, part of a subject's fingerprint."""
        chunk = self.chunk if isinstance(self.chunk, int) else list(self.chunk)
        return {
            "orientation": self.orientation,
            "chunk": chunk,
            "codec": self.codec,
            "float_dtype": self.float_dtype,
        }


@dataclass(frozen=True)
class Plan:
    """What is to become one subject.

    Attributes
    ----------
    subject : str
        Name of the subject.
    images, labels : mapping of str to Path
        Source file of each image and label, by the name that it gets.
    """

    subject: str
    images: Mapping[str, Path] = field(default_factory=dict)
    labels: Mapping[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name(self.subject, "subject")
        for name in (*self.images, *self.labels):
            check_name(name, "image")
        names = [*self.images, *self.labels]
        if len({name.casefold() for name in names}) < len({*names}):
            raise NamingError(
                f"{self.subject}: names {sorted(names)} differ only in case, and would be one "
                f"folder on some systems"
            )
        if both := self.images.keys() & self.labels.keys():
            raise SourceError(f"{self.subject}: {sorted(both)} named as image and as label")
        if not self.images and not self.labels:
            raise SourceError(f"{self.subject}: neither images nor labels given")

    @property
    def sources(self) -> Iterator[tuple[str, str, Path]]:
        """Yield (name, kind, path) of all images, then of all labels."""
        yield from ((name, "image", Path(path)) for name, path in self.images.items())
        yield from ((name, "label", Path(path)) for name, path in self.labels.items())


@dataclass(frozen=True)
class Converted:
    """The outcome of one subject's conversion.

    Attributes
    ----------
    entry : dict
        The subject's catalogue entry.
    warnings : tuple of str
        What a user should know of the sources though they were converted.
    nbytes : int
        Bytes of the stored voxels before compression.
    """

    entry: dict[str, Any]
    warnings: tuple[str, ...]
    nbytes: int


def convert(
    url: str | os.PathLike[str],
    subject: str,
    images: Mapping[str, str | os.PathLike[str]] | None = None,
    labels: Mapping[str, str | os.PathLike[str]] | None = None,
    *,
    orientation: str = "RAS",
    chunk: int | tuple[int, int, int] = DEFAULT_CHUNK,
    codec: str = "lz4",
    float_dtype: str = "float32",
    progress: Progress | None = None,
) -> Converted:
    """Convert the files of one subject into a dataset, which is created if need be.

    A subject of that name is replaced once the new one is complete; if anything fails, the
    dataset stays as it was.

    Parameters
    ----------
    url : str or path
        The dataset.
    subject : str
        Name of the subject.
    images, labels : mapping of str to path
        Source file of each image (intensities) and label (class ids), by name.
    orientation, chunk, codec, float_dtype
        See `Options`.
    progress : callable, optional
        Called as slabs are written, see `Progress`.

    Raises
    ------
    SourceError
        If a file is damaged or unsupported; it names the file.
    NamingError
        If a name cannot be used.
    """
    plan = Plan(
        subject,
        {name: Path(path) for name, path in (images or {}).items()},
        {name: Path(path) for name, path in (labels or {}).items()},
    )
    options = Options(orientation, chunk, codec, float_dtype)
    store = create_dataset(url)
    converted = convert_subject(store, plan, options, progress)
    catalogue.update(store, add={subject: converted.entry})
    return converted


def convert_subject(
    store: Store, plan: Plan, options: Options, progress: Progress | None = None
) -> Converted:
    """Convert and commit one subject, leaving the catalogue to the caller; see `convert`."""
    warnings: list[str] = []
    records: dict[str, Any] = {}
    nbytes = 0
    with SubjectWriter(store, plan.subject) as writer:
        for name, kind, path in plan.sources:
            source = open_source(path, label=kind == "label", float_dtype=options.float_dtype)
            files = [stat_record(file) for file in source.files]
            image = _convert_image(writer, name, kind, source, options, progress)
            if files != [stat_record(file) for file in source.files]:
                raise SourceError(f"{path}: changed while it was read; convert it again")
            told = [*source.info.warnings, *source.late_warnings]
            if not source.exact:
                told.append(
                    f"stored as {image.summary.dtype}, which does not give back the file's own "
                    f"numbers to the last bit" + ("" if kind == "label" else "; --float64 may")
                )
            warnings += [f"{path}: {text}" for text in told]
            records[name] = {
                "kind": kind,
                "files": files,
                "digest": source.digest,
            }
            nbytes += int(np.prod(image.summary.shape)) * image.summary.dtype.itemsize
        entry = writer.commit({"options": options.to_json(), "sources": records})
    return Converted(entry, tuple(warnings), nbytes)


def stat_record(path: Path) -> dict[str, Any]:
    """Return name, size in bytes and modification time in ns: what tells a changed file."""
    try:
        stat = path.stat()
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
    return {"name": path.name, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _convert_image(
    writer: SubjectWriter,
    name: str,
    kind: str,
    source: Source,
    options: Options,
    progress: Progress | None,
) -> ImageWriter:
    """Stream one volume into the store, in the first of its dtypes that holds its values."""
    dtypes = list(source.info.dtypes)
    dtype = dtypes[0]
    while True:
        try:
            return _stream(writer, name, kind, source, dtype, options, progress)
        except DoesNotFitError as error:
            dtype = next(d for d in dtypes if np.can_cast(error.needed, d))


def _stream(
    writer: SubjectWriter,
    name: str,
    kind: str,
    source: Source,
    dtype: np.dtype[Any],
    options: Options,
    progress: Progress | None,
) -> ImageWriter:
    info = source.info
    native = orientation_of(info.affine)
    change = Reorientation.between(
        native, native if options.orientation == "native" else options.orientation
    )
    lead = () if info.channels is None else (info.channels,)
    slow = change.axes.index(info.slow_axis)
    image = writer.image(
        name,
        (*lead, *change.shape(info.shape)),
        dtype,
        change.affine(info.affine, info.shape),
        kind=kind,
        slow_axis=slow,
        chunk=options.chunk,
        codec=options.codec,
    )
    bounds = slab_bounds(
        info.shape[info.slow_axis],
        slab_thickness(image.summary.chunk_shape[len(lead) + slow]),
        flipped=change.flips[slow],
    )
    written, total = 0, int(np.prod((*lead, *info.shape))) * dtype.itemsize
    ranges = source.ranges(bounds)
    # The source is drawn from before its range is looked at: its end verifies checksums.
    for range_, slab in zip(ranges, source.slabs(dtype, ranges), strict=True):
        start = [0, 0, 0]
        size = info.shape[info.slow_axis]
        start[slow] = size - range_.stop if change.flips[slow] else range_.start
        stored = change.apply(slab)
        image.write((range_.channels[0], *start) if lead else start, stored if lead else stored[0])
        written += slab.nbytes
        if progress:
            progress(name, written, total)
    image.finish(
        {
            "exact": source.exact,
            "source": info.attributes,
            "source_geometry": {
                "shape": list(info.shape),
                "affine": info.affine.tolist(),
                "channels": info.channels,
                "slow_axis": info.slow_axis,
            },
        }
    )
    return image


def slab_bounds(size: int, thickness: int, flipped: bool) -> list[int]:
    """Return the bounds, in source voxels, of slabs that are whole in the stored array.

    Parameters
    ----------
    size : int
        Extent of the axis.
    thickness : int
        Of the stored slabs, counted from the stored array's beginning.
    flipped : bool
        Whether the stored axis runs against the source's.
    """
    stored = [*range(0, size, thickness), size]
    return [size - b for b in reversed(stored)] if flipped else stored
