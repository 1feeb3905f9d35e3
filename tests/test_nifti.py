import base64
import bz2
import gzip
import hashlib
import json
import threading

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from niftifiles import nifti1, nifti2, opener, payload, voxels_of, write

from tiledvol.errors import SourceError
from tiledvol_converters.source import open_source

RNG = np.random.default_rng(5)
VOXELS = np.arange(2 * 3 * 4, dtype="i2").reshape(2, 3, 4)


@pytest.fixture
def nifti(tmp_path):
    return opener(tmp_path)


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress,
                                      zstandard.ZstdCompressor().compress])  # fmt: skip
def test_a_header_claiming_too_much_is_refused_before_allocation(nifti, compress):
    content = nifti1(np.zeros(24, "i2"), dim=(3, 30000, 30000, 30000))
    assert len(content) == 400
    with pytest.raises(SourceError, match=r"30000×30000×30000 voxels, up to byte 54000000000352"):
        nifti(compress(content))


def test_nifti2_extents_beyond_64_bits_are_refused(nifti):
    with pytest.raises(SourceError, match="can hold no more than"):
        nifti(nifti2(np.zeros(4, "i2"), dim=(3, 2**40, 2**40, 2**40)))


def test_one_missing_byte_of_a_plain_file_is_refused_at_once(nifti):
    nifti(nifti1(VOXELS))
    with pytest.raises(SourceError, match=r"up to byte 400.*of 399 bytes"):
        nifti(nifti1(VOXELS)[:-1])


@pytest.mark.parametrize("missing", [1, 30, 47, 48])
def test_missing_voxels_of_a_compressed_file_are_counted(nifti, missing):
    source = nifti(gzip.compress(nifti1(VOXELS)[:-missing]))
    with pytest.raises(SourceError, match=rf"scan.nii: cut off: {missing} bytes of voxels"):
        voxels_of(source)


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress])
def test_bytes_after_the_last_voxel_warn(nifti, compress):
    source = nifti(compress(nifti1(VOXELS) + b"123"))
    assert (voxels_of(source)[0] == VOXELS).all()
    assert source.late_warnings == ["3 bytes after the last voxel are ignored"]


def test_bytes_after_the_compressed_data_warn(nifti):
    source = nifti(gzip.compress(nifti1(VOXELS)) + b"12345")
    assert (voxels_of(source)[0] == VOXELS).all()
    assert source.late_warnings == ["5 bytes after the end of the compressed data are ignored"]


def test_two_members_and_zero_padding_are_fine(nifti):
    content = nifti1(VOXELS)
    source = nifti(gzip.compress(content[:370]) + gzip.compress(content[370:]) + bytes(512))
    assert (voxels_of(source)[0] == VOXELS).all()
    assert source.late_warnings == []


def test_a_flipped_checksum_is_an_error_at_the_end(nifti):
    content = bytearray(gzip.compress(nifti1(VOXELS)))
    content[-5] ^= 1
    with pytest.raises(SourceError, match=r"scan\.nii: damaged"):
        voxels_of(nifti(bytes(content)))


@pytest.mark.parametrize(("name", "content"), [
    ("scan.nii", gzip.compress), ("scan.nii.gz", bytes), ("scan.nii.bz2", gzip.compress),
    ("scan.dat", zstandard.ZstdCompressor().compress), ("scan", bz2.compress), ("s.txt", bytes),
])  # fmt: skip
def test_files_are_told_apart_by_content(nifti, name, content):
    assert (voxels_of(nifti(content(nifti1(VOXELS)), name))[0] == VOXELS).all()


@pytest.mark.parametrize("order", "<>")
def test_both_byte_orders(nifti, order):
    for dtype in ("i2", "u4", "f4", "f8", "i8"):
        voxels = VOXELS.astype(dtype) - np.array(3).astype(dtype)
        source = nifti(nifti1(voxels, order=order), float_dtype="f8")
        assert source.info.attributes["endian"] == {"<": "little", ">": "big"}[order]
        got = voxels_of(source)
        assert got.dtype == voxels.dtype
        assert (got[0] == voxels).all()


@pytest.mark.parametrize("order", "<>")
def test_nifti2(nifti, order):
    source = nifti(nifti2(VOXELS, order))
    assert source.info.affine.tolist() == np.eye(4).tolist()
    assert (voxels_of(source)[0] == VOXELS).all()


def pair(folder, header_name, image_name, offset=0):
    header = nifti1(VOXELS, magic=b"ni1\0", offset=offset)
    image = bytes(offset) + payload(VOXELS)
    pack = {"gz": gzip.compress, "bz2": bz2.compress}
    contents = []
    for name, content in ((header_name, header), (image_name, image)):
        contents.append(pack.get(name.rsplit(".", 1)[1], bytes)(content))
        write(folder / name, contents[-1])
    return contents


