"""Verification: read every block again, and compare the index with the voxels."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from tiledvol.errors import BlockError, StoreError, TiledvolError
from tiledvol.geometry import Box
from tiledvol.storage import catalogue
from tiledvol.storage.attributes import ImageSummary, loads
from tiledvol.storage.blocks import ImageIndexBuilder, LabelBlocks, LabelIndexBuilder
from tiledvol.storage.dataset import open
from tiledvol.storage.spec import TIMEOUT_S
from tiledvol.storage.volume import Volume

Progress = Callable[[str, int, int], None]
"""Called with a volume's ``subject/image``, the bytes of voxels verified, and all of them."""

MOMENT_TOLERANCE = 1e-6
"""Relative difference of mean and std that the order of summation may cause."""

READ_BYTES = 64 * 2**20
"""How much is read at once, at least a row of blocks."""


def verify(
    url: str | os.PathLike[str],
    subjects: Iterable[str] | None = None,
    progress: Progress | None = None,
    timeout: float = TIMEOUT_S,
) -> list[str]:
    """Reread every block of a dataset, and check it against its checksum and the index.

    Parameters
    ----------
    url : str or path
        The dataset.
    subjects : iterable of str, optional
        Only these; by default all that are committed.
    progress : callable, optional
        See `Progress`.
    timeout : float
        Of each read, in seconds.

    Returns
    -------
    list of str
        What is wrong, each naming subject and image, and the block where it is one. Empty if all
        is well.

    Raises
    ------
    StoreError
        If there is no dataset, or no subject of a name that was given.
    """
    dataset = open(url, timeout=timeout)
    chosen = list(dataset) if subjects is None else list(subjects)
    if missing := [name for name in chosen if name not in dataset]:
        raise StoreError(f"{dataset.url}: no subject {', '.join(missing)}")
    problems: list[str] = []
    markers = catalogue.read_markers(dataset._store, chosen, problems)
    for subject in chosen:
        try:
            if subject in markers and loads(markers[subject]) != loads(dataset.entry_text(subject)):
                problems.append(
                    f"{subject}: the catalogue's entry is not the subject's own; run "
                    f"`tiledvol reindex`"
                )
            for name in dataset[subject]:
                problems += _problems_of(dataset[subject][name], progress)
        except (TiledvolError, ValueError) as error:
            problems.append(f"{subject}: {error}")
    return problems


def _problems_of(volume: Volume, progress: Progress | None) -> list[str]:
    try:
        return verify_volume(volume, progress)
    except TiledvolError as error:
        return [str(error)]


def verify_volume(volume: Volume, progress: Progress | None = None) -> list[str]:
    """Return what is wrong with one volume; see `verify`."""
    name = f"{volume.subject}/{volume.name}"
    summary = ImageSummary.from_json(volume.attributes, name)
    if summary.to_json() != volume.summary.to_json():
        return [f"{name}: its own zarr.json does not match the subject's; convert it again"]
    volume.read_sync(volume.block_box((0,) * volume.ndim))  # checks the array's shape and type
    build = LabelIndexBuilder if volume.kind == "label" else ImageIndexBuilder
    index = build(volume.shape, volume.chunk_shape, volume.dtype)
    problems: list[str] = []
    done = 0
    for box in _rows_of_blocks(volume):
        try:
            voxels = volume.read_sync(box)
        except BlockError:
            problems += _damaged_blocks(volume, box)
        else:
            first = [a // c for a, c in zip(box.start, volume.chunk_shape, strict=True)]
            index.add(first, voxels)
        done += box.size * volume.dtype.itemsize
        if progress:
            progress(name, done, volume.nbytes)
    if problems:
        return problems
    arrays, facts = index.finish()
    for part, found in arrays.items():
        stored = volume.read_index(part)
        if not _same(found, stored):
            where = _differing_blocks(volume, found, stored)
            problems.append(f"{name}: the per-block {part} does not match the voxels of {where}")
    if (
        volume.kind == "label"
        and volume.classes != LabelBlocks(arrays["counts"], volume.grid).totals
    ):
        problems.append(f"{name}: the catalogued class totals do not match the voxels")
    problems += [
        f"{name}: stored {fact} does not match the voxels"
        for fact, value in facts.items()
        if not _agree(value, volume.attributes.get(fact))
    ]
    return problems


def _rows_of_blocks(volume: Volume) -> Iterator[Box]:
    """Yield boxes of whole blocks that cover the volume, each about `READ_BYTES` at most."""
    extents = [n if i >= volume.ndim - 3 else 1 for i, n in enumerate(volume.shape)]
    for axis in range(volume.ndim - 3, volume.ndim):
        others = math.prod(n for i, n in enumerate(extents) if i != axis) * volume.dtype.itemsize
        chunk = volume.chunk_shape[axis]
        extents[axis] = max(1, min(READ_BYTES // others, extents[axis]) // chunk) * chunk
    counts = [-(-n // e) for n, e in zip(volume.shape, extents, strict=True)]
    for position in np.ndindex(*counts):
        start = [p * e for p, e in zip(position, extents, strict=True)]
        stop = [min(a + e, n) for a, e, n in zip(start, extents, volume.shape, strict=True)]
        yield Box(tuple(start), tuple(stop))


def _damaged_blocks(volume: Volume, box: Box) -> list[str]:
    """Return a message for each block of ``box`` that cannot be read."""
    problems = []
    for position in volume.blocks_of(box):
        try:
            volume.read_sync(volume.block_box(position))
        except BlockError as error:
            problems.append(str(error))
    return problems


def _same(found: Any, stored: Any) -> bool:
    return found.shape == stored.shape and np.array_equal(
        found, stored, equal_nan=found.dtype.kind == "f"
    )


def _differing_blocks(volume: Volume, found: Any, stored: Any) -> str:
    """Name a block whose index entry is wrong, as far as the index can be compared at all."""
    if volume.kind == "label":
        rows = {tuple(r) for r in found.tolist()} ^ {tuple(r) for r in stored.tolist()}
        blocks = math.prod(volume.grid)
        numbers = sorted({row[1] for row in rows if 0 <= row[1] < blocks})
        positions = [tuple(int(i) for i in np.unravel_index(n, volume.grid)) for n in numbers]
    elif found.shape == stored.shape:
        equal = (found == stored) | ((found != found) & (stored != stored))
        if equal.ndim > volume.ndim:
            equal = equal.all(axis=-1)
        positions = [tuple(int(i) for i in p) for p in np.argwhere(~equal)]
    else:
        return f"any block: it has shape {stored.shape}, not {found.shape}"
    if not positions:
        return "any block: its rows are out of order, or of no block"
    return f"block {positions[0]}" + (f" and {len(positions) - 1} more" if positions[1:] else "")


def _agree(found: Any, stored: Any) -> bool:
    """Compare statistics: exactly, but for what depends on the order of summation.

    Percentiles of wide types come from a sketch and depend on it too: their rank is bounded, their
    value is not, so they are left to the index's own exact parts.
    """
    if isinstance(found, dict) and isinstance(stored, dict):
        keys = found.keys() - {"percentiles"}
        return found.keys() == stored.keys() and all(_agree(found[k], stored[k]) for k in keys)
    if isinstance(found, float) and isinstance(stored, (int, float)):
        return math.isclose(found, stored, rel_tol=MOMENT_TOLERANCE, abs_tol=1e-12)
    return bool(found == stored)
