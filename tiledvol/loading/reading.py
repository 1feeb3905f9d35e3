"""One patch: what it needs of each image, read into its place in the batch."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from math import prod
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt

from tiledvol.errors import PatchError, TiledvolError
from tiledvol.geometry import Box
from tiledvol.loading.resample import resample_into
from tiledvol.loading.selection import ImageSpec, PlacedSubject
from tiledvol.loading.telemetry import Telemetry
from tiledvol.sampling import Draw, patch_start, transfer
from tiledvol.sampling.request import PatchRequest, SourceRegion
from tiledvol.storage.volume import Volume

Array = npt.NDArray[Any]
Triple = tuple[int, int, int]


class PatchReader:
    """Reads patches: those on the stored grid are cut, others interpolated.

    Parameters
    ----------
    subjects : mapping of str to PlacedSubject
        By id.
    specs : sequence of ImageSpec
        The images and labels.
    pad : str
        What stands outside the volume, see `tiledvol.Volume.read`.
    telemetry : Telemetry
        Where bytes are counted.
    """

    def __init__(
        self,
        subjects: Mapping[str, PlacedSubject],
        specs: Sequence[ImageSpec],
        pad: str,
        telemetry: Telemetry,
    ) -> None:
        self._subjects = subjects
        self._specs = specs
        self._pad = pad
        self._telemetry = telemetry

    def size(self, draw: Draw, shape: Triple) -> int:
        """Return the bytes of a patch's place in the batch, and of what is read for it."""
        placed = self._subjects[draw.subject]
        total = 0
        for spec, volume in zip(self._specs, placed.volumes, strict=True):
            read = prod(shape)
            if placed.resampled:
                request = PatchRequest.on_grid(placed.id, placed.grid, (0, 0, 0), shape)
                read = request.source(volume.affine).box.size
            itemsizes = prod(shape) * spec.buffer.itemsize + read * volume.dtype.itemsize
            total += spec.channels * itemsizes
        return total

    async def read(
        self, index: int, draw: Draw, shape: Triple, targets: Sequence[Array]
    ) -> tuple[PatchRequest, Box]:
        """Read a patch; return which it is, and its box in stored voxels of the first image.

        Parameters
        ----------
        index : int
            To name in errors.
        draw : Draw
            Where it lies.
        shape : (3,) int
            Its extent.
        targets : sequence of arrays of shape (C, *shape)
            Where the voxels of each image go.

        Raises
        ------
        PatchError
            If a block cannot be read; the message names index, subject, image and block.
        """
        placed = self._subjects[draw.subject]
        try:
            start = draw.start or await self._pick(placed, draw, shape)
            request = PatchRequest.on_grid(placed.id, placed.grid, start, shape)
            boxes = await asyncio.gather(
                *(
                    self._fill(request, placed, start, volume, spec, target)
                    for volume, spec, target in zip(
                        placed.volumes, self._specs, targets, strict=True
                    )
                )
            )
        except TiledvolError as error:
            raise PatchError(f"index {index}, subject {placed.id}: {error}") from error
        return request, boxes[0]

    async def _pick(self, placed: PlacedSubject, draw: Draw, shape: Triple) -> Triple:
        """Read the one block that tells where the patch lies."""
        assert draw.pick is not None
        volume = placed.subject[draw.pick.image]
        voxels = await volume.read(draw.pick.box)
        self._count(volume, draw.pick.box)
        voxel = draw.pick.locate(voxels)
        return patch_start(transfer(voxel, volume, placed.grid), shape, placed.grid.shape)

    async def _fill(
        self,
        request: PatchRequest,
        placed: PlacedSubject,
        start: Triple,
        volume: Volume,
        spec: ImageSpec,
        target: Array,
    ) -> Box:
        """Read an image's voxels into their place in the batch; return their box."""
        if placed.resampled:
            region = request.source(volume.affine)
        else:  # on one grid: the patch is its box
            region = SourceRegion(Box(start, tuple(map(add, start, request.shape))), None)
        if region.matrix is not None:
            await self._resample(region, region.matrix, volume, spec, target)
            return region.box
        fill = spec.fill if self._pad == "constant" else None
        await volume.read_into(
            region.box, target if volume.ndim == 4 else target[0], self._pad, fill
        )
        self._count(volume, region.box)
        return region.box

    async def _resample(
        self,
        region: SourceRegion,
        matrix: npt.NDArray[np.float64],
        volume: Volume,
        spec: ImageSpec,
        target: Array,
    ) -> None:
        """Interpolate an image's voxels into their place in the batch, in a thread."""
        box, pad, inside = region.box, self._pad, None
        if pad == "constant":
            # Interpolated up to the volume's faces, not into the constant: hence from voxels alone.
            whole = Box.from_shape(volume.shape[-3:])
            pad, box = "edge", region.box.intersect(whole)
            if not box.size:
                target[...] = spec.fill
                return
            matrix[:3, 3] += np.subtract(region.box.start, box.start)
            inside = whole.translate([-a for a in box.start])
        voxels = await volume.read(box, pad)
        self._count(volume, box)
        await asyncio.to_thread(
            resample_into,
            target,
            voxels.reshape(-1, *box.shape),
            matrix,
            nearest=spec.label,
            volume=inside,
            fill=spec.fill,
        )

    def _count(self, volume: Volume, box: Box) -> None:
        """Count the bytes that a read needs, and those of the blocks that it touches."""
        channels = prod(box.shape[:-3] or volume.shape[:-3])
        needed = touched = channels * volume.dtype.itemsize
        for start, stop, extent, chunk in zip(
            box.start[-3:], box.stop[-3:], volume.shape[-3:], volume.chunk_shape[-3:], strict=True
        ):
            first, last = max(start, 0), min(stop, extent)
            needed *= max(last - first, 0)
            touched *= chunk * max(-(-last // chunk) - first // chunk, 0)
        self._telemetry.bytes_needed += needed
        self._telemetry.bytes_touched += touched
