"""How much memory there is, and whether a cache fits into it."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path

from tiledvol.loading.options import parse_bytes
from tiledvol.storage.dataset import Dataset, Subject
from tiledvol.storage.volume import Volume

ALL = "all"
"""Value of ``cache_bytes`` that keeps every block once it is decoded."""

OVERHEAD = 512
"""Bytes that a cached block takes beside its voxels, with its share of an index (measured: 320)."""

CGROUP = Path("/sys/fs/cgroup")
"""Where Linux tells what a container may use."""


def with_cache(
    value: int | str,
    dataset: Mapping[str, Subject],
    subjects: Iterable[str],
    names: Sequence[str],
) -> dict[str, Subject]:
    """Return subjects that are read through a block cache; warn if memory is short of it.

    Parameters
    ----------
    value : int or str
        Bytes of the cache, or `ALL`.
    dataset : Dataset
        Of the subjects.
    subjects, names
        Ids, and the images that are read of each.

    Raises
    ------
    ValueError
        If the value is neither, or subjects of other mappings than a dataset are given.
    """
    if not isinstance(dataset, Dataset):
        raise ValueError(  # noqa: TRY004
            f"cache_bytes={value!r} needs a Dataset; for a mapping of its subjects, open it with "
            f"context=tiledvol.make_context(bytes)"
        )
    whole = value == ALL
    size = (
        decoded_bytes(dataset[subject][name] for subject in subjects for name in names)
        if whole
        else parse_bytes(value, "cache_bytes")
    )
    available = available_bytes()
    if available is not None and size > available:
        what = "the whole dataset takes" if whole else f"cache_bytes={value!r} is"
        warnings.warn(
            f"{what} {size / 2**30:.1f} GiB, but only {available / 2**30:.1f} GiB of memory are "
            f"available: give cache_bytes= less, or the machine may begin to swap",
            stacklevel=3,
        )
    cached = dataset.with_cache(size)
    return {subject: cached[subject] for subject in subjects}


def decoded_bytes(volumes: Iterable[Volume]) -> int:
    """Return the bytes that all blocks of some volumes take in a cache."""
    return sum(prod(v.grid) * (prod(v.chunk_shape) * v.dtype.itemsize + OVERHEAD) for v in volumes)


def available_bytes() -> int | None:
    """Return the bytes that can be used without swapping; None where the system does not tell."""
    found = []
    try:
        told = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        found += [int(told[1]) * 1024] if told else []
    except OSError:
        if "SC_PHYS_PAGES" in os.sysconf_names:
            found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    try:
        limit, used = (int((CGROUP / f"memory.{n}").read_text()) for n in ("max", "current"))
        found.append(limit - used)
    except (OSError, ValueError):  # no container, or one without a limit: "max"
        pass
    return min(found) if found else None
