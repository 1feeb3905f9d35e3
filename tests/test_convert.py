import base64
import json
import shutil

import nibabel as nib
import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_geometry import CODES, affines

import tiledvol as tv
from tiledvol.errors import GeometryError, NamingError, SourceError
from tiledvol_converters import convert
from tiledvol_converters.convert import slab_bounds

RNG = np.random.default_rng(5)


def save(path, array, affine=None):
    nib.save(nib.Nifti1Image(array, np.eye(4) if affine is None else affine), path)
    return path


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    affines(),
    st.sampled_from([*CODES, "native"]),
    st.tuples(*[st.integers(1, 40)] * 3),
    st.sampled_from([7, 16, (5, 16, 64)]),
    st.sampled_from([None, 1, 3]),
)
def test_voxels_and_affine_are_those_that_nibabel_reorients(
    tmp_path, affine, orientation, shape, chunk, channels
):
    array = RNG.integers(-999, 999, shape if channels is None else (*shape, channels)).astype(
        np.int16
    )
    image = nib.load(save(tmp_path / "a.nii.gz", array, affine))
    if orientation != "native":
        change = nib.orientations.ornt_transform(
            nib.io_orientation(image.affine), nib.orientations.axcodes2ornt(orientation)
        )
        image = image.as_reoriented(change)
    shutil.rmtree(tmp_path / "d.tvol", ignore_errors=True)
    convert(
        tmp_path / "d.tvol", "s", {"a": tmp_path / "a.nii.gz"}, orientation=orientation, chunk=chunk
    )
    volume = tv.open(tmp_path / "d.tvol")["s"]["a"]
    expected = np.asanyarray(image.dataobj)
    if channels == 3:
        expected = np.moveaxis(expected, 3, 0)
    elif channels == 1:
        expected = expected[..., 0]
    assert np.array_equal(volume[...], expected)
    np.testing.assert_allclose(volume.affine, image.affine, rtol=1e-5, atol=1e-4)
    assert tv.verify(tmp_path / "d.tvol") == []


def test_slab_bounds_are_whole_blocks_of_the_stored_array():
    assert slab_bounds(150, 64, flipped=False) == [0, 64, 128, 150]
    assert slab_bounds(150, 64, flipped=True) == [0, 22, 86, 150]
    assert slab_bounds(64, 64, flipped=True) == [0, 64]
    assert slab_bounds(1, 1, flipped=False) == [0, 1]


def test_shards_are_one_slab_along_the_axis_slowest_in_the_source(tmp_path):
    sagittal = np.array([[0, 0, 1, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1.0]])
    path = save(tmp_path / "a.nii", np.zeros((70, 80, 130), np.uint8), sagittal)
    convert(tmp_path / "d.tvol", "s", {"a": path})
    array = zarr.open_array(tmp_path / "d.tvol/s/a/0", mode="r")
    assert array.shape == (130, 70, 80)
    assert array.shards == (64, 128, 128)
    assert len([p for p in (tmp_path / "d.tvol/s/a/0/c").rglob("*") if p.is_file()]) == 3


def test_image_and_label_of_a_subject_go_together(tmp_path):
    voxels = RNG.integers(-1000, 2000, (30, 20, 10)).astype(np.int16)
    classes = RNG.integers(0, 4, (30, 20, 10)).astype(np.float64)
    lps = np.diag([-1, -1, 1, 1.0])
    convert(
        tmp_path / "d.tvol",
        "s",
        {"ct": save(tmp_path / "ct.nii.gz", voxels, lps)},
        {"seg": save(tmp_path / "seg.nii.gz", classes, lps)},
    )
    subject = tv.open(tmp_path / "d.tvol")["s"]
    assert subject["ct"].kind == "image"
    assert subject["seg"].kind == "label"
    assert subject["seg"].dtype == np.uint8
    assert np.array_equal(subject["ct"][...], voxels[::-1, ::-1])
    assert np.array_equal(subject["seg"][...], classes[::-1, ::-1])
    ids, counts = np.unique(classes, return_counts=True)
    assert subject["seg"].classes == dict(zip(ids.astype(int), counts, strict=True))
    assert subject.provenance["options"]["orientation"] == "RAS"


