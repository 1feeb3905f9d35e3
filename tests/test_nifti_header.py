import math

import numpy as np
import pytest
from niftifiles import nifti1, opener, voxels_of

from tiledvol.errors import SourceError

RNG = np.random.default_rng(5)
VOXELS = np.arange(2 * 3 * 4, dtype="i2").reshape(2, 3, 4)


@pytest.fixture
def nifti(tmp_path):
    return opener(tmp_path)


SFORM = [[2, 0.25, 0, -10], [0, 3, 0.5, 20], [0.125, 0, 4, 30], [0, 0, 0, 1]]
SMALL = np.zeros((5, 6, 7), "i2")


def test_sform_wins_over_qform_and_voxel_sizes(nifti):
    info = nifti(nifti1(SMALL, sform=(2, SFORM), qform=(1, (0, 0, 0), (1, 2, 3)))).info
    assert info.affine.tolist() == SFORM
    assert info.attributes["geometry"] == "sform"
    assert (info.attributes["sform_code"], info.attributes["qform_code"]) == (2, 1)


def test_shear_is_kept_exactly(nifti):
    sheared = [[1, 0.5, 0, 0], [0, 1, 0.25, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert nifti(nifti1(SMALL, sform=(1, sheared))).info.affine.tolist() == sheared


def test_qform_counts_where_there_is_no_sform(nifti):
    # Half a turn about z: quaternion (0, 0, 0, 1); qfac -1 turns the third axis round.
    content = nifti1(SMALL, sform=(0, SFORM), qform=(3, (0, 0, 1), (7, 8, 9)), pixdim=(-1, 2, 3, 4))
    info = nifti(content).info
    assert info.affine.tolist() == [[-2, 0, 0, 7], [0, -3, 0, 8], [0, 0, -4, 9], [0, 0, 0, 1]]
    assert info.attributes["geometry"] == "qform"
    assert (info.attributes["sform_code"], info.attributes["qform_code"]) == (0, 3)
    assert info.warnings == ()


def test_neither_form_is_geometry_unknown(nifti):
    info = nifti(nifti1(SMALL, sform=(0, SFORM), pixdim=(1, 2, 3, 4))).info
    # nibabel's base affine: first axis to the left, centre of 5×6×7 voxels at 0.
    assert info.affine.tolist() == [
        [-2, 0, 0, 4], [0, 3, 0, -7.5], [0, 0, 4, -12], [0, 0, 0, 1],
    ]  # fmt: skip
    assert info.attributes["geometry"] == "unknown"
    assert "left and right are a guess" in info.warnings[0]


def test_disagreeing_forms_warn_with_the_distance(nifti):
    info = nifti(nifti1(SMALL, qform=(1, (0, 0, 0), (0, 3, 4)))).info
    assert info.warnings == ("sform and qform disagree by up to 5 mm; the sform is taken",)


def test_the_distance_is_taken_at_the_worst_corner(nifti):
    # Voxels 1.5 mm instead of 1 mm along x: 0.5 mm more for each of four steps.
    info = nifti(nifti1(SMALL, qform=(1, (0, 0, 0), (0, 0, 0)), pixdim=(1, 1.5, 1, 1))).info
    assert info.warnings == ("sform and qform disagree by up to 2 mm; the sform is taken",)


@pytest.mark.parametrize(("units", "offset", "warns"), [
    (2, 0.09, False), (2, 0.11, True), (1, 0.0002, True), (3, 90, False),
])  # fmt: skip
def test_the_tolerance_between_forms_is_a_tenth_of_a_millimetre(nifti, units, offset, warns):
    info = nifti(nifti1(SMALL, units=units, qform=(1, (0, 0, 0), (offset, 0, 0)))).info
    assert bool(info.warnings) == warns


@pytest.mark.parametrize("bad", [np.zeros((4, 4)), np.full((4, 4), np.nan),
                                 np.diag([1, np.inf, 1, 1]), np.diag([1, 1, 0, 1])])  # fmt: skip
def test_an_invalid_sform_gives_way_to_the_qform(nifti, bad):
    info = nifti(nifti1(SMALL, sform=(1, bad), qform=(1, (0, 0, 0), (1, 2, 3)))).info
    assert info.attributes["geometry"] == "qform"
    assert info.affine[:3, 3].tolist() == [1, 2, 3]
    assert info.warnings == ("the sform is declared but is not a valid affine; it is ignored",)


def test_an_invalid_sform_alone_is_geometry_unknown(nifti):
    info = nifti(nifti1(SMALL, sform=(1, np.zeros((4, 4))))).info
    assert info.attributes["geometry"] == "unknown"
    assert len(info.warnings) == 2


def test_an_invalid_quaternion_is_ignored(nifti):
    info = nifti(nifti1(SMALL, sform=(0, SFORM), qform=(1, (1, 1, 1), (0, 0, 0)))).info
    assert info.attributes["geometry"] == "unknown"
    assert "the qform is declared" in info.warnings[0]


@pytest.mark.parametrize(("units", "name", "factor"), [
    (0, "unknown", 1), (1, "m", 1000), (2, "mm", 1), (3, "um", 0.001), (2 + 8, "mm", 1),
    (3 + 16, "um", 0.001),
])  # fmt: skip
@pytest.mark.parametrize("form", ["sform", "qform", "none"])
def test_units_become_millimetres(nifti, units, name, factor, form):
    content = nifti1(
        SMALL,
        units=units,
        pixdim=(1, 2, 3, 4),
        sform=(int(form == "sform"), np.diag([2, 3, 4, 1])),
        qform=(int(form == "qform"), (0, 0, 0), (0, 0, 0)),
    )
    info = nifti(content).info
    assert info.attributes["units"] == name
    spacing = np.abs(info.affine).max(axis=0)[:3]
    np.testing.assert_allclose(spacing[:2], np.multiply([2, 3], factor), rtol=1e-12)


@pytest.mark.parametrize("size", [0, -3, np.nan, np.inf])
def test_bad_voxel_sizes_are_repaired_with_a_warning(nifti, size):
    info = nifti(nifti1(SMALL, sform=(0, SFORM), pixdim=(1, size, 2, 2))).info
    assert abs(info.affine[0, 0]) == (3 if size == -3 else 1)
    assert any("voxel sizes" in w for w in info.warnings) == (size != -3)


def test_voxel_sizes_that_are_not_used_are_not_spoken_of(nifti):
    pixdim, placed = (1, 0, np.nan, 2), (1, (0, 0, 0), (0, 0, 0))
    warning = "voxel sizes [0.0, nan, 2.0]: 1 is taken for the bad ones"
    assert nifti(nifti1(SMALL, sform=(1, SFORM), pixdim=pixdim)).info.warnings == ()
    for sform, qform in (((0, SFORM), placed), ((1, np.zeros((4, 4))), placed)):
        info = nifti(nifti1(SMALL, sform=sform, qform=qform, pixdim=pixdim)).info
        assert info.attributes["geometry"] == "qform"
        assert warning in info.warnings
    both = nifti(nifti1(SMALL, sform=(1, SFORM), qform=placed, pixdim=pixdim)).info
    assert len(both.warnings) == 1
    assert "sform and qform disagree" in both.warnings[0]


@pytest.mark.parametrize(
    ("shape", "spatial", "channels", "slow"),
    [
        ((4,), (4, 1, 1), None, 0),
        ((4, 3), (4, 3, 1), None, 1),
        ((4, 3, 2), (4, 3, 2), None, 2),
        ((1, 1, 1), (1, 1, 1), None, 2),
        ((4, 3, 2, 1, 1), (4, 3, 2), None, 2),
        ((4, 3, 2, 5), (4, 3, 2), 5, 2),
        ((4, 3, 2, 1, 3), (4, 3, 2), 3, 2),
        ((4, 3, 2, 2, 3), (4, 3, 2), 6, 2),
        ((4, 3, 1, 2), (4, 3, 1), 2, 1),
        ((1, 1, 1, 1, 5, 2), (1, 1, 1), 10, 2),
        ((2, 2, 2, 2, 2, 2, 2), (2, 2, 2), 16, 2),
    ],
)
def test_axes_become_space_and_channels(nifti, shape, spatial, channels, slow):
    voxels = RNG.integers(-99, 99, shape).astype("i2")
    source = nifti(nifti1(voxels))
    assert source.info.shape == spatial
    assert source.info.channels == channels
    assert source.info.slow_axis == slow
    # In the file's order the first axis is fastest, so channels are the slowest axis.
    expected = voxels.ravel(order="F").reshape((*spatial, -1), order="F")
    assert (voxels_of(source) == np.moveaxis(expected, -1, 0)).all()


@pytest.mark.parametrize(("datatype", "components"), [(128, 3), (2304, 4)])
@pytest.mark.parametrize("shape", [(3, 4, 5), (3, 4, 5, 2), (3, 4)])
def test_colours_become_channels(nifti, datatype, components, shape):
    voxels = RNG.integers(0, 256, (*shape, components)).astype("u1")
    # A file holds the components of a voxel together, then the next voxel along x.
    stored = np.moveaxis(voxels, -1, 0)
    content = nifti1(stored, dim=(len(shape), *shape), datatype=datatype, slope=2, inter=1)
    source = nifti(content)
    assert source.info.channels == components * math.prod(shape[3:])
    assert [d.name for d in source.info.dtypes] == ["uint8"]
    got = voxels_of(source, bounds=[1, 2])
    for time in range(math.prod(shape[3:])):
        for component in range(components):
            want = voxels[..., time, component] if len(shape) == 4 else voxels[..., component]
            assert (got[time * components + component].squeeze() == want).all()


def test_colours_are_no_labels(nifti):
    content = nifti1(np.zeros((3, 2, 2, 2), "u1"), dim=(3, 2, 2, 2), datatype=128)
    with pytest.raises(SourceError, match=r"scan.nii: voxels are colours.* as an image"):
        nifti(content, label=True)


@pytest.mark.parametrize(("datatype", "advice"), [
    (32, "magnitude and phase"), (1792, "magnitude and phase"), (2048, "magnitude and phase"),
    (1536, "write it as float64"), (1, "write it as uint8"),
])  # fmt: skip
def test_types_that_cannot_be_stored_are_refused_with_advice(nifti, datatype, advice):
    with pytest.raises(SourceError, match=rf"scan.nii: voxels are .*{advice}"):
        nifti(nifti1(VOXELS, datatype=datatype))


def test_an_unknown_type_is_refused(nifti):
    with pytest.raises(SourceError, match="datatype 77"):
        nifti(nifti1(VOXELS, datatype=77))


@pytest.mark.parametrize("dim", [
    (3, 2, 0, 4), (3, -2, 3, 4), (3, 2, 3, -32768), (4, 2, 3, 4, 0), (3, -1, 1, 1),
])  # fmt: skip
def test_extents_that_are_not_positive_are_refused(nifti, dim):
    with pytest.raises(SourceError, match=r"scan.nii: .* every one must be positive"):
        nifti(nifti1(VOXELS, dim=dim))


@pytest.mark.parametrize("rank", [0, -1, 8, 300])
def test_an_impossible_rank_is_refused(nifti, rank):
    with pytest.raises(SourceError, match=f"scan.nii: the header has {rank} axes"):
        nifti(nifti1(VOXELS, dim=(rank, 2, 3, 4)))


def test_extents_beyond_the_rank_do_not_matter(nifti):
    source = nifti(nifti1(VOXELS, dim=(3, 2, 3, 4, 0, -7, 0, 0)))
    assert source.info.shape == (2, 3, 4)
    assert source.info.channels is None
