"""A file's bytes, decompressed: plain, gzip, bzip2 and Zstandard, told apart by content.

Every stream is read to the end of the file: the checksums of the compressed formats are verified
there, several members (frames) follow one another without a seam, zero bytes after the last are
padding, and anything else after it is counted as garbage.
"""

from __future__ import annotations

import bz2
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, cast

import zstandard
from isal import igzip_lib

from tiledvol.errors import SourceError
from tiledvol_converters.digest import Digest

READ_BYTES = 1 << 18
"""Bytes read from a file at once. Much larger ones would make a file of many small members (BGZF)
slow, as the rest of what was read is copied at the end of each."""

INFLATE_BYTES = 1 << 18
"""Bytes inflated at once: few enough to be in the processor's cache still when they are copied on,
and enough to keep the interpreter out of the way."""

ZSTD_FEED_BYTES = 1 << 11
"""Compressed bytes given to zstandard at once, as it cannot be told when to stop: the densest ones
there can be make 64 MiB."""

GZIP_MAX_RATIO = 1032
"""Deflate at its densest codes 258 bytes in two bits."""

ZSTD_MAX_RATIO = 32768
"""The densest block of Zstandard is 128 KiB of one byte, written in four (RFC 8878, 3.1.1.2)."""

BZIP2_MAX_RATIO = 2_000_000
"""A bzip2 block is at least 24 bytes, and holds up to 900 000 bytes after its first stage, which
writes 259 equal bytes in five: 900 000 / 5 × 259 / 24, rounded up."""

MAGIC_BYTES = 10
"""How many bytes tell a compression."""


class Member(Protocol):
    """One compressed member being inflated, as `bz2.BZ2Decompressor` does it."""

    @property
    def eof(self) -> bool:
        """Whether the member is complete and its checksum right."""
        ...

    @property
    def needs_input(self) -> bool:
        """Whether nothing more can come out before more goes in."""
        ...

    @property
    def unused_data(self) -> bytes:
        """What was given beyond the end of the member."""
        ...

    def decompress(self, data: bytes, max_length: int) -> bytes | memoryview:
        """Take in ``data`` and give out at most ``max_length`` bytes."""
        ...


class _ZstdMember:
    """A Zstandard frame as a `Member`."""

    def __init__(self) -> None:
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._input = memoryview(b"")
        self._output = memoryview(b"")

    @property
    def eof(self) -> bool:
        return self._frame.eof and not self._output

    @property
    def needs_input(self) -> bool:
        return not self._output and not self._input

    @property
    def unused_data(self) -> bytes:
        return self._frame.unused_data + bytes(self._input)

    def decompress(self, data: bytes, max_length: int) -> memoryview:
        if data:
            self._input = memoryview(data)
        while self._input and not self._output and not self._frame.eof:
            feed, self._input = self._input[:ZSTD_FEED_BYTES], self._input[ZSTD_FEED_BYTES:]
            self._output = memoryview(self._frame.decompress(feed))
        piece, self._output = self._output[:max_length], self._output[max_length:]
        return piece


def _gzip_member() -> Member:
    member: Member = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
    return member


@dataclass(frozen=True)
class Compression:
    """A way to compress: how to recognise it, to undo it, and how far it can go.

    Attributes
    ----------
    name : str
        As a message names it.
    magic : re.Pattern
        What a member begins with, within `MAGIC_BYTES`.
    max_ratio : int
        No file inflates to more than this many times its size.
    member : callable
        Makes a `Member`.
    """

    name: str
    magic: re.Pattern[bytes]
    max_ratio: int
    member: Callable[[], Member]


COMPRESSIONS = (
    Compression("gzip", re.compile(rb"\x1f\x8b\x08"), GZIP_MAX_RATIO, _gzip_member),
    Compression(
        "bzip2",
        # The second part begins a block, or ends a stream without any.
        re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", re.DOTALL),
        BZIP2_MAX_RATIO,
        bz2.BZ2Decompressor,
    ),
    Compression(
        "zstd",
        # A frame, or a skippable frame, which may come first (RFC 8878, 3.1.2).
        re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", re.DOTALL),
        ZSTD_MAX_RATIO,
        _ZstdMember,
    ),
)

DAMAGE = (
    cast("type[Exception]", igzip_lib.IsalError),
    zstandard.ZstdError,
    OSError,
    ValueError,
)
"""What the decompressors raise for data that they cannot read."""


def compression_of(head: bytes) -> Compression | None:
    """Tell from its first `MAGIC_BYTES` how a file is compressed; None if it is not."""
    return next((c for c in COMPRESSIONS if c.magic.match(head)), None)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error


