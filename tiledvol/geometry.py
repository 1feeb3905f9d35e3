"""Affines, orientation codes, boxes: all voxel and world arithmetic of tiledvol.

World coordinates are RAS+ millimetres: x grows to the patient's right, y to anterior, z to
superior. An affine is a 4×4 float64 matrix that maps the homogeneous index of a voxel's centre
(i, j, k, 1) to world coordinates, as in nibabel.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt

from tiledvol.errors import GeometryError

Affine = npt.NDArray[np.float64]

SINGULAR_VOLUME = 1e-9
"""A voxel whose edges, scaled to unit length, span less than this volume is degenerate."""

LARGEST_VOXEL = 2.0**53
"""Coordinates from here on are no exact numbers of voxels in float64."""

_CODES = (("L", "R"), ("P", "A"), ("I", "S"))


@dataclass(frozen=True)
class Box:
    """A half-open region of voxels: ``start`` is inside, ``stop`` is not.

    Coordinates may be negative or lie beyond a volume: a box is a place, not an index.

    Attributes
    ----------
    start, stop : tuple of int
        First voxel and one past the last voxel along each axis, in voxels.
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]

    def __post_init__(self) -> None:
        try:
            start = tuple(operator.index(v) for v in self.start)
            stop = tuple(operator.index(v) for v in self.stop)
        except TypeError as error:
            raise GeometryError(
                f"Box({self.start!r}, {self.stop!r}): voxels are counted in whole numbers"
            ) from error
        if len(start) != len(stop):
            raise GeometryError(f"Box start {start} and stop {stop} differ in their number of axes")
        if any(a > b for a, b in zip(start, stop, strict=True)):
            raise GeometryError(f"Box start {start} lies beyond its stop {stop}")
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "stop", stop)

    @classmethod
    def from_shape(cls, shape: Sequence[int]) -> Box:
        """Return the box of a whole array of this shape."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.start)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent along each axis, in voxels."""
        return tuple(b - a for a, b in zip(self.start, self.stop, strict=True))

    @property
    def size(self) -> int:
        """Number of voxels."""
        return int(np.prod(self.shape, dtype=object))

    @property
    def slices(self) -> tuple[slice, ...]:
        """The box as an index into an array; meaningful where the box lies inside it."""
        return tuple(slice(a, b) for a, b in zip(self.start, self.stop, strict=True))

    def intersect(self, other: Box) -> Box:
        """Return the common region; where there is none, a box without voxels."""
        start = tuple(max(a, b) for a, b in zip(self.start, other.start, strict=True))
        stop = tuple(min(a, b) for a, b in zip(self.stop, other.stop, strict=True))
        return Box(start, tuple(max(a, b) for a, b in zip(start, stop, strict=True)))

    def contains(self, other: Box) -> bool:
        """Tell whether every voxel of ``other`` is in this box."""
        return other.size == 0 or self.intersect(other) == other

    def pad(self, margin: int | Sequence[int]) -> Box:
        """Return the box grown by ``margin`` voxels (one number, or one per axis) on each side."""
        margins = (margin,) * self.ndim if isinstance(margin, int) else tuple(margin)
        return Box(
            tuple(a - m for a, m in zip(self.start, margins, strict=True)),
            tuple(b + m for b, m in zip(self.stop, margins, strict=True)),
        )

    def translate(self, offset: Sequence[int]) -> Box:
        """Return the box moved by ``offset`` voxels."""
        return Box(
            tuple(a + o for a, o in zip(self.start, offset, strict=True)),
            tuple(b + o for b, o in zip(self.stop, offset, strict=True)),
        )

    def to_world(self, affine: Affine) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the world bounds of the box's voxels, their full extent included.

        Returns
        -------
        lower, upper : float64 arrays of shape (3,)
            Corners, in mm, of the smallest axis-aligned world box that holds the voxels from face
            to face (half a voxel beyond the outer centres).
        """
        corners = np.array(np.meshgrid(*zip(self.start, self.stop, strict=True), indexing="ij"))
        points = apply_affine(affine, corners.reshape(3, -1).T.astype(np.float64) - 0.5)
        return points.min(axis=0), points.max(axis=0)

    @classmethod
    def from_world(cls, lower: npt.ArrayLike, upper: npt.ArrayLike, affine: Affine) -> Box:
        """Return the smallest box whose voxels cover the world box ``lower`` to ``upper`` (mm)."""
        if not (np.isfinite(lower).all() and np.isfinite(upper).all()):
            raise GeometryError(f"the world box {lower!r} to {upper!r} lies at no voxels")
        corners = np.array(np.meshgrid(*np.transpose([lower, upper]), indexing="ij"))
        voxels = (
            apply_affine(np.asarray(np.linalg.inv(affine), np.float64), corners.reshape(3, -1).T)
            + 0.5
        )
        # Rounded before floor and ceil, so that a face exact in mm does not gain a voxel.
        edges = np.round(voxels, 6)
        if not (np.abs(edges) < LARGEST_VOXEL).all():
            raise GeometryError(f"the world box {lower!r} to {upper!r} lies at no voxels")
        return cls(
            tuple(np.floor(edges.min(axis=0)).astype(int).tolist()),
            tuple(np.ceil(edges.max(axis=0)).astype(int).tolist()),
        )


def apply_affine(affine: Affine, points: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Map points of shape (..., 3) through a 4×4 affine."""
    return np.asarray(points, np.float64) @ affine[:3, :3].T + affine[:3, 3]


