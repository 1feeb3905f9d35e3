"""A small dataset for the loader's tests, and what its patches have to be."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from conftest import write_subject

import tiledvol as tv

CHUNK = 16
SHAPES = {"a": (40, 36, 33), "b": (50, 30, 28), "c": (20, 64, 40)}


@dataclass(frozen=True)
class Cohort:
    """Three subjects of different shape, dtype and affine; ``c`` is thinner than most patches.

    ``ct`` int16 (of ``c``: float32), ``pet`` two channels, ``seg`` uint8, ``inst`` uint16.
    """

    url: Path
    arrays: Mapping[str, Mapping[str, np.ndarray]]
    affines: Mapping[str, np.ndarray]

    def open(self) -> tv.Dataset:
        return tv.open(self.url)

    def loader(self, patch_size: Any = 24, batch_size: int = 2, **options: Any) -> tv.PatchLoader:
        """Return a loader of ct and seg, unless told otherwise."""
        chosen = {"images": ["ct"], "labels": ["seg"], "patches_per_epoch": 12} | options
        return tv.PatchLoader(self.open(), patch_size, batch_size, **chosen)

    def cut(self, subject: str, name: str, location: Any, pad: str = "constant", fill: float = 0):
        """Return the patch at a location, cut by numpy from the padded array: (C, X, Y, Z)."""
        array = self.arrays[subject][name]
        array = array if array.ndim == 4 else array[None]
        margin = 16
        options = {"constant_values": fill} if pad == "constant" else {}
        padded = np.pad(array, [(0, 0), *[(margin, margin)] * 3], mode=pad, **options)
        start, stop = (np.array(location).reshape(2, 3) + margin).tolist()
        return padded[:, *(slice(a, b) for a, b in zip(start, stop, strict=True))]


def affine_of(angle: float, spacing: tuple[float, float, float], origin: Any) -> np.ndarray:
    """Return an affine turned about the z axis by ``angle`` (radians)."""
    cos, sin = np.cos(angle), np.sin(angle)
    affine = np.eye(4)
    affine[:3, :3] = np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]]) * spacing
    affine[:3, 3] = origin
    return affine


def write_cohort(url: Path) -> Cohort:
    rng = np.random.default_rng(11)
    affines = {
        "a": affine_of(0, (1, 1, 2), (5, -6, 7)),
        "b": affine_of(0.3, (0.5, 0.75, 1.5), (-10, 0, 2.5)),
        "c": affine_of(1.2, (1.25, 1, 1), (0, 0, 0)),
    }
    arrays = {}
    for subject, shape in SHAPES.items():
        ct = rng.integers(-1000, 1000, shape)
        seg = np.zeros(shape, np.uint8)
        seg[3:6, 20:24, 10:12] = 1
        seg[shape[0] - 1, shape[1] - 1, shape[2] - 1] = 2
        arrays[subject] = {
            "ct": ct.astype(np.float32) + 0.5 if subject == "c" else ct.astype(np.int16),
            "pet": rng.normal(size=(2, *shape)).astype(np.float32),
            "seg": seg,
            "inst": (seg * np.uint16(300)).astype(np.uint16),
        }
        images = {name: arrays[subject][name] for name in ("ct", "pet")}
        labels = {name: arrays[subject][name] for name in ("seg", "inst")}
        write_subject(url, subject, images, labels, affine=affines[subject], chunk=CHUNK)
    return Cohort(url, arrays, affines)


def stream(loader: tv.PatchLoader) -> list[tuple[Any, ...]]:
    """Return an epoch as plain values that can be compared: where patches lie, and a checksum."""
    return [
        (
            subject,
            tuple(batch["location"][i].tolist()),
            int(batch["index"][i]),
            *(crc32(batch[k][i].numpy().tobytes()) for k in ("ct", "seg")),
        )
        for batch in loader
        for i, subject in enumerate(batch["subject"])
    ]
