"""``tiledvol info``: what is known of a dataset, subject or image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from tiledvol.cli.lookup import find_subject, find_volume
from tiledvol.cli.output import extents, line, print_facts, print_json, print_table, size

LONGEST_FACT = 100
"""Facts of a source that take more characters, such as a whole header, are only in the JSON."""


def info(
    dataset: Annotated[
        str, typer.Argument(metavar="DATASET", help="Folder or URL of the dataset.")
    ],
    name: Annotated[
        str | None, typer.Argument(metavar="SUBJECT[/IMAGE]", help="Only of this.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show what is known of a dataset, a subject or an image: geometry, statistics, classes."""
    import tiledvol
    from tiledvol.cli import describe

    opened = tiledvol.open(dataset)
    if name is None:
        document, show = describe.describe_dataset(opened), _show_dataset
    elif "/" in name:
        volume = find_volume(opened, name)
        document = describe.describe_volume(opened, opened[volume.subject], volume)
        show = _show_volume
    else:
        document = describe.describe_subject(opened, find_subject(opened, name))
        show = _show_subject
    if json:
        print_json(document)
    else:
        show(document)


def _show_dataset(document: Mapping[str, Any]) -> None:
    print_facts(
        [
            ("dataset", document["dataset"]),
            ("subjects", str(document["subjects"])),
            ("size", _sizes(document)),
        ]
    )
    rows = [
        (
            image["image"],
            image["kind"],
            str(image["subjects"]),
            ", ".join(image["dtypes"]),
            _span(image["shape_min"], image["shape_max"]),
            _span(image["spacing_min"], image["spacing_max"]),
            ", ".join(image["orientations"]),
            size(image["voxel_bytes"]),
        )
        for image in document["images"]
    ]
    if rows:
        line("")
        header = ("image", "kind", "subjects", "type", "shape", "mm", "axes", "voxels")
        print_table(header, rows, right="subjects voxels")


def _span(low: list[float], high: list[float]) -> str:
    """Return the range of shapes or spacings."""
    return extents(low) if low == high else f"{extents(low)} to {extents(high)}"


def _sizes(document: Mapping[str, Any]) -> str:
    voxels = f"{size(document['voxel_bytes'])} of voxels"
    if document["ratio"] is None:
        return voxels
    return f"{voxels} in {size(document['stored_bytes'])} ({document['ratio']:.2f}:1)"


def _show_subject(document: Mapping[str, Any]) -> None:
    facts = [("subject", document["subject"]), ("size", _sizes(document))]
    facts += [("options", _joined(document["options"]))] if document["options"] else []
    print_facts([*facts, *_files(document["sources"] or {})])
    line("")
    rows = [
        (
            image["image"],
            image["kind"],
            extents(image["shape"]),
            image["dtype"],
            extents(image["spacing"]),
            image["orientation"],
        )
        for image in document["images"]
    ]
    print_table(("image", "kind", "shape", "type", "mm", "axes"), rows)


def _files(sources: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the files that images were made from."""
    for image, record in sources.items():
        for file in record["files"]:
            yield f"source of {image}", f"{file['name']} ({size(file['size'])})"


def _joined(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_text(value)}" for name, value in facts.items())


def _text(value: Any) -> str:
    """Return a value of the JSON for people."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(_text(v) for v in value)
    return str(value)


def _show_volume(document: Mapping[str, Any]) -> None:
    print_facts(
        [
            ("image", f"{document['subject']}/{document['image']}"),
            ("kind", document["kind"]),
            ("shape", extents(document["shape"])),
            ("type", document["dtype"]),
            ("spacing", f"{extents(document['spacing'])} mm"),
            ("extent", f"{extents(document['extent_mm'])} mm"),
            ("axes", document["orientation"]),
            *(("affine" if i == 0 else "", _text(row)) for i, row in enumerate(document["affine"])),
            ("blocks", f"{extents(document['blocks'])} of {extents(document['chunk_shape'])}"),
            ("size", _sizes(document)),
            *([("options", _joined(document["options"]))] if document["options"] else []),
        ]
    )
    _show_source(document)
    if "classes" in document:
        rows = [
            (str(c["class"]), str(c["voxels"]), f"{c['millilitres']:.3f}")
            for c in document["classes"]
        ]
        line("")
        print_table(("class", "voxels", "ml"), rows, right="class voxels ml")
    elif document["statistics"]:
        line("")
        _show_statistics(document["statistics"])


def _show_source(document: Mapping[str, Any]) -> None:
    """Print the files, the geometry before reorientation, and what the format keeps."""
    record = document["source_files"]
    facts = list(_files({document["image"]: record} if record else {}))
    if geometry := document["source_geometry"]:
        facts.append(("source shape", extents(geometry["shape"])))
    facts += [
        (f"source {name}", _text(value))
        for name, value in (document["source"] or {}).items()
        if len(_text(value)) <= LONGEST_FACT
    ]
    if document["exact"] is not None:
        facts.append(("exact", "yes" if document["exact"] else "no: export cannot be bit for bit"))
    if facts:
        line("")
        print_facts(facts)


def _show_statistics(statistics: Mapping[str, Any]) -> None:
    """Print the statistics of all voxels and of those that are not zero, side by side."""
    nonzero = statistics["nonzero"]
    rows = [
        ("voxels", str(statistics["count"]), str(nonzero["count"])),
        *(
            (name, str(statistics[key]), "")
            for name, key in (("NaN", "nan"), ("+Inf", "posinf"), ("-Inf", "neginf"))
            if statistics[key]
        ),
        ("min", _text(statistics["min"]), ""),
        ("max", _text(statistics["max"]), ""),
        ("mean", _text(statistics["mean"]), _text(nonzero["mean"])),
        ("std", _text(statistics["std"]), _text(nonzero["std"])),
        *(
            (f"{q} %", _text(value), _text((nonzero["percentiles"] or {}).get(q, "")))
            for q, value in (statistics["percentiles"] or {}).items()
        ),
    ]
    print_table(("", "all", "nonzero"), rows, right="all nonzero")
