"""tiledvol's loader, and bare reads of the same boxes: the ceiling."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
from loader_work import FOREGROUND, Batch, Contender, Group, Work

if TYPE_CHECKING:
    from tiledvol import Dataset

SMALL_CACHE = 64 * 2**20
"""Bytes of decoded blocks: less than two of the volumes."""

SPARE = 1.25
"""Size of a cache that holds everything, relative to the voxels: blocks at borders are padded."""

PREFETCH = 4
"""Batches being made or waiting, of tiledvol's loader; the ceiling has as many reads in flight."""

BOXES = 2000
"""Places that the ceiling reads, over and over: the first ones of the loader."""


def everything(dataset: Dataset) -> int:
    """Return the bytes of a cache that holds all blocks of a dataset."""
    volumes = (volume for subject in dataset.values() for volume in subject.values())
    return int(SPARE * sum(volume.nbytes for volume in volumes))


def open_tiledvol(work: Work, in_memory: bool) -> Iterator[Batch]:
    """Return the batches of tiledvol's loader."""
    import tiledvol as tv

    dataset = tv.open(work.store)
    loader = tv.PatchLoader(
        dataset,
        patch_size=work.patch_size,
        batch_size=work.batch,
        images=["ct"],
        labels=["seg"],
        sampler=tv.LabelSampler("seg", foreground=FOREGROUND),
        device="cpu",
        seed=0,
        patches_per_epoch=work.batch * 10**6,
        prefetch_batches=PREFETCH,
        max_bytes_in_flight="1GiB",
        cache_bytes=everything(dataset) if in_memory else SMALL_CACHE,
    )
    return ((batch["ct"], batch["seg"]) for batch in loader)


def prepare_tiledvol(work: Work) -> None:
    """Convert with default options, and note the loader's first places for the ceiling."""
    import tiledvol as tv
    from tiledvol.sampling import patch_start
    from tiledvol_converters import convert

    for s in work.subjects:
        convert(work.store, s, {"ct": work.nifti(s, "ct")}, {"seg": work.nifti(s, "seg")})
    dataset = tv.open(work.store)
    subjects = list(dataset.values())
    sampler = tv.LabelSampler("seg", foreground=FOREGROUND)
    bound = sampler.bind(subjects, work.patch_size, "ct")
    places = []
    for index in range(BOXES):
        draw = bound.draw(0, 0, index)
        start = draw.start
        if draw.pick is not None:
            volume = dataset[draw.subject]["seg"]
            voxel = draw.pick.locate(volume.read_sync(draw.pick.box))
            start = patch_start(voxel, work.patch_size, volume.shape)
        assert start is not None
        places.append((work.subjects.index(draw.subject), *start))
    np.save(work.folder / "tiledvol" / "places.npy", places)


def open_ceiling(work: Work, in_memory: bool) -> Iterator[Batch]:
    """Read image and label at the loader's places, as many at once, and put nothing together."""
    import tiledvol as tv

    cache = everything(tv.open(work.store)) if in_memory else SMALL_CACHE
    dataset = tv.open(work.store, context=tv.make_context(cache))
    places = cycle(np.load(work.folder / "tiledvol" / "places.npy").tolist())

    async def read() -> None:
        k, *start = next(places)
        subject = dataset[work.subjects[k]]
        box = tv.Box(tuple(start), tuple(a + work.patch for a in start))
        await asyncio.gather(subject["ct"].read(box), subject["seg"].read(box))

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        reads = {loop.create_task(read()) for _ in range(PREFETCH * work.batch)}
        count = 0
        while True:
            done, reads = loop.run_until_complete(
                asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
            )
            for task in done:
                task.result()
                reads.add(loop.create_task(read()))
                count += 1
                if count % work.batch == 0:
                    yield None


GROUPS = {
    "tiledvol": Group(
        {"tiledvol": "", "nibabel": ""},
        ("tiledvol.loading.loader", "tiledvol.storage.dataset"),
        {
            "tiledvol": Contender("tiledvol PatchLoader", partial(open_tiledvol, in_memory=False)),
            "tiledvol-memory": Contender(
                "tiledvol PatchLoader, all in memory", partial(open_tiledvol, in_memory=True)
            ),
            "tiledvol-bare": Contender(
                "bare reads (ceiling)", partial(open_ceiling, in_memory=False)
            ),
            "tiledvol-bare-memory": Contender(
                "bare reads, all in memory (ceiling)", partial(open_ceiling, in_memory=True)
            ),
        },
        prepare_tiledvol,
    ),
}
