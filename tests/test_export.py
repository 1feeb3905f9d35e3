import gzip
import json
import logging
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from conftest import write_subject
from niftifiles import nifti1, nifti2, payload, write

import tiledvol as tv
from tiledvol.errors import SourceError, TiledvolError
from tiledvol_converters.convert import convert
from tiledvol_converters.export import export_nifti
from tiledvol_converters.source import open_source

RNG = np.random.default_rng(8)
NIBABEL_DATA = Path(nib.__file__).parent / "tests" / "data"
OBLIQUE = [[0.1, -1.5, 0.2, -10], [-0.9, 0.1, 0.3, 20], [0.2, 0.3, -2.5, 30], [0, 0, 0, 1]]


@pytest.fixture(autouse=True)
def _quiet_nibabel():
    logging.getLogger("nibabel").setLevel(logging.CRITICAL)


def round_trip(tmp_path, content, *, label=False, name="out.nii", **options):
    """Convert a file of the given content, export it, return the new file's bytes and warnings."""
    path = write(tmp_path / "in.nii", content)
    kind = {"labels" if label else "images": {"v": path}}
    convert(tmp_path / "d.tvol", "s", **kind, **options)
    out = tmp_path / name
    warnings = export_nifti(tv.open(tmp_path / "d.tvol")["s"]["v"], out)
    return out.read_bytes(), warnings


@pytest.mark.parametrize("orientation", ["RAS", "native", "LPS", "SAR", "ILA"])
@pytest.mark.parametrize("order", "<>")
def test_a_plain_file_comes_back_byte_for_byte(tmp_path, orientation, order):
    voxels = RNG.integers(-2000, 3000, (70, 9, 130)).astype("i2")
    content = nifti1(voxels, order=order, sform=(1, OBLIQUE), qform=(2, (0, 0, 0), (1, 2, 3)))
    got, warnings = round_trip(tmp_path, content, orientation=orientation)
    assert got == content
    assert warnings == []


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4"])
@pytest.mark.parametrize("shape", [(5,), (5, 4), (5, 4, 66), (5, 4, 3, 4), (5, 4, 3, 2, 3)])
def test_every_type_and_rank(tmp_path, dtype, shape):
    voxels = RNG.integers(0, 120, shape).astype(dtype)
    content = nifti1(voxels, sform=(1, OBLIQUE))
    assert round_trip(tmp_path, content) == (content, [])


@pytest.mark.parametrize(("datatype", "components"), [(128, 3), (2304, 4)])
def test_colours(tmp_path, datatype, components):
    stored = RNG.integers(0, 256, (components, 5, 4, 3, 2)).astype("u1")
    content = nifti1(stored, dim=(4, 5, 4, 3, 2), datatype=datatype, sform=(1, OBLIQUE))
    assert round_trip(tmp_path, content) == (content, [])


def test_nifti2(tmp_path):
    content = nifti2(RNG.integers(0, 99, (5, 6, 7)).astype("i2"), order=">")
    assert round_trip(tmp_path, content) == (content, [])


@pytest.mark.parametrize(
    ("slope", "inter"), [(1, 0), (1, -1024), (2, 3), (-1, 0), (0.1, -7.25), (np.nan, np.nan)]
)
@pytest.mark.parametrize("dtype", ["u1", "i2", "u2"])
def test_scalings_are_undone(tmp_path, dtype, slope, inter):
    info = np.iinfo(dtype)
    voxels = RNG.integers(info.min, info.max, (5, 6, 7), endpoint=True).astype(dtype)
    content = nifti1(voxels, slope=slope, inter=inter)
    assert round_trip(tmp_path, content) == (content, [])


def test_units_and_voxel_sizes_come_back(tmp_path):
    content = nifti1(
        RNG.integers(0, 9, (5, 6, 7)).astype("u1"),
        units=1,
        pixdim=(-1, 0.001, 0.002, 0.003, 2),
        sform=(0, OBLIQUE),
        qform=(1, (0, 0, 1), (7, 8, 9)),
    )
    assert round_trip(tmp_path, content) == (content, [])


def test_nan_payloads_come_back(tmp_path):
    bits = np.array([0x7FC00123, 0x7F800001, 0xFFC00000, 0x80000000], "u4")
    content = nifti1(bits.view("f4").reshape(4, 1, 1))
    assert round_trip(tmp_path, content) == (content, [])


def test_text_and_extensions_do_not_come_back(tmp_path):
    voxels = RNG.integers(0, 9, (5, 6, 7)).astype("u1")
    content = bytearray(nifti1(voxels, text=b"DOE^JOHN", offset=384))
    content[348:360] = b"\1\0\0\0" + (32).to_bytes(4, "little") + (6).to_bytes(4, "little")
    assert round_trip(tmp_path, bytes(content)) == (nifti1(voxels), [])


