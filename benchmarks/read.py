"""Random patches per second: tiledvol against what else people read patches with.

Everything is made on the spot from a CT-like phantom and read with a warm page cache. Every
contender has all cores: tiledvol one process with several reads in flight, the others one process
a core. They take turns, and ratios are medians over the rounds of the ratio within a round, so
that another program on the machine disturbs both sides alike.

    python benchmarks/read.py --work /tmp/tiledvol-read
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any

from peers import CORES, PEERS, SLOW, SUBJECTS, PeerProcesses, Shape, build, open_reader, patches

import tiledvol as tv
from tiledvol_converters import convert

IN_FLIGHT = 2 * CORES
"""Reads that tiledvol's event loop keeps under way."""

STORES: dict[str, dict[str, Any]] = {
    "lz4": {},
    "lz4-32": {"chunk": 32},
    "zstd": {"codec": "zstd"},
    "none": {"codec": "none"},
}
"""Options of `convert` for each store."""

TILEDVOL = {
    "lz4": "tiledvol lz4 (default)",
    "lz4-32": "tiledvol lz4, blocks of 32³",
    "zstd": "tiledvol zstd",
    "none": "tiledvol uncompressed",
    "cached": "tiledvol lz4, blocks in the cache pool",
}
"""Name and description of each way to read with tiledvol."""

BARS = (
    ("lz4", "nnunet", 0.9),
    ("lz4", "nnunet-int16", None),
    ("lz4", "nnunet-old", 2.0),
    ("lz4", "zarr", 4.0),
    ("lz4", "zarrs", 2.0),
    ("none", "memmap", 0.6),
    ("cached", "memmap", 0.9),
)
"""(contender, peer, least ratio of their rates that is good enough; None: only shown)."""

Rates = dict[str, list[float]]
"""Patches per second of each contender, one a round."""


def build_tiledvol(work: Path) -> None:
    """Convert ``work/ct_0.nii.gz`` into each store; the other subjects are links to the first."""
    for name, options in STORES.items():
        store = work / f"{name}.tvol"
        convert(store, "ct_0", {"ct": work / "ct_0.nii.gz"}, **options)
        for k in range(1, SUBJECTS):
            shutil.copytree(store / "ct_0", store / f"ct_{k}", copy_function=os.link)
        tv.reindex(store)


def open_volumes(work: Path, name: str, shape: Shape) -> list[tv.Volume]:
    """Open the subjects of a store; those of ``cached`` with every block decoded."""
    if name != "cached":
        dataset = tv.open(work / f"{name}.tvol")
        return [dataset[f"ct_{k}"]["ct"] for k in range(SUBJECTS)]
    voxels = shape[0] * shape[1] * shape[2]
    dataset = tv.open(work / "lz4.tvol", context=tv.make_context(SUBJECTS * voxels * 3))
    volumes = [dataset[f"ct_{k}"]["ct"] for k in range(SUBJECTS)]
    for volume in volumes:
        volume.read_sync(tv.Box((0, 0, 0), shape))
    return volumes


def check(work: Path, volumes: dict[str, list[tv.Volume]], shape: Shape) -> None:
    """Compare what the contenders read with the phantom, so that nothing wrong is measured."""
    subject, region = next(patches(shape, 64, seed=0))
    box = tv.Box(tuple(s.start for s in region), tuple(s.stop for s in region))
    expected = open_reader("memmap", work)(subject, region)
    found = {name: opened[subject].read_sync(box) for name, opened in volumes.items()}
    found["nnunet-int16"] = open_reader("nnunet-int16", work)(subject, region)
    for name, patch in found.items():
        if not (patch == expected).all():
            raise SystemExit(f"{name} does not read what was written")


def warm(work: Path) -> None:
    """Read every file, as an idle kernel may have dropped it from the page cache."""
    for pattern in ("ct_0.n*", "*_0.b2nd", "*.tvol/ct_0/**/*"):
        for path in work.glob(pattern):
            if path.is_file():
                path.read_bytes()


