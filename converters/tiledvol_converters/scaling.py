"""Voxel values: from a file's raw numbers and its scaling to stored ones, and back.

A decoder turns raw voxels into stored ones, piece by piece; `unscale` does the reverse. The
arithmetic of integers is exact (modulo 2^n, after a check that the results fit); all other
arithmetic is done in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tiledvol.errors import SourceError
from tiledvol_converters.source import DoesNotFitError

Array = npt.NDArray[Any]
DType = np.dtype[Any]
DTypes = tuple[DType, ...]

INTEGRAL_LIMIT = 1 << 24
"""Slope and intercept are taken for integers only up to here: every larger float32 is one."""

LABEL_TOLERANCE = 0.05
"""How far from an integer a label voxel may lie. Classes up to n, written by nibabel as scaled
uint8, are off by up to n/510, so up to 25 classes pass; interpolated labels lie anywhere."""

MAX_CLASS_ID = 2**63 - 1
"""Greatest class id that a store takes: the index holds ids as int64."""

UNSIGNED: DTypes = tuple(np.dtype(f"u{n}") for n in (1, 2, 4, 8))
SIGNED: DTypes = tuple(np.dtype(f"i{n}") for n in (1, 2, 4, 8))


@dataclass(frozen=True)
class Scaling:
    """value = slope × raw + inter. Slope 1 and intercept 0 where the file has no scaling."""

    slope: float = 1.0
    inter: float = 0.0

    @property
    def identity(self) -> bool:
        """Whether values are the raw numbers."""
        return self.slope == 1 and self.inter == 0

    @property
    def integral(self) -> bool:
        """Whether integers stay integers."""
        numbers = (self.slope, self.inter)
        return all(float(n).is_integer() and abs(n) <= INTEGRAL_LIMIT for n in numbers)

    def bounds(self, low: int, high: int) -> tuple[int, int]:
        """Return the least and greatest value of raw integers from ``low`` to ``high``."""
        ends = [int(self.slope) * raw + int(self.inter) for raw in (low, high)]
        return min(ends), max(ends)


def holds(dtype: DType, low: int, high: int) -> bool:
    """Tell whether an integer type holds all integers from ``low`` to ``high``."""
    info = np.iinfo(dtype)
    return bool(info.min <= low and high <= info.max)


def image_dtypes(raw: DType, scaling: Scaling, float_dtype: DType) -> DTypes:
    """Return the types that the voxels of an image may be stored in, the preferred one first.

    Raw voxels without scaling keep their type (float64 becomes ``float_dtype``). Integers with an
    integral scaling become integers of at least their width. All else becomes ``float_dtype``, or
    float64 should values exceed it.
    """
    native = raw.newbyteorder("=")
    double = np.dtype(np.float64)
    floats = (double,) if float_dtype == double else (float_dtype, double)
    if scaling.identity:
        return floats if native == np.float64 else (native,)
    if native.kind == "f" or not scaling.integral:
        return floats
    low, high = scaling.bounds(*_limits(native))
    ladder = [
        dtype
        for pair in zip(SIGNED, UNSIGNED, strict=True)
        for dtype in pair
        if dtype.itemsize >= native.itemsize and (dtype.kind == "u" or low < 0)
    ]
    enough = [i for i, dtype in enumerate(ladder) if holds(dtype, low, high)]
    return tuple(ladder[: enough[0] + 1]) if enough else (*ladder, *floats)


def label_dtypes(raw: DType, scaling: Scaling) -> DTypes:
    """Return the types that the voxels of a label may be stored in, the smallest first."""
    if raw.kind == "f" or not scaling.integral:
        return UNSIGNED
    _, high = scaling.bounds(*_limits(raw))
    enough = [i for i, dtype in enumerate(UNSIGNED) if holds(dtype, 0, high)]
    return UNSIGNED[: enough[0] + 1] if enough else UNSIGNED


def _limits(dtype: DType) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def unscale(stored: Array, raw: DType, scaling: Scaling) -> Array:
    """Return the raw voxels, of type ``raw``, that stored ones came from.

    Exact wherever the stored voxels hold the values exactly; a decoder's ``exact`` tells.
    """
    with np.errstate(all="ignore"):
        if scaling.identity:
            return stored.astype(raw, copy=False)
        if scaling.integral and stored.dtype.kind in "iu" and raw.kind in "iu":
            return _unscale_integers(stored, raw, int(scaling.slope), int(scaling.inter))
        values = (stored.astype(np.float64) - scaling.inter) / scaling.slope
        if raw.kind == "f":
            return values.astype(raw)
        low, high = _limits(raw)
        return np.clip(np.rint(values), low, high).astype(raw)


def _unscale_integers(stored: Array, raw: DType, slope: int, inter: int) -> Array:
    # stored - inter is a multiple of slope, so both leave the same remainder, and the difference
    # of the quotients is exact; taken modulo 2^64 it cannot overflow on the way.
    divisor = abs(slope)
    wide = stored.astype(f"{stored.dtype.kind}8")
    quotient = (wide // divisor).astype(np.uint64) - np.uint64((inter // divisor) % (1 << 64))
    if slope < 0:
        quotient = -quotient
    return quotient.astype(raw)


class Decoder(Protocol):
    """Turns raw voxels into stored ones.

    Attributes
    ----------
    exact : bool
        Whether `unscale` gives back, bit for bit, all voxels decoded so far.
    """

    exact: bool

    def room(self, out: Array) -> Array:
        """Return where to put the raw voxels that ``out`` is to be made of."""
        ...

    def decode(self, raw: Array, out: Array) -> None:
        """Fill ``out`` from what was put into its ``room``."""
        ...


class Direct:
    """Raw voxels are the stored ones, but for their byte order: they are put there at once."""

    def __init__(self, raw: DType) -> None:
        self.exact = True
        self._raw = raw

    def room(self, out: Array) -> Array:
        """Return ``out`` itself."""
        return out.view(self._raw)

    def decode(self, raw: Array, out: Array) -> None:
        """Turn the bytes to native order."""
        if not self._raw.isnative:
            out.byteswap(inplace=True)


class _Scratch:
    """The base of decoders that need the raw voxels somewhere else than the stored ones."""

    def __init__(self, raw: DType, scaling: Scaling) -> None:
        self.exact = True
        self._raw = raw
        self._scaling = scaling
        self._buffer = np.empty(0, raw)

    def room(self, out: Array) -> Array:
        """Return a buffer, the same one each time."""
        if len(self._buffer) < len(out):
            self._buffer = np.empty(len(out), self._raw)
        return self._buffer[: len(out)]

    def _values(self, raw: Array) -> Array:
        """Return the values: scaled in float64, or as they are."""
        if self._scaling.identity and raw.dtype.kind == "f":
            return raw.astype(raw.dtype.newbyteorder("="), copy=False)
        values = raw.astype(np.float64)
        values *= self._scaling.slope
        values += self._scaling.inter
        return values

    def _check_exact(self, raw: Array, out: Array) -> None:
        if self.exact:
            bits = f"u{raw.dtype.itemsize}"
            back = unscale(out, raw.dtype, self._scaling)
            self.exact = bool(np.array_equal(back.view(bits), raw.view(bits)))


class Integers(_Scratch):
    """Integers become integers of one of the types ``dtypes``; classes if ``label``."""

    def __init__(
        self, path: Path, raw: DType, scaling: Scaling, dtypes: DTypes, *, label: bool
    ) -> None:
        super().__init__(raw, scaling)
        self._path = path
        self._dtypes = dtypes
        self._label = label
        self._low = self._high = 0

    def decode(self, raw: Array, out: Array) -> None:
        """Scale ``raw`` into ``out``, after a look at its range."""
        if not raw.dtype.isnative:
            raw = raw.byteswap(inplace=True).view(raw.dtype.newbyteorder("="))
        low, high = self._scaling.bounds(int(raw.min()), int(raw.max()))
        if self._label:
            _check_ids(self._path, low, high)
        self._low, self._high = min(low, self._low), max(high, self._high)
        if not holds(out.dtype, low, high):
            raise DoesNotFitError(_needed(self._dtypes, self._low, self._high))
        np.copyto(out, raw, casting="unsafe")
        if not self._scaling.identity:
            bits = 8 * out.itemsize
            # Modulo 2^bits throughout, which is exact as the results were seen to fit.
            wrapped = out.view(f"u{out.itemsize}")
            wrapped *= wrapped.dtype.type(int(self._scaling.slope) % (1 << bits))
            wrapped += wrapped.dtype.type(int(self._scaling.inter) % (1 << bits))


class Floats(_Scratch):
    """Numbers of any kind become floats."""

    def decode(self, raw: Array, out: Array) -> None:
        """Scale ``raw`` in float64, and round to the type of ``out``."""
        with np.errstate(all="ignore"):
            values = self._values(raw)
        if out.dtype == np.float32:
            try:
                with np.errstate(over="raise", invalid="ignore", under="ignore"):
                    out[...] = values
            except FloatingPointError:
                raise DoesNotFitError(np.dtype(np.float64)) from None
        else:
            out[...] = values
        self._check_exact(raw, out)


class Classes(_Scratch):
    """Numbers that mean classes, though they are no integers, are rounded to them."""

    def __init__(self, path: Path, raw: DType, scaling: Scaling) -> None:
        super().__init__(raw, scaling)
        self._path = path

    def decode(self, raw: Array, out: Array) -> None:
        """Round the scaled ``raw`` into ``out``.

        Raises
        ------
        SourceError
            If a value is no class.
        """
        with np.errstate(all="ignore"):
            values = self._values(raw)
            rounded = np.rint(values)
            off = ~(np.abs(values - rounded) <= LABEL_TOLERANCE)  # true for NaN and infinity
        if off.any():
            raise SourceError(
                f"{self._path}: voxel value {values[off.argmax()]:g} is no label: more than "
                f"{LABEL_TOLERANCE} from an integer; convert it as an image, or make the labels "
                f"integers first"
            )
        low, high = int(rounded.min()), int(rounded.max())
        _check_ids(self._path, low, high)
        if not holds(out.dtype, low, high):
            raise DoesNotFitError(_needed(UNSIGNED, low, high))
        np.copyto(out, rounded, casting="unsafe")
        self._check_exact(raw, out)


class Tabled(_Scratch):
    """Numbers of 8 or 16 bits are decoded once each, by another decoder, and then looked up."""

    def __init__(self, raw: DType, out: DType, inner: Decoder) -> None:
        super().__init__(raw, Scaling())
        self._bits = np.dtype(f"u{raw.itemsize}")
        self._inner = inner
        self._table = np.zeros(1 << 8 * raw.itemsize, out)
        self._known = np.zeros(len(self._table), np.bool_)

    def decode(self, raw: Array, out: Array) -> None:
        """Fill ``out``; numbers that have not occurred before go through the inner decoder."""
        index = raw.view(self._bits).astype(np.intp)
        unknown = ~self._known[index]
        if unknown.any():
            numbers = np.unique(index[unknown])
            decoded = np.empty(len(numbers), out.dtype)
            self._inner.decode(numbers.astype(self._bits).view(self._raw), decoded)
            self.exact = self._inner.exact
            self._table[numbers] = decoded
            self._known[numbers] = True
        np.take(self._table, index, out=out, mode="clip")  # "raise" would buffer the output


def _check_ids(path: Path, low: int, high: int) -> None:
    """Raise unless ids from ``low`` to ``high`` can be those of classes."""
    if low < 0:
        raise SourceError(
            f"{path}: voxel value {low} is no label: class ids are not negative; convert it as an "
            f"image, or give that class a positive id first"
        )
    if high > MAX_CLASS_ID:
        raise SourceError(
            f"{path}: voxel value {high} is no label: class ids go up to 2^63 - 1; renumber the "
            f"classes first, or convert it as an image"
        )


def _needed(dtypes: DTypes, low: int, high: int) -> DType:
    """Return the first of ``dtypes`` that holds integers from ``low`` to ``high``; one does."""
    return next(d for d in dtypes if d.kind == "f" or holds(d, low, high))


def make_decoder(
    path: Path, raw: DType, out: DType, scaling: Scaling, dtypes: DTypes, *, label: bool
) -> Decoder:
    """Return the decoder from raw voxels to stored ones.

    Parameters
    ----------
    path : Path
        The file, for messages.
    raw, out : numpy.dtype
        Types of the raw voxels (any byte order) and of the stored ones (native).
    dtypes : tuple of numpy.dtype
        What `image_dtypes` or `label_dtypes` returned.
    label : bool
        Whether voxels are class ids.
    """
    integers = raw.kind in "iu" and scaling.integral
    any_is_fine = not label or (raw.kind == "u" and raw.itemsize < 8)
    if scaling.identity and raw.newbyteorder("=") == out and any_is_fine:
        return Direct(raw)
    if integers and out.kind in "iu":
        return Integers(path, raw, scaling, dtypes, label=label)
    decoder = Classes(path, raw, scaling) if label else Floats(raw, scaling)
    return Tabled(raw, out, decoder) if raw.itemsize <= 2 else decoder
