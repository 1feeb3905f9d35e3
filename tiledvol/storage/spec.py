"""Choices of the format: chunks, shards, codecs, store URLs and the shared context."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts

from tiledvol.errors import ForkError, StoreError

FORMAT = 1
"""Version of the store format that this code writes, and the newest that it reads."""

DEFAULT_CHUNK = 64
"""Edge, in voxels, of the blocks that reads decode."""

SLAB = 64
"""Thickness, in voxels, of a shard along the axis that is slowest in the source."""

SHARD_BYTES = 256 * 2**20
"""Raw size above which the plane of a shard is split, so that one shard can be held in memory."""

REMOTE_CACHE_BYTES = 64 * 2**20
"""Default size of the pool that keeps shard indexes, and the blocks last decoded, in memory, for
stores where another round trip is dear. Of local files the page cache holds all that, and a pool
that blocks fly through only costs time (5 to 12 %, measured)."""

TIMEOUT_S = 120.0
"""Default time after which a read or write that has not finished is an error, in seconds."""

NETWORKED = ("s3", "gcs", "http")
"""Kinds of store that are reached by requests."""

REQUESTS = 128
"""Requests under way at once: with 60 ms a round trip, tensorstore's own 32 are the limit."""

RETRIES = {"initial_delay": "200ms", "max_delay": "5s", "max_retries": 1000}
"""How requests that failed for a while are repeated: until the time-out, so that reading goes on
soon after a server is back. tensorstore's own delays grow to 32 s."""

BLOSC_BLOCK_BYTES = 512 * 2**10
"""Bytes that blosc compresses at once: a whole block of the default size and int16 (measured)."""

CODECS = ("lz4", "zstd", "none")
"""Compression of blocks: fastest to read, smallest, and none."""

DTYPES = tuple(
    np.dtype(name)
    for name in (
        *("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float32", "float64"),
    )
)
"""Voxel types that a volume may have."""


def chunk_shape(shape: Sequence[int], chunk: int | Sequence[int]) -> tuple[int, ...]:
    """Return the block shape for an array of rank 3, or 4 with channels first.

    A block never exceeds the array: a thin volume would else decode mostly padding.

    Parameters
    ----------
    shape : sequence of int
        (X, Y, Z) or (C, X, Y, Z).
    chunk : int or sequence of 3 int
        Wanted edge in voxels.
    """
    edges = (chunk,) * 3 if isinstance(chunk, int) else tuple(chunk)
    if len(edges) != 3 or any(e < 1 for e in edges):
        raise StoreError(f"chunk={chunk!r}: give one edge in voxels, or three, each at least 1")
    spatial = tuple(min(e, n) for e, n in zip(edges, shape[-3:], strict=True))
    return (1,) * (len(shape) - 3) + spatial


