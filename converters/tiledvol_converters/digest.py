"""The content hash of sources: which one it is."""

from __future__ import annotations

from hashlib import blake2b
from typing import Protocol


class Digest(Protocol):
    """A hash of bytes as they pass, as those of `hashlib` are."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Take in ``data``."""
        ...

    def hexdigest(self) -> str:
        """Return the hash of all data taken in."""
        ...


def new_digest() -> Digest:
    """Return a BLAKE2b-256 of nothing yet.

    A reader updates it with what it has just read, which is in the processor's cache still. A
    thread for that would cost more processor time than it spares the reader waiting.
    """
    return blake2b(digest_size=32)
