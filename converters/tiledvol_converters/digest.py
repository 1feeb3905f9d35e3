"""The content hash of a file, taken while it is read for something else."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import blake2b
from typing import Self

BATCH_BYTES = 1 << 22
"""Bytes collected before the thread is woken: waking it for each read costs a tenth of the rate
at which gzip inflates."""


class Digest:
    """BLAKE2b-256 of bytes as they pass, computed in a thread of its own.

    In the reader's thread it would cost a fifth of the rate at which gzip inflates.
    """

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=32)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tiledvol-digest")
        self._under_way: Future[None] | None = None
        self._batch: list[bytes | memoryview] = []
        self._batched = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            self.settle()
        self._thread.shutdown()

    def update(self, data: bytes | memoryview) -> None:
        """Take in ``data``, which may not change before `settle`."""
        self._batch.append(data)
        self._batched += len(data)
        if self._batched >= BATCH_BYTES:
            self._submit()

    def settle(self) -> None:
        """Wait until all data given have been taken in."""
        self._submit()
        self._wait()

    def hexdigest(self) -> str:
        """Return the digest of all data given."""
        self.settle()
        return self._hash.hexdigest()

    def _submit(self) -> None:
        self._wait()
        if not self._batch:
            return
        self._under_way = self._thread.submit(self._take_in, self._batch)
        self._batch, self._batched = [], 0

    def _wait(self) -> None:
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None

    def _take_in(self, batch: list[bytes | memoryview]) -> None:
        for data in batch:
            self._hash.update(data)
