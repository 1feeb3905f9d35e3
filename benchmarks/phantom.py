"""CT-like and MR-like phantoms: seeded, streamed by slab, about as compressible as the real thing.

A slab is a pure function of (phantom, slice range): slice k draws its noise from
``default_rng([seed, k])``, so any slab can be made alone and in any order, and a 512x512x2000
volume needs no more memory than one slab. Slabs are Fortran-ordered (x fastest), as NIfTI and
DICOM hold them.
"""

from __future__ import annotations

import gzip
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

Plane = NDArray[np.float32]
"""One value a pixel of a slice, shape (Y, X)."""

Slab = tuple[NDArray[np.int16], NDArray[np.uint8]]
"""Image and label map of some slices, both of shape (X, Y, slices), Fortran order."""


@dataclass(frozen=True)
class Phantom(ABC):
    """A volume and its label map (four classes: 0 background, 1 to 3), made on the spot.

    Parameters
    ----------
    shape : tuple of int
        Voxels along (x, y, z).
    spacing : tuple of float
        Voxel size in mm along (x, y, z).
    seed : int
        Another seed is another patient: other noise and a slightly other anatomy.
    """

    shape: tuple[int, int, int] = (512, 512, 384)
    spacing: tuple[float, float, float] = (0.8, 0.8, 1.0)
    seed: int = 0

    @abstractmethod
    def plane(self, k: int) -> tuple[Plane, NDArray[np.uint8]]:
        """Return intensities and classes of slice ``k``, both of shape (Y, X)."""

    @property
    def affine(self) -> NDArray[np.float64]:
        """Voxel centre -> RAS+ mm, centred on the origin."""
        affine = np.diag([*self.spacing, 1.0])
        affine[:3, 3] = -0.5 * np.subtract(self.shape, 1) * self.spacing
        return affine

    def slab(self, start: int, stop: int) -> Slab:
        """Return slices ``start`` to ``stop`` (half-open)."""
        extent = (*self.shape[:2], stop - start)
        image = np.empty(extent, np.int16, order="F")
        label = np.empty(extent, np.uint8, order="F")
        for k in range(start, stop):
            values, classes = self.plane(k)
            image[..., k - start] = np.rint(values).T
            label[..., k - start] = classes.T
        return image, label

    def slabs(self, depth: int = 64) -> Iterator[tuple[int, Slab]]:
        """Yield (first slice, slab), ``depth`` slices at a time."""
        for start in range(0, self.shape[2], depth):
            yield start, self.slab(start, min(start + depth, self.shape[2]))

    def _grid(self, k: int) -> tuple[Plane, Plane, float]:
        """Coordinates of slice ``k``: x as (1, X) and y as (Y, 1) from -1 to 1, z from 0 to 1."""
        x = np.linspace(-1, 1, self.shape[0], dtype=np.float32)[None]
        y = np.linspace(-1, 1, self.shape[1], dtype=np.float32)[:, None]
        return x, y, k / max(self.shape[2] - 1, 1)

    def _noise(self, k: int) -> Plane:
        """Noise of slice ``k``: deviation 1, correlated along x as by a reconstruction."""
        white = np.random.default_rng([self.seed, k]).standard_normal(
            (self.shape[1], self.shape[0] + 1), np.float32
        )
        return (white[:, 1:] + 0.5 * white[:, :-1]) * np.float32(1.25**-0.5)

    def _body_form(self) -> list[float]:
        """Eight numbers around 1, other ones for each seed: what makes patients differ."""
        rng = np.random.default_rng([self.seed, 2**32])
        return [float(form) for form in rng.uniform(0.95, 1.05, 8)]


