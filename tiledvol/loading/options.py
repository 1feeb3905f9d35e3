"""What a loader is told in several ways: bytes, patch sizes, ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from tiledvol.sampling.draw import as_triple
from tiledvol.storage.dataset import Subject

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
