from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tiledvol.errors import SourceError
from tiledvol_converters.scaling import (
    Scaling,
    image_dtypes,
    label_dtypes,
    make_decoder,
    unscale,
)
from tiledvol_converters.source import DoesNotFitError

INTS = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"]
FLOATS = ["f4", "f8"]
PATH = Path("scan.nii")
F4, F8 = np.dtype("f4"), np.dtype("f8")


def store(raw, scaling, *, label=False, float_dtype=F4):
    """Return stored voxels and exactness, restarting as conversion does."""
    dtypes = (
        label_dtypes(raw.dtype, scaling) if label else image_dtypes(raw.dtype, scaling, float_dtype)
    )
    dtype = dtypes[0]
    while True:
        out = np.empty(len(raw), dtype)
        decoder = make_decoder(PATH, raw.dtype, dtype, scaling, dtypes, label=label)
        try:
            room = decoder.room(out)
            room[...] = raw
            decoder.decode(room, out)
        except DoesNotFitError as error:
            later = dtypes[dtypes.index(dtype) + 1 :]
            dtype = later[later.index(error.needed)]
        else:
            return out, decoder.exact


def names(dtypes):
    return [d.name for d in dtypes]


@pytest.mark.parametrize(
    ("raw", "slope", "inter", "expected"),
    [
        ("i2", 1, 0, ["int16"]),
        (">i2", 1, 0, ["int16"]),
        ("u8", 1, 0, ["uint64"]),
        ("f4", 1, 0, ["float32"]),
        ("f8", 1, 0, ["float32", "float64"]),
        ("u2", 1, -1024, ["int16", "uint16", "int32"]),
        ("i2", 1, -1024, ["int16", "uint16", "int32"]),
        ("u1", 2, 0, ["uint8", "uint16"]),
        ("u2", -1, 65535, ["uint16"]),
        ("u1", -1, 0, ["int8", "uint8", "int16"]),
        ("i8", 3, 0, ["int64", "uint64", "float32", "float64"]),
        ("i2", 0.5, 0, ["float32", "float64"]),
        ("i2", 2, 0.5, ["float32", "float64"]),
        ("i2", 2.0**25, 0, ["float32", "float64"]),
        ("f4", 2, 0, ["float32", "float64"]),
    ],
)  # fmt: skip
def test_types_an_image_may_be_stored_in(raw, slope, inter, expected):
    assert names(image_dtypes(np.dtype(raw), Scaling(slope, inter), F4)) == expected


def test_float64_on_request():
    assert names(image_dtypes(F8, Scaling(), F8)) == ["float64"]
    assert names(image_dtypes(np.dtype("i2"), Scaling(0.5), F8)) == ["float64"]
    assert names(image_dtypes(F4, Scaling(), F8)) == ["float32"]


@pytest.mark.parametrize(
    ("raw", "slope", "expected"),
    [
        ("u1", 1, ["uint8"]),
        ("i1", 1, ["uint8"]),
        ("i2", 1, ["uint8", "uint16"]),
        ("u2", 1, ["uint8", "uint16"]),
        ("i8", 1, ["uint8", "uint16", "uint32", "uint64"]),
        ("u1", 2, ["uint8", "uint16"]),
        ("u1", 0.5, ["uint8", "uint16", "uint32", "uint64"]),
        ("f4", 1, ["uint8", "uint16", "uint32", "uint64"]),
    ],
)
def test_types_a_label_may_be_stored_in(raw, slope, expected):
    assert names(label_dtypes(np.dtype(raw), Scaling(slope))) == expected


def integers(dtype):
    return arrays(dtype, st.integers(1, 20))


