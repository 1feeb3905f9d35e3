"""What a file is that is not what its name says: for messages that help."""

from __future__ import annotations

import re

_TEXT_BYTES = 256
"""How much of a file is looked at to tell whether it is text."""

_SIGNATURES = (
    (re.compile(rb".{128}DICM", re.DOTALL), "a DICOM file"),
    (re.compile(rb"version https://git-lfs"), "a Git LFS pointer: fetch the file (git lfs pull)"),
    (re.compile(rb"\.?\.?/.*\.git/annex/"), "a git-annex pointer: fetch the file (git annex get)"),
    (re.compile(rb"\s*<(!doctype html|html)", re.IGNORECASE), "a web page: a failed download?"),
    (re.compile(rb"\x1f\x8b|BZh[1-9]|\x28\xb5\x2f\xfd"), "compressed twice: decompress it once"),
    (re.compile(rb"PK\x03\x04"), "a zip archive: unpack it first"),
    (re.compile(rb"\x89HDF\r\n"), "an HDF5 file, as MINC 2 is: convert it to NIfTI first"),
    (re.compile(rb"CDF[\x01\x02]"), "a NetCDF file, as MINC 1 is: convert it to NIfTI first"),
    (re.compile(rb"NRRD000"), "an NRRD file"),
    (re.compile(rb"\x89PNG|\xff\xd8\xff"), "a picture (PNG or JPEG)"),
)


def describe(head: bytes) -> str:
    """Return a phrase that says what content begins with ``head`` (decompressed), if that shows.

    Reads on from "the content is", e.g. "a DICOM file".
    """
    if not head:
        return "empty"
    for signature, name in _SIGNATURES:
        if signature.match(head):
            return name
    start = head[:_TEXT_BYTES]
    if re.fullmatch(rb"[\t\n\r\x20-\x7e]+", start):
        return f"text, beginning {start[:40].decode()!r}"
    if not any(head):
        return "zeros"
    return f"of no known kind, beginning {head[:8].hex(' ')}"
