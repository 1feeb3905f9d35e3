"""Tables and the plot of the loader benchmark."""

from __future__ import annotations

from pathlib import Path

from loader_measure import CONTENDERS

Results = dict[str, dict[str, float]]
"""For each contender ``peak``, in bytes, and what `loader_measure.measure` returns."""

WIDTH = 42
"""Of the column of titles."""

OWN = ("tiledvol", "tiledvol-memory")

CEILINGS = {"tiledvol-bare": "tiledvol", "tiledvol-bare-memory": "tiledvol-memory"}
"""Bare reads, and the loader that is measured by them."""

CEILING_BAR = 1 / 1.15
"""Of the bare reads' rate: the loader costs at most 15 % more."""

SPEED_BARS = {"nnunet": 3.0, "nnunet-2w": 5.0, "torchio": 30.0, "torchio2": 30.0, "monai": 30.0}
"""Times the rate of a contender, or of all whose name begins with the group's."""

MEMORY_BAR = 0.5
"""Of the peak of each contender that has a bar for speed."""

WAIT_BAR_S, WAITED_BAR = 1e-3, 0.01
"""Median wait of a step, and share of the time spent waiting."""


def table(results: Results) -> None:
    """Print what was measured, one contender a line."""
    heads = (
        ("patches/s", 10),
        ("first, s", 10),
        ("CPU ms", 8),
        ("peak, MB", 10),
        ("imports, MB", 13),
    )
    print("\n" + " " * WIDTH + "".join(f"{head:>{width}}" for head, width in heads))
    for name, found in results.items():
        print(
            f"{CONTENDERS[name].title:{WIDTH}}{found['rate']:10.1f}{found['first']:10.2f}"
            f"{found['cpu'] * 1e3:8.1f}{found['peak'] / 1e6:10.0f}{found['imported'] / 1e6:13.0f}"
        )
    print("CPU: of all processes, per patch; imports: the part of the peak that libraries take")


def bar_of(name: str) -> float | None:
    """Return the bar for the speed over a contender, if there is one."""
    return SPEED_BARS.get(name, SPEED_BARS.get(name.partition("-")[0]))


def verdict(met: bool) -> str:
    """Return the word for a bar that is met, or not."""
    return "met" if met else "MISSED"


def ratios(results: Results) -> None:
    """Print tiledvol's rate and peak memory relative to each contender, and the bars."""
    for own in OWN:
        if own not in results:
            continue
        print(f"\n{f'{CONTENDERS[own].title} to':{WIDTH + 4}}rate{'memory':>26}")
        for name, found in results.items():
            if name in OWN or CEILINGS.get(name, own) != own:
                continue
            rate = results[own]["rate"] / found["rate"]
            peak = results[own]["peak"] / found["peak"]
            bar = CEILING_BAR if name in CEILINGS else bar_of(name)
            fast = "" if bar is None else f"(bar {bar:.3g}: {verdict(rate >= bar)})"
            small = "" if bar is None else f"(bar {MEMORY_BAR}: {verdict(peak <= MEMORY_BAR)})"
            line = f"  {CONTENDERS[name].title:{WIDTH}}{rate:6.2f} {fast:19}"
            print(line if name in CEILINGS else f"{line}{peak:6.2f} {small}")


def waits(results: Results) -> None:
    """Print how long steps waited for their batches."""
    print(f"\n{'waiting':{WIDTH}}{'median, ms':>12}{'of the time':>14}")
    for name, found in results.items():
        line = f"{CONTENDERS[name].title:{WIDTH}}{found['wait'] * 1e3:12.3f}{found['waited']:14.2%}"
        if name in OWN:
            met = found["wait"] < WAIT_BAR_S and found["waited"] < WAITED_BAR
            line += f" (bars {WAIT_BAR_S * 1e3:g} ms, {WAITED_BAR:.0%}: {verdict(met)})"
        print(line)


def plot(results: Results, path: Path) -> None:
    """Draw rates and peak memory as bars, one contender a line."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = list(results)[::-1]
    colours = [
        "#b8c4ce" if name in CEILINGS else "#0b6e99" if name in OWN else "#d08a4e" for name in names
    ]
    figure, axes = plt.subplots(1, 2, sharey=True, figsize=(11, 0.36 * len(names) + 1.2))
    axes[0].set_xscale("log")
    for axis, key, unit, left, room, title in (
        (axes[0], "rate", 1, 1, 3.0, "patches per second"),
        (axes[1], "peak", 1e6, 0, 1.15, "peak memory of all processes, MB"),
    ):
        values = [results[name][key] / unit for name in names]
        drawn = axis.barh([CONTENDERS[name].title for name in names], values, color=colours)
        axis.bar_label(drawn, [f"{v:.3g}" if v < 100 else f"{v:.0f}" for v in values], padding=3)
        axis.set_title(title, fontsize=11)
        axis.set_xlim(left, max(values) * room)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
