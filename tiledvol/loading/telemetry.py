"""What a loader did, how fast, and what held it up."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Any, NamedTuple

from tiledvol.storage.metrics import Counters

LATELY = 50
"""How many batches count as lately."""

LATEST_ERRORS = 20
"""How many messages of skipped patches are kept."""

WAITING = 0.05
"""Share of the time spent waiting above which training is not the limit."""

ASSEMBLING = 0.6
"""Share of the time that the loader's thread is busy above which that is the limit."""

BUSY = 0.7
"""Share of the processors' time that this process uses above which decoding is the limit."""


class _Sample(NamedTuple):
    """How things stood when a batch was handed out: seconds, and patches."""

    at: float
    patches: int
    waited: float
    assembling: float
    processor: float


class Telemetry:
    """Counters of one loader, kept across epochs.

    Attributes
    ----------
    patches, batches : int
        Delivered.
    seconds, waited : float
        From the beginning of each iteration to the last batch taken; of that, spent waiting.
    assembling : float
        Processor seconds of the loader's thread, which plans reads and copies voxels into batches.
    bytes_needed : int
        Of the voxels that were read, as stored.
    bytes_touched : int
        Of the blocks that these voxels lie in, decoded.
    skipped : int
        Patches that others were put in the place of.
    """

    def __init__(self) -> None:
        self.patches = self.batches = self.skipped = 0
        self.bytes_needed = self.bytes_touched = 0
        self.seconds = self.waited = self.assembling = 0.0
        self._errors = deque[str](maxlen=LATEST_ERRORS)
        self._recent = deque[_Sample](maxlen=LATELY + 1)
        self._mark = self._thread_mark = 0.0
        self._before = Counters.now()

    def start(self) -> None:
        """Begin an iteration, before its thread is started: what was before it is not lately."""
        self._mark = time.perf_counter()
        self._thread_mark = 0.0
        self._recent.clear()
        self._sample()

    def assembled(self) -> None:
        """Count the processor time of the loader's thread, which calls this; each has its own."""
        now = time.thread_time()
        self.assembling += now - self._thread_mark
        self._thread_mark = now

    def delivered(self, patches: int, waited: float) -> None:
        """Count a batch, handed out after so many seconds of waiting."""
        self.patches += patches
        self.batches += 1
        self.waited += waited
        now = time.perf_counter()
        self.seconds += now - self._mark
        self._mark = now
        self._sample()

    def skip(self, message: str) -> None:
        """Count a patch that could not be read."""
        self.skipped += 1
        self._errors.append(message)

    def summary(self, ready: int) -> dict[str, Any]:
        """Return what `PatchLoader.stats` does; ``ready`` batches wait to be taken."""
        done = Counters.now() - self._before
        lookups = done.hits + done.misses
        missed = done.misses / lookups if lookups else 1.0
        then, now = (self._recent[0], self._recent[-1]) if self._recent else (None, None)
        span = now.at - then.at if now and then else 0.0
        waited = now.waited - then.waited if now and then else 0.0
        patches = now.patches - then.patches if now and then else 0
        return {
            "patches": self.patches,
            "batches": self.batches,
            "patches_per_second": _ratio(self.patches, self.seconds),
            "patches_per_second_lately": _ratio(patches, span),
            "seconds": self.seconds,
            "seconds_waited": self.waited,
            "seconds_waited_lately": waited,
            "share_waited": _ratio(self.waited, self.seconds),
            "share_waited_lately": _ratio(waited, span),
            "bytes_needed": self.bytes_needed,
            "bytes_touched": self.bytes_touched,
            "bytes_decoded": round(self.bytes_touched * missed),
            "bytes_read": done.bytes_read,
            "cache_hits": done.hits,
            "cache_misses": done.misses,
            "batches_ready": ready,
            "skipped": self.skipped,
            "skipped_errors": list(self._errors),
            "verdict": _verdict(then, now) if now and then else "nothing loaded yet",
        }

    def _sample(self) -> None:
        self._recent.append(
            _Sample(self._mark, self.patches, self.waited, self.assembling, time.process_time())
        )


def _verdict(then: _Sample, now: _Sample) -> str:
    """Return what was the limit between two samples, in a line."""
    span = now.at - then.at
    if now.patches == then.patches or not span:
        return "nothing loaded yet"
    share = (now.waited - then.waited) / span
    if share <= WAITING:
        return f"training is the limit: it waited for batches {share:.1%} of the time"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    busy = (now.processor - then.processor) / span / (cores or 1)
    if (now.assembling - then.assembling) / span > ASSEMBLING:
        limit = "assembling batches is the limit: one thread plans and copies all of it"
    elif busy > BUSY:
        limit = f"decoding is the limit: {cores} processors are {min(busy, 1):.0%} busy"
    else:
        limit = (
            f"reading is the limit: processors are only {busy:.0%} busy; a larger "
            f"prefetch_batches= or cache_bytes= may help"
        )
    return f"{limit}; training waited {share:.0%} of the time"


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
