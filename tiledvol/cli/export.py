"""``tiledvol export``: an image back to NIfTI."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tiledvol.cli.lookup import find_volume
from tiledvol.cli.output import line, note


def export(
    dataset: Annotated[
        str, typer.Argument(metavar="DATASET", help="Folder or URL of the dataset.")
    ],
    name: Annotated[str, typer.Argument(metavar="SUBJECT/IMAGE", help="Which image.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The .nii or .nii.gz file to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write an image as NIfTI: voxels, type, scaling and affine of the original, bit for bit."""
    import tiledvol
    from tiledvol_converters.export import export_nifti

    volume = find_volume(tiledvol.open(dataset), name)
    for warning in export_nifti(volume, out, overwrite=force):
        note(f"warning: {warning}", style="yellow")
    line(str(out))
