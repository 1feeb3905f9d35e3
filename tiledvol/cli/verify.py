"""``tiledvol verify``: every block read again."""

from __future__ import annotations

from typing import Annotated

import typer

from tiledvol.cli.output import counted, line, print_json


def verify(
    dataset: Annotated[
        str, typer.Argument(metavar="DATASET", help="Folder or URL of the dataset.")
    ],
    subjects: Annotated[
        list[str] | None, typer.Argument(metavar="SUBJECT", help="Only these.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Read every block again; name those whose checksum or index is wrong."""
    import tiledvol
    from tiledvol.cli.progress import make_display

    chosen = subjects or list(tiledvol.open(dataset))
    with make_display() as display:
        display.begin(len(chosen))
        current = ""

        def follow(name: str, done: int, total: int) -> None:
            nonlocal current
            subject = name.partition("/")[0]
            if current not in ("", subject):
                display.subject(f"read {current}")
            current = subject
            display.volume(name, done, total)

        problems = tiledvol.verify(dataset, chosen, progress=follow)
        if current:
            display.subject(f"read {current}")
    if json:
        print_json({"dataset": dataset, "subjects": chosen, "problems": problems})
    else:
        for problem in problems:
            line(problem)
        found = f"{counted(len(problems), 'problem')} found" if problems else "all is well"
        line(f"{counted(len(chosen), 'subject')}: {found}")
    if problems:
        raise typer.Exit(1)
