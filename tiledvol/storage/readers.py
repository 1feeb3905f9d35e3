"""Reading regions of a stored array: through tensorstore, or straight from mapped files."""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import weakref
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Protocol

import google_crc32c
import numpy as np
import numpy.typing as npt
import tensorstore as ts

Array = npt.NDArray[Any]
Region = tuple[slice, ...]
"""Per axis a slice within bounds, of positive step."""

CRC_BYTES = 4
"""Size of the checksum that follows each block, and the index of a shard."""

ABSENT = 2**64 - 1
"""Offset and size that a shard's index gives for a block that was never written."""


class Reader(Protocol):
    """Reads regions of an array; damaged and missing blocks raise ValueError."""

    def read(self, region: Region, timeout: float) -> Array:
        """Return the voxels of a region, waiting for them for ``timeout`` seconds at most."""
        ...

    async def read_async(self, region: Region) -> Array:
        """Return the voxels of a region without blocking the event loop."""
        ...

    async def read_into(self, region: Region, out: Array) -> None:
        """Put the voxels of a region into an array of its shape, converted to its type.

        After an error, or when cancelled, the array may still be written to for a while; its
        memory is kept alive until then.
        """
        ...


class TensorStoreReader:
    """Reads through tensorstore, which fetches and decodes blocks in threads of its own."""

    def __init__(self, array: ts.TensorStore) -> None:
        self._array = array

    def read(self, region: Region, timeout: float) -> Array:
        """Return the voxels of a region."""
        return np.asarray(self._array[region].read().result(timeout=timeout))

    async def read_async(self, region: Region) -> Array:
        """Return the voxels of a region."""
        return np.asarray(await self._array[region].read())

    async def read_into(self, region: Region, out: Array) -> None:
        """Put the voxels of a region into an array; tensorstore's threads copy and convert."""
        source = self._array[region]
        if source.dtype.numpy_dtype != out.dtype:
            source = ts.cast(source, out.dtype)
        await ts.array(out).write(source)


