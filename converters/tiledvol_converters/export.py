"""Volumes back to NIfTI: what came from NIfTI gets its voxels and header back, bit for bit."""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise, permutations, product
from pathlib import Path
from threading import Event
from typing import Any, BinaryIO, cast

import numpy as np
from isal import igzip_threaded

from tiledvol.errors import TiledvolError
from tiledvol.geometry import Box, Reorientation
from tiledvol.storage.volume import Volume
from tiledvol_converters import nifti_header
from tiledvol_converters.nifti_header import NiftiHeader
from tiledvol_converters.readahead import read_ahead
from tiledvol_converters.scaling import Array, DType, Scaling, unscale

SAME_PLACE = 1e-6
"""Largest difference, in mm, between affines that are the same but for a reorientation."""

NIFTI1_LARGEST = 32767
"""Longest axis that a NIfTI-1 header can hold; longer ones need NIfTI-2."""

STRIP = 16
"""Voxels along the file's first axis that are brought into its order at a time. The stored last
axis is the file's slowest, and strips of this many keep both in the processor's cache: eight times
as fast as all at once."""

EXTENSION_FLAG = bytes(4)
"""What follows a header in a single file that has no extensions."""


@dataclass(frozen=True)
class _Layout:
    """How the voxels of a volume lie in the file.

    Attributes
    ----------
    header : bytes
        What precedes the voxels.
    raw : numpy.dtype
        Type of the numbers in the file, in its byte order.
    scaling : Scaling
        From those numbers to the stored voxels.
    components : int
        How many of the stored channels are interleaved in one voxel.
    change : Reorientation
        From the file's axes to the stored ones.
    shape : tuple of int
        Spatial shape in the file's axes.
    slow_axis : int
        The file's axis along which slabs are contiguous.
    """

    header: bytes
    raw: DType
    scaling: Scaling
    components: int
    change: Reorientation
    shape: tuple[int, int, int]
    slow_axis: int


def export_nifti(
    volume: Volume, path: str | os.PathLike[str], *, overwrite: bool = False
) -> list[str]:
    """Write a volume as ``.nii`` or ``.nii.gz``, slab by slab.

    A volume that was converted from NIfTI gets the original's header back (without free text and
    extensions), and its voxels in the original's order, type, scaling and byte order. Any other
    gets a header of its own: its stored axes, its affine as the sform, millimetres.

    Parameters
    ----------
    volume : Volume
        What to write.
    path : str or path
        The file to make. It appears when it is complete.
    overwrite : bool
        Whether an existing file may be replaced.

    Returns
    -------
    list of str
        What is not as it was in the original.

    Raises
    ------
    TiledvolError
        If the file exists, cannot be written, or is not named ``.nii`` or ``.nii.gz``.
    BlockError, ReadTimeoutError
        If the volume cannot be read.
    """
    path = Path(path)
    name = path.name.lower()
    if not name.endswith((".nii", ".nii.gz")):
        raise TiledvolError(f"{path}: name the file .nii or .nii.gz")
    if path.exists() and not overwrite:
        raise TiledvolError(
            f"{path}: exists already; choose another name, or allow overwriting "
            f"(overwrite=True, --force)"
        )
    layout = _original_layout(volume) or _new_layout(volume)
    with _appearing(path) as file:
        if name.endswith(".gz"):
            compress: Any = igzip_threaded.open
            with compress(file, "wb", threads=-1) as compressed:
                _write(volume, layout, compressed)
        else:
            _write(volume, layout, file)
    return _warnings(volume)


@contextmanager
def _appearing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the name ``path`` once it is complete, or leaves nothing behind."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            yield file
        part.replace(path)
    except OSError as error:
        raise TiledvolError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def _write(volume: Volume, layout: _Layout, file: BinaryIO) -> None:
    file.write(layout.header)
    for slab in read_ahead(lambda stop: _slabs(volume, layout, stop)):
        file.write(slab.view(np.uint8).data)


def _slabs(volume: Volume, layout: _Layout, stop: Event) -> Generator[Array, None, None]:
    """Yield the numbers of the file in order; runs in the thread of `read_ahead`."""
    lead = volume.ndim - 3
    channels = volume.shape[0] if lead else 1
    for first in range(0, channels, layout.components):
        for start, end in pairwise(_bounds(volume, layout)):
            if stop.is_set():
                return
            box = _stored_box(layout, start, end)
            if lead:
                last = first + layout.components
                box = Box((first, *box.start), (last, *box.stop))
            stored = volume.read_sync(box)
            yield _as_in_file(layout, stored if lead else stored[None])


