"""The course of ``tiledvol convert``: what is shown while it goes on, and at its end."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tiledvol.cli.output import counted, line, print_facts, size
from tiledvol.cli.progress import Display, make_display
from tiledvol_converters.convert import Options
from tiledvol_converters.discover import Discovery
from tiledvol_converters.pipeline import convert_dataset
from tiledvol_converters.report import Outcome, Report

MOST_LISTED = 10
"""How many of the subjects that were not tried the summary names."""


def run(
    found: Discovery, url: str, options: Options, *, checksum: bool, force: bool, stop: bool
) -> tuple[Report, bool]:
    """Convert what was found; return what became of it, and whether the user interrupted it."""
    with make_display() as display:
        shown = _Shown(display)
        try:
            report = convert_dataset(
                found,
                url,
                options=options,
                checksum=checksum,
                force=force,
                on_error="stop" if stop else "continue",
                progress=shown,
            )
        except KeyboardInterrupt:
            done = {outcome.name for outcome in shown.outcomes}
            untried = tuple(p.subject for p in found.plans if p.subject not in done)
            return Report(tuple(shown.outcomes), untried, found.ignored), True
    return report, False


class _Shown:
    """Puts the progress of a conversion on display, and keeps the outcomes."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self.outcomes: list[Outcome] = []

    def begin(self, outcomes: int) -> None:
        self._display.begin(outcomes)

    def volume(self, subject: str, image: str, done: int, total: int) -> None:
        self._display.volume(f"{subject}/{image}", done, total)

    def finished(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        if outcome.status == "converted":
            speed = f"{size(outcome.nbytes / outcome.seconds)}/s"
            text = f"converted {outcome.name}: {size(outcome.nbytes)}, {speed}"
            self._display.subject(text, "green")
        elif outcome.status == "failed":
            self._display.subject(f"failed {outcome.name}", "red")
        else:
            self._display.subject("")


def document(report: Report, url: str, interrupted: bool) -> dict[str, Any]:
    """Return what became of everything, as JSON."""
    return {
        "dataset": url,
        "converted": [
            {
                "subject": outcome.name,
                "voxel_bytes": outcome.nbytes,
                "seconds": round(outcome.seconds, 3),
                "warnings": list(outcome.warnings),
            }
            for outcome in report.converted
        ],
        "skipped": [outcome.name for outcome in report.skipped],
        "failed": [{"name": o.name, "reason": o.reason} for o in report.failed],
        "not_tried": list(report.untried),
        "ignored_files": report.ignored,
        "interrupted": interrupted,
    }


def print_summary(report: Report) -> None:
    """Print how many subjects were converted, skipped and failed, with reasons and warnings."""
    nbytes = sum(o.nbytes for o in report.converted)
    seconds = sum(o.seconds for o in report.converted)
    speed = f"{size(nbytes)} in {seconds:.1f} s, {size(nbytes / seconds)}/s" if seconds else ""
    facts = [
        ("converted", str(len(report.converted)), speed),
        ("skipped", str(len(report.skipped)), "unchanged" if report.skipped else ""),
        ("failed", str(len(report.failed)), ""),
    ]
    if report.untried:
        more = ", ..." if len(report.untried) > MOST_LISTED else ""
        names = ", ".join(report.untried[:MOST_LISTED]) + more
        facts.append(("not tried", str(len(report.untried)), names))
    if report.ignored:
        facts.append(("ignored", str(report.ignored), "other files in folders"))
    print_facts(facts)
    for outcome in report.failed:
        line(f"failed: {outcome.name}: {outcome.reason}")
    for text in _grouped(w for o in report.converted for w in o.warnings):
        line(f"warning: {text}")


def _grouped(warnings: Iterable[str]) -> list[str]:
    """Return one line for warnings that differ only in path and numbers."""
    groups: dict[str, list[str]] = {}
    for warning in warnings:
        _, _, text = warning.partition(": ")
        groups.setdefault(re.sub(r"[\d.]+", "#", text), []).append(warning)
    return [
        group[0] + (f" (and {counted(len(group) - 1, 'more file')})" if group[1:] else "")
        for group in groups.values()
    ]
