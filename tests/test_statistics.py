import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tiledvol.storage.statistics import PERCENTILES, QuantileSketch, Statistics, weighted_percentile


def statistics(array, pieces=3):
    found = Statistics(array.dtype)
    for piece in np.array_split(array.ravel(), pieces):
        found.add(piece)
    return found.finish()


def assert_matches_numpy(found, values, exact):
    assert found["count"] == values.size
    np.testing.assert_allclose(found["mean"], values.mean(dtype=np.float64), rtol=1e-6)
    np.testing.assert_allclose(found["std"], values.std(dtype=np.float64), rtol=1e-6)
    for q in PERCENTILES:
        ours = found["percentiles"][f"{q:g}"]
        if exact:
            # Widened first: numpy's interpolation overflows in int8 and int16.
            wide = values.astype(np.int64) if values.dtype.kind in "iu" else values
            assert ours == np.percentile(wide, q)
        else:
            below, not_above = (np.mean(values < ours) * 100, np.mean(values <= ours) * 100)
            assert below - 0.1 <= q <= not_above + 0.1


@settings(max_examples=40)
@given(st.sampled_from(["uint8", "int8", "uint16", "int16"]), st.data())
def test_short_integers_are_exact(dtype, data):
    array = data.draw(arrays(dtype, st.integers(1, 400)))
    found = statistics(array)
    assert (found["min"], found["max"]) == (array.min(), array.max())
    if np.ptp(array.astype(int)):
        assert_matches_numpy(found, array, exact=True)


@pytest.mark.parametrize(
    "array",
    [
        np.random.default_rng(1).normal(40, 300, 3_000_000).astype(np.float32),
        np.random.default_rng(2).lognormal(0, 4, 1_000_000),
        np.sort(np.random.default_rng(3).normal(0, 1, 1_000_000).astype(np.float32))[::-1],
        np.random.default_rng(4).integers(-(2**30), 2**30, 1_000_000).astype(np.int32),
        np.random.default_rng(5).choice([0, 1000.25, 1000.5], 500_000).astype(np.float32),
        np.random.default_rng(6).integers(0, 2**62, 300_000).astype(np.uint64),
    ],
)
def test_wide_types_are_within_a_thousandth_of_rank(array):
    found = statistics(array)
    assert (found["min"], found["max"]) == (array.min(), array.max())
    assert_matches_numpy(found, array, exact=False)
    assert_matches_numpy(found["nonzero"], array[array != 0], exact=False)


def test_short_wide_arrays_are_exact():
    array = np.random.default_rng(7).normal(size=20_000)
    assert_matches_numpy(statistics(array), array, exact=True)


def test_the_sketch_keeps_its_bound_on_ten_million_ordered_values():
    sketch = QuantileSketch(np.dtype(np.float64))
    n = 10_000_000
    for start in range(0, n, 1_000_000):
        sketch.add(np.arange(start, start + 1_000_000, dtype=np.float64))
    values, weights = sketch.sorted_weights()
    assert weights.sum() == n
    assert values.size < 400_000
    for q in PERCENTILES:
        assert abs(weighted_percentile(values, weights, q) - q / 100 * n) < n * 0.0003


def test_nan_and_infinity_are_counted_and_left_out():
    array = np.array([0, 1, 2, np.nan, np.inf, -np.inf, np.nan, 5], np.float32)
    found = statistics(array)
    assert (found["nan"], found["posinf"], found["neginf"]) == (2, 1, 1)
    assert (found["count"], found["min"], found["max"], found["mean"]) == (4, 0.0, 5.0, 2.0)
    assert found["nonzero"]["count"] == 3
    assert found["nonzero"]["percentiles"]["50"] == 2.0


def test_only_nan_and_only_zero():
    found = statistics(np.full(9, np.nan, np.float32))
    assert (found["count"], found["nan"], found["min"], found["mean"]) == (0, 9, None, None)
    found = statistics(np.zeros(9, np.int16))
    assert (found["count"], found["min"], found["mean"], found["std"]) == (9, 0, 0.0, 0.0)
    assert found["nonzero"] == {"count": 0, "mean": None, "std": None, "percentiles": None}


def test_a_large_offset_does_not_lose_the_deviation():
    array = (1e6 + np.random.default_rng(8).normal(0, 1, 1_000_000)).astype(np.float64)
    np.testing.assert_allclose(statistics(array)["std"], array.std(), rtol=1e-6)


def test_what_overflows_is_none():
    found = statistics(np.array([1e200, 3e200, -1e300, 0]), pieces=2)
    assert found["std"] is None
    assert (found["min"], found["max"]) == (-1e300, 3e200)
