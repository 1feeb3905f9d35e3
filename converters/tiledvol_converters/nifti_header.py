"""What a NIfTI header says: voxels, scaling, geometry, and what of it is kept.

The rules are those of the NIfTI-1 and NIfTI-2 standards (https://nifti.nimh.nih.gov); where
they leave a choice, nibabel's is taken.
"""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tiledvol.errors import GeometryError, SourceError
from tiledvol.geometry import Affine, apply_affine, check_affine
from tiledvol_converters.scaling import DType, Scaling

HEADER_BYTES = 540
"""Length of the longer header, that of NIfTI-2; NIfTI-1 has 348."""

FORM_TOLERANCE = 0.1
"""Distance in mm that sform and qform may differ by at the corners of the volume. Rounding of
float32 fields makes less than 0.001 mm of it; half of the finest clinical voxel is more."""

UNITS = {1: ("m", 1000.0), 2: ("mm", 1.0), 3: ("um", 0.001)}
"""Spatial codes of ``xyzt_units``: name, and factor to mm. Unknown units are taken for mm."""

DTYPES = {
    2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8",
    128: "u1", 256: "i1", 512: "u2", 768: "u4", 1024: "i8", 1280: "u8", 2304: "u1",
}  # fmt: skip
"""Voxel types by the code in ``datatype``; those of colours are the types of a component."""

COMPONENTS = {128: 3, 2304: 4}
"""Components of a colour voxel: RGB24 and RGBA32."""

REFUSED = {
    1: "binary (one bit a voxel): write it as uint8 first",
    32: "complex64: convert magnitude and phase, or real and imaginary part, as two images",
    1536: "float128, which differs between machines: write it as float64 first",
    1792: "complex128: convert magnitude and phase, or real and imaginary part, as two images",
    2048: "complex256: convert magnitude and phase, or real and imaginary part, as two images",
}
"""Voxel types that cannot be converted, and what to do instead."""

CIFTI_INTENTS = range(3000, 3100)
"""Intent codes of CIFTI-2, matrices over surface vertices and voxels."""

TEXT_FIELDS = ("data_type", "db_name", "descrip", "aux_file", "intent_name", "unused_str")
"""Fields of free text, where identifiers of a patient may stand; those of both versions."""

_MAGIC = {b"n+1\0": (348, True), b"ni1\0": (348, False)}
_MAGIC_2 = {b"n+2\0\r\n\x1a\n": (540, True), b"ni2\0\r\n\x1a\n": (540, False)}


@dataclass(frozen=True)
class NiftiHeader:
    """A header in the file's own byte order.

    Attributes
    ----------
    fields : nibabel header
        `nibabel.Nifti1Header` or `nibabel.Nifti2Header`.
    single : bool
        Whether the voxels follow in the same file, or lie in an ``.img`` file of their own.
    """

    fields: Any
    single: bool

    @property
    def nbytes(self) -> int:
        """Length of the header: 348 for NIfTI-1, 540 for NIfTI-2."""
        return int(self.fields["sizeof_hdr"])

    @property
    def datatype(self) -> int:
        """Code of the voxel type."""
        return int(self.fields["datatype"])


def is_header(head: bytes) -> bool:
    """Tell whether a file's (decompressed) content begins with a NIfTI header."""
    return _layout(head) is not None


def parse(head: bytes) -> NiftiHeader:
    """Return the header that ``head`` begins with; `is_header` must hold."""
    from nibabel.nifti1 import Nifti1Header
    from nibabel.nifti2 import Nifti2Header

    layout = _layout(head)
    assert layout is not None
    size, order, single = layout
    kind: Any = Nifti1Header if size == 348 else Nifti2Header
    return NiftiHeader(kind(head[:size], order, check=False), single)


def _layout(head: bytes) -> tuple[int, str, bool] | None:
    """Return size, byte order and whether the voxels follow."""
    size, single = _MAGIC.get(head[344:348]) or _MAGIC_2.get(head[4:12]) or (0, False)
    if not size or len(head) < size:
        return None
    for order, name in (("<", "little"), (">", "big")):
        if int.from_bytes(head[:4], name) == size:  # type: ignore[arg-type]
            return size, order, single
    return None


