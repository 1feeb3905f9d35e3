"""How long-running commands show their progress: bars on a terminal, else a line per subject."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from tiledvol.cli.output import console, note, printable, size


class Display(Protocol):
    """Shows how far a command is; a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def begin(self, subjects: int) -> None:
        """So many subjects are to be gone through."""
        ...

    def volume(self, name: str, done: int, total: int) -> None:
        """``done`` of ``total`` bytes of the voxels of ``subject/image`` are done."""
        ...

    def subject(self, text: str, style: str | None = None) -> None:
        """Another subject is through; ``text``, if any, is what there is to say of it."""
        ...


def make_display() -> Display:
    """Return what suits stderr."""
    return Bars(console(stderr=True)) if sys.stderr.isatty() else Lines()


class Lines(Display):
    """A line for every subject of which there is something to say."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, subjects: int) -> None:
        """Say nothing."""

    def volume(self, name: str, done: int, total: int) -> None:
        """Say nothing."""

    def subject(self, text: str, style: str | None = None) -> None:
        """Print the line."""
        if text:
            note(text, style)


class Bars(Display):
    """A bar for the subjects, and one with MB/s for the volume that is under way."""

    def __init__(self, target: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(), _Amount(), console=target
        )
        self._subjects: TaskID | None = None
        self._volume: TaskID | None = None
        self._shown: tuple[str, int] | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._drop_volume()
        self._progress.stop()

    def _drop_volume(self) -> None:
        if self._volume is not None:
            self._progress.remove_task(self._volume)
        self._volume = self._shown = None

    def begin(self, subjects: int) -> None:
        """Draw the bar of all subjects."""
        self._subjects = self._progress.add_task("subjects", total=subjects, unit="")

    def volume(self, name: str, done: int, total: int) -> None:
        """Draw or advance the bar of a volume; one begun anew has another total."""
        if self._shown != (name, total):
            self._drop_volume()
            self._volume = self._progress.add_task(
                printable(name), total=total, completed=done, unit="B"
            )
            self._shown = (name, total)
        elif self._volume is not None:
            self._progress.update(self._volume, completed=done)

    def subject(self, text: str, style: str | None = None) -> None:
        """Advance the bar of all subjects; what there is to say stands above the bars."""
        if self._subjects is not None:
            self._progress.advance(self._subjects)
        if text:
            # As a Text: a style of its own for print() would colour the bars below as well.
            self._progress.console.print(Text(printable(text), style or ""), soft_wrap=True)


class _Amount(ProgressColumn):
    """How much is done: subjects by number, bytes in per cent and per second."""

    def render(self, task: Task) -> Text:
        if task.fields["unit"] == "B":
            speed = f", {size(task.speed)}/s" if task.speed else ""
            return Text(f"{task.percentage:.0f} %{speed}")
        return Text(f"{task.completed:.0f} of {task.total or 0:.0f}")
