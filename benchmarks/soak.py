"""Soak: many batches of small patches; memory, threads and open files have to stay flat.

    python benchmarks/soak.py [--batches 20000] [--epoch 500]

Every ``--epoch`` batches an iteration ends and another begins; every third is left in the middle.
Prints a sample every twentieth of the way, and fails if the last quarter of the samples needs more
than the first quarter after warm-up did, beyond what the allocator may keep.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil

SUBJECTS = 8
SHAPE = (96, 96, 64)
PATCH = 24
BATCH = 2
SAMPLES = 40
GROWTH_BYTES = 8 * 2**20
"""How much resident memory may wander: malloc's arenas, not leaks, which grow with the batches."""


def write_dataset(folder: Path) -> Path:
    """Write a few small CT-like subjects with labels."""
    from tiledvol.storage import catalogue
    from tiledvol.storage.writer import SubjectWriter, create_dataset

    rng = np.random.default_rng(0)
    url = folder / "soak.tvol"
    store = create_dataset(url)
    for number in range(SUBJECTS):
        ct = rng.normal(0, 300, SHAPE).astype(np.int16)
        seg = (ct > 800).astype(np.uint8)
        with SubjectWriter(store, f"s{number}") as writer:
            for name, array, kind in (("ct", ct, "image"), ("seg", seg, "label")):
                image = writer.image(name, SHAPE, array.dtype, np.eye(4), kind=kind, chunk=32)
                image.write((0, 0, 0), array)
                image.finish({})
            entry = writer.commit({})
        catalogue.update(store, add={f"s{number}": entry})
    return url


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=20_000)
    parser.add_argument("--epoch", type=int, default=500)
    arguments = parser.parse_args()
    import tiledvol as tv

    process = psutil.Process()
    samples = []
    with tempfile.TemporaryDirectory() as folder:
        loader = tv.PatchLoader(
            tv.open(write_dataset(Path(folder))),
            PATCH,
            BATCH,
            ["ct"],
            ["seg"],
            tv.LabelSampler("seg"),
            patches_per_epoch=arguments.epoch * BATCH,
            prefetch_batches=8,
            cache_bytes="4MiB",
        )
        began = time.perf_counter()
        done = iterations = 0
        while done < arguments.batches:
            iterations += 1
            for step, _ in enumerate(loader):
                done += 1
                if done % max(arguments.batches // SAMPLES, 1) == 0:
                    gc.collect()
                    memory = process.memory_info().rss
                    samples.append((memory, threading.active_count(), process.num_fds()))
                    print(
                        f"{done:7} batches  {time.perf_counter() - began:6.1f} s  "
                        f"{memory / 2**20:7.1f} MiB  {samples[-1][1]} threads  "
                        f"{samples[-1][2]} open files",
                        flush=True,
                    )
                if iterations % 3 == 0 and step == arguments.epoch // 2:
                    break
        print(f"{done / (time.perf_counter() - began):.0f} batches/s")
    settled = samples[len(samples) // 4 :]
    quarter = len(settled) // 3
    growth = np.median(settled[-quarter:], axis=0) - np.median(settled[:quarter], axis=0)
    print(
        f"growth from the second to the last quarter: {growth[0] / 2**20:+.1f} MiB, "
        f"{growth[1]:+.0f} threads, {growth[2]:+.0f} open files"
    )
    if growth[0] > GROWTH_BYTES or growth[1] > 0 or growth[2] > 0:
        sys.exit("something grows")


if __name__ == "__main__":
    main()