def shard_shape(
    shape: Sequence[int], chunk: Sequence[int], slow_axis: int, itemsize: int
) -> tuple[int, ...]:
    """Return the shard shape: the whole plane, and about `SLAB` voxels along ``slow_axis``.

    Parameters
    ----------
    shape, chunk : sequence of int
        Of the array, rank 3 or 4.
    slow_axis : int
        Spatial axis, 0 to 2, along which the volume is written slab by slab.
    itemsize : int
        Bytes per voxel.
    """
    lead = len(shape) - 3
    shard = [1] * lead + [-(-n // c) * c for n, c in zip(shape[lead:], chunk[lead:], strict=True)]
    axis = lead + slow_axis
    shard[axis] = min(shard[axis], slab_thickness(chunk[axis]))
    while np.prod(shard, dtype=object) * itemsize > SHARD_BYTES:
        plane = [i for i in range(lead, len(shape)) if i != axis and shard[i] > chunk[i]]
        if not plane:
            break
        widest = max(plane, key=lambda i: shard[i])
        shard[widest] = -(-shard[widest] // chunk[widest] // 2) * chunk[widest]
    return tuple(shard)


def slab_thickness(chunk_edge: int) -> int:
    """Return the thickness in voxels of a slab: whole blocks, about `SLAB` voxels."""
    return chunk_edge * max(1, SLAB // chunk_edge)


def array_metadata(
    shape: Sequence[int],
    dtype: np.dtype[Any],
    chunk: Sequence[int],
    shard: Sequence[int],
    codec: str,
) -> dict[str, Any]:
    """Return the zarr v3 metadata of a tiled array."""
    if codec not in CODECS:
        raise StoreError(f"codec={codec!r}: choose one of {', '.join(CODECS)}")
    little_endian = {"name": "bytes", "configuration": {"endian": "little"}}
    compression = {
        "name": "blosc",
        "configuration": {
            "cname": codec,
            "clevel": 5 if codec == "lz4" else 3,
            "shuffle": "shuffle" if dtype.itemsize > 1 else "noshuffle",
            "typesize": dtype.itemsize,
            "blocksize": min(BLOSC_BLOCK_BYTES, int(np.prod(chunk)) * dtype.itemsize),
        },
    }
    return {
        "shape": list(shape),
        "data_type": dtype.name,
        "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(shard)}},
        "dimension_names": ["c", "x", "y", "z"][4 - len(shape) :],
        "codecs": [
            {
                "name": "sharding_indexed",
                "configuration": {
                    "chunk_shape": list(chunk),
                    "codecs": [
                        little_endian,
                        *([compression] if codec != "none" else []),
                        {"name": "crc32c"},
                    ],
                    "index_codecs": [little_endian, {"name": "crc32c"}],
                },
            }
        ],
    }


def index_metadata(shape: Sequence[int], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return the zarr v3 metadata of a per-block index: small, read whole, in one chunk."""
    return {
        "shape": list(shape),
        "data_type": dtype.name,
        "fill_value": 0,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [max(1, n) for n in shape]},
        },
        "codecs": [
            {"name": "bytes", "configuration": {"endian": "little"}},
            {"name": "zstd", "configuration": {"level": 3}},
            {"name": "crc32c"},
        ],
    }


def make_context(cache_bytes: int = 0) -> ts.Context:
    """Return a context: threads, file access and a cache of ``cache_bytes`` for decoded blocks.

    Files are mapped, not read, so that the page cache is the only copy of what is not decoded.
    """
    return ts.Context(
        {
            "file_io_mode": {"mode": "memmap"},
            "cache_pool": {"total_bytes_limit": cache_bytes},
            **{f"{kind}_request_retries": RETRIES for kind in NETWORKED},
            **{f"{kind}_request_concurrency": {"limit": REQUESTS} for kind in NETWORKED},
        }
    )


@cache
def default_context(remote: bool = False) -> ts.Context:
    """Return the context that everything opened in this process shares unless told otherwise."""
    if not remote:
        return make_context()
    return ts.Context(
        {"cache_pool": {"total_bytes_limit": REMOTE_CACHE_BYTES}}, parent=default_context()
    )


@cache
def _process_of_first_use() -> int:
    return os.getpid()


def check_process() -> None:
    """Raise `ForkError` in a process forked from one that had already used tensorstore.

    tensorstore's threads do not survive a fork; it would abort the process without a message.
    """
    if _process_of_first_use() != os.getpid():
        raise ForkError(
            "This process was forked after its parent had opened a tiledvol dataset, and the "
            "threads that read did not come along. Start workers with the 'spawn' or "
            "'forkserver' method (multiprocessing.get_context('spawn'); for a torch DataLoader "
            "multiprocessing_context='spawn'), or first open the dataset in the worker."
        )


def kvstore_spec(url: str | os.PathLike[str]) -> dict[str, Any]:
    """Return tensorstore's description of the key-value store at a path or URL.

    Parameters
    ----------
    url : str or path
        A local path, or ``file://``, ``memory://``, ``s3://``, ``gs://``, ``http(s)://``. For
        S3, ``AWS_ENDPOINT_URL`` and ``AWS_REGION`` are honoured as by other clients.

    Raises
    ------
    StoreError
        If the URL has a scheme that tiledvol does not know or cannot be parsed.
    """
    text = os.fspath(url)
    scheme, separator, _ = text.partition("://")
    if not separator:
        return {"driver": "file", "path": f"{Path(text).expanduser().resolve()}/"}
    if scheme not in ("file", "memory", "s3", "gs", "http", "https"):
        raise StoreError(
            f"{text}: unknown scheme {scheme!r}; use a path, file://, memory://, s3://, gs:// "
            f"or http(s)://"
        )
    try:
        spec: dict[str, Any] = ts.KvStore.Spec(text.rstrip("/") + "/").to_json()
    except ValueError as error:
        raise StoreError(f"{text}: not a valid store URL: {error}") from error
    if scheme == "s3":
        if endpoint := os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
            spec["endpoint"] = endpoint
        if region := os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
            spec["aws_region"] = region
        if os.environ.get("AWS_ACCESS_KEY_ID"):
            # Else the profiles in ~/.aws are looked for too, and missing ones complained about.
            spec["aws_credentials"] = {"type": "environment"}
    return spec
