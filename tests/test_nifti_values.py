import nibabel as nib
import numpy as np
import pytest
from niftifiles import nifti1, opener, restarted, voxels_of

from tiledvol.errors import SourceError
from tiledvol_converters.source import DoesNotFitError, open_source

VOXELS = np.arange(2 * 3 * 4, dtype="i2").reshape(2, 3, 4)


@pytest.fixture
def nifti(tmp_path):
    return opener(tmp_path)


@pytest.mark.parametrize("slope", [0, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("inter", [0, 5, np.nan])
def test_a_slope_that_is_no_factor_means_raw(nifti, slope, inter):
    source = nifti(nifti1(VOXELS, slope=slope, inter=inter))
    got = voxels_of(source)
    assert got.dtype == np.int16
    assert (got[0] == VOXELS).all()
    assert source.info.attributes["scaled"] is False


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4"])
def test_slope_one_keeps_the_type(nifti, dtype):
    voxels = VOXELS.astype(dtype)
    source = nifti(nifti1(voxels, slope=1, inter=0))
    assert source.info.dtypes == (np.dtype(dtype),)
    assert (voxels_of(source)[0] == voxels).all()
    assert source.exact


def test_an_integral_scaling_keeps_integers(nifti):
    source = nifti(nifti1(np.array([0, 1024, 4095], "u2"), slope=1, inter=-1024))
    got = restarted(source)
    assert got.dtype == np.int16
    assert got.ravel().tolist() == [-1024, 0, 3071]
    assert source.exact


@pytest.mark.parametrize(("top", "dtype", "value"), [
    (33791, "int16", 32767), (33792, "uint16", 32768), (65535, "uint16", 64511),
])  # fmt: skip
def test_an_integral_scaling_takes_the_smallest_type_in_range(nifti, top, dtype, value):
    got = restarted(nifti(nifti1(np.array([2000, top], "u2"), slope=1, inter=-1024)))
    assert got.dtype == dtype
    assert got.ravel().tolist() == [976, value]


def test_values_of_both_signs_out_of_range_widen(nifti):
    got = restarted(nifti(nifti1(np.array([0, 65535], "u2"), slope=1, inter=-1024)))
    assert got.dtype == np.int32
    assert got.ravel().tolist() == [-1024, 64511]


def test_a_real_scaling_is_computed_in_float64(nifti):
    content = nifti1(np.array([-3, 0, 30000], "i2"), slope=0.1, inter=-7.25)
    slope = 0.10000000149011612  # the float32 nearest to 0.1
    expected = [-3 * slope - 7.25, -7.25, 30000 * slope - 7.25]
    single, double = nifti(content), nifti(content, float_dtype="float64")
    assert voxels_of(single).dtype == np.float32
    assert voxels_of(single).ravel().tolist() == [float(np.float32(v)) for v in expected]
    assert voxels_of(double).dtype == np.float64
    assert voxels_of(double).ravel().tolist() == expected
    assert single.exact
    assert double.exact


def test_a_slope_without_intercept_is_refused(nifti):
    with pytest.raises(SourceError, match="correct scl_inter"):
        nifti(nifti1(VOXELS, slope=2, inter=np.nan))


def test_large_int64_is_exact(nifti):
    values = [2**53 + 1, -(2**53) - 1, 2**63 - 1]
    assert voxels_of(nifti(nifti1(np.array(values, "i8")))).ravel().tolist() == values
    label = nifti(nifti1(np.array([2**53 + 1], "i8")), label=True)
    assert restarted(label).ravel().tolist() == [2**53 + 1]
    shifted = nifti(nifti1(np.array([2**53], "i8"), slope=1, inter=1))
    assert restarted(shifted).ravel().tolist() == [2**53 + 1]


def test_nan_and_infinity_are_kept(nifti):
    bits = np.array([0x7FC00123, 0xFFC00000, 0x7F800000, 0xFF800000, 0x3F800000], "u4")
    for order in "<>":
        source = nifti(nifti1(bits.view("f4"), order=order))
        got = voxels_of(source).ravel()
        assert got.view("u4").tolist() == bits.tolist()
        assert source.exact


def test_float64_is_rounded_to_float32_and_says_so(nifti):
    content = nifti1(np.array([0.1, 1e-300, 2]))
    rounded, kept = nifti(content), nifti(content, float_dtype="float64")
    assert voxels_of(rounded).ravel().tolist() == [float(np.float32(0.1)), 0, 2]
    assert not rounded.exact
    assert voxels_of(kept).ravel().tolist() == [0.1, 1e-300, 2]
    assert kept.exact


def test_exactness_is_of_the_last_reading(nifti):
    source = nifti(nifti1(np.array([0.1, 1.0])))
    voxels_of(source)
    assert not source.exact
    voxels_of(source, dtype=np.dtype("f8"))
    assert source.exact


def test_float64_beyond_float32_asks_for_float64(nifti):
    source = nifti(nifti1(np.array([1.0, 1e39])))
    with pytest.raises(DoesNotFitError) as caught:
        voxels_of(source)
    assert caught.value.needed == np.float64
    assert voxels_of(source, dtype=np.dtype("f8")).ravel().tolist() == [1, 1e39]


def test_labels_that_nibabel_scaled_come_back_whole(tmp_path):
    labels = (np.arange(120.0) % 13).reshape(4, 5, 6)
    image = nib.Nifti1Image(labels, np.eye(4))
    image.set_data_dtype(np.uint8)
    nib.save(image, tmp_path / "seg.nii.gz")
    # Whoever truncates gets 56 of 120 voxels wrong.
    truncated = np.asarray(nib.load(tmp_path / "seg.nii.gz").dataobj).astype(int)
    assert (truncated != labels).sum() == 56
    source = open_source(tmp_path / "seg.nii.gz", label=True)
    got = voxels_of(source)
    assert got.dtype == np.uint8
    assert (got[0] == labels).all()
    assert source.exact


@pytest.mark.parametrize(("values", "message"), [
    ([0.0, 1.5], "voxel value 1.5 is no label"), ([0, np.nan], "voxel value nan is no label"),
    ([3, -1], "class ids are not negative"),
])  # fmt: skip
def test_labels_that_are_no_classes_are_refused(nifti, values, message):
    with pytest.raises(SourceError, match=rf"scan.nii: .*{message}"):
        voxels_of(nifti(nifti1(np.array(values, "f4")), label=True))


def test_a_label_restarts_in_the_smallest_type_that_holds_it(nifti):
    voxels = np.zeros((3, 3, 8), "i4")
    voxels[..., 5] = 70_000
    source = nifti(nifti1(voxels), label=True)
    with pytest.raises(DoesNotFitError) as caught:
        voxels_of(source, bounds=range(8))
    assert caught.value.needed == np.uint32
    assert (voxels_of(source, dtype=np.dtype("u4"))[0] == voxels).all()
