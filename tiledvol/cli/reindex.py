"""``tiledvol reindex``: the catalogue anew."""

from __future__ import annotations

from typing import Annotated

import typer

from tiledvol.cli.output import counted, line


def reindex(
    dataset: Annotated[
        str, typer.Argument(metavar="DATASET", help="Folder or URL of the dataset.")
    ],
) -> None:
    """Rebuild the catalogue of a dataset from its subjects, e.g. after copying some in."""
    import tiledvol

    line(f"{dataset}: {counted(tiledvol.reindex(dataset), 'subject')}")
