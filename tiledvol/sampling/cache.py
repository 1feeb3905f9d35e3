"""IndexCache: the block indices of the subjects drawn last, within a bound of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_BYTES = 256 << 20
"""Bytes of block indices that a sampler keeps."""


class IndexCache(Generic[T]):
    """Values by subject position, the least recently used dropped when they grow too large.

    Safe to use from several threads, which may load the same value at once.

    Parameters
    ----------
    load : callable
        Returns the value of a position.
    nbytes : callable
        Returns the size of a value in bytes.
    max_bytes : int
        Bound of the sum of sizes; the value used last is kept whatever its size.
    """

    def __init__(
        self, load: Callable[[int], T], nbytes: Callable[[T], int], max_bytes: int = MAX_BYTES
    ) -> None:
        self._load = load
        self._nbytes = nbytes
        self._max_bytes = max_bytes
        self._values: OrderedDict[int, T] = OrderedDict()
        self._held = 0
        self._lock = threading.Lock()

    def __getitem__(self, position: int) -> T:
        with self._lock:
            if position in self._values:
                self._values.move_to_end(position)
                return self._values[position]
        value = self._load(position)
        with self._lock:
            if position not in self._values:
                self._values[position] = value
                self._held += self._nbytes(value)
            while self._held > self._max_bytes and len(self._values) > 1:
                self._held -= self._nbytes(self._values.popitem(last=False)[1])
        return value
