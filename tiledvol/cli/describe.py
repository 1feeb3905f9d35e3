"""What there is to say of a dataset, subject and volume, as JSON-able documents."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from tiledvol import Dataset, Subject, Volume
from tiledvol.storage.store import Store


def describe_dataset(dataset: Dataset) -> dict[str, Any]:
    """Return the subjects' number and, for each name of an image, what its volumes have in common.

    Sizes are in bytes: of the voxels as they are read, and of the files (None where the dataset is
    not a local folder).
    """
    groups: dict[tuple[str, str], list[Volume]] = {}
    for subject in dataset.values():
        for volume in subject.values():
            groups.setdefault((volume.name, volume.kind), []).append(volume)
    images = [describe_group(name, kind, group) for (name, kind), group in sorted(groups.items())]
    return {
        "dataset": dataset.url,
        "subjects": len(dataset),
        "images": images,
        **_sizes(sum(image["voxel_bytes"] for image in images), dataset.url),
    }


def describe_group(name: str, kind: str, volumes: list[Volume]) -> dict[str, Any]:
    """Return what volumes of one name, of several subjects, have in common."""
    spacings = np.array([volume.spacing for volume in volumes])
    shapes = np.array([volume.shape[-3:] for volume in volumes])
    return {
        "image": name,
        "kind": kind,
        "subjects": len(volumes),
        "dtypes": sorted({volume.dtype.name for volume in volumes}),
        "orientations": sorted({volume.orientation for volume in volumes}),
        "channels": sorted({volume.shape[0] if volume.ndim == 4 else 1 for volume in volumes}),
        "shape_min": shapes.min(axis=0).tolist(),
        "shape_max": shapes.max(axis=0).tolist(),
        "spacing_min": spacings.min(axis=0).tolist(),
        "spacing_max": spacings.max(axis=0).tolist(),
        "voxel_bytes": sum(volume.nbytes for volume in volumes),
    }


def describe_subject(dataset: Dataset, subject: Subject) -> dict[str, Any]:
    """Return the images of a subject, and what it was made from."""
    return {
        "dataset": dataset.url,
        "subject": subject.id,
        "images": [list_volume(volume) for volume in subject.values()],
        **_sizes(sum(volume.nbytes for volume in subject.values()), dataset.url, subject.id),
        "options": subject.provenance.get("options"),
        "sources": subject.provenance.get("sources"),
    }


def list_volume(volume: Volume) -> dict[str, Any]:
    """Return what is known of a volume without reading anything."""
    return {
        "image": volume.name,
        "kind": volume.kind,
        "shape": list(volume.shape),
        "dtype": volume.dtype.name,
        "spacing": list(volume.spacing),
        "orientation": volume.orientation,
    }


def describe_volume(dataset: Dataset, subject: Subject, volume: Volume) -> dict[str, Any]:
    """Return all that is known of a volume.

    ``extent_mm`` is from face to face; ``exact`` tells whether the source's voxels can be given
    back bit for bit.
    """
    attributes = volume.attributes
    sizes = zip(volume.shape[-3:], volume.spacing, strict=True)
    document = {
        "dataset": dataset.url,
        "subject": subject.id,
        **list_volume(volume),
        "extent_mm": [n * step for n, step in sizes],
        "affine": volume.affine.tolist(),
        "chunk_shape": list(volume.chunk_shape),
        "blocks": list(volume.grid),
        **_sizes(volume.nbytes, dataset.url, f"{subject.id}/{volume.name}"),
        "source": attributes.get("source"),
        "source_geometry": attributes.get("source_geometry"),
        "source_files": subject.provenance.get("sources", {}).get(volume.name),
        "exact": attributes.get("exact"),
        "options": subject.provenance.get("options"),
    }
    if volume.kind == "label":
        return document | {"classes": _classes(volume)}
    return document | {"statistics": volume.statistics}


def _classes(volume: Volume) -> list[dict[str, Any]]:
    millilitres = abs(float(np.linalg.det(volume.affine[:3, :3]))) / 1000
    return [
        {"class": class_id, "voxels": voxels, "millilitres": voxels * millilitres}
        for class_id, voxels in sorted(volume.classes.items())
    ]


def _sizes(voxel_bytes: int, url: str, below: str = "") -> dict[str, Any]:
    """Return bytes of voxels and of files, and the first as a multiple of the second."""
    root = Store(url).local_path
    stored = _folder_bytes(root / below) if root else None
    ratio = voxel_bytes / stored if stored else None
    return {"voxel_bytes": voxel_bytes, "stored_bytes": stored, "ratio": ratio}


def _folder_bytes(folder: Path) -> int:
    return sum(
        (Path(where) / name).lstat().st_size
        for where, _, names in os.walk(folder)
        for name in names
    )
