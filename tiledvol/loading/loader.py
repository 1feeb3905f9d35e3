"""PatchLoader: patches from a dataset, in batches, in an ordinary training loop."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tiledvol.loading.assembly import Assembler, HostBatch
from tiledvol.loading.buffers import BufferPool
from tiledvol.loading.cursor import Cursor
from tiledvol.loading.device import Mover
from tiledvol.loading.engine import Engine
from tiledvol.loading.iteration import Batch, BatchIterator
from tiledvol.loading.memory import with_cache
from tiledvol.loading.options import (
    check_least,
    check_names,
    parse_bytes,
    resolve_device,
    resolve_fill,
    resolve_patch_size,
    resolve_ranks,
    resolve_spacing,
)
from tiledvol.loading.reading import PatchReader
from tiledvol.loading.selection import (
    GRID,
    PlacedSubject,
    check_one_grid,
    image_specs,
    select_subjects,
)
from tiledvol.loading.telemetry import Telemetry
from tiledvol.sampling import Sampler, Schedule, UniformSampler
from tiledvol.storage.dataset import Dataset, Subject

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
        Decoded blocks to keep in memory, ``"all"`` of them; None: the dataset's own pool.
    require : {"all", "any"}
        ``"any"`` leaves out subjects that lack an image, instead of refusing them.
    on_error : {"raise", "skip"}
        ``"skip"`` puts another, deterministic draw in the place of one that cannot be read, but
        for time-outs, which are the store's.
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
        check_least(0, seed=seed)
        check_least(1, batch_size=batch_size, prefetch_batches=prefetch_batches)
        check_least(1, patches_per_epoch=patches_per_epoch)
        names = check_names(images, labels)
        target = resolve_spacing(spacing)
        fills = resolve_fill(fill, images, pad)
        where = resolve_device(device)
        self.batch_size = batch_size
        self.seed = seed
        self.rank, self.world_size = resolve_ranks(rank, world_size)
        chosen = select_subjects(dataset, names, require)
        if cache_bytes is not None:
            chosen = with_cache(cache_bytes, dataset, chosen, names)
        specs = image_specs(chosen, images, labels, fills, where, dtype, target is not None)
        if target is None:
            check_one_grid(chosen, names)
        self.patch_size = resolve_patch_size(patch_size, units, target, chosen, names[0])
        placed = {k: PlacedSubject(s, names, target) for k, s in chosen.items()}
        chooses = sampler or UniformSampler()
        bound = chooses.bind(
            cast("Sequence[Any]", list(placed.values())),
            self.patch_size,
            GRID,
            weights=weights,
            patches_per_subject=patches_per_subject,
        )
        self.length = patches_per_epoch or bound.length or BATCHES_PER_EPOCH * batch_size
        self._shuffle = shuffle and chooses.finite
        self._max_bytes = parse_bytes(max_bytes_in_flight, "max_bytes_in_flight")
        self._prefetch = prefetch_batches
        self._telemetry = Telemetry()
        self._mover = Mover(where, dtype, frozenset(labels))
        self._assembler = Assembler(
            PatchReader(placed, specs, pad, self._telemetry), specs, bound, self.patch_size, seed,
            on_error == "skip", BufferPool(where), self._mover, self._telemetry,
        )  # fmt: skip
        self._cursor = Cursor(
            len(self),
            {
                "seed": seed,
                "batch_size": batch_size,
                "world_size": self.world_size,
                "patches_per_epoch": self.length,
                "shuffle": self._shuffle,
                "images": names,
                "spacing": target and list(target),
                "patch_size": list(self.patch_size),
                **bound.fingerprint,
            },
        )
        self._iterator: weakref.ref[BatchIterator[HostBatch]] | None = None

    @property
    def epoch(self) -> int:
        """The epoch, from 0, that is gone through, or will be next if the last one is through."""
        return self._cursor.epoch

    def __len__(self) -> int:
        """Return the number of batches that this rank takes in an epoch."""
        return -(-len(self._schedule(0)) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        """Begin the next epoch, or go on in the one whose state was loaded.

        A loader has one iteration at a time: one that is still under way ends.
        """
        return self._begin()

    def __aiter__(self) -> AsyncIterator[Batch]:
        """Do the same in an event loop, which is free while it waits for a batch."""
        return self._begin()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, that the next iteration goes through, from its beginning."""
        self.close()
        self._cursor.go_to(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader stands, after the batch that was delivered last; JSON values."""
        return self._cursor.save()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where another loader, with the same patches, stood.

        Raises
        ------
        StateError
            If its dataset, sampler, seed, batch size or number of ranks was another, which would
            repeat or leave out patches; it names what differs.
        """
        self.close()
        self._cursor.load(state)

    def stats(self) -> dict[str, Any]:
        """Return what was done and how fast, since the loader was made.

        Returns
        -------
        dict
            ``patches``, ``batches``: delivered. ``patches_per_second`` (and ``_lately``, as all
            that follow so: over the last 50 batches of an iteration). ``seconds`` in iterations;
            ``seconds_waited`` and ``share_waited`` (and ``_lately``) of these, spent waiting for
            batches. ``bytes_needed``: of the voxels read, as stored; ``bytes_touched``: of the
            blocks that they lie in; ``bytes_decoded``: of those that the cache did not have, as
            the share of ``cache_misses`` tells. ``cache_hits``, ``cache_misses`` (of blocks and
            shard indexes) and ``bytes_read`` from the store are tensorstore's counts for the
            whole process, other loaders included. ``batches_ready``: waiting to be taken now.
            ``skipped`` patches, and the ``skipped_errors``, the latest. ``verdict``: what the
            limit is, in a line.
        """
        iterator = self._iterator() if self._iterator else None
        return self._telemetry.summary(iterator.ready if iterator else 0)

    def close(self) -> None:
        """End an iteration that is under way, and its thread; the loader can be used again."""
        iterator = self._iterator() if self._iterator else None
        if iterator is not None:
            iterator.close()

    def _schedule(self, epoch: int) -> Schedule:
        return Schedule(self.length, self.seed, epoch, self._shuffle, self.rank, self.world_size)

    def _begin(self) -> BatchIterator[HostBatch]:
        """Start reading ahead."""
        if get_worker_info() is not None:
            raise RuntimeError(
                "a PatchLoader reads ahead by itself: give the torch DataLoader num_workers=0"
            )
        self.close()
        self._cursor.begin()
        epoch, size = self.epoch, self.batch_size
        schedule = self._schedule(epoch)
        batches = (
            [schedule[i] for i in range(start, min(start + size, len(schedule)))]
            for start in range(self._cursor.position * size, len(schedule), size)
        )
        self._telemetry.start()
        engine = Engine(
            (partial(self._assembler.batch, epoch, indices) for indices in batches),
            self._max_bytes,
            self._prefetch,
        )
        iterator = BatchIterator(engine, self._deliver, self._cursor.end_epoch)
        self._iterator = weakref.ref(iterator)
        return iterator

    def _deliver(self, host: HostBatch, waited: float) -> Batch:
        batch: Batch = dict(self._mover.receive(host.sent))
        batch["subject"] = host.subjects
        batch["affine"] = torch.from_numpy(host.affines)
        batch["location"] = torch.from_numpy(host.locations)
        batch["index"] = torch.tensor(host.indices)
        self._cursor.position += 1
        self._telemetry.delivered(len(host.subjects), waited)
        return batch
