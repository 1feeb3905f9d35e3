"""Which images of which subjects a loader delivers, and whether they fit together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tiledvol.errors import GeometryError, StoreError
from tiledvol.geometry import spacing_of
from tiledvol.loading.device import buffer_dtype
from tiledvol.sampling.request import ON_GRID, ResampledGrid
from tiledvol.storage.dataset import Subject
from tiledvol.storage.volume import Volume

MOST_NAMED = 10
"""How many subjects an error message names."""

GRID = ":grid"
"""The name, which no image can have, of the grid on which patches are placed."""


@dataclass(frozen=True)
class ImageSpec:
    """One of the tensors of a batch.

    Attributes
    ----------
    name : str
        Of the image in every subject.
    label : bool
        Whether voxels are class ids, which are never averaged.
    channels : int
        Channels, 1 for a volume without.
    stored : numpy.dtype
        Type that holds the stored voxels of all subjects.
    buffer : numpy.dtype
        Type in which batches are put together in host memory.
    fill : float
        What stands outside the volume where padding is constant.
    """

    name: str
    label: bool
    channels: int
    stored: np.dtype[Any]
    buffer: np.dtype[Any]
    fill: float


class PlacedSubject:
    """A subject with the grid on which patches of it are placed.

    Samplers find the grid under the name `GRID`, and all else as it is in the subject.

    Attributes
    ----------
    id, subject
        The subject.
    grid : Volume or ResampledGrid
        That of the first image, or what it is at another spacing.
    resampled : bool
        Whether it is the latter.
    volumes : tuple of Volume
        The images, in the order asked for.
    """

    def __init__(
        self, subject: Subject, names: Sequence[str], spacing: tuple[float, float, float] | None
    ) -> None:
        self.id = subject.id
        self.subject = subject
        self.volumes = tuple(subject[name] for name in names)
        self.resampled = spacing is not None
        self.grid: Any = self.volumes[0]
        if spacing is not None:
            self.grid = ResampledGrid(self.volumes[0], spacing)

    def __getitem__(self, name: str) -> Any:
        return self.grid if name == GRID else self.subject[name]

    def __contains__(self, name: object) -> bool:
        return name == GRID or name in self.subject


def select_subjects(
    subjects: Mapping[str, Subject], names: Sequence[str], require: str
) -> dict[str, Subject]:
    """Return the subjects that have the images.

    Parameters
    ----------
    subjects : mapping of str to Subject
        To choose from.
    names : sequence of str
        The images.
    require : {"all", "any"}
        ``"all"``: a subject that lacks one is an error; ``"any"``: it is left out.

    Raises
    ------
    StoreError
        Naming what is missing where.
    """
    if require not in ("all", "any"):
        raise ValueError(f"require={require!r}: choose all or any")
    lacking = {
        subject_id: [name for name in names if name not in subject]
        for subject_id, subject in subjects.items()
    }
    missing = {k: v for k, v in lacking.items() if v}
    if missing and require == "all":
        listed = "; ".join(f"{k}: {', '.join(v)}" for k, v in list(missing.items())[:MOST_NAMED])
        more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
        raise StoreError(
            f"{len(missing)} of {len(subjects)} subjects lack images ({listed}{more}); leave them "
            f"out with require='any', or convert what is missing"
        )
    chosen = {k: s for k, s in subjects.items() if not lacking[k]}
    if not chosen:
        raise StoreError(f"no subject has the images {', '.join(names)}")
    return chosen


def image_specs(
    subjects: Mapping[str, Subject],
    images: Sequence[str],
    labels: Sequence[str],
    fill: Mapping[str, float],
    device: torch.device,
    dtype: torch.dtype | None,
    resampled: bool,
) -> tuple[ImageSpec, ...]:
    """Return what the tensors of a batch are.

    Parameters
    ----------
    subjects, images, labels
        What is delivered.
    fill : mapping of str to float
        By image; labels get 0.
    device : torch.device
        Where batches go.
    dtype : torch.dtype, optional
        Of images; None: as stored.
    resampled : bool
        Whether images are interpolated, so that integers would be rounded.

    Raises
    ------
    StoreError
        If an image asked for as a label is none, or subjects differ in channels.
    ValueError
        If a fill value does not fit an image's type.
    """
    specs = []
    for name in (*images, *labels):
        volumes = [subject[name] for subject in subjects.values()]
        label = name in labels
        if label and (wrong := [v.subject for v in volumes if v.kind != "label"]):
            raise StoreError(
                f"{name} of {', '.join(wrong[:MOST_NAMED])} was converted as an image: its values "
                f"are no class ids; convert it as a label, or name it in images="
            )
        # Of subjects that are alike the first is named.
        channels = {v.shape[0] if v.ndim == 4 else 1: v.subject for v in reversed(volumes)}
        if len(channels) > 1:
            found = ", ".join(f"{n} in {channels[n]}" for n in sorted(channels))
            raise StoreError(f"{name} differs in its number of channels: {found}")
        types = {v.dtype: v.subject for v in reversed(volumes)}
        value = fill.get(name, 0)
        for kind, subject in types.items():
            if not _fits(value, kind):
                raise ValueError(f"fill={value!r} does not fit {name} of {subject}: it is {kind}")
        stored = np.result_type(*types)
        inexact = resampled and dtype is not None and not label
        held = np.result_type(stored, np.float32) if inexact else stored
        buffer = buffer_dtype(held, label, device, dtype)
        specs.append(ImageSpec(name, label, next(iter(channels)), stored, buffer, value))
    return tuple(specs)


def _fits(value: float, dtype: np.dtype[Any]) -> bool:
    """Tell whether a type has a value."""
    if dtype.kind == "f":
        return True
    return float(value).is_integer() and np.iinfo(dtype).min <= value <= np.iinfo(dtype).max


def check_one_grid(subjects: Mapping[str, Subject], names: Sequence[str]) -> None:
    """Check that the images of each subject lie on one grid.

    Raises
    ------
    GeometryError
        Naming the first subject and image that do not.
    """
    for subject in subjects.values():
        first, *others = (subject[name] for name in names)
        for other in others:
            if not same_grid(first, other):
                raise GeometryError(
                    f"{subject.id}: {first.name} ({_grid(first)}) and {other.name} "
                    f"({_grid(other)}) lie on different grids; give spacing= to resample both "
                    f"onto one"
                )


def same_grid(one: Volume, other: Volume) -> bool:
    """Tell whether two volumes have the same shape and their voxels the same places."""
    if one.shape[-3:] != other.shape[-3:]:
        return False
    if np.array_equal(one.affine, other.affine):
        return True
    corner = np.array([*one.shape[-3:], 1.0])
    shift = np.abs((one.affine - other.affine)[:3] * corner).sum(axis=1)
    return bool((shift <= 2 * ON_GRID * spacing_of(one.affine).min()).all())


def _grid(volume: Volume) -> str:
    shape = "×".join(str(n) for n in volume.shape[-3:])
    return f"{shape} at {'×'.join(f'{s:.4g}' for s in volume.spacing)} mm, {volume.orientation}"
