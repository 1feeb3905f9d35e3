"""NIfTI files made by hand, field by field from the standard's table, and how to read them whole.

No library's idea of the format is in the files.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from tiledvol_converters.source import DoesNotFitError, Source, open_source

CODES = {
    "uint8": 2, "int16": 4, "int32": 8, "float32": 16, "complex64": 32, "float64": 64,
    "int8": 256, "uint16": 512, "uint32": 768, "int64": 1024, "uint64": 1280,
}  # fmt: skip


def nifti1(
    voxels: np.ndarray,
    *,
    order: str = "<",
    magic: bytes = b"n+1\0",
    dim: Sequence[int] | None = None,
    datatype: int | None = None,
    pixdim: Sequence[float] = (1, 1, 1, 1),
    offset: float = 352,
    slope: float = 0,
    inter: float = 0,
    units: int = 2,
    qform: tuple[int, Sequence[float], Sequence[float]] = (0, (0, 0, 0), (0, 0, 0)),
    sform: tuple[int, Sequence[Sequence[float]]] = (1, np.eye(4)),
    text: bytes = b"",
    intent: int = 0,
) -> bytes:
    """Return a NIfTI-1 file; with magic ``ni1`` its header alone.

    ``qform`` is (code, quaternion b c d, offset), ``sform`` (code, matrix).
    """
    shape = voxels.shape
    dims = dim or (len(shape), *shape)
    h = bytearray(348)

    def put(place: int, kind: str, *values: object) -> None:
        struct.pack_into(order + kind, h, place, *values)

    put(0, "i", 348)
    put(4, "10s18s", text, text)
    put(40, f"{len(dims)}h", *dims)
    put(68, "hhh", intent, datatype or CODES[voxels.dtype.name], 8 * voxels.dtype.itemsize)
    put(76, f"{len(pixdim)}f", *pixdim)
    put(108, "fff", offset, slope, inter)
    put(123, "B", units)
    put(148, "80s24s", text, text)
    put(252, "hh", qform[0], sform[0])
    put(256, "6f", *qform[1], *qform[2])
    put(280, "12f", *np.ravel(sform[1])[:12])
    put(328, "16s4s", text, magic)
    if magic.startswith(b"ni1"):
        return bytes(h)
    gap = bytes(max(int(offset) - 348, 0)) if np.isfinite(offset) else bytes(4)
    return bytes(h) + gap + payload(voxels, order)


def payload(voxels: np.ndarray, order: str = "<") -> bytes:
    """Return voxels as a file holds them: first axis fastest."""
    return voxels.astype(voxels.dtype.newbyteorder(order)).tobytes(order="F")


def nifti2(voxels: np.ndarray, order: str = "<", dim: Sequence[int] | None = None) -> bytes:
    """Return a NIfTI-2 file with the identity as its sform."""
    h = bytearray(540)
    dims = dim or (voxels.ndim, *voxels.shape)

    def put(place: int, kind: str, *values: object) -> None:
        struct.pack_into(order + kind, h, place, *values)

    put(0, "i8s", 540, b"n+2\0\r\n\x1a\n")
    put(12, "hh", CODES[voxels.dtype.name], 8 * voxels.dtype.itemsize)
    put(16, f"{len(dims)}q", *dims)
    put(104, "8d", 1, 1, 1, 1, 0, 0, 0, 0)
    put(168, "qdd", 544, 1, 0)
    put(344, "ii", 0, 1)
    put(400, "12d", *np.eye(4).ravel()[:12])
    put(500, "i", 2)
    return bytes(h) + bytes(4) + payload(voxels, order)


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def opener(folder: Path) -> Callable[..., Source]:
    """Return what opens a file of given content, written into ``folder``."""

    def open_nifti(content: bytes, name: str = "scan.nii", **options: object) -> Source:
        return open_source(write(folder / name, content), **options)

    return open_nifti


def voxels_of(
    source: Source, bounds: Iterable[int] = (), dtype: np.dtype | None = None
) -> np.ndarray:
    """Return all voxels, (C, X, Y, Z), read between the given bounds along the slow axis."""
    info = source.info
    dtype = dtype or info.dtypes[0]
    size = info.shape[info.slow_axis]
    out = np.empty((info.channels or 1, *info.shape), dtype)
    ranges = source.ranges(sorted({0, size, *bounds}))
    for range_, slab in zip(ranges, source.slabs(dtype, ranges), strict=True):
        where = [slice(*range_.channels), slice(None), slice(None), slice(None)]
        where[1 + info.slow_axis] = slice(range_.start, range_.stop)
        assert slab.dtype == dtype
        out[tuple(where)] = slab
    return out


def restarted(source: Source) -> np.ndarray:
    """Return all voxels in the first type that holds them, as conversion finds it."""
    dtype = source.info.dtypes[0]
    while True:
        try:
            return voxels_of(source, dtype=dtype)
        except DoesNotFitError as error:
            dtype = source.info.dtypes[source.info.dtypes.index(error.needed)]
