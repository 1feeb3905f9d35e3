"""Conversion speed and memory against nibabel, zarr-python and an nnU-Net style save.

    python benchmarks/convert.py [--rounds 5] [--skip-memory]

Every run is a process of its own, so that its peak memory is its own; contenders take turns, and
medians are printed. Rates are in MB of decoded voxels per second, from a warm page cache.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from phantom import CTPhantom, MRPhantom, write_nifti


def inflate(source: Path, _: Path) -> None:
    """Decompress with isal into nothing: what no converter of .nii.gz can beat on one core."""
    from isal import isal_zlib

    inflater = isal_zlib.decompressobj(31)
    with source.open("rb") as file:
        while data := file.read(2**20):
            inflater.decompress(data)


def tiledvol(source: Path, target: Path) -> None:
    """Convert with tiledvol, statistics and index included."""
    from tiledvol_converters import convert

    convert(target, "case", {"ct": source})


def nibabel_load(source: Path, _: Path) -> None:
    """Only load with nibabel; nothing is written."""
    import nibabel as nib

    np.asanyarray(nib.load(source).dataobj)


def nibabel_zarr(source: Path, target: Path) -> None:
    """Load with nibabel, write the same chunks, shards and codec with zarr-python."""
    import nibabel as nib
    import zarr

    voxels = np.asanyarray(nib.load(source).dataobj)
    array = zarr.create_array(
        target,
        shape=voxels.shape,
        dtype=voxels.dtype,
        chunks=(64, 64, 64),
        shards=(*(-(-n // 64) * 64 for n in voxels.shape[:2]), 64),
        compressors=zarr.codecs.BloscCodec(cname="lz4", clevel=5, shuffle="shuffle"),
    )
    array[...] = voxels


def nnunet_style(source: Path, target: Path) -> None:
    """Load with nibabel, save float32 in blosc2 as nnU-Net 2.8 does (block 32³, LZ4HC-5)."""
    import blosc2
    import nibabel as nib

    voxels = np.asanyarray(nib.load(source).dataobj).astype(np.float32).T[None]
    blosc2.asarray(
        np.ascontiguousarray(voxels),
        urlpath=str(target),
        chunks=(1, 96, 128, 128),
        blocks=(1, 32, 32, 32),
        cparams={"codec": blosc2.Codec.LZ4HC, "clevel": 5, "nthreads": 2},
    )


CONTENDERS: dict[str, Callable[[Path, Path], None]] = {
    "isal inflate (ceiling)": inflate,
    "tiledvol": tiledvol,
    "nibabel load alone": nibabel_load,
    "nibabel + zarr-python": nibabel_zarr,
    "nnU-Net style": nnunet_style,
}


def run(name: str, source: Path) -> tuple[float, float]:
    """Run one contender in a fresh process; return its seconds and its peak RSS in MB."""
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        command = [sys.executable, __file__, "--contender", name, "--source", str(source)]
        done = subprocess.run(
            [*command, "--target", f"{folder}/out"], check=True, capture_output=True, text=True
        )
    seconds, rss = done.stdout.split()
    return float(seconds), float(rss)


def run_here(name: str, source: Path, target: Path) -> None:
    """Time one contender in this process, imports left out; print seconds and peak RSS in MB."""
    import resource

    warm_up = source.with_name("small.nii.gz")
    CONTENDERS[name](warm_up, target.with_name("small"))
    began = time.perf_counter()
    CONTENDERS[name](source, target)
    seconds = time.perf_counter() - began
    print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)


def compare(source: Path, megabytes: float, rounds: int) -> None:
    """Print the table of all contenders on one file."""
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in CONTENDERS}
    for _ in range(rounds):
        for name, measured in results.items():
            measured.append(run(name, source))
    rates = {n: megabytes / statistics.median(s for s, _ in r) for n, r in results.items()}
    print(
        f"\n{source.name}: {megabytes:.0f} MB of voxels, {source.stat().st_size / 1e6:.0f} MB file"
    )
    for name, measured in results.items():
        peak = statistics.median(rss for _, rss in measured)
        print(f"  {name:26} {rates[name]:7.0f} MB/s   peak RSS {peak:6.0f} MB")
    print("  ratios of tiledvol:")
    bars = {"isal inflate (ceiling)": 0.4, "nibabel load alone": 2.0}
    for name in list(rates)[::-1]:
        if name != "tiledvol":
            ratio = rates["tiledvol"] / rates[name]
            bar = bars.get(name)
            verdict = "" if bar is None else f" (bar {bar}: {'met' if ratio >= bar else 'MISSED'})"
            print(f"    × {name:26} {ratio:6.2f}{verdict}")


def memory(folder: Path) -> None:
    """Print the peak RSS of converting a long and a short volume."""
    peaks = []
    for depth in (500, 2000):
        source = folder / f"ct_{depth}.nii.gz"
        write_nifti(CTPhantom(shape=(512, 512, depth)), source, level=1)
        peaks.append(run("tiledvol", source)[1])
        source.unlink()
        print(f"512×512×{depth} int16: peak RSS {peaks[-1]:.0f} MB")
    met = peaks[1] < 600 and peaks[1] - peaks[0] <= 50
    print(f"bar: under 600 MB, and at most 50 MB more: {'met' if met else 'MISSED'}")


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--skip-memory", action="store_true")
    for hidden in ("--contender", "--source", "--target"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        run_here(arguments.contender, Path(arguments.source), Path(arguments.target))
        return
    folder = Path(tempfile.mkdtemp(prefix="tiledvol-bench-"))
    try:
        write_nifti(CTPhantom(shape=(64, 64, 64)), folder / "small.nii.gz")
        for phantom, name in (
            (CTPhantom(shape=(512, 512, 256)), "ct.nii.gz"),
            (MRPhantom(shape=(256, 256, 256)), "mr.nii.gz"),
        ):
            write_nifti(phantom, folder / name)
            compare(folder / name, np.prod(phantom.shape) * 2 / 1e6, arguments.rounds)
        if not arguments.skip_memory:
            memory(folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
