"""Counters that tensorstore keeps for the whole process."""

from __future__ import annotations

from dataclasses import dataclass

import tensorstore as ts


@dataclass(frozen=True)
class Counters:
    """What tensorstore has done in this process so far; the difference of two is what it did since.

    Attributes
    ----------
    hits, misses : int
        Blocks and shard indexes that were found in memory, or had to be fetched and decoded.
    bytes_read : int
        Bytes fetched from stores, compressed as they are.
    """

    hits: int
    misses: int
    bytes_read: int

    @classmethod
    def now(cls) -> Counters:
        """Return the counters as they stand; it takes less than a millisecond."""
        total = {
            metric["name"].removeprefix("/tensorstore/"): sum(
                int(value.get("value", 0)) for value in metric["values"]
            )
            for prefix in ("cache/", "kvstore/", "file/")
            for metric in ts.experimental_collect_matching_metrics(f"/tensorstore/{prefix}")
        }
        return cls(
            total.get("cache/hit_count", 0),
            total.get("cache/miss_count", 0),
            total.get("file/mmap_bytes", 0)
            + sum(n for name, n in total.items() if name.endswith("/bytes_read")),
        )

    def __sub__(self, other: Counters) -> Counters:
        return Counters(
            self.hits - other.hits,
            self.misses - other.misses,
            self.bytes_read - other.bytes_read,
        )
