"""NIfTI-1 and NIfTI-2: single files and ``.hdr``/``.img`` pairs, compressed or not."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from math import prod
from pathlib import Path
from threading import Event

import numpy as np

from tiledvol.errors import SourceError
from tiledvol_converters import nifti_header
from tiledvol_converters.content import describe
from tiledvol_converters.digest import new_digest
from tiledvol_converters.inflate import (
    INFLATE_BYTES,
    ByteStream,
    PlainStream,
    compression_of,
    head_of,
    largest_content,
    open_stream,
)
from tiledvol_converters.nifti_header import HEADER_BYTES, NiftiHeader
from tiledvol_converters.readahead import BUFFERS, read_ahead
from tiledvol_converters.scaling import (
    Array,
    Decoder,
    DType,
    image_dtypes,
    label_dtypes,
    make_decoder,
)
from tiledvol_converters.source import Format, SlabRange, SourceInfo

_NAME = re.compile(
    r"(?P<stem>.+)\.(?P<kind>nii|hdr|img)(?P<compression>\.(gz|bz2|zst))?", re.IGNORECASE
)
_COMPRESSED_NAMES = ("", ".gz", ".bz2", ".zst")


class NiftiFormat:
    """Recognises and opens NIfTI files; registered as a format of `tiledvol_converters.source`."""

    name = "NIfTI"

    def matches(self, path: Path, head: bytes) -> bool:
        """Tell whether a file begins with a NIfTI header, decompressed if need be.

        A file that is only named like one is claimed as well, so that `open` can say what it is.
        """
        if _NAME.fullmatch(path.name):
            return True
        if compression_of(head) is None:
            return nifti_header.is_header(head)
        try:
            return nifti_header.is_header(head_of(path, HEADER_BYTES))
        except SourceError:
            return False

    def open(self, path: Path, *, label: bool, float_dtype: DType) -> NiftiSource:
        """Open a volume by its file, or by either file of a pair.

        Raises
        ------
        SourceError
            If it cannot be converted, saying why.
        """
        return NiftiSource(_locate(path), label=label, float_dtype=float_dtype)


FORMAT: Format = NiftiFormat()


@dataclass(frozen=True)
class _Place:
    """Where a volume is: its header, and the files of header and voxels (often the same)."""

    header: NiftiHeader
    header_path: Path
    image_path: Path


def _locate(path: Path) -> _Place:
    """Find the header and the voxels of the volume that ``path`` belongs to."""
    head = head_of(path, HEADER_BYTES)
    if nifti_header.is_header(head):
        header = nifti_header.parse(head)
        return _Place(header, path, path if header.single else _partner(path, "img"))
    name = _NAME.fullmatch(path.name)
    if name and name["kind"].lower() == "img":
        place = _locate(_partner(path, "hdr"))
        if place.header.single:
            raise SourceError(
                f"{path}: {place.header_path.name} beside it holds voxels of its own, and is no "
                f"header of this file"
            )
        return _Place(place.header, place.header_path, path)
    content = nifti_header.describe_header(head) or describe(head)
    raise SourceError(f"{path}: not a NIfTI file: the content is {content}")


def _partner(path: Path, kind: str) -> Path:
    """Return the other file of a pair; one that is compressed alike is preferred."""
    name = _NAME.fullmatch(path.name)
    if name is None or name["kind"].lower() not in ("hdr", "img"):
        raise SourceError(
            f"{path}: the header of a pair, whose voxels lie in a file of their own; it must be "
            f"named .hdr, and the other file .img"
        )
    kind = kind.upper() if name["kind"].isupper() else kind
    for compression in (name["compression"] or "", *_COMPRESSED_NAMES):
        partner = path.with_name(f"{name['stem']}.{kind}{compression}")
        if partner.is_file():
            return partner
    raise SourceError(f"{path}: half of a pair; {name['stem']}.{kind} is missing beside it")


class NiftiSource:
    """A NIfTI volume as a `Source`.

    The channels are those of axes 4 to 7 in the file's order, and within each of them, fastest,
    the components of colour voxels. Slabs stream along the last spatial axis longer than 1.
    """

    def __init__(self, place: _Place, *, label: bool, float_dtype: DType) -> None:
        header, path = place.header, place.image_path
        dims = nifti_header.voxel_dims(header, place.header_path)
        self._raw, self._components = nifti_header.voxel_type(header, place.header_path)
        self._scaling = nifti_header.voxel_scaling(header, place.header_path)
        self._offset = nifti_header.voxel_offset(header, place.header_path)
        self._label = label
        self._place = place
        self._volumes = prod(dims[3:])
        self._end = self._offset + prod(dims) * self._components * self._raw.itemsize
        self._check_size(dims)
        if label and self._components > 1:
            raise SourceError(f"{path}: voxels are colours, not class ids; convert it as an image")
        shape = (dims[0], dims[1], dims[2])
        channels = self._volumes * self._components
        geometry = nifti_header.geometry(header, shape)
        self.files = tuple(dict.fromkeys((place.header_path, path)))
        self.info = SourceInfo(
            shape=shape,
            channels=None if channels == 1 else channels,
            affine=geometry.affine,
            slow_axis=max((axis for axis in range(3) if shape[axis] > 1), default=2),
            dtypes=label_dtypes(self._raw, self._scaling)
            if label
            else image_dtypes(self._raw, self._scaling, float_dtype),
            attributes=nifti_header.attributes(header, self._scaling, geometry.origin),
            warnings=(*geometry.warnings, *nifti_header.header_warnings(header)),
        )
        self.digest = ""
        self.late_warnings: list[str] = []
        self.exact = True

    def _check_size(self, dims: Sequence[int]) -> None:
        """Refuse voxels that the file has no room for, before anything is allocated for them."""
        path = self._place.image_path
        most = largest_content(path)
        if self._end > most:
            raise SourceError(
                f"{path}: the header claims {'×'.join(str(d) for d in dims if d > 1) or 1} voxels, "
                f"up to byte {self._end}, but a file of {path.stat().st_size} bytes can hold no "
                f"more than {most}: it is cut off, or the header is wrong"
            )

    def ranges(self, bounds: Sequence[int]) -> list[SlabRange]:
        """Return, in file order, the ranges between successive ``bounds`` of all channels."""
        n = self._components
        return [
            SlabRange((v * n, (v + 1) * n), start, stop)
            for v in range(self._volumes)
            for start, stop in pairwise(bounds)
        ]

    def slabs(self, dtype: DType, ranges: Iterable[SlabRange]) -> Iterator[Array]:
        """Yield the voxels of each range, of shape (C, X, Y, Z), in Fortran order.

        A range must lie within one of the volumes that `ranges` tells apart.
        """
        extents = [self._extent(r) for r in ranges]
        if any(start + prod(shape) > after for (start, shape), (after, _) in pairwise(extents)):
            raise ValueError("ranges must be in the file's order, and apart from one another")
        return read_ahead(lambda stop: self._read(np.dtype(dtype), extents, stop))

    def _extent(self, range_: SlabRange) -> tuple[int, tuple[int, int, int, int]]:
        """Return the first number of a range in the file's order, and its shape in that order."""
        first, last = range_.channels
        shape, slow = list(self.info.shape), self.info.slow_axis
        size = shape[slow]
        shape[slow] = range_.stop - range_.start
        if (
            first % self._components
            or last != first + self._components
            or not 0 <= range_.start < range_.stop <= size
        ):
            raise ValueError(f"{range_} is not within one volume of {self._place.image_path}")
        plane = prod(self.info.shape[:slow]) * self._components
        start = first // self._components * size + range_.start
        return start * plane, (self._components, shape[0], shape[1], shape[2])

    def _read(
        self, dtype: DType, extents: list[tuple[int, tuple[int, int, int, int]]], stop: Event
    ) -> Generator[Array, None, None]:
        """Read all extents, then what follows; runs in the thread of `read_ahead`."""
        path = self._place.image_path
        decoder = make_decoder(
            path, self._raw, dtype, self._scaling, self.info.dtypes, label=self._label
        )
        largest = max((prod(shape) for _, shape in extents), default=0)
        buffers = cycle([np.empty(largest, dtype) for _ in range(min(BUFFERS, len(extents)))])
        digest = new_digest()
        if path != self._place.header_path:
            with PlainStream(self._place.header_path, digest) as stream:
                stream.drain()
        with open_stream(path, digest) as stream:
            at = 0
            for (start, shape), buffer in zip(extents, buffers, strict=False):
                slab = buffer[: prod(shape)]
                at = self._skip_to(stream, at, self._offset + start * self._raw.itemsize)
                at = self._fill(stream, decoder, slab, at, stop)
                if stop.is_set():
                    return
                yield slab.reshape(shape, order="F")
            self._skip_to(stream, at, self._end)
            self._finish(stream)
        self.digest = digest.hexdigest()
        self.exact = decoder.exact

    def _fill(self, stream: ByteStream, decoder: Decoder, slab: Array, at: int, stop: Event) -> int:
        """Read and decode a slab from byte ``at`` on, in pieces that stay in the processor's cache.

        Returns the byte after the last one read.
        """
        step = INFLATE_BYTES // self._raw.itemsize
        for first in range(0, len(slab), step):
            if stop.is_set():
                break
            piece = slab[first : first + step]
            raw = decoder.room(piece)
            got = stream.readinto(raw.view(np.uint8).data)
            self._check_there(at, raw.nbytes, got)
            at += got
            decoder.decode(raw, piece)
        return at

    def _skip_to(self, stream: ByteStream, at: int, target: int) -> int:
        got = stream.skip(target - at)
        self._check_there(at, target - at, got)
        return target

    def _check_there(self, at: int, wanted: int, got: int) -> None:
        """Raise unless all bytes wanted from byte ``at`` on were there."""
        if got < wanted:
            raise SourceError(
                f"{self._place.image_path}: cut off: {self._end - at - got} bytes of voxels are "
                f"missing; copy or download the file again"
            )

    def _finish(self, stream: ByteStream) -> None:
        """Read what is behind the last voxel."""
        extra = stream.drain()
        self.late_warnings = []
        if extra:
            self.late_warnings.append(f"{extra} bytes after the last voxel are ignored")
        if stream.garbage:
            self.late_warnings.append(
                f"{stream.garbage} bytes after the end of the compressed data are ignored"
            )