@settings(deadline=None)
@given(st.data(), st.sampled_from(INTS), st.integers(-300, 300), st.integers(-5000, 5000))
def test_integers_are_exact_and_in_the_smallest_type(data, kind, slope, inter):
    assume(slope)
    raw = data.draw(integers(kind))
    scaling = Scaling(slope, inter)
    values = [int(v) * slope + inter for v in raw]
    stored, exact = store(raw, scaling)
    if stored.dtype.kind == "f":  # no integer type holds them
        low, high = min(0, *values), max(0, *values)
        assert low < -(2**63) or high >= 2**64 or (low < 0 and high >= 2**63)
        return
    assert stored.tolist() == values
    assert exact
    assert unscale(stored, raw.dtype, scaling).tolist() == raw.tolist()
    info = [np.iinfo(d) for d in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")]
    holding = [i.bits for i in info if i.min <= min(values) and max(values) <= i.max]
    assert stored.dtype.itemsize * 8 == max(min(holding), raw.dtype.itemsize * 8)


@settings(deadline=None)
@given(st.data(), st.sampled_from(INTS))
def test_big_endian_integers_are_the_same(data, kind):
    raw = data.draw(integers(kind))
    for scaling in (Scaling(), Scaling(2, -7)):
        little, _ = store(raw, scaling)
        big, _ = store(raw.astype(raw.dtype.newbyteorder(">")), scaling)
        assert big.dtype == little.dtype
        assert big.tolist() == little.tolist()


@settings(deadline=None)
@given(st.data(), st.sampled_from(["i1", "u1", "i2", "u2"]), st.floats(1e-4, 50), st.floats(-9, 9))
def test_sixteen_bits_survive_a_real_scaling(data, kind, slope, inter):
    raw = data.draw(integers(kind))
    scaling = Scaling(float(np.float32(slope)), float(np.float32(inter)))
    stored, exact = store(raw, scaling, float_dtype=F8)
    if stored.dtype == F8:
        assert stored.tolist() == [int(v) * scaling.slope + scaling.inter for v in raw]
    assert exact
    assert unscale(stored, raw.dtype, scaling).tolist() == raw.tolist()


def test_sixteen_bits_are_looked_up_by_value_in_either_byte_order():
    raw = np.array([300, -2, 300, 1], ">i2")
    stored, exact = store(raw, Scaling(0.5, 1), float_dtype=F8)
    assert stored.tolist() == [151, 0, 151, 1.5]
    assert exact


def test_a_number_once_found_inexact_stays_so():
    # 0.05 is lost in float32 beside 1e7, so 0 and 1 become the same.
    scaling = Scaling(0.05, 1e7)
    decoder = make_decoder(PATH, np.dtype("u1"), F4, scaling, (F4, F8), label=False)
    out = np.empty(2, "f4")
    for numbers, exact in (([0, 0], True), ([0, 1], False), ([0, 0], False)):
        room = decoder.room(out)
        room[...] = numbers
        decoder.decode(room, out)
        assert out.tolist() == [1e7, 1e7]
        assert decoder.exact == exact


@settings(deadline=None)
@given(st.data(), st.sampled_from([*INTS, *FLOATS]), st.sampled_from([F4, F8]),
       st.floats(-1e3, 1e3, width=32), st.floats(-1e3, 1e3, width=32))  # fmt: skip
def test_exact_is_true_only_where_unscaling_gives_back_every_bit(data, kind, wide, slope, inter):
    assume(slope)
    scaling = Scaling(slope, inter)
    raw = data.draw(integers(kind))
    stored, exact = store(raw, scaling, float_dtype=wide)
    assert exact == (unscale(stored, raw.dtype, scaling).tobytes() == raw.tobytes())


def test_values_are_computed_in_float64_and_rounded_once():
    scaling = Scaling(float(np.float32(0.1)), 1000.0)
    stored, _ = store(np.array([3, -7], "i2"), scaling)
    assert stored.dtype == F4
    assert stored.tolist() == [
        float(np.float32(3 * 0.10000000149011612 + 1000)),
        float(np.float32(-7 * 0.10000000149011612 + 1000)),
    ]


def test_nan_payloads_are_kept_where_the_type_is():
    bits = np.array([0x7FC00001, 0x7F800001, 0xFF800000, 0x80000000, 0x7F800000], "u4")
    for order in "<>":
        raw = (
            bits.view("f4").astype(f"{order}f4") if order == "<" else bits.astype(">u4").view(">f4")
        )
        out = np.empty(5, "f4")
        decoder = make_decoder(PATH, raw.dtype, F4, Scaling(), (F4,), label=False)
        room = decoder.room(out)
        room.view("u1")[:] = raw.view("u1")
        decoder.decode(room, out)
        assert out.view("u4").tolist() == bits.tolist()
        assert decoder.exact


def test_float64_stored_as_float32_is_exact_only_where_nothing_is_lost():
    assert store(np.array([1.5, -0.0, np.inf]), Scaling())[1]
    assert not store(np.array([0.1]), Scaling())[1]
    assert store(np.array([0.1]), Scaling(), float_dtype=F8)[1]


def test_float64_beyond_float32_needs_float64():
    stored, exact = store(np.array([1e300, 1, np.inf]), Scaling())
    assert stored.dtype == F8
    assert stored.tolist() == [1e300, 1, np.inf]
    assert exact


def test_label_scaled_by_nibabel_as_uint8_is_rounded_back():
    # Classes 0 to 4 as nibabel scales floats to uint8: slope 4/255.
    slope = float(np.float32(4 / 255))
    raw = np.array([0, 64, 127, 191, 255], "u1")
    stored, exact = store(raw, Scaling(slope), label=True)
    assert stored.dtype == np.uint8
    assert stored.tolist() == [0, 1, 2, 3, 4]
    assert exact


@pytest.mark.parametrize(
    ("value", "expected"), [(3.05, 3), (2.951, 3), (-0.04, 0), (255.0, 255), (70000.0, 70000)]
)
def test_labels_near_integers_are_rounded(value, expected):
    assert store(np.array([value]), Scaling(), label=True)[0].tolist() == [expected]


@pytest.mark.parametrize("value", [3.06, 2.94, 0.5, np.nan, np.inf, -np.inf])
def test_labels_that_are_no_integers_are_refused_with_advice(value):
    with pytest.raises(SourceError, match=r"scan.nii: voxel value .* convert it as an image"):
        store(np.array([1.0, value]), Scaling(), label=True)


@pytest.mark.parametrize("kind", ["i1", "i8", "f4"])
def test_negative_labels_are_refused_with_advice(kind):
    with pytest.raises(SourceError, match=r"voxel value -1 is no label.* positive id"):
        store(np.array([3, -1], kind), Scaling(), label=True)


@pytest.mark.parametrize(
    ("kind", "top", "stored"),
    [
        ("i8", 255, "uint8"), ("i8", 256, "uint16"), ("i4", 65536, "uint32"),
        ("i8", 2**32, "uint64"), ("i8", 2**53 + 1, "uint64"), ("u8", 2**63 - 1, "uint64"),
        ("f8", 256.0, "uint16"), ("f4", 2.0**40, "uint64"),
    ],
)  # fmt: skip
def test_labels_take_the_smallest_type_that_holds_them(kind, top, stored):
    got, exact = store(np.array([0, top], kind), Scaling(), label=True)
    assert got.dtype.name == stored
    assert got.tolist() == [0, int(top)]
    assert exact


@pytest.mark.parametrize(("kind", "value", "slope"), [
    ("u8", 2**63, 1), ("u8", 2**64 - 1, 1), ("u8", 2**63, 2),
    ("f8", 2.0**63, 1), ("f8", 2.0**64, 1),
])  # fmt: skip
def test_labels_beyond_what_a_store_takes_are_refused_with_advice(kind, value, slope):
    message = rf"scan.nii: voxel value {int(value * slope)} is no label.* 2\^63 - 1; renumber"
    with pytest.raises(SourceError, match=message):
        store(np.array([value], kind), Scaling(slope), label=True)


def test_a_label_too_large_is_found_wherever_it_is():
    # The first piece asks for uint64, the second has an id that only an image may have.
    eight = np.dtype("u8")
    decoder = make_decoder(PATH, eight, eight, Scaling(), (eight,), label=True)
    out = np.empty(2, eight)
    decoder.decode(np.array([0, 2**40], eight), out)
    assert out.tolist() == [0, 2**40]
    with pytest.raises(SourceError, match="renumber"):
        decoder.decode(np.array([0, 2**63], eight), out)
