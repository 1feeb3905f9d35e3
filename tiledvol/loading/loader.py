"""PatchLoader: patches from a dataset, in batches, in an ordinary training loop."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch.utils.data import IterableDataset

from tiledvol.errors import StateError
from tiledvol.loading.assembly import Assembler, HostBatch
from tiledvol.loading.device import Mover
from tiledvol.loading.engine import END, Engine
from tiledvol.loading.options import parse_bytes, resolve_patch_size, resolve_ranks
from tiledvol.loading.selection import (
    PlacedSubject,
    check_one_grid,
    image_specs,
    select_subjects,
)
from tiledvol.loading.telemetry import Telemetry
from tiledvol.sampling import Sampler, Schedule, UniformSampler
from tiledvol.storage.dataset import Dataset, Subject

Batch = dict[str, Any]

BATCHES_PER_EPOCH = 250
"""Default length of an epoch of an endless sampler, as nnU-Net has it."""


class PatchLoader(IterableDataset[Batch]):
    """Batches of patches, read ahead by one background thread while training goes on.

    Iterate it in a training loop, with ``for`` or, in an event loop, ``async for``. A batch is a
    dict: each image (B, C, X, Y, Z) on the device, each label likewise in integers;
    ``"subject"``, a list of B ids; ``"affine"``, (B, 4, 4) float64, voxel of the patch -> RAS+
    mm; ``"location"``, (B, 6) int64, start and stop of the patch in stored voxels of the first
    image; ``"index"``, (B,) int64, the draws' places in the epoch.

    The patches of a seed are the same whatever the number of reads in flight, the size of the
    cache, the batches prefetched, or the ranks. Each time the loader is gone through counts as an
    epoch, with patches of its own; `set_epoch` chooses one.

    Parameters
    ----------
    dataset : Dataset, or mapping of str to Subject
        Where patches come from.
    patch_size : int or 3 int or 3 float
        Extent of a patch, in voxels or, with ``units="mm"``, in mm.
    batch_size : int
        Patches per batch; the last batch of an epoch may have fewer.
    images, labels : sequence of str
        Which to deliver. Patches are placed on the grid of the first.
    sampler : Sampler
        Where patches lie; `UniformSampler` by default.
    spacing : float or 3 float, optional
        Resample to this spacing in mm; None: as stored, images of a subject on one grid.
    units : {"voxel", "mm"}
        Of ``patch_size``.
    pad : {"constant", "edge", "reflect"}
        What stands outside the volume, as in ``numpy.pad``.
    fill : mapping of str to float, or float
        The constant of ``pad="constant"``, for all images or by name; labels get 0.
    dtype : torch.dtype or None
        Of images; None keeps the stored integers. Labels are always integers.
    device : str or torch.device
        Where batches go. Integers cross to a GPU as they are stored, and are converted there.
    seed : int
        Chooses the patches.
    patches_per_epoch : int, optional
        Draws in an epoch, all ranks together. By default those of a finite sampler, else
        `BATCHES_PER_EPOCH` batches.
    shuffle : bool
        Whether a finite sampler's draws come in random order.
    patches_per_subject : int
        So many consecutive draws share a subject, for stores where another one is slow to reach.
    weights : mapping of str to float, optional
        Relative probability of subjects, for endless samplers.
    prefetch_batches : int
        Batches being made or waiting, at most.
    max_bytes_in_flight : int or str
        Bytes of these, at most, e.g. ``"1GiB"``.
    cache_bytes : int or str, optional
        Decoded blocks to keep in memory. None: the pool that the dataset was opened with.
    require : {"all", "any"}
        ``"any"`` leaves out subjects that lack an image, instead of refusing them.
    on_error : {"raise", "skip"}
        ``"skip"`` puts another, deterministic draw in the place of one that cannot be read.
    rank, world_size : int, optional
        This process, and how many; taken from torch.distributed where it is initialised.

    Raises
    ------
    ValueError, StoreError, GeometryError
        At construction, if anything does not fit together; they name subject and image.
    """

    def __init__(
        self,
        dataset: Dataset | Mapping[str, Subject],
        patch_size: int | Sequence[float],
        batch_size: int = 2,
        images: Sequence[str] = (),
        labels: Sequence[str] = (),
        sampler: Sampler | None = None,
        *,
        spacing: float | Sequence[float] | None = None,
        units: str = "voxel",
        pad: str = "constant",
        fill: float | Mapping[str, float] = 0,
        dtype: torch.dtype | None = torch.float32,
        device: str | torch.device = "cpu",
        seed: int = 0,
        patches_per_epoch: int | None = None,
        shuffle: bool = False,
        patches_per_subject: int = 1,
        weights: Mapping[str, float] | None = None,
        prefetch_batches: int = 4,
        max_bytes_in_flight: int | str = "1GiB",
        cache_bytes: int | str | None = None,
        require: str = "all",
        on_error: str = "raise",
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        super().__init__()
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error={on_error!r}: choose raise or skip")
        for name, value in (("batch_size", batch_size), ("prefetch_batches", prefetch_batches)):
            if value < 1:
                raise ValueError(f"{name}={value}: it must be at least 1")
        names = [*images, *labels]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"images={images!r}, labels={labels!r}: name each image once")
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0
        self.rank, self.world_size = resolve_ranks(rank, world_size)
        if cache_bytes is not None and isinstance(dataset, Dataset):
            dataset = dataset.with_cache(parse_bytes(cache_bytes, "cache_bytes"))
        chosen = select_subjects(dataset, names, require)
        specs = image_specs(chosen, images, labels)
        target = None if spacing is None else _triple(spacing)
        if target is None:
            check_one_grid(chosen, names)
        self.patch_size = resolve_patch_size(patch_size, units, target, chosen, names[0])
        placed = {k: PlacedSubject(s, names[0], target) for k, s in chosen.items()}
        chooses = sampler or UniformSampler()
        bound = chooses.bind(
            cast("Sequence[Any]", list(placed.values())),
            self.patch_size,
            names[0],
            weights=weights,
            patches_per_subject=patches_per_subject,
        )
        self.length = patches_per_epoch or bound.length or BATCHES_PER_EPOCH * batch_size
        self._shuffle = shuffle and chooses.finite
        self._max_bytes = parse_bytes(max_bytes_in_flight, "max_bytes_in_flight")
        self._prefetch = prefetch_batches
        self._position = 0
        self._engine: weakref.ref[Engine[HostBatch]] | None = None
        self._telemetry = Telemetry()
        where = torch.device(device)
        self._assembler = Assembler(
            placed, specs, bound, self.patch_size, seed, pad, fill, dtype, where,
            on_error == "skip", self._telemetry,
        )  # fmt: skip
        self._mover = Mover(where, dtype)
        self._labels = frozenset(labels)
        self._fingerprint = _digest([bound.fingerprint, names, list(self.patch_size), target])

    def __len__(self) -> int:
        """Return the number of batches that this rank takes in an epoch."""
        return -(-len(self._schedule()) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        """Go through what is left of the epoch."""
        engine = self._begin()
        try:
            while True:
                began = time.perf_counter()
                item = engine.take()
                if item is END:
                    break
                yield self._deliver(cast("HostBatch", item), began)
        finally:
            engine.close()
        self._end_epoch()

    async def __aiter__(self) -> AsyncIterator[Batch]:
        """Go through what is left of the epoch, in an event loop."""
        engine = self._begin()
        try:
            while True:
                began = time.perf_counter()
                item = await engine.take_async()
                if item is END:
                    break
                yield self._deliver(cast("HostBatch", item), began)
        finally:
            await asyncio.shield(asyncio.to_thread(engine.close))
        self._end_epoch()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, that the next iteration goes through, from its beginning."""
        self.epoch = epoch
        self._position = 0

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader stands: after the batch that was delivered last."""
        return {
            "version": 1,
            "epoch": self.epoch,
            "position": self._position,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "length": self.length,
            "shuffle": self._shuffle,
            "world_size": self.world_size,
            "fingerprint": self._fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another loader, with the same patches, stood.

        Raises
        ------
        StateError
            If its dataset, sampler, seed, batch size or number of ranks was another, which would
            repeat or leave out patches; it names what differs.
        """
        mine = self.state_dict()
        differ = [
            "dataset, sampler or patch size" if key == "fingerprint"
            else f"{key} ({state.get(key)!r} there, {mine[key]!r} here)"
            for key in mine
            if key not in ("epoch", "position") and state.get(key) != mine[key]
        ]  # fmt: skip
        if differ:
            raise StateError(f"the state is of another loader: other {', '.join(differ)}")
        self.epoch, self._position = int(state["epoch"]), int(state["position"])

    def stats(self) -> dict[str, Any]:
        """Return patches and bytes so far, rates, waiting, and a verdict on what is the limit."""
        engine = self._engine() if self._engine else None
        return self._telemetry.summary(engine.ready if engine else 0)

    def close(self) -> None:
        """End an iteration that is under way, and its thread."""
        engine = self._engine() if self._engine else None
        if engine is not None:
            engine.close()

    def _schedule(self) -> Schedule:
        return Schedule(
            self.length, self.seed, self.epoch, self._shuffle, self.rank, self.world_size
        )

    def _begin(self) -> Engine[HostBatch]:
        """Start reading ahead from the loader's position; a former iteration ends."""
        self.close()
        schedule = self._schedule()
        engine = Engine(
            (
                (
                    self._assembler.patch_bytes * self.batch_size,
                    partial(
                        self._assembler.batch,
                        self.epoch,
                        [schedule[i] for i in range(p, min(p + self.batch_size, len(schedule)))],
                    ),
                )
                for p in range(self._position * self.batch_size, len(schedule), self.batch_size)
            ),
            self._max_bytes,
            self._prefetch,
        )
        self._engine = weakref.ref(engine)
        self._telemetry.start()
        return engine

    def _deliver(self, host: HostBatch, began: float) -> Batch:
        batch: Batch = dict(self._mover.move(host.arrays, self._labels))
        batch["subject"] = host.subjects
        batch["affine"] = torch.from_numpy(host.affines)
        batch["location"] = torch.from_numpy(host.locations)
        batch["index"] = torch.tensor(host.indices)
        self._position += 1
        self._telemetry.delivered(len(host.subjects), time.perf_counter() - began)
        return batch

    def _end_epoch(self) -> None:
        self.epoch += 1
        self._position = 0


def _triple(value: float | Sequence[float]) -> tuple[float, float, float]:
    numbers = (value,) * 3 if isinstance(value, (int, float)) else tuple(value)
    if len(numbers) != 3 or not all(0 < n < float("inf") for n in numbers):
        raise ValueError(f"spacing={value!r}: give mm, one number or three above zero")
    return (float(numbers[0]), float(numbers[1]), float(numbers[2]))


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
