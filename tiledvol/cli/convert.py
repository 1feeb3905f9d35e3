"""``tiledvol convert``: files into a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tiledvol.cli.output import print_json
from tiledvol.errors import GeometryError, SourceError

if TYPE_CHECKING:
    from tiledvol_converters.convert import Options


def convert(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT", help="Files, folders (with all below them) and globs in quotes."
        ),
    ],
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="Folder or URL of the dataset.")],
    orientation: Annotated[
        str, typer.Option(help="Axes to store: RAS, LPS, ..., or native for the file's own.")
    ] = "RAS",
    chunk: Annotated[
        str, typer.Option(metavar="N | X,Y,Z", help="Edge of the blocks in voxels.")
    ] = "64",
    codec: Annotated[str, typer.Option(help="Compression: lz4, zstd or none.")] = "lz4",
    float64: Annotated[
        bool, typer.Option("--float64", help="Keep double precision where the file has it.")
    ] = False,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="What is a label: image name, file name or path, e.g. lesion or '*_roi.nii.gz'. "
            "May be repeated. Names with seg, label, mask and the like are labels anyway.",
        ),
    ] = None,
    subject: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the subject of a single file.")
    ] = None,
    image: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the image of a single file.")
    ] = None,
    checksum: Annotated[
        bool, typer.Option("--checksum", help="Tell changed files by content, not size and time.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Convert also what is unchanged.")] = False,
    on_error: Annotated[
        str, typer.Option(metavar="continue|stop", help="What to do after a failure.")
    ] = "continue",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Convert NIfTI files into a dataset; what is there and unchanged is skipped.

    Names of subject and image come from the paths, for example:

    case_001/ct.nii.gz or case_001_ct.nii.gz: case_001/ct

    imagesTr/p1.nii.gz, labelsTr/p1.nii.gz: p1/image, p1/label

    sub-01/anat/sub-01_T1w.nii.gz: sub-01/T1w
    """
    options = _options(orientation, chunk, codec, float64)
    if on_error not in ("continue", "stop"):
        raise typer.BadParameter(f"{on_error!r}: choose continue or stop", param_hint="--on-error")

    from tiledvol.cli.conversion import document, print_summary, run
    from tiledvol_converters.discover import discover

    try:
        found = discover(inputs, labels=labels or (), subject=subject, image=image)
    except SourceError as error:
        raise typer.BadParameter(str(error), param_hint="--subject, --image") from error
    stop = on_error == "stop"
    report, interrupted = run(found, output, options, checksum=checksum, force=force, stop=stop)
    if json:
        print_json(document(report, output, interrupted))
    else:
        print_summary(report)
    if interrupted:
        raise KeyboardInterrupt("what was converted stays; run the same again for the rest")
    if not report.complete:
        raise typer.Exit(1)


def _options(orientation: str, chunk: str, codec: str, float64: bool) -> Options:
    """Return the options of storage, or say which is wrong."""
    from tiledvol_converters.convert import Options

    try:
        edges = tuple(int(edge) for edge in chunk.split(","))
    except ValueError:
        edges = ()
    if len(edges) not in (1, 3) or min(edges) < 1:
        raise typer.BadParameter(
            f"{chunk!r}: give one edge in voxels, or three as in 64,64,32", param_hint="--chunk"
        )
    shape = (edges[0], edges[1], edges[2]) if len(set(edges)) > 1 else edges[0]
    try:
        return Options(orientation, shape, codec, "float64" if float64 else "float32")
    except (GeometryError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
