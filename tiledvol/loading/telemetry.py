"""What a loader did, how fast, and what held it up."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

LATELY = 50
"""How many batches count as lately."""

WAITING = 0.05
"""Share of the time spent waiting above which the loader is the limit."""


@dataclass
class Telemetry:
    """Counters of one loader, kept across epochs.

    Attributes
    ----------
    patches, batches : int
        Delivered.
    bytes_needed : int
        Of the patches' own voxels, as stored.
    bytes_decoded : int
        Of the blocks that these reads touch: what is decoded where the cache has none of it.
    skipped : list of str
        Errors of patches that others were put in the place of.
    """

    patches: int = 0
    batches: int = 0
    bytes_needed: int = 0
    bytes_decoded: int = 0
    skipped: list[str] = field(default_factory=list)
    waited: float = 0.0
    read_seconds: float = 0.0
    assemble_seconds: float = 0.0
    _started: float | None = None
    _recent: deque[tuple[float, float, int]] = field(default_factory=lambda: deque(maxlen=LATELY))

    def start(self) -> None:
        """Begin to count time, if it is not counted yet."""
        if self._started is None:
            self._started = time.perf_counter()

    def delivered(self, patches: int, waited: float) -> None:
        """Another batch was handed out after so many seconds of waiting."""
        self.patches += patches
        self.batches += 1
        self.waited += waited
        self._recent.append((time.perf_counter(), waited, patches))

    def summary(self, ready: int) -> dict[str, float | int | str | list[str]]:
        """Return the numbers, and a one-line verdict.

        Parameters
        ----------
        ready : int
            Batches waiting to be taken.
        """
        elapsed = time.perf_counter() - self._started if self._started is not None else 0.0
        recent = list(self._recent)
        span = recent[-1][0] - recent[0][0] if len(recent) > 1 else 0.0
        lately = sum(n for _, _, n in recent[1:]) / span if span else 0.0
        waited_lately = sum(w for _, w, _ in recent[1:])
        share = waited_lately / span if span else 0.0
        return {
            "patches": self.patches,
            "batches": self.batches,
            "patches_per_second": self.patches / elapsed if elapsed else 0.0,
            "patches_per_second_lately": lately,
            "seconds": elapsed,
            "seconds_waited": self.waited,
            "seconds_waited_lately": waited_lately,
            "share_waited_lately": share,
            "bytes_needed": self.bytes_needed,
            "bytes_decoded": self.bytes_decoded,
            "batches_ready": ready,
            "skipped": list(self.skipped),
            "verdict": self._verdict(share, len(recent)),
        }

    def _verdict(self, share: float, batches: int) -> str:
        if batches < 2:
            return "too few batches to tell"
        if share <= WAITING:
            return f"training is the limit: it waited {share:.1%} of the time for batches"
        busy = self.read_seconds + self.assemble_seconds
        part = self.assemble_seconds / busy if busy else 0.0
        limit = "assembling batches" if part > 0.5 else "reading and decoding blocks"
        return f"{limit} is the limit: training waited {share:.0%} of the time for batches"