def test_a_pair_becomes_a_single_file(tmp_path):
    voxels = RNG.integers(0, 9, (5, 6, 7)).astype("u1")
    write(tmp_path / "in.img", payload(voxels))
    write(tmp_path / "in.hdr", nifti1(voxels, magic=b"ni1\0", offset=0))
    convert(tmp_path / "d.tvol", "s", images={"v": tmp_path / "in.img"})
    export_nifti(tv.open(tmp_path / "d.tvol")["s"]["v"], tmp_path / "out.nii")
    assert (tmp_path / "out.nii").read_bytes() == nifti1(voxels)


@pytest.mark.parametrize(("dtype", "values"), [
    ("u1", [0, 255]), ("i8", [0, 2**53 + 1]), ("f4", [0, 3]), ("i2", [0, 300]),
])  # fmt: skip
def test_labels_come_back(tmp_path, dtype, values):
    content = nifti1(RNG.choice(np.array(values, dtype), (5, 6, 7)), sform=(1, OBLIQUE))
    assert round_trip(tmp_path, content, label=True) == (content, [])


def test_float64_as_float32_warns_and_as_float64_does_not(tmp_path):
    content = nifti1(RNG.normal(size=(5, 6, 7)))
    got, warnings = round_trip(tmp_path, content)
    assert got[:352] == content[:352]
    assert "convert the original again with float64" in warnings[0]
    single = np.frombuffer(content[352:]).astype("f4").astype("f8")
    assert got[352:] == single.tobytes()
    (tmp_path / "out.nii").unlink()
    assert round_trip(tmp_path, content, float_dtype="float64") == (content, [])


def test_rounded_labels_warn(tmp_path):
    got, warnings = round_trip(tmp_path, nifti1(np.full((3, 3, 3), 2.02, "f4")), label=True)
    assert got == nifti1(np.full((3, 3, 3), 2, "f4"))
    assert "rounded to class ids" in warnings[0]


def test_gz_holds_the_same(tmp_path):
    content = nifti1(RNG.integers(0, 99, (90, 80, 200)).astype("i2"), sform=(1, OBLIQUE))
    got, _ = round_trip(tmp_path, content, name="out.nii.GZ")
    assert gzip.decompress(got) == content
    assert len(got) < len(content)


def test_existing_files_are_kept(tmp_path):
    content = nifti1(np.zeros((3, 3, 3), "u1"))
    round_trip(tmp_path, content)
    volume = tv.open(tmp_path / "d.tvol")["s"]["v"]
    out = write(tmp_path / "precious.nii", b"precious")
    with pytest.raises(TiledvolError, match=r"precious\.nii: exists already"):
        export_nifti(volume, out)
    assert out.read_bytes() == b"precious"
    export_nifti(volume, out, overwrite=True)
    assert out.read_bytes() == content


@pytest.mark.parametrize("name", ["out", "out.nrrd", "out.nii.bz2", "out.hdr"])
def test_other_names_are_refused(tmp_path, name):
    round_trip(tmp_path, nifti1(np.zeros((3, 3, 3), "u1")), name="ok.nii")
    with pytest.raises(TiledvolError, match=r"name the file \.nii or \.nii\.gz"):
        export_nifti(tv.open(tmp_path / "d.tvol")["s"]["v"], tmp_path / name)


@pytest.mark.parametrize("name", ["out.nii", "out.nii.gz"])
def test_a_failed_export_leaves_nothing(tmp_path, name):
    content = nifti1(RNG.integers(0, 99, (70, 70, 70)).astype("i2"))
    round_trip(tmp_path, content, name="whole.nii")
    for shard in (tmp_path / "d.tvol" / "s" / "v" / "0" / "c").rglob("*"):
        if shard.is_file():
            shard.write_bytes(shard.read_bytes()[:-40])
    before = sorted(tmp_path.iterdir())
    with pytest.raises(TiledvolError, match="s/v"):
        export_nifti(tv.open(tmp_path / "d.tvol")["s"]["v"], tmp_path / name)
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_that_is_not_there_is_named(tmp_path):
    round_trip(tmp_path, nifti1(np.zeros((3, 3, 3), "u1")))
    with pytest.raises(TiledvolError, match=r"nowhere/out\.nii: cannot be written: No such"):
        export_nifti(tv.open(tmp_path / "d.tvol")["s"]["v"], tmp_path / "nowhere" / "out.nii")


