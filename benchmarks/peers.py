"""What else people read patches with: its files, made as its own writer makes them, and readers."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from phantom import CTPhantom, write_nifti

Array = npt.NDArray[Any]
Shape = tuple[int, int, int]
Region = tuple[slice, slice, slice]
Reader = Callable[[int, Region], Array]
"""Returns the voxels of a region of subject k, axes (x, y, z)."""

SUBJECTS = 8
"""Subjects that patches are drawn from: hard links to the files of one.

So every cache sees different volumes, as in training, and the page cache need hold only one.
"""

CORES = len(os.sched_getaffinity(0))

PEERS = {
    "memmap": "np.memmap copy (ceiling)",
    "zarr": "zarr-python, tiledvol's lz4 store",
    "zarrs": "zarr-python with zarrs, same store",
    "nnunet": "blosc2 as nnU-Net 2.8: float32, LZ4HC-5",
    "nnunet-int16": "the same as int16",
    "nnunet-old": "blosc2 as nnU-Net 2.6: float32, zstd-8",
    "nibabel": "nibabel dataobj, .nii.gz",
    "torchio": "TorchIO ScalarImage, .nii.gz",
}
"""Name and description of each."""

SLOW = ("nibabel", "torchio")
"""Peers that inflate a whole volume for a patch."""


def build(work: Path, shape: Shape) -> None:
    """Make the peers' files in ``work``; ``zarr`` and ``zarrs`` read ``work/lz4.tvol``."""
    phantom = CTPhantom(shape)
    write_nifti(phantom, work / "ct_0.nii.gz")
    volume = np.lib.format.open_memmap(work / "ct_0.npy", "w+", np.int16, shape)
    for start, (image, _) in phantom.slabs():
        volume[..., start : start + image.shape[2]] = image
    _build_blosc2(work, volume.T[None], phantom)
    for path in [*work.glob("ct_0.n*"), *work.glob("*_0.b2nd")]:
        for k in range(1, SUBJECTS):
            os.link(path, path.with_name(path.name.replace("_0.", f"_{k}.")))


