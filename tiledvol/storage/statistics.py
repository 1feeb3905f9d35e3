"""Whole-volume statistics in one streaming pass: exact where that is affordable."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

PERCENTILES = (0.5, 1.0, 5.0, 25.0, 50.0, 75.0, 95.0, 99.0, 99.5)
"""The percentiles that are stored with every image."""

HISTOGRAM_BITS = 16
"""Integers up to this width get an exact histogram, wider types and floats a quantile sketch."""

SKETCH_SIZE = 2**15
"""Values per buffer of the quantile sketch.

Its rank error is at most log2(n / SKETCH_SIZE) / (2 SKETCH_SIZE): 0.02 % for 10⁹ voxels."""


class Histogram:
    """Exact counts of integers of at most 16 bits."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._unsigned = np.dtype(f"u{dtype.itemsize}")
        self._counts = np.zeros(2 ** (8 * dtype.itemsize), np.int64)

    def add(self, values: Array) -> None:
        """Add the values of an array of any shape."""
        flat = values.ravel(order="K").view(self._unsigned)
        step = 2**18  # bincount widens its input to int64: pieces that stay in the CPU's cache
        for start in range(0, flat.size, step):
            self._counts += np.bincount(flat[start : start + step], minlength=self._counts.size)

    def sorted_weights(self) -> tuple[Array, npt.NDArray[np.int64]]:
        """Return the values that occur, in rising order, and their counts."""
        values = np.arange(self._counts.size, dtype=self._unsigned).view(self._dtype)
        order = np.argsort(values, kind="stable")
        order = order[self._counts[order] > 0]
        return values[order], self._counts[order]


