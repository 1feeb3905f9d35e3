"""From draws to batches: each patch in its place, or a substitute for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tiledvol.errors import PatchError, ReadTimeoutError, TiledvolError
from tiledvol.geometry import Box
from tiledvol.loading.buffers import BufferPool
from tiledvol.loading.device import Mover, Sent
from tiledvol.loading.reading import PatchReader
from tiledvol.loading.selection import ImageSpec
from tiledvol.loading.telemetry import Telemetry
from tiledvol.sampling import BoundSampler, Draw
from tiledvol.sampling.request import PatchRequest

Array = npt.NDArray[Any]
Triple = tuple[int, int, int]
Patch = tuple[PatchRequest, Box]

MOST_SKIPS = 100
"""Draws tried one after the other for one place in a batch before the error is raised."""

SUBSTITUTE = 9 * 7 * 11 * 13 * 10**9
"""Step between the indices of a draw and of its substitutes: beyond any epoch's length, and a
multiple of the denominators of usual shares, so that a substitute is foreground where the draw is.
"""


@dataclass(frozen=True)
class HostBatch:
    """A batch on its way to the device.

    Attributes
    ----------
    sent : Sent
        (B, C, X, Y, Z) of each image and label.
    subjects : list of str
        Ids, B of them.
    affines : (B, 4, 4) float64
        Voxel of the patch -> RAS+ mm.
    locations : (B, 6) int64
        Start x, y, z and stop x, y, z in stored voxels of the first image.
    indices : list of int
        Places of the draws in the epoch.
    """

    sent: Sent
    subjects: list[str]
    affines: npt.NDArray[np.float64]
    locations: npt.NDArray[np.int64]
    indices: list[int]


class Assembler:
    """Makes the batches of a loader, in its event loop.

    Parameters
    ----------
    reader : PatchReader
        Reads the patches.
    specs : sequence of ImageSpec
        What the tensors of a batch are.
    sampler : BoundSampler
        Where patches lie.
    patch_size : (3,) int
        Of draws without a shape of their own.
    seed : int
        Of the draws.
    skip : bool
        Whether other draws take the place of those that cannot be read.
    pool, mover, telemetry
        Where memory comes from, tensors go, and skipped draws are counted.
    """

    def __init__(
        self,
        reader: PatchReader,
        specs: Sequence[ImageSpec],
        sampler: BoundSampler,
        patch_size: Triple,
        seed: int,
        skip: bool,
        pool: BufferPool,
        mover: Mover,
        telemetry: Telemetry,
    ) -> None:
        self._reader = reader
        self._specs = specs
        self._sampler = sampler
        self._patch_size = patch_size
        self._seed = seed
        self._skip = skip
        self._pool = pool
        self._mover = mover
        self._telemetry = telemetry

    async def batch(
        self, epoch: int, indices: list[int], admit: Callable[[int], Awaitable[None]]
    ) -> HostBatch:
        """Make the batch of these draws: all of their reads are in flight at once.

        Parameters
        ----------
        epoch : int
            Of the draws.
        indices : list of int
            The draws.
        admit : function
            Awaited with the bytes of buffers and reads before any of them is made.
        """
        places = [_Place(epoch, index) for index in indices]
        draws = await self._draw(places)
        await admit(sum(self._reader.size(d, d.shape or self._patch_size) for d in draws))
        arrays, made = await self._read(places, draws)
        self._telemetry.assembled()
        return HostBatch(
            self._mover.send(arrays),
            [request.subject for request, _ in made],
            np.stack([request.affine for request, _ in made]),
            np.array([[*box.start, *box.stop] for _, box in made], np.int64),
            indices,
        )

    async def _read(
        self, places: Sequence[_Place], draws: list[Draw]
    ) -> tuple[dict[str, Array], list[Patch]]:
        """Return the arrays of a batch and what is in each place of them."""
        shapes = {draw.shape or self._patch_size for draw in draws}
        if len(shapes) > 1:
            raise PatchError(
                f"indices {[p.index for p in places]}: {', '.join(d.subject for d in draws)} have "
                f"different shapes and cannot be one batch; take batch_size=1, or a sampler that "
                f"cuts patches"
            )
        (shape,) = shapes
        arrays = {
            spec.name: self._pool.take((len(draws), spec.channels, *shape), spec.buffer)
            for spec in self._specs
        }
        made = await asyncio.gather(
            *(
                self._reader.read(place.index, draw, shape, [a[b] for a in arrays.values()])
                for b, (place, draw) in enumerate(zip(places, draws, strict=True))
            ),
            return_exceptions=True,
        )
        patches = [patch for patch in made if not isinstance(patch, BaseException)]
        if len(patches) == len(made):
            return arrays, patches
        for b, error in enumerate(made):
            if isinstance(error, BaseException):
                draws[b] = await self._redraw(places[b], error)
        # In other memory: what failed may still be writing to this one.
        return await self._read(places, draws)

    async def _draw(self, places: Sequence[_Place]) -> list[Draw]:
        """Return the draws of some places, or of their substitutes where one cannot be made."""
        # In a thread: now and then a draw reads a subject's block index.
        found = await asyncio.to_thread(lambda: [self._try_draw(place) for place in places])
        return [
            draw if isinstance(draw, Draw) else await self._redraw(place, draw)
            for place, draw in zip(places, found, strict=True)
        ]

    def _try_draw(self, place: _Place) -> Draw | PatchError:
        index, length = place.index + place.skips * SUBSTITUTE, self._sampler.length
        if length is not None:  # a finite sampler begins anew; its next draw is the substitute
            index = (place.index + place.skips) % length
        try:
            return self._sampler.draw(self._seed, place.epoch, index)
        except TiledvolError as error:
            failed = PatchError(f"index {place.index}: {error}")
            failed.__cause__ = error
            return failed

    async def _redraw(self, place: _Place, error: BaseException) -> Draw:
        """Return another draw for a place where one failed, or raise why not."""
        # A store out of reach fails whatever is drawn: that is not the patch's fault.
        skip = self._skip and isinstance(error, PatchError)
        if not skip or isinstance(error.__cause__, ReadTimeoutError):
            raise error
        self._telemetry.skip(str(error))
        place.skips += 1
        if place.skips == MOST_SKIPS:
            raise PatchError(f"{MOST_SKIPS} draws in a row could not be read; the last: {error}")
        (draw,) = await self._draw([place])
        return draw


@dataclass
class _Place:
    """A place in a batch: which draw it is for, and how many of its draws have failed."""

    epoch: int
    index: int
    skips: int = 0
