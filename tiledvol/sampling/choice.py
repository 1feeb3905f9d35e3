"""Choosing one of several things: with given probabilities, or by quota."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from tiledvol.sampling.rng import Numbers

MAX_DENOMINATOR = 10**9
"""A share is taken as the nearest fraction up to this denominator, so that 1 / 3 is a third."""


def inverse_cdf(cumulative: npt.NDArray[Any], u: float) -> int:
    """Return the item that ``u`` in [0, 1) falls on; never one of weight zero.

    Parameters
    ----------
    cumulative : (n,) float64
        Sums of the weights up to and including each item; the last is above zero.
    u : float
        In [0, 1).
    """
    total = cumulative[-1]
    # u * total may round up to the total: the last item with a weight is the one meant then.
    last = np.searchsorted(cumulative, total, side="left")
    return int(min(np.searchsorted(cumulative, u * total, side="right"), last))


class Choice:
    """One of n items, with equal probabilities or in proportion to weights.

    Parameters
    ----------
    n : int
        How many items, at least 1.
    weights : (n,) float64, optional
        At least one above zero, none below.
    """

    def __init__(self, n: int, weights: npt.NDArray[np.float64] | None = None) -> None:
        self._n = n
        self._cumulative = None if weights is None else np.cumsum(weights)

    def draw(self, numbers: Numbers) -> int:
        """Return the position of an item."""
        if self._cumulative is None:
            return numbers.below(self._n)
        return inverse_cdf(self._cumulative, numbers.unit())


@dataclass(frozen=True)
class Quota:
    """Chooses a share of the indices 0, 1, 2, ..., evenly spread.

    Index i is chosen iff floor((i + 1) * share) > floor(i * share), exactly, so that any n
    consecutive indices hold floor(n * share) or ceil(n * share) chosen ones.

    Attributes
    ----------
    share : Fraction
        Between 0 and 1.
    """

    share: Fraction

    def before(self, index: int) -> int:
        """Return how many indices below ``index`` are chosen."""
        return index * self.share.numerator // self.share.denominator

    def chooses(self, index: int) -> bool:
        """Tell whether an index is chosen."""
        return self.before(index + 1) > self.before(index)


def as_fraction(share: float | Fraction, name: str) -> Fraction:
    """Return a share as an exact fraction.

    Raises
    ------
    ValueError
        If it is not finite or below 0; ``name`` says which share.
    """
    if not 0 <= share < float("inf"):
        raise ValueError(f"{name}={share}: a share is a number of at least 0")
    return Fraction(share).limit_denominator(MAX_DENOMINATOR)
