"""The tiledvol attributes of groups in a store: reading, writing, and what they must hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiledvol.errors import StoreError, TiledvolError
from tiledvol.geometry import Affine, check_affine
from tiledvol.storage.naming import check_name
from tiledvol.storage.spec import DTYPES, FORMAT
from tiledvol.storage.store import Store

KINDS = ("image", "label")

MAX_CATALOGUED_CLASSES = 64
"""Up to so many classes, a label's voxel totals are in the catalogue, so that samplers of a large
dataset know who has which class without reading every subject; else the per-block index tells."""


@dataclass(frozen=True)
class ImageSummary:
    """What the catalogue knows of an image, enough to plan reads without any I/O.

    Attributes
    ----------
    kind : {"image", "label"}
        Whether voxels are intensities or class ids.
    shape, chunk_shape : tuple of int
        Of the full-resolution array, rank 3 or 4.
    dtype : numpy.dtype
        Of the stored voxels.
    affine : (4, 4) float64
        Voxel centre -> RAS+ mm.
    path : str
        Folder of the image within the subject's: its name, or another after a replacement.
    classes : dict of int to int, or None
        Of a label with at most `MAX_CATALOGUED_CLASSES` of them: voxels of each class id.
    """

    kind: str
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    affine: Affine
    path: str
    classes: dict[int, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "kind": self.kind,
            "shape": list(self.shape),
            "chunk_shape": list(self.chunk_shape),
            "dtype": self.dtype.name,
            "affine": self.affine.tolist(),
            "path": self.path,
            **({"classes": self.classes} if self.classes is not None else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], where: str) -> ImageSummary:
        """Return the summary, or raise `StoreError` naming ``where`` if it is malformed."""
        try:
            summary = cls(
                str(data["kind"]),
                tuple(int(n) for n in data["shape"]),
                tuple(int(n) for n in data["chunk_shape"]),
                np.dtype(data["dtype"]),
                check_affine(data["affine"]),
                check_name(str(data["path"]), "image"),
                {int(k): int(v) for k, v in data["classes"].items()} if "classes" in data else None,
            )
        except (
            KeyError,
            TypeError,
            ValueError,
            ArithmeticError,
            AttributeError,
            TiledvolError,
        ) as error:
            raise StoreError(f"{where}: malformed image metadata: {error!r}") from error
        rank = len(summary.shape)
        sound = (
            summary.kind in KINDS
            and rank in (3, 4)
            and len(summary.chunk_shape) == rank
            and min(*summary.shape, *summary.chunk_shape) >= 1
            and summary.dtype in DTYPES
        )
        if not sound:
            raise StoreError(f"{where}: malformed image metadata: {dict(data)}")
        return summary


def group_json(**attributes: Any) -> bytes:
    """Return the ``zarr.json`` of a zarr v3 group with these attributes."""
    group = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    return json.dumps(group, indent=1, allow_nan=False).encode()


def loads(text: str | bytes) -> Any:
    """Return the value of JSON as the standard has it: NaN and infinities are no numbers."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def parse_attributes(data: bytes, where: str) -> dict[str, Any]:
    """Return the ``tiledvol`` attribute of a group's ``zarr.json``.

    Raises
    ------
    StoreError
        If it is not JSON, not a tiledvol group, or of a newer format.
    """
    try:
        attributes = dict(loads(data)["attributes"]["tiledvol"])
        version = attributes["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{where}: not what tiledvol writes ({error!r}); if it was damaged, delete the "
            f"subject and convert it again"
        ) from error
    if not isinstance(version, int) or version > FORMAT:
        raise StoreError(
            f"{where}: store format {version!r}; this tiledvol reads up to {FORMAT}: upgrade it"
        )
    return attributes


def check_is_dataset(attributes: Mapping[str, Any], url: str) -> None:
    """Raise `StoreError` if the attributes are those of a subject or an image, not a dataset's."""
    if "images" in attributes or "kind" in attributes:
        raise StoreError(f"{url}: lies inside a dataset, and is none; give the folder of the whole")


def read_attributes(store: Store, path: str) -> dict[str, Any]:
    """Return the ``tiledvol`` attribute of the group at ``path``.

    Raises
    ------
    StoreError
        If there is no such group, or it is malformed.
    """
    key = f"{path}/zarr.json"
    data = store.read(key)
    if data is None:
        raise StoreError(
            f"{store.url}: {key} is missing: the subject was replaced since the dataset was "
            f"opened (open it again), or is damaged (delete it and convert it again)"
        )
    return parse_attributes(data, f"{store.url}: {key}")