@dataclass(frozen=True)
class CTPhantom(Phantom):
    """Thorax-like CT in HU, padded outside a round field of view; classes lung, organ, bone."""

    def plane(self, k: int) -> tuple[Plane, NDArray[np.uint8]]:
        """Return HU and classes (1 lung, 2 organ, 3 bone) of slice ``k``."""
        x, y, z = self._grid(k)
        form = self._body_form()
        breath = 1 + 0.06 * math.sin(9 * z + form[0])
        body = _ellipse(x, y, 0, 0, 0.88 * breath * form[1], 0.68 * breath * form[2])
        classes = np.zeros((self.shape[1], self.shape[0]), np.uint8)
        values = np.where(
            body < 0.86, np.float32(45), np.where(body < 1, np.float32(-95), np.float32(-1000))
        )
        lung = 0.3 * math.sqrt(math.sin(math.pi * (0.15 + 0.8 * z))) * form[3]
        for side in (-1, 1):
            classes[_ellipse(x, y, side * 0.4, -0.05, lung + 0.01, 1.35 * lung + 0.01) < 1] = 1
        classes[_ellipse(x, y, 0.08 * form[4], -0.1, 0.2, 0.22 + 0.05 * math.sin(7 * z)) < 1] = 2
        ribs = (np.abs(body - 0.78) < 0.035) & (np.sin(50 * z * form[5] + 6 * x - 4 * y) > 0.1)
        classes[ribs | (_ellipse(x, y, 0, 0.4, 0.09, 0.08) < 1)] = 3
        texture = np.sin(23 * x + 11 * z) * np.cos(19 * y - 7 * z)
        values = np.choose(
            classes, (values, -860 + 60 * texture, 110 + 12 * texture, 480 + 220 * texture)
        )
        values += self._noise(k) * np.where(body < 1, np.float32(36), np.float32(20))
        values[_ellipse(x, y, 0, 0, 1, 1) > 1] = -1024
        return np.clip(values, -1024, 3071), classes


@dataclass(frozen=True)
class MRPhantom(Phantom):
    """Brain-like T1 MR: zeros outside the head, coil bias, noise; classes CSF, grey, white."""

    shape: tuple[int, int, int] = (256, 256, 192)
    spacing: tuple[float, float, float] = (1.0, 1.0, 1.0)

    def plane(self, k: int) -> tuple[Plane, NDArray[np.uint8]]:
        """Return intensities and classes (1 CSF, 2 grey matter, 3 white matter) of slice ``k``."""
        x, y, z = self._grid(k)
        form = self._body_form()
        height = math.sqrt(max(1 - (2 * z - 1) ** 2, 0.0)) + 1e-3
        head = _ellipse(x, y, 0, 0, 0.8 * form[0] * height, 0.94 * form[1] * height)
        folds = 0.06 * np.sin(17 * np.arctan2(y, x + 1e-6) + 14 * z * form[2])
        classes = np.zeros((self.shape[1], self.shape[0]), np.uint8)
        classes[head < 0.8] = 1
        classes[head < 0.72 + folds] = 2
        classes[head < 0.55 + folds] = 3
        classes[_ellipse(x, y, 0, 0.05, 0.16 * height, 0.3 * height) < 1] = 1
        values = np.choose(
            classes, (np.float32(520), np.float32(190), np.float32(430), np.float32(610))
        )
        bias = 1 + 0.25 * np.cos(1.3 * x * form[3]) * np.cos(1.1 * y + z) - 0.1 * x
        values = np.abs(values * bias + 36 * self._noise(k))
        values[head >= 1] = 0
        return values, classes


def write_nifti(phantom: Phantom, image: Path, label: Path | None = None, level: int = 6) -> None:
    """Stream a phantom into ``.nii`` or ``.nii.gz`` files, told apart by the name.

    Parameters
    ----------
    phantom : Phantom
        What to write.
    image, label : Path
        The files to make; no label map without ``label``.
    level : int
        zlib's level for ``.gz``; 6 is what scanners' converters use.
    """
    with ExitStack() as stack:
        image_file = stack.enter_context(_create(image, level))
        label_file = stack.enter_context(_create(label, level)) if label else None
        image_file.write(_nifti_header(phantom, np.dtype(np.int16)))
        if label_file:
            label_file.write(_nifti_header(phantom, np.dtype(np.uint8)))
        for _, (values, classes) in phantom.slabs(16):
            image_file.write(values.tobytes(order="F"))
            if label_file:
                label_file.write(classes.tobytes(order="F"))


def _create(path: Path, level: int) -> BinaryIO:
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "wb", compresslevel=level))
    return path.open("wb")


def _nifti_header(phantom: Phantom, dtype: np.dtype[Any]) -> bytes:
    """Return the 352 bytes before the voxels of a single-file NIfTI-1."""
    header: Any = nib.Nifti1Header()  # type: ignore[no-untyped-call]
    header.set_data_shape(phantom.shape)
    header.set_data_dtype(dtype)
    header.set_sform(phantom.affine, code="scanner")
    header.set_qform(phantom.affine, code="scanner")
    header.set_xyzt_units("mm")
    header["vox_offset"] = 352
    header["magic"] = b"n+1"
    return bytes(header.binaryblock) + bytes(4)


def _ellipse(x: Plane, y: Plane, cx: float, cy: float, rx: float, ry: float) -> Plane:
    """Distance from an ellipse's centre, 1 on its rim."""
    distance: Plane = np.hypot(
        (x - np.float32(cx)) / np.float32(rx), (y - np.float32(cy)) / np.float32(ry)
    )
    return distance