async def read_for(volumes: list[tv.Volume], size: int, seconds: float, seed: int) -> float:
    """Return patches per second of one event loop with `IN_FLIGHT` reads under way."""
    wanted = patches(volumes[0].shape, size, seed)
    count, start = 0, time.perf_counter()

    async def read_on() -> None:
        nonlocal count
        while time.perf_counter() < start + seconds:
            k, region = next(wanted)
            box = tv.Box(tuple(s.start for s in region), tuple(s.stop for s in region))
            await volumes[k].read(box)
            count += 1

    await asyncio.gather(*(read_on() for _ in range(IN_FLIGHT)))
    return count / (time.perf_counter() - start)


def measure(
    work: Path,
    contenders: dict[str, Callable[[int, float, int], float]],
    size: int,
    seconds: float,
    rounds: int,
) -> Rates:
    """Let the contenders take turns; the slow ones in the first round only."""
    for name, rate in contenders.items():
        if name not in SLOW:
            rate(size, min(seconds, 0.1), 0)  # opens files, fills allocators
    rates: Rates = {name: [] for name in contenders}
    for seed in range(1, rounds + 1):
        warm(work)
        for name, rate in contenders.items():
            if name not in SLOW or seed == 1:
                rates[name].append(rate(size, seconds, seed))
    return rates


def report(results: dict[int, Rates]) -> None:
    """Print patches per second, and the ratios with what was made of the bars."""
    sizes = list(results)
    names = {**TILEDVOL, **PEERS}
    print(f"\n{'patches/s':44}" + "".join(f"{f'{s}³':>12}" for s in sizes))
    for name in results[sizes[0]]:
        print(f"{names[name]:44}" + "".join(f"{median(results[s][name]):12.4g}" for s in sizes))
    print(f"\n{'ratio':44}" + "".join(f"{f'{s}³':>12}" for s in sizes) + f"{'bar':>8}")
    for name, peer, bar in BARS:
        cells = ""
        for size in sizes:
            pairs = zip(results[size][name], results[size][peer], strict=True)
            ratio = median(a / b for a, b in pairs)
            verdict = "" if bar is None else "pass" if ratio >= bar else "FAIL"
            cells += f"{ratio:7.2f} {verdict:4}"
        print(f"{name + ' : ' + peer:44}{cells}{'' if bar is None else bar:>8}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--work", type=Path, help="folder that keeps the files (default: a temporary one)"
    )
    parser.add_argument("--size", type=int, nargs="+", default=[128, 96, 64], help="patch edges")
    parser.add_argument("--shape", type=int, nargs=3, default=(512, 512, 384), help="of the volume")
    parser.add_argument("--seconds", type=float, default=0.7, help="per measurement")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--fast", action="store_true", help="leave out " + " and ".join(SLOW))
    options = parser.parse_args()
    shape: Shape = tuple(options.shape)
    with ExitStack() as stack:
        work = options.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if not all((work / f"{name}.tvol/catalogue.json").exists() for name in STORES):
            print(f"making the phantom, {' x '.join(map(str, shape))} int16, and its stores")
            work.mkdir(parents=True, exist_ok=True)
            build(work, shape)
            build_tiledvol(work)
        volumes = {name: open_volumes(work, name, shape) for name in TILEDVOL}
        check(work, volumes, shape)
        peers = stack.enter_context(closing(PeerProcesses(work, shape)))

        def of_tiledvol(name: str) -> Callable[[int, float, int], float]:
            return lambda *args: asyncio.run(read_for(volumes[name], *args))

        def of_peer(name: str) -> Callable[[int, float, int], float]:
            return lambda *args: peers.rate(name, *args)

        contenders = {name: of_tiledvol(name) for name in TILEDVOL}
        contenders |= {n: of_peer(n) for n in PEERS if not (options.fast and n in SLOW)}
        results = {
            size: measure(work, contenders, size, options.seconds, options.rounds)
            for size in options.size
        }
        report(results)
    print(
        f"\n{CORES} cores; load {os.getloadavg()[0]:.1f}; {IN_FLIGHT} reads in flight in tiledvol"
    )


if __name__ == "__main__":
    main()