def _build_blosc2(work: Path, volume: Array, phantom: CTPhantom) -> None:
    """Write (1, Z, Y, X) as nnU-Net does, with its CT normalisation, filters, blocks and chunks.

    They are those of ``CTNormalization``, and of ``save_case``, ``_select_filter`` and
    ``comp_blosc2_params`` in ``nnUNetDatasetBlosc2`` of nnunetv2 2.8.1 and 2.6.2 for 128³ patches.
    """
    import blosc2

    middle = phantom.shape[2] // 2
    image, label = phantom.slab(middle, min(middle + 8, phantom.shape[2]))
    foreground = image[label > 0]
    low, high = np.percentile(foreground, (0.5, 99.5))
    mean, std = np.float32(foreground.mean()), np.float32(foreground.std())
    normalised = (np.clip(volume, low, high).astype(np.float32) - mean) / std

    layout = {"chunks": (1, 96, 128, 128), "blocks": (1, 32, 32, 32)}
    lz4hc = {"codec": blosc2.Codec.LZ4HC, "clevel": 5, "nthreads": CORES}
    for name, data in (("nnunet", normalised), ("nnunet-int16", np.ascontiguousarray(volume))):
        extents = zip(data.shape, layout["chunks"], strict=True)
        trial = data[tuple(slice(max(0, (n - c) // 2), (n + c) // 2) for n, c in extents)]
        sizes = {
            f: blosc2.asarray(
                np.ascontiguousarray(trial), cparams={**lz4hc, "filters": [f]}, **layout
            ).schunk.cbytes
            for f in (blosc2.Filter.NOFILTER, blosc2.Filter.SHUFFLE)
        }
        cparams = {**lz4hc, "filters": [min(sizes, key=sizes.__getitem__)]}
        blosc2.asarray(data, urlpath=str(work / f"{name}_0.b2nd"), cparams=cparams, **layout)

    layout = {"chunks": (1, 80, 64, 64), "blocks": (1, 16, 16, 16)}
    zstd = {"codec": blosc2.Codec.ZSTD, "clevel": 8, "nthreads": CORES}
    blosc2.asarray(normalised, urlpath=str(work / "nnunet-old_0.b2nd"), cparams=zstd, **layout)


def open_reader(name: str, work: Path) -> Reader:
    """Return the reader of a peer; called in the process that reads."""
    if name == "memmap":
        volumes = [np.load(work / f"ct_{k}.npy", mmap_mode="r") for k in range(SUBJECTS)]
        return lambda k, region: np.array(volumes[k][region])
    if name in ("zarr", "zarrs"):
        import zarr

        if name == "zarrs":
            zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
        arrays = [
            zarr.open_array(work / f"lz4.tvol/ct_{k}/ct/0", mode="r") for k in range(SUBJECTS)
        ]
        zarr.config.reset()
        return lambda k, region: np.asarray(arrays[k][region])
    if name == "nibabel":
        import nibabel as nib

        load: Any = nib.load
        return lambda k, region: np.asarray(load(work / f"ct_{k}.nii.gz").dataobj[region])
    if name == "torchio":
        import torchio

        image: Any = torchio.ScalarImage
        return lambda k, region: np.array(image(work / f"ct_{k}.nii.gz").data[0][region])
    import blosc2

    blosc2.set_nthreads(1)

    def read_as_nnunet(k: int, region: Region) -> Array:
        """Open the file, mapped and for one thread, for every patch: nnU-Net's ``load_case``."""
        path = str(work / f"{name}_{k}.b2nd")
        array = blosc2.open(path, mode="r", mmap_mode="r", dparams={"nthreads": 1})
        patch: Array = array[:, region[2], region[1], region[0]]
        return np.asarray(patch[0].T)

    return read_as_nnunet


def patches(shape: Sequence[int], size: int, seed: int) -> Iterator[tuple[int, Region]]:
    """Yield (subject, cube of ``size`` voxels) at random places, without end."""
    rng = np.random.default_rng(seed)
    subjects = rng.integers(0, SUBJECTS, 2000).tolist()
    corners = rng.integers(0, np.subtract(shape, size) + 1, (2000, 3)).tolist()
    return cycle(
        (k, (slice(x, x + size), slice(y, y + size), slice(z, z + size)))
        for k, (x, y, z) in zip(subjects, corners, strict=True)
    )


def _serve(pipe: Connection, work: Path, shape: Shape) -> None:
    """Measure, in a process of its own, whatever (name, size, seconds, seed) comes."""
    readers: dict[str, Reader] = {}
    while (request := pipe.recv()) is not None:
        name, size, seconds, seed = request
        if name not in readers:
            readers[name] = open_reader(name, work)
        read, wanted, count = readers[name], patches(shape, size, seed), 0
        start = time.perf_counter()
        while time.perf_counter() < start + seconds:
            read(*next(wanted))
            count += 1
        pipe.send(count / (time.perf_counter() - start))


class PeerProcesses:
    """One process a core that reads with any peer, as a DataLoader or nnU-Net's loader has them."""

    def __init__(self, work: Path, shape: Shape) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[SpawnProcess] = []
        for _ in range(CORES):
            here, there = spawn.Pipe()
            process = spawn.Process(target=_serve, args=(there, work, shape), daemon=True)
            process.start()
            self._pipes.append(here)
            self._processes.append(process)

    def rate(self, name: str, size: int, seconds: float, seed: int) -> float:
        """Return the patches per second of all processes together."""
        for i, pipe in enumerate(self._pipes):
            pipe.send((name, size, seconds, seed * CORES + i))
        return float(sum(pipe.recv() for pipe in self._pipes))

    def close(self) -> None:
        """End the processes."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.send(None)
            process.join()
