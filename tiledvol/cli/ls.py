"""``tiledvol ls``: the subjects and images of a dataset."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Any

import typer

from tiledvol.cli.output import extents, line, print_json
from tiledvol.errors import StoreError


def ls(
    dataset: Annotated[
        str, typer.Argument(metavar="DATASET", help="Folder or URL of the dataset.")
    ],
    pattern: Annotated[
        str,
        typer.Argument(metavar="PATTERN", help="Which subjects ('case_0*') or images ('*/ct')."),
    ] = "*",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List subjects and images, one image a line."""
    import tiledvol
    from tiledvol.cli.describe import list_volume

    listed: dict[str, list[dict[str, Any]]] = {}
    for subject in tiledvol.open(dataset).values():
        for volume in subject.values():
            name = f"{subject.id}/{volume.name}" if "/" in pattern else subject.id
            if fnmatchcase(name, pattern):
                listed.setdefault(subject.id, []).append(list_volume(volume))
    if not listed and pattern != "*":
        raise StoreError(f"{dataset}: nothing is called {pattern!r}")
    if json:
        subjects = [{"subject": name, "images": images} for name, images in listed.items()]
        print_json({"dataset": dataset, "subjects": subjects})
        return
    named = [(f"{name}/{i['image']}", i) for name, images in listed.items() for i in images]
    width = max((len(name) for name, _ in named), default=0)
    for name, image in named:
        line(
            f"{name:{width}}  {image['kind']}  {extents(image['shape'])}  {image['dtype']}  "
            f"{extents(image['spacing'])} mm  {image['orientation']}"
        )
