"""From draws to host batches: reads in flight, and their voxels into one buffer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tiledvol.errors import PatchError, TiledvolError
from tiledvol.geometry import Box
from tiledvol.loading.buffers import BufferPool
from tiledvol.loading.device import buffer_dtype
from tiledvol.loading.resample import resample
from tiledvol.loading.selection import ImageSpec, PlacedSubject
from tiledvol.loading.telemetry import Telemetry
from tiledvol.sampling import BoundSampler, Draw, patch_start, transfer
from tiledvol.sampling.request import PatchRequest
from tiledvol.storage.volume import Volume

Array = npt.NDArray[Any]
Triple = tuple[int, int, int]

MOST_SKIPS = 100
"""Draws tried one after the other for one place in a batch before the error is raised."""

SUBSTITUTE = (1 << 40) + 1
"""Step between the indices of a draw and of its substitutes: beyond any epoch's length."""


@dataclass(frozen=True)
class HostBatch:
    """A batch in host memory.

    Attributes
    ----------
    arrays : dict of str to array
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

    arrays: dict[str, Array]
    subjects: list[str]
    affines: npt.NDArray[np.float64]
    locations: npt.NDArray[np.int64]
    indices: list[int]


class Assembler:
    """Makes the batches of a loader; see `tiledvol.loading.loader.PatchLoader`.

    Attributes
    ----------
    patch_bytes : int
        Bytes of a patch's place in a batch, of the usual patch size.
    """

    def __init__(
        self,
        subjects: Mapping[str, PlacedSubject],
        specs: Sequence[ImageSpec],
        sampler: BoundSampler,
        patch_size: Triple,
        seed: int,
        pad: str,
        fill: float | Mapping[str, float],
        dtype: torch.dtype | None,
        device: torch.device,
        skip: bool,
        telemetry: Telemetry,
    ) -> None:
        self._subjects = subjects
        self._specs = specs
        self._sampler = sampler
        self._patch_size = patch_size
        self._seed = seed
        self._pad = pad
        self._fill = fill
        self._dtypes = [buffer_dtype(s.stored, s.label, device, dtype) for s in specs]
        self._pool = BufferPool(pinned=device.type == "cuda")
        self._skip = skip
        self._telemetry = telemetry

        voxels = int(np.prod(patch_size))
        self.patch_bytes = voxels * sum(
            s.channels * d.itemsize for s, d in zip(specs, self._dtypes, strict=True)
        )

    async def batch(self, epoch: int, indices: list[int]) -> HostBatch:
        """Make the batch of these draws: all of their reads are in flight at once."""
        # In a thread: now and then a draw reads a subject's block index.
        draws = await asyncio.to_thread(self._draw_all, epoch, indices)
        shapes = {d.shape or self._patch_size for d in draws}
        if len(shapes) > 1:
            raise PatchError(
                f"{' and '.join(d.subject for d in draws)} have different shapes and cannot be "
                f"one batch; take batch_size=1 or a fixed patch size"
            )
        shape = shapes.pop()
        arrays = {
            spec.name: self._pool.take((len(draws), spec.channels, *shape), dtype)
            for spec, dtype in zip(self._specs, self._dtypes, strict=True)
        }
        made = await asyncio.gather(
            *(
                self._patch(epoch, index, draw, shape, [arrays[s.name][b] for s in self._specs])
                for b, (index, draw) in enumerate(zip(indices, draws, strict=True))
            )
        )
        return HostBatch(
            arrays,
            [request.subject for request, _ in made],
            np.stack([request.affine for request, _ in made]),
            np.array([[*box.start, *box.stop] for _, box in made], np.int64),
            indices,
        )

    def _draw_all(self, epoch: int, indices: Sequence[int]) -> list[Draw]:
        # A finite sampler begins anew where an epoch is longer, or a substitute is drawn.
        length = self._sampler.length
        return [
            self._sampler.draw(self._seed, epoch, i if length is None else i % length)
            for i in indices
        ]

    async def _patch(
        self, epoch: int, index: int, draw: Draw, shape: Triple, targets: Sequence[Array]
    ) -> tuple[PatchRequest, Box]:
        """Fill one place of a batch; return what was put there, and from where."""
        for attempt in range(MOST_SKIPS):
            try:
                return await self._read(index, draw, shape, targets)
            except TiledvolError as error:
                if not self._skip:
                    raise
                self._telemetry.skipped.append(str(error))
                again = index + SUBSTITUTE * (attempt + 1)
                (draw,) = await asyncio.to_thread(self._draw_all, epoch, [again])
        raise PatchError(
            f"index {index}: {MOST_SKIPS} draws in a row could not be read, the last because "
            f"{self._telemetry.skipped[-1]}"
        )

    async def _read(
        self, index: int, draw: Draw, shape: Triple, targets: Sequence[Array]
    ) -> tuple[PatchRequest, Box]:
        placed = self._subjects[draw.subject]
        began = time.perf_counter()
        try:
            start = draw.start if draw.start is not None else await self._pick(placed, draw, shape)
            request = PatchRequest.on_grid(placed.id, placed.grid, start, shape)
            regions = await asyncio.gather(
                *(
                    self._fill_target(request, placed.subject[spec.name], spec, target)
                    for spec, target in zip(self._specs, targets, strict=True)
                )
            )
        except TiledvolError as error:
            raise PatchError(f"index {index}, subject {placed.id}: {error}") from error
        self._telemetry.read_seconds += time.perf_counter() - began
        return request, regions[0]

    async def _pick(self, placed: PlacedSubject, draw: Draw, shape: Triple) -> Triple:
        """Read the one block that tells where the patch lies."""
        assert draw.pick is not None
        volume = placed.subject[draw.pick.image]
        voxel = draw.pick.locate(await volume.read(draw.pick.box))
        return patch_start(transfer(voxel, volume, placed.grid), shape, placed.grid.shape)

    async def _fill_target(
        self, request: PatchRequest, volume: Volume, spec: ImageSpec, target: Array
    ) -> Box:
        """Read an image's voxels into their place in the batch; return their box."""
        region = request.source(volume.affine)
        fill = None if spec.label or self._pad != "constant" else self._fill_of(spec.name)
        voxels = await volume.read(region.box, self._pad, fill)
        self._count(volume, region.box)
        began = time.perf_counter()
        if voxels.ndim == 3:
            voxels = voxels[None]
        if region.matrix is not None:
            voxels = resample(voxels, region.matrix, request.shape, spec.label).numpy()
        np.copyto(target, voxels, casting="unsafe")
        self._telemetry.assemble_seconds += time.perf_counter() - began
        return region.box

    def _fill_of(self, name: str) -> float:
        return self._fill.get(name, 0) if isinstance(self._fill, Mapping) else self._fill

    def _count(self, volume: Volume, box: Box) -> None:
        """Count the bytes that a read needs, and those of the blocks that it touches."""
        size = volume.dtype.itemsize * (volume.shape[0] if volume.ndim == 4 else 1)
        inside = box.intersect(Box.from_shape(volume.shape[-3:]))
        blocks = [
            -(-b // c) - a // c
            for a, b, c in zip(inside.start, inside.stop, volume.chunk_shape[-3:], strict=True)
        ]
        self._telemetry.bytes_needed += size * inside.size
        if inside.size:
            chunk = int(np.prod(volume.chunk_shape[-3:]))
            self._telemetry.bytes_decoded += size * chunk * int(np.prod(blocks))