@pytest.mark.parametrize(("header", "image"), [
    ("a.hdr", "a.img"), ("a.hdr.gz", "a.img.gz"), ("a.hdr", "a.img.gz"), ("a.hdr.bz2", "a.img"),
    ("A.HDR", "A.IMG"), ("a.b.hdr", "a.b.img"),
])  # fmt: skip
def test_pairs_open_by_either_file(tmp_path, header, image):
    contents = pair(tmp_path, header, image, offset=16)
    for name in (header, image):
        source = open_source(tmp_path / name)
        assert source.files == (tmp_path / header, tmp_path / image)
        assert (voxels_of(source)[0] == VOXELS).all()
        digest = hashlib.blake2b(b"".join(contents), digest_size=32).hexdigest()
        assert source.digest == digest


def test_a_pair_compressed_alike_is_preferred(tmp_path):
    pair(tmp_path, "a.hdr", "a.img")
    pair(tmp_path, "a.hdr.gz", "a.img.gz")
    for name in ("a.hdr.gz", "a.img.gz"):
        files = open_source(tmp_path / name).files
        assert [file.name for file in files] == ["a.hdr.gz", "a.img.gz"]


def test_half_a_pair_says_what_is_missing(tmp_path):
    pair(tmp_path, "a.hdr", "a.img")
    (tmp_path / "a.img").rename(tmp_path / "b.img")
    with pytest.raises(SourceError, match=r"a.hdr: half of a pair; a.img is missing"):
        open_source(tmp_path / "a.hdr")
    with pytest.raises(SourceError, match=r"b.img: half of a pair; b.hdr is missing"):
        open_source(tmp_path / "b.img")


def test_a_pairs_header_under_another_name(nifti):
    with pytest.raises(SourceError, match=r"scan.nii: the header of a pair.* must be named .hdr"):
        nifti(nifti1(VOXELS, magic=b"ni1\0", offset=0))


def test_an_image_beside_a_single_file_header(tmp_path):
    write(tmp_path / "a.hdr", nifti1(VOXELS))
    write(tmp_path / "a.img", payload(VOXELS))
    assert (voxels_of(open_source(tmp_path / "a.hdr"))[0] == VOXELS).all()
    with pytest.raises(SourceError, match=r"a.img: a.hdr beside it holds voxels of its own"):
        open_source(tmp_path / "a.img")


def test_an_extension_is_passed_over(nifti):
    content = bytearray(nifti1(VOXELS, offset=384))
    content[348:384] = (
        b"\1\0\0\0" + (32).to_bytes(4, "little") + (6).to_bytes(4, "little") + bytes(24)
    )
    assert (voxels_of(nifti(bytes(content)))[0] == VOXELS).all()


def test_an_offset_of_zero_means_right_after_the_header(nifti):
    content = nifti1(VOXELS, offset=352).replace(np.float32(352).tobytes(), bytes(4), 1)
    assert (voxels_of(nifti(content))[0] == VOXELS).all()


@pytest.mark.parametrize("offset", [1, 16, 348, 351])
def test_an_offset_within_the_header_means_right_after_it(nifti, offset):
    placed = nifti1(VOXELS, offset=352)
    content = placed.replace(np.float32(352).tobytes(), np.float32(offset).tobytes(), 1)
    source = nifti(content)
    assert (voxels_of(source)[0] == VOXELS).all()
    assert source.info.warnings == (
        f"vox_offset is {offset}, within the header; 352 is taken for it",
    )
    assert nifti(placed).info.warnings == ()


def test_an_offset_within_a_header_of_nifti2(nifti):
    content = bytearray(nifti2(VOXELS))
    content[168:176] = (352).to_bytes(8, "little")
    source = nifti(bytes(content))
    assert (voxels_of(source)[0] == VOXELS).all()
    assert source.info.warnings == ("vox_offset is 352, within the header; 544 is taken for it",)


@pytest.mark.parametrize("offset", [-1, 0.5, 352.5, np.nan, np.inf, -np.inf])
def test_impossible_offsets_are_refused(nifti, offset):
    with pytest.raises(SourceError, match=r"scan.nii: voxels cannot begin at byte"):
        nifti(nifti1(VOXELS, offset=offset))


