import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tiledvol.errors import StoreError
from tiledvol.storage.blocks import count_classes

RNG = np.random.default_rng(11)


def blocks_of(array, chunk):
    """Yield grid position and voxels of each block, channels in front included."""
    edges = (1,) * (array.ndim - 3) + (chunk,) * 3
    grid = [-(-n // e) for n, e in zip(array.shape, edges, strict=True)]
    for position in np.ndindex(*grid):
        where = tuple(slice(p * e, p * e + e) for p, e in zip(position, edges, strict=True))
        yield position, array[where]


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32", "int64", "float32"])
def test_value_ranges_are_numpys(make_volume, dtype):
    array = (RNG.normal(0, 90, (2, 33, 20, 41)) + 100).astype(dtype)
    index = make_volume(array, chunk=16).blocks()
    assert index.min.shape == (2, 3, 2, 3)
    assert index.min.dtype == array.dtype
    for position, block in blocks_of(array, 16):
        assert index.min[position] == block.min()
        assert index.max[position] == block.max()
        np.testing.assert_allclose(index.sum[position], block.sum(dtype=np.float64), rtol=1e-12)


def test_value_ranges_leave_out_nan_and_keep_infinity(make_volume):
    array = np.full((8, 4, 4), np.nan, np.float32)
    array[4, 0, 0], array[5, 0, 0], array[6, 0, 0] = 3, -np.inf, 2
    index = make_volume(array, chunk=4).blocks()
    assert np.isnan(index.min[0, 0, 0])
    assert np.isnan(index.max[0, 0, 0])
    assert (index.min[1, 0, 0], index.max[1, 0, 0]) == (-np.inf, 3)


@pytest.mark.parametrize(
    ("dtype", "ids"),
    [("uint8", [0, 1, 2, 255]), ("uint16", [0, 7, 65535]), ("uint32", [0, 5_000, 4_000_000_000]),
     ("uint64", [1, 2**53 + 1]), ("uint16", range(3000))],
)  # fmt: skip
def test_label_counts_are_numpys(make_volume, dtype, ids):
    array = RNG.choice(np.array(ids, dtype), (40, 25, 33))
    array[:16, :16, :16] = ids[1]
    volume = make_volume(array, kind="label", chunk=16)
    index = volume.blocks()
    for position, block in blocks_of(array, 16):
        values, counts = np.unique(block, return_counts=True)
        number = np.ravel_multi_index(position, volume.grid)
        rows = index.rows[index.rows[:, 1] == number]
        assert rows[:, 0].tolist() == values.tolist()
        assert rows[:, 2].tolist() == counts.tolist()
        assert index.counts()[position][np.isin(index.classes, values)].tolist() == counts.tolist()
    values, counts = np.unique(array, return_counts=True)
    totals = dict(zip(values.tolist(), counts.tolist(), strict=True))
    assert index.totals == totals
    assert volume.classes == totals
    assert (volume._summary.classes is not None) == (len(totals) <= 64)
    numbers, voxels = index.of(int(ids[1]))
    assert numbers[0] == 0
    assert voxels.sum() == (array == ids[1]).sum()
    assert index.of(4001)[0].size == 0


@given(arrays(st.sampled_from(["uint8", "uint16", "uint32", "uint64"]), (3, 4, 5)))
def test_count_classes_is_unique(array):
    high = np.uint64(2**63)
    if array.max() >= high:
        with pytest.raises(StoreError, match="too large"):
            count_classes(array)
        return
    ids, counts = np.unique(array, return_counts=True)
    found = count_classes(array)
    assert np.array_equal(found[0], ids)
    assert np.array_equal(found[1], counts)