def describe_header(head: bytes) -> str | None:
    """Say what is wrong with content that nearly begins with a NIfTI header, if it does."""
    sizes = {int.from_bytes(head[:4], "little"), int.from_bytes(head[:4], "big")}
    for magics, size in ((_MAGIC, 348), (_MAGIC_2, 540)):
        if size in sizes and len(head) < size:
            return f"a header cut off after {len(head)} of {size} bytes"
        place = head[344:348] if size == 348 else head[4:12]
        if place in magics:
            return f"a damaged NIfTI header: its size field is not {size}"
    if 348 in sizes:
        return (
            "an ANALYZE 7.5 header, which does not tell left from right: convert it to NIfTI "
            "with a tool that knows where it is from"
        )
    return None


def voxel_dims(header: NiftiHeader, path: Path) -> tuple[int, ...]:
    """Return the extents of the seven axes that a header can have, 1 for those it has not.

    Raises
    ------
    SourceError
        If their number is not 1 to 7, or one is not positive.
    """
    dims = [int(d) for d in header.fields["dim"]]
    rank = dims[0]
    if not 1 <= rank <= 7:
        raise SourceError(f"{path}: the header has {rank} axes; NIfTI has 1 to 7 (dim[0])")
    if min(dims[1 : rank + 1]) < 1:
        raise SourceError(
            f"{path}: the header has extents {dims[1 : rank + 1]}; every one must be positive"
        )
    return (*dims[1 : rank + 1], *[1] * (7 - rank))


def voxel_type(header: NiftiHeader, path: Path) -> tuple[DType, int]:
    """Return the type of a voxel's component in the file's byte order, and their number.

    Raises
    ------
    SourceError
        If voxels are of a type that cannot be converted.
    """
    code = header.datatype
    if code in REFUSED:
        raise SourceError(f"{path}: voxels are {REFUSED[code]}")
    if code not in DTYPES:
        raise SourceError(f"{path}: the header has an unknown voxel type (datatype {code})")
    return np.dtype(DTYPES[code]).newbyteorder(header.fields.endianness), COMPONENTS.get(code, 1)


def voxel_offset(header: NiftiHeader, path: Path) -> int:
    """Return where in their file the voxels begin, in bytes.

    In a single file that is never before the first byte after the header and its four of
    extension flags: NIFTI-1, DETAILS ABOUT vox_offset.

    Raises
    ------
    SourceError
        If the header gives no place in a file.
    """
    offset = float(header.fields["vox_offset"])
    if not offset.is_integer() or offset < 0:
        raise SourceError(
            f"{path}: voxels cannot begin at byte {offset:g}; correct vox_offset of the header"
        )
    return max(int(header.fields["vox_offset"]), _least_offset(header))


def _least_offset(header: NiftiHeader) -> int:
    return header.nbytes + 4 if header.single else 0


def voxel_scaling(header: NiftiHeader, path: Path) -> Scaling:
    """Return the scaling; none where the slope is 0, NaN or infinite, and for colours.

    Raises
    ------
    SourceError
        If the slope is a number and the intercept is not.
    """
    slope, inter = float(header.fields["scl_slope"]), float(header.fields["scl_inter"])
    if slope == 0 or not math.isfinite(slope) or header.datatype in COMPONENTS:
        return Scaling()
    if not math.isfinite(inter):
        raise SourceError(
            f"{path}: the slope is {slope:g} but the intercept is {inter:g}; correct scl_inter"
        )
    return Scaling(slope, inter)


@dataclass(frozen=True)
class Geometry:
    """Where the voxels are.

    Attributes
    ----------
    affine : (4, 4) float64
        Voxel centre -> RAS+ mm.
    origin : {"sform", "qform", "unknown"}
        What of the header it is from.
    warnings : tuple of str
        What is wrong with the header's.
    """

    affine: Affine
    origin: str
    warnings: tuple[str, ...]


