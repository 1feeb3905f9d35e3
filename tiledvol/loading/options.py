"""What a loader is told in several ways: bytes, patch sizes, ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from tiledvol.sampling.draw import as_triple
from tiledvol.storage.dataset import Subject
from tiledvol.storage.slicing import PAD_MODES

BATCH_KEYS = frozenset({"subject", "affine", "location", "index"})
"""What else is in a batch, so that no image can be delivered under the name."""

UNITS = {"": 1, "B": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("KMGT", start=1)
    for suffix, base in (("B", 1000), ("iB", 1024))
}


def parse_bytes(value: int | str, name: str) -> int:
    """Return a number of bytes given as an integer or as text, e.g. ``"1GiB"`` or ``"500 MB"``.

    Raises
    ------
    ValueError
        Naming the argument, if it is neither.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?i?B?)\s*", str(value))
    if found is None or found[2] not in UNITS:
        raise ValueError(f"{name}={value!r}: give bytes as a number, or as in '500MB' or '2GiB'")
    return int(float(found[1]) * UNITS[found[2]])


def check_least(least: int, **arguments: int | None) -> None:
    """Raise ValueError, naming it, if an argument that is given is below ``least``."""
    for name, value in arguments.items():
        if value is not None and value < least:
            raise ValueError(f"{name}={value}: it must be at least {least}")


def resolve_patch_size(
    size: int | Sequence[float],
    units: str,
    spacing: tuple[float, float, float] | None,
    subjects: Mapping[str, Subject],
    reference: str,
) -> tuple[int, int, int]:
    """Return the patch size in voxels.

    Parameters
    ----------
    size : int or 3 numbers
        In ``units``.
    units : {"voxel", "mm"}
        mm are rounded to whole voxels.
    spacing : (3,) float, optional
        Of the patches, where it is not the subjects' own.
    subjects, reference
        Whose spacing counts otherwise: it has to be the same for all.
    """
    if units == "voxel":
        return as_triple(size, "patch_size", 1)  # type: ignore[arg-type]
    if units != "mm":
        raise ValueError(f"units={units!r}: choose voxel or mm")
    extent = np.array((size,) * 3 if isinstance(size, (int, float)) else tuple(size), np.float64)
    spacings = [spacing] if spacing else [s[reference].spacing for s in subjects.values()]
    sizes = {tuple(np.maximum(1, np.round(extent / s)).astype(int).tolist()) for s in spacings}
    if len(sizes) > 1:
        raise ValueError(
            f"patch_size={size!r} mm is from {min(sizes)} to {max(sizes)} voxels, as the subjects' "
            f"spacing differs; give spacing= too"
        )
    return as_triple(sizes.pop(), "patch_size", 1)


def resolve_ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and number of processes: those given, else those of torch.distributed."""
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank={rank}, world_size={world_size}: give both or neither")
    if rank is None or world_size is None:
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        return 0, 1
    if not 0 <= rank < world_size:
        raise ValueError(f"rank={rank} of world_size={world_size}: it must be less, from 0")
    return rank, world_size


def resolve_spacing(spacing: float | Sequence[float] | None) -> tuple[float, float, float] | None:
    """Return a spacing in mm along each axis; one number stands for all three."""
    if spacing is None:
        return None
    numbers = (spacing,) * 3 if isinstance(spacing, (int, float)) else tuple(spacing)
    if len(numbers) != 3 or not all(0 < n < float("inf") for n in numbers):
        raise ValueError(f"spacing={spacing!r}: give mm, one number or three above zero")
    return (float(numbers[0]), float(numbers[1]), float(numbers[2]))


def resolve_fill(
    fill: float | Mapping[str, float], images: Sequence[str], pad: str
) -> dict[str, float]:
    """Return the constant of each image, for those not named 0."""
    if pad not in PAD_MODES:
        raise ValueError(f"pad={pad!r}: choose one of {', '.join(PAD_MODES)}")
    fills = dict(fill) if isinstance(fill, Mapping) else dict.fromkeys(images, fill)
    if unknown := fills.keys() - set(images):
        raise ValueError(f"fill= names {', '.join(sorted(unknown))}, not among images={images!r}")
    if pad != "constant" and any(fills.values()):
        raise ValueError(f"fill={fill!r} has a meaning only with pad='constant', not {pad!r}")
    return fills


def resolve_device(device: str | torch.device) -> torch.device:
    """Return a device with its number: which GPU is the current one differs between threads."""
    found = torch.device(device)
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return found


def check_names(images: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Return the names of images and labels.

    Raises
    ------
    ValueError
        If there are none, one comes twice, or cannot be a key of a batch.
    """
    for argument, given in (("images", images), ("labels", labels)):
        if isinstance(given, str):
            raise ValueError(f"{argument}={given!r}: give a list of names")  # noqa: TRY004
    names = [*images, *labels]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"images={images!r}, labels={labels!r}: name each image once")
    if taken := [name for name in names if name in BATCH_KEYS]:
        raise ValueError(f"an image named {taken[0]!r} cannot be in a batch, which has that key")
    return names
