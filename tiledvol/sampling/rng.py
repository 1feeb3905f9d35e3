"""Counter-based random numbers: each a function of (seed, epoch, index, stream) alone.

Only Philox's raw 64-bit words are used, whose sequence NumPy guarantees; the methods of
``numpy.random.Generator`` may change between releases, and with them every draw.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt


class Stream(IntEnum):
    """What numbers are drawn for; streams are independent. A value, once released, stays."""

    SUBJECT = 0
    SUBJECT_AMONG = 1
    POSITION = 2
    FOREGROUND = 3
    WEIGHT = 4
    ORDER = 5
    COMPONENT = 6


def philox(seed: int, epoch: int, index: int, stream: int) -> np.random.Philox:
    """Return the bit generator of these four numbers, each in [0, 2**64).

    Key and counter hold them whole, so that no two combinations share a number. It takes about
    10 µs.

    Raises
    ------
    ValueError
        If one is out of range.
    """
    for name, value in (("seed", seed), ("epoch", epoch), ("index", index), ("stream", stream)):
        if not 0 <= value < 1 << 64:
            raise ValueError(f"{name}={value}: it must be at least 0 and less than 2**64")
    # The lowest counter word counts the blocks of four numbers that are drawn.
    return np.random.Philox(
        key=np.array([seed, epoch], np.uint64), counter=np.array([0, stream, index, 0], np.uint64)
    )


class Numbers:
    """The random numbers of one (seed, epoch, index, stream), one after the other."""

    __slots__ = ("_philox",)

    def __init__(self, seed: int, epoch: int, index: int, stream: int) -> None:
        self._philox = philox(seed, epoch, index, stream)

    def word(self) -> int:
        """Return an integer uniform over [0, 2**64)."""
        return int(self._philox.random_raw())

    def below(self, n: int) -> int:
        """Return an integer exactly uniform over [0, n), for n up to 2**64."""
        # Words from the last, incomplete run of n are rejected.
        limit = (1 << 64) // n * n
        word = self.word()
        while word >= limit:
            word = self.word()
        return word % n

    def unit(self) -> float:
        """Return a multiple of 2**-53 uniform over [0, 1)."""
        return (self.word() >> 11) * 2.0**-53


def permutation(length: int, seed: int, epoch: int, lap: int = 0) -> npt.NDArray[np.int64]:
    """Return the numbers 0 to length - 1 in random order, (length,), read-only.

    Parameters
    ----------
    length : int
        How many numbers.
    seed, epoch, lap : int
        Choose the order; ``lap`` tells apart several orders of one epoch.
    """
    order = np.argsort(philox(seed, epoch, lap, Stream.ORDER).random_raw(length), kind="stable")
    order.flags.writeable = False
    return order.astype(np.int64, copy=False)