def _as_in_file(layout: _Layout, stored: Array) -> Array:
    """Return the numbers of the file, in its order, that a stored slab (C, X, Y, Z) came from."""
    native = layout.change.inverse.apply(stored)
    out = np.empty(native.shape, layout.raw, order="F")
    for x in range(0, native.shape[1], STRIP):
        strip = native[:, x : x + STRIP]
        out[:, x : x + STRIP] = unscale(strip, layout.raw.newbyteorder("="), layout.scaling)
    return out.ravel(order="K")


def _bounds(volume: Volume, layout: _Layout) -> list[int]:
    """Return the bounds of slabs in the file's order, such that each block is read once."""
    stored_axis = layout.change.axes.index(layout.slow_axis)
    size = layout.shape[layout.slow_axis]
    bounds = [*range(0, size, volume.chunk_shape[volume.ndim - 3 + stored_axis]), size]
    if layout.change.flips[stored_axis]:
        return [size - b for b in reversed(bounds)]
    return bounds


def _stored_box(layout: _Layout, start: int, end: int) -> Box:
    """Return the stored voxels of the slab from ``start`` to ``end`` in the file's axes."""
    extents = [(0, n) for n in layout.shape]
    extents[layout.slow_axis] = (start, end)
    stored = []
    for axis, flip in zip(layout.change.axes, layout.change.flips, strict=True):
        low, high = extents[axis]
        size = layout.shape[axis]
        stored.append((size - high, size - low) if flip else (low, high))
    return Box(tuple(low for low, _ in stored), tuple(high for _, high in stored))


def _original_layout(volume: Volume) -> _Layout | None:
    """Return the layout of the NIfTI file that the volume came from, if it came from one.

    None also where the stored voxels are not the file's but for a reorientation.
    """
    source = volume.attributes.get("source", {})
    if source.get("format") != "nifti":
        return None
    geometry = volume.attributes["source_geometry"]
    shape = cast(tuple[int, int, int], tuple(geometry["shape"]))
    change = _change_between(np.array(geometry["affine"]), shape, volume)
    if change is None:
        return None
    header = nifti_header.parse(base64.b64decode(source["header"]))
    where = Path(volume.name)
    raw, components = nifti_header.voxel_type(header, where)
    return _Layout(
        header=_single_file(header),
        raw=raw,
        scaling=nifti_header.voxel_scaling(header, where),
        components=components,
        change=change,
        shape=shape,
        slow_axis=geometry["slow_axis"],
    )


def _change_between(
    affine: Array, shape: tuple[int, int, int], volume: Volume
) -> Reorientation | None:
    """Return the reorientation that led from a source's geometry to the volume's, if one did."""
    for axes, flips in product(permutations(range(3)), product((False, True), repeat=3)):
        change = Reorientation(
            cast(tuple[int, int, int], axes), cast(tuple[bool, bool, bool], flips)
        )
        if change.shape(shape) == volume.shape[-3:] and np.allclose(
            change.affine(affine, shape), volume.affine, rtol=0, atol=SAME_PLACE
        ):
            return change
    return None


def _single_file(header: NiftiHeader) -> bytes:
    """Return the header as it stands before voxels in the same file."""
    fields = header.fields.copy()
    fields["magic"] = fields.single_magic
    fields["vox_offset"] = header.nbytes + len(EXTENSION_FLAG)
    return bytes(fields.binaryblock) + EXTENSION_FLAG


def _new_layout(volume: Volume) -> _Layout:
    """Return a layout for a volume that did not come from NIfTI."""
    from nibabel.nifti1 import Nifti1Header
    from nibabel.nifti2 import Nifti2Header

    shape = cast(tuple[int, int, int], volume.shape[-3:])
    kind: Any = Nifti1Header if max(volume.shape) <= NIFTI1_LARGEST else Nifti2Header
    fields = kind()
    fields.set_data_dtype(volume.dtype)
    fields.set_data_shape((*shape, *volume.shape[:-3]))
    fields.set_qform(volume.affine, code=0)  # for the voxel sizes, which it shares
    fields.set_sform(volume.affine, code="scanner")
    fields.set_xyzt_units("mm")
    return _Layout(
        header=_single_file(NiftiHeader(fields, single=True)),
        raw=volume.dtype.newbyteorder(fields.endianness),
        scaling=Scaling(),
        components=1,
        change=Reorientation((0, 1, 2), (False, False, False)),
        shape=shape,
        slow_axis=2,
    )


def _warnings(volume: Volume) -> list[str]:
    if volume.attributes.get("exact", True):
        return []
    if volume.kind == "label":
        return ["the original's voxels were rounded to class ids; they are exported rounded"]
    if volume.dtype == np.float32:
        return [
            "the original's voxels were rounded to float32; for an exact export convert the "
            "original again with float64"
        ]
    return ["the original's scaling cannot be undone to the last bit"]
