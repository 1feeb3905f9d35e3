"""Seconds to open a dataset of many subjects, whose catalogue one read brings.

    python benchmarks/catalogue.py [--subjects 10000]

One subject is converted; the catalogue lists it under as many names, each with a folder.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median

from phantom import CTPhantom, write_nifti

import tiledvol as tv
from tiledvol.storage import catalogue
from tiledvol.storage.writer import create_dataset
from tiledvol_converters import convert

BAR_S = 0.5
"""Opening 10,000 subjects may take so long."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--subjects", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        write_nifti(CTPhantom(shape=(64, 64, 64)), work / "ct.nii", work / "seg.nii")
        url = work / "many.tvol"
        convert(url, "first", {"ct": work / "ct.nii"}, {"seg": work / "seg.nii"})
        entry = json.loads(tv.open(url).entry_text("first"))
        names = [f"case_{k:06}" for k in range(options.subjects - 1)]
        for name in names:
            (url / name).mkdir()
        catalogue.update(create_dataset(url), add=dict.fromkeys(names, entry))
        seconds = []
        for _ in range(options.rounds):
            began = time.perf_counter()
            dataset = tv.open(url)
            seconds.append(time.perf_counter() - began)
        megabytes = (url / catalogue.KEY).stat().st_size / 1e6
        verdict = "met" if median(seconds) < BAR_S else "MISSED"
        print(
            f"{len(dataset)} subjects, catalogue of {megabytes:.1f} MB: opened in "
            f"{median(seconds):.3f} s (bar {BAR_S} s: {verdict})"
        )


if __name__ == "__main__":
    main()