@pytest.mark.parametrize("shape", [(20, 30, 70), (2, 20, 30, 7)])
def test_what_is_not_from_nifti_gets_a_header_of_its_own(tmp_path, shape):
    array = RNG.normal(size=shape).astype("f4")
    subject = write_subject(tmp_path / "d.tvol", "s", {"v": array}, affine=np.array(OBLIQUE))
    assert export_nifti(subject["v"], tmp_path / "out.nii.gz") == []
    image = nib.load(tmp_path / "out.nii.gz")
    expected = np.moveaxis(array, 0, -1) if array.ndim == 4 else array
    assert image.get_data_dtype() == np.float32
    np.testing.assert_array_equal(np.asanyarray(image.dataobj), expected)
    np.testing.assert_array_equal(image.affine, np.array(OBLIQUE, "f4"))
    assert image.header.get_sform(coded=True)[1] == 1
    assert image.header.get_qform(coded=True)[1] == 0
    assert image.header.get_xyzt_units()[0] == "mm"
    spacing = np.sqrt((np.array(OBLIQUE)[:3, :3] ** 2).sum(axis=0))
    np.testing.assert_allclose(image.header.get_zooms()[:3], spacing, rtol=1e-6)


def test_an_axis_too_long_for_nifti1_becomes_nifti2(tmp_path):
    array = RNG.integers(0, 9, (40_000, 1, 2)).astype("u1")
    subject = write_subject(tmp_path / "d.tvol", "s", {"v": array})
    export_nifti(subject["v"], tmp_path / "out.nii")
    image = nib.load(tmp_path / "out.nii")
    assert isinstance(image, nib.Nifti2Image)
    np.testing.assert_array_equal(np.asanyarray(image.dataobj), array)


def test_voxels_that_are_elsewhere_than_the_files_get_a_header_of_their_own(tmp_path):
    content = nifti1(RNG.integers(0, 9, (5, 6, 7)).astype("u1"), sform=(1, OBLIQUE))
    round_trip(tmp_path, content, orientation="native", name="same.nii")
    group = tmp_path / "d.tvol" / "s" / "v" / "zarr.json"
    stored = json.loads(group.read_text())
    stored["attributes"]["tiledvol"]["source_geometry"]["affine"][0][3] += 1
    group.write_text(json.dumps(stored))
    export_nifti(tv.open(tmp_path / "d.tvol")["s"]["v"], tmp_path / "other.nii")
    assert nib.load(tmp_path / "other.nii").header["descrip"] == b""
    assert nib.load(tmp_path / "other.nii").header["pixdim"][1] == pytest.approx(0.92736, abs=1e-5)
    assert (tmp_path / "same.nii").read_bytes()[352:] == (tmp_path / "other.nii").read_bytes()[352:]


FIELDS = (
    "dim", "pixdim", "datatype", "bitpix", "xyzt_units", "intent_code", "sform_code", "qform_code",
    "srow_x", "srow_y", "srow_z", "quatern_b", "quatern_c", "quatern_d",
    "qoffset_x", "qoffset_y", "qoffset_z",
)  # fmt: skip


def test_real_files_come_back_bit_for_bit(tmp_path, shared_data):
    names = ("*.nii", "*.nii.gz", "*.hdr", "*.hdr.gz", "*.img", "*.img.gz")
    folders = (shared_data / "nifti", NIBABEL_DATA)
    files = sorted(f for folder in folders for name in names for f in folder.rglob(name))
    done = []
    for number, path in enumerate(files):
        try:
            open_source(path)
            original = nib.load(path)
            raw = np.asanyarray(original.dataobj.get_unscaled())
        except (SourceError, FileNotFoundError, nib.filebasedimages.ImageFileError):
            continue
        convert(tmp_path / "d.tvol", f"s{number}", images={"v": path}, float_dtype="float64")
        out = tmp_path / f"{number}.nii.gz"
        assert export_nifti(tv.open(tmp_path / "d.tvol")[f"s{number}"]["v"], out) == [], path
        exported = nib.load(out)
        got = np.asanyarray(exported.dataobj.get_unscaled())
        assert got.dtype == raw.dtype, path  # the byte order included
        assert got.tobytes() == raw.tobytes(), path
        old, new = (getattr(i, "nifti_header", i.header) for i in (original, exported))
        assert old.endianness == new.endianness, path
        for field in FIELDS:
            assert old[field].tobytes() == new[field].tobytes(), (path, field)
        for field in ("slope", "inter"):
            assert getattr(original.dataobj, field) == getattr(exported.dataobj, field), path
        done.append(path.name)
    assert len(done) >= 48
