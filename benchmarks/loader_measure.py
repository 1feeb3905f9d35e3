"""One contender in a process of its own: what is missing for it, its data, its speed.

`loader.py` starts this file, with the interpreter that has the contender's library.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import loader_nifti
import loader_own
import loader_peers
import psutil
from loader_work import Batch, Contender, Group, Work

GROUPS: dict[str, Group] = {**loader_own.GROUPS, **loader_peers.GROUPS, **loader_nifti.GROUPS}

CONTENDERS: dict[str, Contender] = {
    name: contender for group in GROUPS.values() for name, contender in group.contenders.items()
}


def missing(group: str) -> list[str]:
    """Return what this interpreter lacks for a group."""
    found = []
    for name, version in {"torch": "", **GROUPS[group].needs}.items():
        try:
            has = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found.append(name)
        else:
            if not has.startswith(version):
                found.append(f"{name} {version}* (there is {has})")
    return found


def prepare(group: str, work: Work) -> None:
    """Write the group's data unless it is there."""
    folder = work.folder / group
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)  # of an attempt that was broken off
        folder.mkdir()
        GROUPS[group].prepare(work)
        (folder / "done").touch()


def memory_of(process: psutil.Process) -> int:
    """Return the bytes of a process and its descendants, shared ones counted once."""
    total = 0
    for member in (process, *process.children(recursive=True)):
        used = member.memory_full_info()
        total += getattr(used, "pss", used.rss)
    return total


def cpu_seconds() -> float:
    """Return the CPU time of this process and all its descendants, living or not."""
    total = 0.0
    here = psutil.Process()
    for process in (here, *here.children(recursive=True)):
        times = process.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
    return total


def check(batch: Batch, work: Work) -> None:
    """Refuse a batch that is not what all contenders are to deliver."""
    import torch

    if batch is None:
        return
    image, label = batch
    shape = (work.batch, 1, *work.patch_size)
    if image.shape != shape or label.shape != shape:
        raise SystemExit(f"shapes are {tuple(image.shape)} and {tuple(label.shape)}, not {shape}")
    if image.dtype != torch.float32 or not image.std() > 0 or not 0 < label.max() <= 3:
        raise SystemExit(f"no image and label: {image.dtype}, {image.std()}, {label.max()}")


def measure(
    contender: Contender,
    imports: Sequence[str],
    work: Work,
    warm_up: float,
    seconds: float,
    step: float,
) -> dict[str, float]:
    """Take batches for a while, in whole cycles of the contender.

    Parameters
    ----------
    imports : sequence of str
        Modules that the contender needs; importing them is not timed.
    warm_up, seconds : float
        To go on for at least, before the measurement and during it.
    step : float
        Seconds that training a batch is pretended to take.

    Returns
    -------
    dict
        ``imported``, bytes of memory that the libraries take before anything is loaded;
        ``first``, seconds until the first batch; ``rate``, patches per second; ``cpu``, CPU
        seconds per patch; ``wait``, median seconds that a step waited for its batch;
        ``waited``, share of the time spent waiting.
    """
    for module in imports:
        importlib.import_module(module)
    imported = memory_of(psutil.Process())
    cycle = contender.cycle(work)
    began = time.perf_counter()
    batches = contender.open(work)
    check(next(batches), work)
    first = time.perf_counter() - began
    for _ in range(cycle - 1):
        next(batches)

    def take(least: float) -> tuple[float, list[float]]:
        waits: list[float] = []
        start = now = time.perf_counter()
        while now < start + least or len(waits) % cycle:
            time.sleep(step)
            asked = time.perf_counter()
            next(batches)
            now = time.perf_counter()
            waits.append(now - asked)
        return now - start, waits

    take(warm_up)
    cpu = cpu_seconds()
    took, waits = take(seconds)
    patches = len(waits) * work.batch
    return {
        "imported": imported,
        "first": first,
        "rate": patches / took,
        "cpu": (cpu_seconds() - cpu) / patches,
        "wait": statistics.median(waits),
        "waited": sum(waits) / took,
    }


def main() -> None:
    """Do what `loader.py` asks; the answer goes into a file, as libraries print what they like."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("job", choices=("missing", "prepare", "measure"))
    parser.add_argument("name")
    parser.add_argument("answer", type=Path)
    parser.add_argument("--work", type=Path)
    for option in ("--patch", "--batch"):
        parser.add_argument(option, type=int)
    for option in ("--warm-up", "--seconds", "--step-ms"):
        parser.add_argument(option, type=float)
    options = parser.parse_args()
    answer: Any = None
    work = Work(options.work, options.patch, options.batch)
    if options.job == "missing":
        answer = missing(options.name)
    elif options.job == "prepare":
        prepare(options.name, work)
    else:
        group = next(g for g in GROUPS.values() if options.name in g.contenders)
        contender = group.contenders[options.name]
        step = options.step_ms / 1000
        answer = measure(contender, group.imports, work, options.warm_up, options.seconds, step)
    partial = options.answer.with_suffix(".part")
    partial.write_text(json.dumps(answer))
    partial.rename(options.answer)


if __name__ == "__main__":
    main()
