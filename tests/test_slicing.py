from unittest import mock

import numpy as np
import pytest
from conftest import write_subject
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices

SHAPE = (13, 7, 18)


@pytest.fixture(scope="module", params=["lz4", "none"])
def stored(request, tmp_path_factory):
    array = np.random.default_rng(0).integers(-999, 999, SHAPE).astype(np.int16)
    url = tmp_path_factory.mktemp("slicing") / "made.tvol"
    options = {"chunk": 5, "codec": request.param}
    return array, write_subject(url, "case", {"volume": array}, **options)["volume"]


@given(key=basic_indices(SHAPE, min_dims=0, max_dims=6, allow_newaxis=True))
def test_basic_indexing_is_numpys(stored, key):
    array, volume = stored
    expected = array[key]
    found = volume[key]
    assert np.array_equal(found, expected)
    assert np.shape(found) == np.shape(expected)
    assert type(found) is type(expected)
    assert found.dtype == expected.dtype


wild = st.one_of(st.none(), st.integers(-40, 40))
steps = st.one_of(st.none(), st.integers(-9, 9).filter(bool))


@given(key=st.tuples(*[st.builds(slice, wild, wild, steps)] * 3))
def test_slices_that_reach_outside_are_clipped_as_numpys(stored, key):
    array, volume = stored
    assert np.array_equal(volume[key], array[key])


@pytest.mark.parametrize(
    "key",
    [
        13,
        -14,
        (0, 7),
        (0, 0, 0, 0),
        (..., ...),
        1.5,
        "x",
        [1, 2],
        np.array([1]),
        True,
        np.zeros(SHAPE, bool),
        (slice(None), None, True),
    ],
)
def test_what_is_no_basic_index_is_an_index_error(stored, key):
    with pytest.raises(IndexError):
        stored[1][key]


def test_zero_step_and_non_integer_bounds_raise_as_numpy(stored):
    with pytest.raises(ValueError, match="zero"):
        stored[1][::0]
    with pytest.raises(TypeError):
        stored[1][0.5:3]


def test_an_empty_selection_reads_nothing(stored):
    array, volume = stored
    with mock.patch.object(type(volume), "_read_region", side_effect=AssertionError):
        assert volume[3:3, :, 2].shape == array[3:3, :, 2].shape


def test_the_result_is_the_callers_to_change(stored):
    array, volume = stored
    patch = volume[2:4]
    patch[...] = 0
    assert np.array_equal(volume[2:4], array[2:4])


def test_asarray_and_len(stored):
    array, volume = stored
    assert np.array_equal(np.asarray(volume), array)
    assert np.asarray(volume, np.float32).dtype == np.float32
    assert len(volume) == 13