def geometry(header: NiftiHeader, shape: tuple[int, int, int]) -> Geometry:
    """Return the geometry: of the sform, else the qform, else of the voxel sizes alone.

    A form counts if its code is positive and its matrix is finite and not singular. The voxel
    sizes give nibabel's base affine: the volume's centre at 0, the first axis running to the left.
    """
    warnings: list[str] = []
    fields, repairs = _with_valid_sizes(header.fields)
    factor = _unit(header)[1]
    forms: dict[str, Affine] = {}
    for name, get in (("sform", fields.get_sform), ("qform", fields.get_qform)):
        if int(fields[f"{name}_code"]) <= 0:
            continue
        try:
            forms[name] = _to_mm(get(), factor)
        except (GeometryError, ValueError):  # quaternions longer than 1 are a ValueError
            warnings.append(f"the {name} is declared but is not a valid affine; it is ignored")
    if len(forms) == 2:
        distance = _largest_distance(forms["sform"], forms["qform"], shape)
        if distance > FORM_TOLERANCE:
            warnings.append(
                f"sform and qform disagree by up to {distance:.4g} mm; the sform is taken"
            )
    if not forms:
        warnings.append("the header has no orientation: left and right are a guess")
        forms["unknown"] = _to_mm(fields.get_base_affine(), factor)
    origin, affine = next(iter(forms.items()))
    if origin != "sform":  # which has no use for the voxel sizes
        warnings += repairs
    return Geometry(affine, origin, tuple(warnings))


def _with_valid_sizes(fields: Any) -> tuple[Any, list[str]]:
    """Return the header with positive voxel sizes and a handedness, as nibabel repairs them.

    What a user should know of the repairs comes with it.
    """
    repairs: list[str] = []
    fixed = fields.copy()
    sizes = np.abs(fixed["pixdim"][1:4])
    bad = ~(np.isfinite(sizes) & (sizes > 0))
    if bad.any():
        repairs.append(f"voxel sizes {fields['pixdim'][1:4].tolist()}: 1 is taken for the bad ones")
    fixed["pixdim"][1:4] = np.where(bad, 1, sizes)
    if fixed["pixdim"][0] not in (-1, 1):
        fixed["pixdim"][0] = 1
    return fixed, repairs


def _to_mm(affine: npt.NDArray[np.float64], factor: float) -> Affine:
    scaled = np.array(affine, np.float64)
    scaled[:3] *= factor
    return check_affine(scaled)


def _largest_distance(one: Affine, other: Affine, shape: tuple[int, int, int]) -> float:
    corners = np.stack(np.meshgrid(*[(0, n - 1) for n in shape]), axis=-1)
    apart = apply_affine(one, corners) - apply_affine(other, corners)
    return float(np.sqrt((apart**2).sum(axis=-1)).max())


def _unit(header: NiftiHeader) -> tuple[str, float]:
    return UNITS.get(int(header.fields["xyzt_units"]) & 7, ("unknown", 1.0))


def header_warnings(header: NiftiHeader) -> tuple[str, ...]:
    """Return what a user should know of a file of this kind."""
    warnings: list[str] = []
    offset, least = int(header.fields["vox_offset"]), _least_offset(header)
    if 0 < offset < least:
        warnings.append(f"vox_offset is {offset}, within the header; {least} is taken for it")
    if int(header.fields["intent_code"]) in CIFTI_INTENTS:
        warnings.append("a CIFTI matrix: its values are kept as channels, its axes' meaning is not")
    return tuple(warnings)


def attributes(header: NiftiHeader, scaling: Scaling, origin: str) -> dict[str, Any]:
    """Return what is kept of the header, as JSON: all but free text and extensions."""
    kept = header.fields.copy()
    for name in TEXT_FIELDS:
        if name in kept.keys():  # noqa: SIM118
            kept[name] = b""
    raw = DTYPES[header.datatype]
    return {
        "format": "nifti",
        "header": base64.b64encode(kept.binaryblock).decode(),
        "endian": {"<": "little", ">": "big"}[header.fields.endianness],
        "dim": header.fields["dim"].tolist(),
        "raw_dtype": np.dtype(raw).name,
        "components": COMPONENTS.get(header.datatype, 1),
        "scaled": not scaling.identity,
        "slope": scaling.slope,
        "inter": scaling.inter,
        "sform_code": int(header.fields["sform_code"]),
        "qform_code": int(header.fields["qform_code"]),
        "geometry": origin,
        "units": _unit(header)[0],
    }