def check_affine(affine: npt.ArrayLike) -> Affine:
    """Return ``affine`` as a 4×4 float64 array.

    Raises
    ------
    GeometryError
        If it is not 4×4, not finite, singular, or its last row is not (0, 0, 0, 1).
    """
    matrix = np.array(affine, dtype=np.float64)
    if matrix.shape != (4, 4):
        raise GeometryError(f"An affine is 4×4, not {matrix.shape}")
    if not np.isfinite(matrix).all():
        raise GeometryError(f"The affine holds NaN or infinity: {matrix.tolist()}")
    if not np.array_equal(matrix[3], [0, 0, 0, 1]):
        raise GeometryError(f"The last row of an affine is 0 0 0 1, not {matrix[3].tolist()}")
    spacing = spacing_of(matrix)
    if (spacing == 0).any() or abs(np.linalg.det(matrix[:3, :3] / spacing)) < SINGULAR_VOLUME:
        raise GeometryError(f"The affine is singular: {matrix.tolist()}")
    return matrix


def spacing_of(affine: Affine) -> npt.NDArray[np.float64]:
    """Return the distance in mm between neighbouring voxel centres along each array axis, (3,)."""
    return np.asarray(np.sqrt((affine[:3, :3] ** 2).sum(axis=0)))


def orientation_of(affine: Affine) -> str:
    """Return the code, e.g. ``"RAS"``, of the world directions nearest to the array axes.

    Of the six assignments of array axes to world axes the one with the largest summed cosine is
    taken, so every code names each world axis once, however oblique the affine.
    """
    cosines = affine[:3, :3] / spacing_of(affine)
    best = max(permutations(range(3)), key=lambda p: sum(abs(cosines[p[i], i]) for i in range(3)))
    return "".join(_CODES[world][int(cosines[world, i] > 0)] for i, world in enumerate(best))


def _parse_orientation(code: str) -> list[tuple[int, bool]]:
    """Return (world axis, positive direction) for each letter of an orientation code."""
    parsed = [
        (world, letter == pair[1])
        for letter in code.upper()
        for world, pair in enumerate(_CODES)
        if letter in pair
    ]
    if len(code) != 3 or sorted(world for world, _ in parsed) != [0, 1, 2]:
        raise GeometryError(
            f"{code!r} is no orientation code: it needs one letter each of R/L, A/P and S/I, "
            f"as in RAS or LPS"
        )
    return parsed


@dataclass(frozen=True)
class Reorientation:
    """A lossless change of array axes: a permutation, then flips.

    Attributes
    ----------
    axes : tuple of int
        Output axis i is input axis ``axes[i]``, as in ``numpy.transpose``.
    flips : tuple of bool
        Whether output axis i runs against its input axis.
    """

    axes: tuple[int, int, int]
    flips: tuple[bool, bool, bool]

    @classmethod
    def between(cls, source: str, target: str) -> Reorientation:
        """Return the change from one orientation code to another, e.g. LPS to RAS."""
        have = _parse_orientation(source)
        want = _parse_orientation(target)
        found = [[world for world, _ in have].index(world) for world, _ in want]
        flips = [have[i][1] != positive for i, (_, positive) in zip(found, want, strict=True)]
        return cls((found[0], found[1], found[2]), (flips[0], flips[1], flips[2]))

    @property
    def inverse(self) -> Reorientation:
        """The change that undoes this one."""
        back = [self.axes.index(i) for i in range(3)]
        flips = [self.flips[i] for i in back]
        return Reorientation((back[0], back[1], back[2]), (flips[0], flips[1], flips[2]))

    def shape(self, shape: Sequence[int]) -> tuple[int, int, int]:
        """Return the spatial shape after the change."""
        return (shape[self.axes[0]], shape[self.axes[1]], shape[self.axes[2]])

    def apply(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a view of an array of shape (..., X, Y, Z) with its last three axes changed."""
        lead = array.ndim - 3
        moved = array.transpose(*range(lead), *(lead + a for a in self.axes))
        return np.flip(moved, tuple(lead + i for i, flip in enumerate(self.flips) if flip))

    def affine(self, affine: Affine, shape: Sequence[int]) -> Affine:
        """Return the affine of the changed array, so that each voxel keeps its world position.

        Parameters
        ----------
        affine : (4, 4) float64
            Of the array before the change.
        shape : sequence of int
            Spatial shape (3,) before the change.
        """
        change = np.zeros((4, 4))
        change[3, 3] = 1
        for out, (axis, flip) in enumerate(zip(self.axes, self.flips, strict=True)):
            change[axis, out] = -1 if flip else 1
            change[axis, 3] = shape[axis] - 1 if flip else 0
        # Adding zero turns the -0.0 of flipped zeros into 0.0.
        return np.asarray(affine @ change + 0.0)
