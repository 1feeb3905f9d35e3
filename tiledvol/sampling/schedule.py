"""Schedule: which indices of an epoch a rank draws, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tiledvol.sampling.rng import permutation


@dataclass(frozen=True)
class Schedule:
    """The indices of one rank in one epoch, by position; to resume, go on at a position.

    Ranks take consecutive runs of equal length of the epoch's order, so that quotas hold on each
    of them. Where the length is no multiple of the number of ranks, the order is continued from
    its beginning; apart from that the ranks' indices are disjoint.

    Attributes
    ----------
    length : int
        Draws in the epoch, all ranks together, at least 1.
    seed, epoch : int
        Choose the order when shuffled.
    shuffle : bool
        Whether the epoch's order is random rather than rising. Meant for finite samplers: the
        draws of endless ones are random already, and have their quotas in rising order.
    rank, world_size : int
        Which of how many processes.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    length: int
    seed: int
    epoch: int
    shuffle: bool = False
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length={self.length}: an epoch needs at least one draw")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"rank={self.rank} of world_size={self.world_size}: it must be at least 0 and "
                f"less than the world size"
            )

    def __len__(self) -> int:
        return -(-self.length // self.world_size)

    def __iter__(self) -> Iterator[int]:
        return (self[position] for position in range(len(self)))

    def __getitem__(self, position: int) -> int:
        """Return the index at a position, from 0 to the rank's number of draws."""
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} is not among the {len(self)} of the rank")
        at = (self.rank * len(self) + position) % self.length
        return int(self._order[at]) if self.shuffle else at

    @cached_property
    def _order(self) -> npt.NDArray[np.int64]:
        return permutation(self.length, self.seed, self.epoch)
