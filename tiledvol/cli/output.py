"""What commands print: results on stdout, all that is only said on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

PIPE_WIDTH = 160
"""Columns that tables may take where stdout is not a terminal."""


def console(stderr: bool = False) -> Console:
    """Return a console that prints names and paths as they are, without markup."""
    made = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not made.is_terminal:
        made.width = PIPE_WIDTH
    return made


def printable(text: str) -> str:
    """Return a text with what a terminal may act on, or cannot show, written as escapes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def line(text: str) -> None:
    """Print one line of results, as it is."""
    sys.stdout.write(printable(text) + "\n")


def note(text: str, style: str | None = None) -> None:
    """Print one line for the user on stderr, however long."""
    console(stderr=True).print(printable(text), style=style, soft_wrap=True)


def print_json(document: Any) -> None:
    """Print the one JSON document of a command."""
    sys.stdout.write(json.dumps(document, indent=1) + "\n")


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], right: str = "") -> None:
    """Print a table.

    Parameters
    ----------
    header : sequence of str
        Name of each column.
    rows : iterable of sequences of str
        The cells.
    right : str
        Names of the columns to align on the right, separated by blanks.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in header:
        table.add_column(name, justify="right" if name in right.split() else "left")
    for row in rows:
        table.add_row(*(printable(cell) for cell in row))
    console().print(table)


def print_facts(facts: Iterable[Sequence[str]]) -> None:
    """Print names, and their values in further columns, however wide."""
    rows = [[printable(cell) for cell in cells] for cells in facts]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        line("  ".join(map(str.ljust, cells, widths)).rstrip())


def counted(number: int, noun: str) -> str:
    """Return a number of things, e.g. ``1 subject`` or ``2 subjects``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def size(nbytes: float | None) -> str:
    """Return a number of bytes for people, e.g. ``1.2 GB``."""
    return "?" if nbytes is None else decimal(int(nbytes))


def extents(numbers: Iterable[float]) -> str:
    """Return numbers of several axes for people, e.g. ``512×512×300`` or ``0.8×0.8×1.5``."""
    return "×".join(f"{n:.5g}" if isinstance(n, float) else str(n) for n in numbers)