class QuantileSketch:
    """Values thinned so that every rank stays within a proven bound; the result never varies.

    Sorted buffers of `SKETCH_SIZE` values are merged two by two, and of each merged pair every
    other value is kept with twice the weight, from alternating ends (the deterministic collapse of
    Manku, Rajagopalan and Lindsay, SIGMOD 1998).
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._pending = np.empty(SKETCH_SIZE, dtype)
        self._filled = 0
        self._levels: list[Array | None] = []
        self._offsets: list[int] = []

    def add(self, values: Array) -> None:
        """Add the values of an array of any shape."""
        flat = values.ravel(order="K")
        start = 0
        while start < flat.size:
            take = min(SKETCH_SIZE - self._filled, flat.size - start)
            self._pending[self._filled : self._filled + take] = flat[start : start + take]
            self._filled += take
            start += take
            if self._filled == SKETCH_SIZE:
                self._carry(np.sort(self._pending))
                self._filled = 0

    def _carry(self, buffer: Array) -> None:
        """Put a sorted buffer into level 0, collapsing as in binary addition."""
        level = 0
        while True:
            if level == len(self._levels):
                self._levels.append(None)
                self._offsets.append(0)
            resident = self._levels[level]
            if resident is None:
                self._levels[level] = buffer
                return
            merged = np.sort(np.concatenate([resident, buffer]), kind="stable")
            buffer = merged[self._offsets[level] :: 2]
            self._offsets[level] = 1 - self._offsets[level]
            self._levels[level] = None
            level += 1

    def sorted_weights(self) -> tuple[Array, npt.NDArray[np.int64]]:
        """Return the representative values in rising order, and their weights."""
        parts = [self._pending[: self._filled]]
        weights = [np.ones(self._filled, np.int64)]
        for level, buffer in enumerate(self._levels):
            if buffer is not None:
                parts.append(buffer)
                weights.append(np.full(buffer.size, 2**level, np.int64))
        values = np.concatenate(parts)
        order = np.argsort(values, kind="stable")
        return values[order], np.concatenate(weights)[order]


class Moments:
    """Count, mean and sum of squared deviations, combined as by Chan, Golub and LeVeque (1979)."""

    def __init__(self, count: int = 0, mean: float = 0.0, squares: float = 0.0) -> None:
        self.count = count
        self.mean = mean
        self.squares = squares

    def combine(self, other: Moments) -> Moments:
        """Return the moments of both sets of values together."""
        count = self.count + other.count
        if count == 0:
            return Moments()
        delta = other.mean - self.mean
        return Moments(
            count,
            self.mean + delta * other.count / count,
            self.squares + other.squares + delta * delta * self.count * other.count / count,
        )

    @classmethod
    def of(cls, values: Array, weights: Array | None = None) -> Moments:
        """Return the moments of a one-dimensional array, each value counted ``weights`` times."""
        data = values.astype(np.float64)
        count = data.size if weights is None else int(weights.sum())
        if count == 0:
            return cls()
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float(np.average(data, weights=weights))
            data -= mean
            squares = np.dot(data, data) if weights is None else np.dot(data * weights, data)
        return cls(count, mean, float(squares))

    @property
    def std(self) -> float:
        """Population standard deviation, as ``numpy.std``."""
        return math.sqrt(self.squares / self.count) if self.count else math.nan


class Statistics:
    """Statistics of an image, fed block by block.

    NaN and infinities are counted, and left out of everything else.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._exact = dtype.kind in "iu" and dtype.itemsize * 8 <= HISTOGRAM_BITS
        self._float = dtype.kind == "f"
        collect: type[Histogram | QuantileSketch] = Histogram if self._exact else QuantileSketch
        self._distribution = collect(dtype)
        self._nonzero = Moments()
        self._zeros = 0
        self._nan = self._posinf = self._neginf = 0
        self._min: Any = None
        self._max: Any = None

    def add(self, values: Array) -> None:
        """Add the voxels of an array of any shape, whose order does not matter."""
        if self._exact:
            self._distribution.add(values)
            return
        flat = values.ravel(order="K")
        step = 2**18  # pieces that stay in the CPU's cache
        for start in range(0, flat.size, step):
            self._add_piece(flat[start : start + step])

    def _add_piece(self, piece: Array) -> None:
        if self._float and not np.isfinite(piece).all():
            self._nan += int(np.isnan(piece).sum())
            self._posinf += int(np.isposinf(piece).sum())
            self._neginf += int(np.isneginf(piece).sum())
            piece = piece[np.isfinite(piece)]
        if not piece.size:
            return
        low, high = piece.min(), piece.max()
        self._min = low if self._min is None else min(self._min, low)
        self._max = high if self._max is None else max(self._max, high)
        nonzero = piece[piece != 0]
        self._zeros += piece.size - nonzero.size
        self._nonzero = self._nonzero.combine(Moments.of(nonzero))
        self._distribution.add(nonzero)

    def finish(self) -> dict[str, Any]:
        """Return the statistics as a JSON-able dict.

        Keys: ``count`` of finite voxels, ``nan``, ``posinf``, ``neginf``, then ``min``, ``max``,
        ``mean``, ``std`` (population) and ``percentiles`` (linear interpolation, as numpy) of the
        finite voxels, and ``nonzero`` with ``count``, ``mean``, ``std``, ``percentiles`` of those
        that are not zero. What has no voxels, or is beyond float64, is None.
        """
        values, weights = self._distribution.sorted_weights()
        if self._exact:
            zero = values == 0
            self._zeros = int(weights[zero].sum())
            if values.size:
                self._min, self._max = values[0], values[-1]
            values, weights = values[~zero], weights[~zero]
            self._nonzero = Moments.of(values, weights)
        everything = self._nonzero.combine(Moments(self._zeros))
        at = int(np.searchsorted(values, 0))
        all_values = np.insert(values, at, 0)
        all_weights = np.insert(weights, at, self._zeros)
        return {
            "count": everything.count,
            "nan": self._nan,
            "posinf": self._posinf,
            "neginf": self._neginf,
            "min": _plain(self._min),
            "max": _plain(self._max),
            **_summary(everything, all_values, all_weights),
            "nonzero": {
                "count": self._nonzero.count,
                **_summary(self._nonzero, values, weights),
            },
        }


def _plain(value: Any) -> int | float | None:
    """Return a numpy scalar as a Python number."""
    return None if value is None else value.item()


def _summary(moments: Moments, values: Array, weights: Array) -> dict[str, Any]:
    if moments.count == 0:
        return {"mean": None, "std": None, "percentiles": None}
    return {
        "mean": moments.mean if math.isfinite(moments.mean) else None,
        "std": moments.std if math.isfinite(moments.std) else None,
        "percentiles": {f"{q:g}": weighted_percentile(values, weights, q) for q in PERCENTILES},
    }


def weighted_percentile(values: Array, weights: Array, q: float) -> float:
    """Return a percentile by linear interpolation between ranks, numpy's default.

    Parameters
    ----------
    values : array of shape (n,)
        In rising order.
    weights : int array of shape (n,)
        How many voxels have each value.
    q : float
        0 to 100.
    """
    cumulative = np.cumsum(weights)
    position = (int(cumulative[-1]) - 1) * (q / 100)
    rank = math.floor(position)
    low, high = (
        float(values[np.searchsorted(cumulative, min(r, int(cumulative[-1]) - 1), side="right")])
        for r in (rank, rank + 1)
    )
    part = position - rank
    # The nearer end is the base, as in numpy, whose results these equal to the last bit.
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)