@settings(deadline=None)
@given(st.data())
def test_any_bounds_give_the_same_voxels(tmp_path_factory, data):
    shape = data.draw(st.tuples(*[st.integers(1, 5)] * 2, st.integers(1, 12), st.integers(1, 3)))
    dtype = data.draw(st.sampled_from(["u1", ">i2", "f8"]))
    voxels = RNG.integers(0, 100, shape).astype(dtype)
    order = ">" if dtype.startswith(">") else "<"
    path = tmp_path_factory.getbasetemp() / "any.nii.gz"
    write(path, gzip.compress(nifti1(voxels.astype(voxels.dtype.newbyteorder("=")), order=order)))
    source = open_source(path)
    size = source.info.shape[source.info.slow_axis]
    bounds = data.draw(st.lists(st.integers(0, size), max_size=5))
    assert (voxels_of(source, bounds) == np.moveaxis(voxels, -1, 0)).all()
    assert source.digest == hashlib.blake2b(path.read_bytes(), digest_size=32).hexdigest()


def test_some_ranges_only(nifti):
    voxels = RNG.integers(0, 9, (3, 4, 9, 2)).astype("u1")
    source = nifti(gzip.compress(nifti1(voxels)))
    ranges = source.ranges([2, 4, 7, 9])
    chosen = [ranges[1], ranges[3]]
    got = [slab.copy() for slab in source.slabs(np.dtype("u1"), chosen)]
    assert (got[0][0] == voxels[..., 4:7, 0]).all()
    assert (got[1][0] == voxels[..., 2:4, 1]).all()
    assert source.digest


def test_no_ranges_still_verify_the_file(nifti):
    source = nifti(gzip.compress(nifti1(VOXELS)))
    assert list(source.slabs(np.dtype("i2"), [])) == []
    assert len(source.digest) == 64
    content = bytearray(gzip.compress(nifti1(VOXELS)))
    content[-1] ^= 1
    with pytest.raises(SourceError):
        list(nifti(bytes(content)).slabs(np.dtype("i2"), []))


def test_ranges_out_of_order_are_a_mistake(nifti):
    source = nifti(nifti1(VOXELS))
    ranges = source.ranges([0, 1, 2])
    with pytest.raises(ValueError, match="order"):
        source.slabs(np.dtype("i2"), ranges[::-1])
    with pytest.raises(ValueError, match="order"):
        source.slabs(np.dtype("i2"), [ranges[0], ranges[0]])
    with pytest.raises(ValueError, match="not within"):
        source.slabs(np.dtype("i2"), source.ranges([0, 5]))


def test_memory_is_three_slabs_that_stay_for_one_more_step(nifti):
    voxels = RNG.integers(0, 99, (4, 4, 32)).astype("i2")
    source = nifti(nifti1(voxels))
    places, before = set(), None
    ranges = source.ranges(range(33))
    for z, slab in enumerate(source.slabs(np.dtype("i2"), ranges)):
        places.add(slab.__array_interface__["data"][0])
        assert (slab[0, ..., 0] == voxels[..., z]).all()
        if before is not None:
            assert (before[0, ..., 0] == voxels[..., z - 1]).all()
        before = slab
    assert len(places) == 3


def test_abandoned_slabs_leave_no_thread_and_no_file(nifti):
    source = nifti(gzip.compress(nifti1(np.zeros((64, 64, 64), "i2"))))
    slabs = source.slabs(np.dtype("i2"), source.ranges(range(65)))
    next(slabs)
    del slabs
    assert [t for t in threading.enumerate() if t.name.startswith("tiledvol")] == []


def test_slabs_can_be_read_again(nifti):
    source = nifti(gzip.compress(nifti1(VOXELS) + b"x"))
    first = voxels_of(source)
    assert (voxels_of(source) == first).all()
    assert len(source.late_warnings) == 1


def test_attributes_are_json_and_hold_no_text(nifti):
    content = nifti1(VOXELS, slope=np.nan, inter=np.nan, text=b"DOE^JOHN", pixdim=(1, 1, 1, np.nan))
    attributes = nifti(content).info.attributes
    text = json.dumps(attributes, allow_nan=False)
    assert len(text) < 1000
    header = base64.b64decode(attributes["header"])
    assert b"DOE" not in header
    # All else is the file's, byte for byte.
    places = [(4, 32), (148, 252), (328, 344)]
    expected = bytearray(content[:348])
    for start, stop in places:
        expected[start:stop] = bytes(stop - start)
    assert header == bytes(expected)
    assert {k: attributes[k] for k in ("format", "endian", "dim", "raw_dtype", "scaled")} == {
        "format": "nifti", "endian": "little", "dim": [3, 2, 3, 4, 0, 0, 0, 0],
        "raw_dtype": "int16", "scaled": False,
    }  # fmt: skip


def test_attributes_tell_the_scaling(nifti):
    attributes = nifti(nifti1(VOXELS, slope=0.5, inter=3)).info.attributes
    assert (attributes["slope"], attributes["inter"], attributes["scaled"]) == (0.5, 3, True)
