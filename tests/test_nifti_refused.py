import gzip
import json
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from niftifiles import nifti1, nifti2, opener, restarted, write

from tiledvol.errors import SourceError
from tiledvol_converters.nifti import FORMAT
from tiledvol_converters.source import open_source

VOXELS = np.arange(2 * 3 * 4, dtype="i2").reshape(2, 3, 4)


@pytest.fixture
def nifti(tmp_path):
    return opener(tmp_path)


@pytest.mark.parametrize(("name", "content", "message"), [
    ("a.nii.gz", b"", "the content is empty"),
    ("a.nii.gz", gzip.compress(b""), "the content is empty"),
    ("a.nii", b"hello, world\n", "text, beginning 'hello, world"),
    ("a.nii.gz", bytes(128) + b"DICM" + bytes(900), "a DICOM file"),
    ("a.nii.gz", gzip.compress(bytes(128) + b"DICM"), "a DICOM file"),
    ("a.nii.gz", b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
    ("a.nii.gz", b"../.git/annex/objects/xx", "a git-annex pointer"),
    ("a.nii.gz", b"<!DOCTYPE html><html>", "a web page"),
    ("a.nii.gz", gzip.compress(gzip.compress(nifti1(VOXELS))), "compressed twice"),
    ("a.nii", b"PK\3\4aaaaaaaaa", "a zip archive"),
    ("a.nii", b"\x89HDF\r\n\x1a\n", "MINC 2"),
    ("a.nii", bytes(2000), "zeros"),
    ("a.nii", bytes(range(128, 256)), "no known kind, beginning 80 81 82"),
    ("a.nii", nifti1(VOXELS)[:347], "a header cut off after 347 of 348 bytes"),
    ("a.nii", nifti2(VOXELS)[:400], "a header cut off after 400 of 540 bytes"),
    ("a.nii", b"\0" + nifti1(VOXELS)[1:], "its size field is not 348"),
    ("a.hdr", nifti1(VOXELS, magic=b"\0\0\0\0")[:348], "ANALYZE 7.5"),
    ("a.nii.gz", gzip.compress(nifti1(VOXELS))[:60], "cut off"),
    ("a.nii.gz", b"\x1f\x8b\x08" + bytes(50), "damaged|cut off"),
])  # fmt: skip
def test_what_is_only_named_like_nifti_is_described(nifti, name, content, message):
    with pytest.raises(SourceError, match=rf"{name}: .*({message})"):
        nifti(content, name)


@pytest.mark.parametrize(("name", "content", "claimed"), [
    ("a", nifti1(VOXELS), True), ("a", gzip.compress(nifti1(VOXELS)), True),
    ("a.nii", b"", True), ("A.NII.GZ", b"x", True), ("a.img", b"", True),
    ("a.dcm", bytes(128) + b"DICM", False), ("a.gz", gzip.compress(b"x" * 999), False),
    ("a.gz", gzip.compress(nifti1(VOXELS))[:90], False), ("a", b"", False),
])  # fmt: skip
def test_files_are_claimed_by_content_then_by_name(tmp_path, name, content, claimed):
    assert FORMAT.matches(write(tmp_path / name, content), content[:4096]) == claimed


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 399), st.integers(0, 255)), min_size=1, max_size=6),
       st.booleans(), st.booleans())  # fmt: skip
def test_damaged_headers_are_refused_or_read_but_never_crash(tmp_path_factory, changes, big, label):
    content = bytearray(nifti1(VOXELS, order=">" if big else "<", slope=2, inter=1))
    for place, value in changes:
        content[place] = value
    path = write(tmp_path_factory.getbasetemp() / "fuzz.nii", bytes(content))
    with suppress(SourceError):
        source = open_source(path, label=label)
        json.dumps(source.info.attributes, allow_nan=False)
        restarted(source)
