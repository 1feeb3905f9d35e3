"""``tiledvol bench``: how fast a dataset can be loaded on this machine, and with what settings."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tiledvol.cli.output import line, print_json, print_table, size
from tiledvol.errors import StoreError

if TYPE_CHECKING:
    from tiledvol import Dataset

SETTINGS = ((1, 64 * 2**20), (2, 64 * 2**20), (4, 64 * 2**20), (8, 64 * 2**20), (4, 2 * 2**30))
"""Batches prefetched and bytes of cache that are tried."""

GOOD_ENOUGH = 0.95
"""Settings that need less are recommended if they reach this share of the best rate."""


@dataclass(frozen=True)
class _Measured:
    prefetch: int
    cache_bytes: int
    first_batch: float
    stats: dict[str, Any]

    @property
    def rate(self) -> float:
        """Patches per second."""
        return float(self.stats["patches_per_second"])


def bench(
    dataset: Annotated[
        str, typer.Argument(metavar="DATASET", help="Folder or URL of the dataset.")
    ],
    patch: Annotated[int, typer.Option(help="Edge of the patches in voxels.")] = 128,
    batch: Annotated[int, typer.Option(help="Patches per batch.")] = 2,
    step_ms: Annotated[
        float, typer.Option(help="Time that a training step takes, in ms; it is slept.")
    ] = 0,
    seconds: Annotated[float, typer.Option(help="How long each setting is measured.")] = 5,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Measure how fast patches of a dataset are loaded, and recommend settings."""
    if patch < 1 or batch < 1 or seconds <= 0 or step_ms < 0:
        raise typer.BadParameter("patch, batch and seconds have to be above zero")
    import tiledvol

    opened = tiledvol.open(dataset)
    images, labels = _common_images(opened)
    measured = [
        _measure(opened, images, labels, patch, batch, step_ms, seconds, *setting)
        for setting in SETTINGS
    ]
    best = max(m.rate for m in measured)
    enough = [m for m in measured if m.rate >= GOOD_ENOUGH * best]
    chosen = min(enough, key=lambda m: (m.cache_bytes, m.prefetch))
    if json:
        print_json(
            {
                "dataset": dataset,
                "images": images,
                "labels": labels,
                "measured": [
                    {"prefetch_batches": m.prefetch, "cache_bytes": m.cache_bytes}
                    | {"seconds_to_first_batch": m.first_batch}
                    | m.stats
                    for m in measured
                ],
                "recommended": {
                    "prefetch_batches": chosen.prefetch,
                    "cache_bytes": chosen.cache_bytes,
                },
            }
        )
        return
    print_table(
        ("prefetch", "cache", "patches/s", "first batch", "waited", "decoded/needed"),
        [
            (
                str(m.prefetch),
                size(m.cache_bytes),
                f"{m.rate:.1f}",
                f"{m.first_batch * 1e3:.0f} ms",
                f"{m.stats['seconds_waited'] / m.stats['seconds']:.1%}",
                f"{m.stats['bytes_decoded'] / max(m.stats['bytes_needed'], 1):.2f}",
            )
            for m in measured
        ],
        right="prefetch cache patches/s first batch waited decoded/needed",
    )
    line(f"{chosen.stats['verdict']}")
    line(
        f"recommended: prefetch_batches={chosen.prefetch}, "
        f"cache_bytes={chosen.cache_bytes // 2**20}MiB"
    )


def _common_images(dataset: Dataset) -> tuple[list[str], list[str]]:
    """Return the names of the images, and of the labels, that most subjects have."""
    kinds = Counter((name, v.kind) for subject in dataset.values() for name, v in subject.items())
    if not kinds:
        raise StoreError(f"{dataset.url}: the dataset is empty")
    most = max(kinds.values())
    names = sorted(key for key, count in kinds.items() if count == most)
    return (
        [name for name, kind in names if kind == "image"],
        [name for name, kind in names if kind == "label"],
    )


def _measure(
    dataset: Dataset,
    images: list[str],
    labels: list[str],
    patch: int,
    batch: int,
    step_ms: float,
    seconds: float,
    prefetch: int,
    cache_bytes: int,
) -> _Measured:
    """Load patches for a while with one setting."""
    import tiledvol

    loader = tiledvol.PatchLoader(
        dataset,
        patch,
        batch,
        images,
        labels,
        sampler=tiledvol.LabelSampler(labels[0]) if labels else tiledvol.UniformSampler(),
        patches_per_epoch=10**9,
        prefetch_batches=prefetch,
        cache_bytes=cache_bytes,
        require="any",
    )
    began = time.perf_counter()
    first = 0.0
    for _ in loader:
        first = first or time.perf_counter() - began
        time.sleep(step_ms / 1e3)
        if time.perf_counter() - began > seconds:
            break
    loader.close()
    return _Measured(prefetch, cache_bytes, first, loader.stats())
