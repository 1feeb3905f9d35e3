import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tiledvol.storage.reorder import copy_to_c_order


@given(
    st.tuples(st.integers(1, 3), *[st.sampled_from([1, 7, 64, 65, 130])] * 3),
    st.permutations(range(4)),
    st.tuples(*[st.booleans()] * 4),
    st.sampled_from(["uint8", "int16", "float64"]),
)
def test_any_view_is_copied(shape, axes, flips, dtype):
    memory = np.random.default_rng(0).integers(0, 99, shape).astype(dtype)
    view = np.flip(memory.transpose(axes), [i for i, flip in enumerate(flips) if flip])
    target = np.empty(view.shape, dtype)
    copy_to_c_order(view, target)
    assert np.array_equal(target, view)