class MappedReader:
    """Copies voxels of an uncompressed array straight out of its mapped shards.

    With nothing to decode, the stages that tensorstore has for decoding cost several times the
    one copy that is needed. Each block is checked against its checksum when it is first touched.

    Parameters
    ----------
    folder : Path
        Of the zarr v3 array.
    metadata : dict
        Its zarr.json; see `is_uncompressed`.
    """

    def __init__(self, folder: Path, metadata: dict[str, Any]) -> None:
        sharding = metadata["codecs"][0]["configuration"]
        self._folder = folder
        self._dtype = np.dtype(metadata["data_type"]).newbyteorder("<")
        self._chunk: tuple[int, ...] = tuple(sharding["chunk_shape"])
        shard = metadata["chunk_grid"]["configuration"]["chunk_shape"]
        self._per_shard = tuple(s // c for s, c in zip(shard, self._chunk, strict=True))
        self._shards: dict[tuple[int, ...], dict[tuple[int, ...], Array]] = {}

    def read(self, region: Region, timeout: float) -> Array:
        """Return the voxels of a region; the time-out has no meaning for a local copy."""
        out = np.empty([len(range(s.start, s.stop, s.step or 1)) for s in region], self._dtype)
        self._copy(region, out)
        return out

    async def read_async(self, region: Region) -> Array:
        """Return the voxels of a region, copied in a thread."""
        return await asyncio.to_thread(self.read, region, 0)

    async def read_into(self, region: Region, out: Array) -> None:
        """Put the voxels of a region into an array, in a thread."""
        await asyncio.to_thread(self._copy, region, out)

    def _copy(self, region: Region, out: Array) -> None:
        for parts in product(*map(_parts, region, self._chunk)):
            block = self._block(tuple(number for number, _, _ in parts))
            out[tuple(target for _, _, target in parts)] = block[
                tuple(source for _, source, _ in parts)
            ]

    def _block(self, position: tuple[int, ...]) -> Array:
        """Return a view of the block at a grid position, checked."""
        places = [divmod(p, n) for p, n in zip(position, self._per_shard, strict=True)]
        shard = tuple(number for number, _ in places)
        if shard not in self._shards:
            self._shards[shard] = self._map(shard)
        blocks = self._shards[shard]
        within = tuple(place for _, place in places)
        data = blocks.get(within)
        if data is None:
            raise ValueError("the block is missing")
        if data.ndim == 1:
            _check(data, "the block")
            data = blocks[within] = data[:-CRC_BYTES].view(self._dtype).reshape(self._chunk)
        return data

    def _map(self, shard: tuple[int, ...]) -> dict[tuple[int, ...], Array]:
        """Return the bytes, checksum included, of each block that a shard holds.

        Once they are checked, the voxels take their place.
        """
        path = self._folder.joinpath("c", *map(str, shard))
        try:
            data = map_file(path)
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from error
        index_bytes = 16 * prod(self._per_shard) + CRC_BYTES
        if data.size < index_bytes:
            raise ValueError(f"{path} is cut off")
        index = data[data.size - index_bytes :]
        _check(index, f"the index of {path}")
        places = index[:-CRC_BYTES].view("<u8").reshape(*self._per_shard, 2)
        found = {}
        size = prod(self._chunk) * self._dtype.itemsize + CRC_BYTES
        for at in np.ndindex(*self._per_shard):
            offset, length = (int(n) for n in places[at])
            if offset != ABSENT:
                if length != size or offset + length > data.size:
                    raise ValueError(f"{path}: its index is wrong")
                found[at] = data[offset : offset + length]
        return found


def is_uncompressed(metadata: dict[str, Any]) -> bool:
    """Tell whether a zarr.json describes what `MappedReader` reads: shards of plain blocks."""
    (codec,) = metadata["codecs"]
    configuration = codec.get("configuration", {})
    return (
        codec["name"] == "sharding_indexed"
        and [c["name"] for c in configuration["codecs"]] == ["bytes", "crc32c"]
        and [c["name"] for c in configuration["index_codecs"]] == ["bytes", "crc32c"]
        and configuration.get("index_location", "end") == "end"
    )


def map_file(path: Path) -> npt.NDArray[np.uint8]:
    """Return a file's bytes, mapped, read-only, until the last view of them is gone.

    `mmap.mmap` would keep a file descriptor for each: a thousand shards would use all there are.
    """
    size = path.stat().st_size
    if size == 0:
        return np.empty(0, np.uint8)
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    number = ctypes.c_size_t(size)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        address = library.mmap(
            None, number, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, ctypes.c_long(0)
        )
    finally:
        os.close(descriptor)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    held: Any = (ctypes.c_uint8 * size).from_address(address)
    weakref.finalize(held, library.munmap, ctypes.c_void_p(address), number)
    data: npt.NDArray[np.uint8] = np.frombuffer(held, np.uint8)
    data.flags.writeable = False
    return data


def _parts(part: slice, chunk: int) -> list[tuple[int, slice, slice]]:
    """Return, of one axis, (block, voxels within it, place in the result) for each block."""
    step = part.step or 1
    parts = []
    for number in range(part.start // chunk, -(-part.stop // chunk)):
        begin = number * chunk
        skipped = max(0, -(-(begin - part.start) // step))
        low, high = part.start + skipped * step, min(part.stop, begin + chunk)
        if low < high:
            count = -(-(high - low) // step)
            source = slice(low - begin, high - begin, step)
            parts.append((number, source, slice(skipped, skipped + count)))
    return parts


def _check(data: Array, what: str) -> None:
    """Compare bytes with the CRC-32C that follows them."""
    stored = int(data[-CRC_BYTES:].view("<u4")[0])
    if google_crc32c.value(data[:-CRC_BYTES]) != stored:
        raise ValueError(f"{what} does not match its checksum")