class ByteStream(ABC):
    """The decompressed bytes of a file, front to back.

    Parameters
    ----------
    path : Path
        The file.
    digest : Digest, optional
        Is given the bytes of the file as it stands, in order.

    Attributes
    ----------
    garbage : int
        Bytes found after the end of the compressed data that are no padding.
    """

    def __init__(self, path: Path, digest: Digest | None = None) -> None:
        self.path = path
        self.garbage = 0
        self._digest = digest
        with _reading(path):
            self._file = path.open("rb", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    @abstractmethod
    def readinto(self, view: memoryview) -> int:
        """Fill ``view``, of bytes; return how many there were, fewer only where the data end.

        Raises
        ------
        SourceError
            If the file cannot be read, or its compressed data are damaged or cut off.
        """

    def skip(self, count: int) -> int:
        """Pass over ``count`` bytes; return how many there were."""
        scratch = memoryview(bytearray(min(count, INFLATE_BYTES)))
        left = count
        while left and (got := self.readinto(scratch[:left])):
            left -= got
        return count - left

    def drain(self) -> int:
        """Read to the end of the file; return how many bytes were left."""
        scratch = memoryview(bytearray(INFLATE_BYTES))
        left = 0
        while got := self.readinto(scratch):
            left += got
        return left

    def _digest_bytes(self, data: bytes | memoryview) -> None:
        if self._digest is not None:
            self._digest.update(data)


class PlainStream(ByteStream):
    """The bytes of a file that is not compressed."""

    def readinto(self, view: memoryview) -> int:
        """Fill ``view``; see `ByteStream.readinto`."""
        done = 0
        while done < len(view):
            part = view[done : done + INFLATE_BYTES]
            with _reading(self.path):
                part = part[: self._file.readinto(part)]
            if not part:
                break
            self._digest_bytes(part)
            done += len(part)
        return done


class CompressedStream(ByteStream):
    """The bytes that the members of a compressed file hold, one after another."""

    def __init__(self, path: Path, compression: Compression, digest: Digest | None = None) -> None:
        super().__init__(path, digest)
        self._compression = compression
        self._member: Member | None = None
        self._input = b""

    def readinto(self, view: memoryview) -> int:
        """Fill ``view``; see `ByteStream.readinto`."""
        done = 0
        while done < len(view) and (piece := self._inflate(len(view) - done)):
            view[done : done + len(piece)] = piece
            done += len(piece)
        return done

    def _inflate(self, most: int) -> bytes | memoryview:
        """Return the next bytes; none only at the end."""
        while (member := self._member or self._next_member()) is not None:
            data = b""
            if member.needs_input:
                data, self._input = self._input or self._read(), b""
                if not data:
                    raise SourceError(
                        f"{self.path}: cut off: its {self._compression.name} data end before "
                        f"their checksum; copy or download the file again"
                    )
            try:
                piece = member.decompress(data, min(most, INFLATE_BYTES))
            except DAMAGE as error:
                raise SourceError(
                    f"{self.path}: damaged: its {self._compression.name} data cannot be inflated "
                    f"({error}); copy or download the file again"
                ) from error
            if member.eof:
                self._input, self._member = member.unused_data, None
            if piece:
                return piece
        return b""

    def _next_member(self) -> Member | None:
        """Begin the member that follows, if one does."""
        rest = self._input.lstrip(b"\0")
        while len(rest) < MAGIC_BYTES and (more := self._read()):
            rest = rest + more if rest else more.lstrip(b"\0")
        if self._compression.magic.match(rest):
            self._input = rest
            self._member = self._compression.member()
            return self._member
        while rest:
            self.garbage += len(rest)
            rest = self._read()
        self._input = b""
        return None

    def _read(self) -> bytes:
        """Return the next bytes of the file itself; none at its end."""
        with _reading(self.path):
            data = self._file.read(READ_BYTES)
        self._digest_bytes(data)
        return data


def open_stream(path: Path, digest: Digest | None = None) -> ByteStream:
    """Open a file, compressed or not.

    Raises
    ------
    SourceError
        If it cannot be read.
    """
    compression = compression_of(_raw_head(path))
    if compression is None:
        return PlainStream(path, digest)
    return CompressedStream(path, compression, digest)


def largest_content(path: Path) -> int:
    """Return the most bytes that a file can hold, going by its size and compression alone."""
    compression = compression_of(_raw_head(path))
    with _reading(path):
        return path.stat().st_size * (compression.max_ratio if compression else 1)


def head_of(path: Path, count: int) -> bytes:
    """Return the first ``count`` bytes of a file's content, decompressed; fewer if it is shorter.

    Raises
    ------
    SourceError
        If the file cannot be read, or is damaged within them.
    """
    head = bytearray(count)
    with open_stream(path) as stream:
        return bytes(head[: stream.readinto(memoryview(head))])


def _raw_head(path: Path) -> bytes:
    with PlainStream(path) as stream:
        head = bytearray(MAGIC_BYTES)
        return bytes(head[: stream.readinto(memoryview(head))])