def test_a_label_that_does_not_fit_a_byte_is_stored_wider(tmp_path):
    classes = np.zeros((20, 20, 200), np.int32)
    classes[3, 4, 199] = 70_000
    convert(tmp_path / "d.tvol", "s", labels={"seg": save(tmp_path / "seg.nii.gz", classes)})
    volume = tv.open(tmp_path / "d.tvol")["s"]["seg"]
    assert volume.dtype == np.uint32
    assert np.array_equal(volume[...], classes)
    assert volume.classes == {0: 79_999, 70_000: 1}
    assert tv.verify(tmp_path / "d.tvol") == []


def test_a_failure_leaves_the_dataset_as_it_was(tmp_path):
    good = save(tmp_path / "good.nii.gz", RNG.integers(0, 99, (70, 70, 140)).astype(np.int16))
    convert(tmp_path / "d.tvol", "s", {"a": good})
    before = tv.open(tmp_path / "d.tvol")["s"]["a"][...]
    data = bytearray(good.read_bytes())
    data[-100] ^= 255
    bad = tmp_path / "bad.nii.gz"
    bad.write_bytes(data)
    for subject in ("s", "t"):
        with pytest.raises(SourceError, match=r"bad\.nii\.gz"):
            convert(tmp_path / "d.tvol", subject, {"a": good, "b": bad})
    dataset = tv.open(tmp_path / "d.tvol")
    assert list(dataset) == ["s"]
    assert list(dataset["s"]) == ["a"]
    assert np.array_equal(dataset["s"]["a"][...], before)
    left = [p for p in (tmp_path / "d.tvol").rglob("*") if p.is_file()]
    assert all(p.relative_to(tmp_path / "d.tvol").parts[0] in
               ("s", "zarr.json", "catalogue.json") for p in left)  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"subject": "../x"}, NamingError, "begins with a dot"),
        ({"subject": "a/b"}, NamingError, "'/'"),
        ({"images": {"a/b": "x"}}, NamingError, "'/'"),
        ({"images": {}}, SourceError, "neither images nor labels"),
        ({"labels": {"a": "x"}}, SourceError, "named as image and as label"),
        ({"orientation": "RAX"}, GeometryError, "orientation code"),
        ({"codec": "gzip"}, ValueError, "codec='gzip'"),
        ({"float_dtype": "float16"}, ValueError, "float_dtype='float16'"),
        ({"images": {"a": "nowhere.nii"}}, SourceError, r"nowhere\.nii: cannot be read"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_written(tmp_path, arguments, error, message):
    given_ = {"subject": "s", "images": {"a": "x"}} | arguments
    with pytest.raises(error, match=message):
        convert(tmp_path / "d.tvol", **given_)
    assert not (tmp_path / "d.tvol/s").exists()


def test_nothing_that_identifies_a_patient_is_stored(tmp_path):
    image = nib.Nifti1Image(np.zeros((4, 5, 6), np.int16), np.eye(4))
    image.header["descrip"] = b"Doe^John 1970-01-01"
    image.header["aux_file"] = b"DoeJohn.txt"
    image.header["db_name"] = b"DOE_JOHN"
    image.header.extensions.append(nib.nifti1.Nifti1Extension("comment", b"John Doe"))
    nib.save(image, tmp_path / "a.nii.gz")
    convert(tmp_path / "d.tvol", "s", {"a": tmp_path / "a.nii.gz"})
    attributes = tv.open(tmp_path / "d.tvol")["s"]["a"].attributes
    stored = json.dumps(attributes).encode() + base64.b64decode(attributes["source"]["header"])
    stored += b"".join(p.read_bytes() for p in (tmp_path / "d.tvol").rglob("*") if p.is_file())
    assert b"doe" not in stored.lower()
    assert b"john" not in stored.lower()
