r"""Random patches for training: tiledvol's loader against the loaders that people use.

    python benchmarks/loader.py --work /tmp/tiledvol-loader \
        --python nnunet=/venvs/peers/bin/python --python torchio2=/venvs/torchio2/bin/python

Every contender delivers batches of CT patches in float32 with their labels, a third of the patches
around a voxel of a class, from its own format, made of the same volumes and read with a warm page
cache. Every run is a process of its own; contenders take turns, slow ones in the first round only,
and medians are printed. Peak memory is of all processes of a contender together, what they share
counted once. Contenders that this interpreter lacks the library for are left out, unless
``--python`` names one that has it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import loader_report
import psutil
from loader_measure import GROUPS, memory_of
from phantom import CTPhantom, write_nifti

PAUSE_S = 0.5
"""Between two looks at a contender's memory, each of which costs some 10 ms of a core."""

LIMIT_S = 900
"""A run that takes longer is ended."""

GRACE_S = 5
"""For a contender to end its processes in its own way."""


class RunError(Exception):
    """A contender failed; the message is the last that it said."""


@contextmanager
def started(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command; end it and all that it started on leaving."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            yield process
        finally:
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Runner:
    """Starts `loader_measure.py` for one contender after the other.

    Parameters
    ----------
    work : Path
        Folder of the data.
    pythons : dict of str to str
        Interpreter of a group of contenders, where it is not this one.
    options : list of str
        For every run.
    """

    def __init__(self, work: Path, pythons: dict[str, str], options: list[str]) -> None:
        self._work = work
        self._pythons = pythons
        self._options = ["--work", str(work), *options]

    def __call__(self, job: str, name: str, group: str) -> tuple[Any, int]:
        """Do one job; return its answer and the peak of its memory in bytes."""
        python = self._pythons.get(group, sys.executable)
        script = Path(__file__).with_name("loader_measure.py")
        with tempfile.TemporaryDirectory(dir=self._work) as folder:
            answer, log = Path(folder, "answer"), Path(folder, "log")
            command = [python, str(script), job, name, str(answer), *self._options]
            peak, limit = 0, time.monotonic() + LIMIT_S
            with started(command, log) as process:
                seen = psutil.Process(process.pid)
                while process.poll() is None and not answer.exists():
                    if time.monotonic() > limit:
                        break
                    with suppress(psutil.Error):  # one has just ended: the next look tells
                        peak = max(peak, memory_of(seen))
                    time.sleep(PAUSE_S)
            if not answer.exists():
                said = log.read_text(errors="replace").strip()
                raise RunError(said.rpartition("\n")[2] or f"no answer in {LIMIT_S} s")
            return json.loads(answer.read_text()), peak


def write_data(work: Path, subjects: int, size: tuple[int, int, int], patch: int) -> None:
    """Write the volumes as .nii.gz; refuse a folder made for others, or for another patch."""
    setting = json.dumps({"subjects": subjects, "size": size, "patch": patch})
    marker = work / "setting.json"
    if marker.exists():
        if marker.read_text() != setting:
            raise SystemExit(f"{work} holds {marker.read_text()}, not {setting}: name another")
        return
    print(f"writing {subjects} volumes of {'×'.join(map(str, size))}")
    (work / "nifti").mkdir(parents=True, exist_ok=True)
    for k in range(subjects):
        image, label = (work / "nifti" / f"case_{k:03}_{name}.nii.gz" for name in ("ct", "seg"))
        write_nifti(CTPhantom(size, seed=k), image, label)
    marker.write_text(setting)


def available(groups: list[str], run: Runner) -> list[str]:
    """Return the groups that can run, their data ready; say what the others lack."""
    found = []
    for group in groups:
        try:
            lacking, _ = run("missing", group, group)
            if lacking:
                print(f"skipped: {group}, for want of {', '.join(lacking)} (see --python)")
                continue
            run("prepare", group, group)
        except (OSError, RunError) as error:
            print(f"skipped: {group}, because of {error}")
            continue
        found.append(group)
    if "tiledvol" not in found:
        raise SystemExit("tiledvol itself is to be installed where this runs")
    return found


def warm(work: Path) -> None:
    """Read every file, as an idle kernel may have dropped it from the page cache."""
    for path in work.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                while file.read(2**24):
                    pass


def compare(groups: list[str], run: Runner, work: Path, rounds: int) -> loader_report.Results:
    """Let the contenders take turns; return the medians, without those that failed."""
    measured: dict[str, list[dict[str, float]]] = {}
    failed: set[str] = set()
    for number in range(rounds):
        warm(work)
        for group in groups:
            for name, contender in GROUPS[group].contenders.items():
                if name in failed or (number and contender.slow):
                    continue
                try:
                    result, peak = run("measure", name, group)
                except RunError as error:
                    failed.add(name)
                    print(f"  {name:22} failed: {error}", flush=True)
                    continue
                measured.setdefault(name, []).append({**result, "peak": peak})
                print(f"  {name:22} {result['rate']:8.1f} patches/s", flush=True)
    return {
        name: {key: statistics.median(r[key] for r in runs) for key in runs[0]}
        for name, runs in measured.items()
        if name not in failed
    }


def main() -> None:
    peers = [group for group in GROUPS if group != "tiledvol"]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, help="folder that keeps the data; else temporary")
    parser.add_argument("--peers", default=",".join(peers), help="default: %(default)s")
    parser.add_argument(
        "--python", action="append", default=[], metavar="PEER=PATH", help="its interpreter"
    )
    parser.add_argument("--subjects", type=int, default=20)
    parser.add_argument("--size", default="256,256,192", help="of the volumes")
    parser.add_argument("--patch", type=int, default=128)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--warm-up", type=float, default=3, help="seconds, at least")
    parser.add_argument("--seconds", type=float, default=10, help="of a measurement, at least")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step-ms", type=float, default=0, help="pretended training of a batch")
    parser.add_argument("--plot", type=Path, help="PNG to make")
    given = parser.parse_args()
    chosen = given.peers.split(",") if given.peers else []
    if unknown := set(chosen) - set(peers):
        parser.error(f"--peers: no {', '.join(sorted(unknown))}, only {', '.join(peers)}")
    pythons = dict(pair.split("=", 1) for pair in given.python)
    options = [
        f"--{name.replace('_', '-')}={getattr(given, name)}"
        for name in ("patch", "batch", "warm_up", "seconds", "step_ms")
    ]
    with ExitStack() as stack:
        work = given.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        x, y, z = map(int, given.size.split(","))
        write_data(work, given.subjects, (x, y, z), given.patch)
        run = Runner(work.resolve(), pythons, options)
        groups = available(["tiledvol", *chosen], run)
        results = compare(groups, run, work, given.rounds)
    print(f"\n{given.subjects} volumes of {x}×{y}×{z}, batches of {given.batch} × {given.patch}³")
    if given.step_ms:
        print(f"training pretended to take {given.step_ms:g} ms a batch")
    loader_report.table(results)
    if given.step_ms:
        loader_report.waits(results)
    else:
        loader_report.ratios(results)
    if given.plot:
        loader_report.plot(results, given.plot)
    print(f"\n{len(os.sched_getaffinity(0))} cores; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
