"""Writing: slabs into arrays with their index, and subjects that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tiledvol.errors import StoreError
from tiledvol.geometry import Affine, check_affine
from tiledvol.storage import catalogue
from tiledvol.storage.attributes import (
    MAX_CATALOGUED_CLASSES,
    ImageSummary,
    check_is_dataset,
    group_json,
    parse_attributes,
)
from tiledvol.storage.blocks import (
    ImageIndexBuilder,
    IndexBuilder,
    LabelBlocks,
    LabelIndexBuilder,
    grid_shape,
)
from tiledvol.storage.naming import check_name
from tiledvol.storage.ngff import multiscales
from tiledvol.storage.reorder import copy_to_c_order
from tiledvol.storage.spec import (
    DEFAULT_CHUNK,
    DTYPES,
    FORMAT,
    TIMEOUT_S,
    array_metadata,
    chunk_shape,
    index_metadata,
    shard_shape,
)
from tiledvol.storage.store import Store

Array = npt.NDArray[Any]


def create_dataset(url: str | os.PathLike[str], timeout: float = TIMEOUT_S) -> Store:
    """Return the store at ``url``, made a dataset if there is nothing yet.

    Raises
    ------
    StoreError
        If something that is not a tiledvol dataset lies there, or it cannot be written.
    """
    store = Store(url, timeout=timeout)
    store.check_writable()
    data = store.read("zarr.json")
    if data is not None:
        check_is_dataset(parse_attributes(data, f"{store.url}: zarr.json"), store.url)
        return store
    above = store.local_path.parent / "zarr.json" if store.local_path else None
    if above and above.is_file() and b'"tiledvol"' in above.read_bytes():
        raise StoreError(f"{store.url}: lies inside the dataset {above.parent}; take another place")
    if store.local_path and store.local_path.exists():
        if not store.local_path.is_dir():
            raise StoreError(f"{store.url}: is a file; give the folder of a dataset")
        others = any(p.name[0] != "." for p in store.local_path.iterdir())
        # Looked for again: another process may have made the dataset in between.
        if others and store.read("zarr.json") is None:
            raise StoreError(
                f"{store.url}: the folder is not empty and holds no tiledvol dataset; give a new "
                f"or empty one"
            )
    store.write("zarr.json", group_json(tiledvol={"format": FORMAT}))
    return store


class ImageWriter:
    """One array being written slab by slab, with its per-block index.

    Slabs are compressed and written in the background; at most one is under way when `write`
    returns, so that the memory of the one before may serve again.
    """

    def __init__(
        self, store: Store, path: str, summary: ImageSummary, slow_axis: int, codec: str
    ) -> None:
        self._store = store
        self._path = path
        self.summary = summary
        shard = shard_shape(summary.shape, summary.chunk_shape, slow_axis, summary.dtype.itemsize)
        self._array = store.create_array(
            f"{path}/0",
            array_metadata(summary.shape, summary.dtype, summary.chunk_shape, shard, codec),
        )
        build: Callable[..., IndexBuilder] = (
            LabelIndexBuilder if summary.kind == "label" else ImageIndexBuilder
        )
        self._index = build(summary.shape, summary.chunk_shape, summary.dtype)
        self._pending: Any = None
        self._written = 0
        self._buffers = deque[Array](maxlen=2)

    def write(self, start: Sequence[int], slab: Array) -> None:
        """Write a slab; its memory must stay as it is until the next call returns.

        Parameters
        ----------
        start : sequence of int
            First voxel, of the array's rank, at a block's corner.
        slab : array
            Voxels of the array's rank and dtype, whole blocks but at the volume's end.
        """
        stop = tuple(a + n for a, n in zip(start, slab.shape, strict=True))
        edges = zip(start, stop, self.summary.shape, self.summary.chunk_shape, strict=True)
        if any(a % c or b > n or (b % c and b != n) for a, b, n, c in edges):
            raise ValueError(f"slab {start} to {stop} does not consist of whole blocks")
        if not slab.flags.c_contiguous:
            slab = self._in_c_order(slab)
        region = tuple(slice(a, b) for a, b in zip(start, stop, strict=True))
        future = self._array[region].write(slab, can_reference_source_data_indefinitely=True)
        first = [a // c for a, c in zip(start, self.summary.chunk_shape, strict=True)]
        try:
            self._index.add(first, slab)
            self._wait()
        finally:
            self._abandon_pending()
            self._pending = future
        self._written += slab.size

    def _in_c_order(self, slab: Array) -> Array:
        """Return a copy in C order, which tensorstore cuts into blocks several times faster."""
        free = len(self._buffers) == 2 and self._buffers[0].shape == slab.shape
        copy = self._buffers[0] if free else np.empty(slab.shape, slab.dtype)
        self._buffers.append(copy)
        copy_to_c_order(slab, copy)
        return copy

    def _wait(self) -> None:
        if self._pending is not None:
            self._store.result(self._pending, f"writing {self._path}")
            self._pending = None

    def abandon(self) -> None:
        """Wait for what is under way, whatever becomes of it, and delete all that was written."""
        self._abandon_pending()
        self._store.delete_prefix(f"{self._path}/")

    def _abandon_pending(self) -> None:
        if self._pending is not None:
            self._pending.exception(timeout=self._store.timeout)
            self._pending = None

    def finish(self, attributes: Mapping[str, Any]) -> None:
        """Write the index and the metadata, once every voxel has been written.

        Parameters
        ----------
        attributes : mapping
            JSON-able facts to keep with the image.
        """
        self._wait()
        if self._written != int(np.prod(self.summary.shape, dtype=object)):
            raise StoreError(f"{self._path}: {self._written} voxels written, not all of them")
        index, facts = self._index.finish()
        if self.summary.kind == "label":
            totals = LabelBlocks(
                index["counts"], grid_shape(self.summary.shape, self.summary.chunk_shape)
            ).totals
            if len(totals) <= MAX_CATALOGUED_CLASSES:
                self.summary = replace(self.summary, classes=totals)
        self._store.write(f"{self._path}/blocks/zarr.json", group_json())
        for name, values in index.items():
            array = self._store.create_array(
                f"{self._path}/blocks/{name}", index_metadata(values.shape, values.dtype)
            )
            self._store.result(array.write(values), f"writing the index of {self._path}")
        tiledvol = {"format": FORMAT, **self.summary.to_json(), **facts, **attributes}
        ome = multiscales(self.summary.path, self.summary.affine, len(self.summary.shape) == 4)
        self._store.write(f"{self._path}/zarr.json", group_json(ome=ome, tiledvol=tiledvol))


class SubjectWriter:
    """Writes the images of one subject; a context manager.

    Nothing is visible until `commit`, which writes the subject's marker, in one piece; it says
    which folders hold the images. The first writer of a new subject claims the folders that bear
    the images' own names. Any other, be it of a successor, after a crash, or at the same time,
    takes folders of its own, and so no writer touches another's. Of several at the same time the
    first to commit wins; the others fail. Leaving the context without a commit removes what was
    written, and a subject that was there stays as it was.
    """

    def __init__(self, store: Store, subject: str) -> None:
        self._store = store
        self.subject = check_name(subject, "subject")
        self._claim = f"{subject}/claim"
        self._suffix = ""
        self._images: dict[str, ImageWriter] = {}
        self._committed = False

    def __enter__(self) -> SubjectWriter:
        key = catalogue.marker_key(self.subject)
        marker, self._generation = self._store.read_generation(key)
        self._replaces = marker is not None
        if self._replaces or not self._store.create(self._claim, b""):
            self._suffix = f"~{secrets.token_hex(4)}"
        return self

    def __exit__(self, *_: object) -> None:
        if self._committed:
            return
        for image in self._images.values():
            image.abandon()
        if not self._suffix:
            self._store.delete(self._claim)

    def image(
        self,
        name: str,
        shape: Sequence[int],
        dtype: npt.DTypeLike,
        affine: Affine,
        *,
        kind: str = "image",
        slow_axis: int = 2,
        chunk: int | Sequence[int] = DEFAULT_CHUNK,
        codec: str = "lz4",
    ) -> ImageWriter:
        """Begin an image or label; one begun before under the same name is overwritten.

        Parameters
        ----------
        name : str
            Name within the subject.
        shape : sequence of int
            (X, Y, Z) or (C, X, Y, Z).
        dtype : dtype
            One of the integer types, float32 or float64; labels are unsigned.
        affine : (4, 4) float64
            Voxel centre -> RAS+ mm.
        kind : {"image", "label"}
            Whether voxels are intensities or class ids.
        slow_axis : int
            Spatial axis along which slabs will come.
        chunk : int or 3 int
            Edge of the blocks in voxels.
        codec : {"lz4", "zstd", "none"}
            Compression of the blocks.
        """
        check_name(name, "image")
        if name in self._images:
            self._images[name].abandon()
        stored = np.dtype(dtype)
        if stored not in DTYPES or (kind == "label" and stored.kind != "u"):
            raise StoreError(f"{self.subject}/{name}: a {kind} cannot be stored as {stored}")
        if len(shape) not in (3, 4) or min(shape) < 1:
            raise StoreError(f"{self.subject}/{name}: shape {tuple(shape)} is no volume")
        chunks = chunk_shape(shape, chunk)
        path = f"{name}{self._suffix}"
        summary = ImageSummary(kind, tuple(shape), chunks, stored, check_affine(affine), path)
        writer = ImageWriter(self._store, f"{self.subject}/{path}", summary, slow_axis, codec)
        self._images[name] = writer
        return writer

    def commit(self, provenance: Mapping[str, Any]) -> dict[str, Any]:
        """Make the subject visible; return its entry for the catalogue.

        Parameters
        ----------
        provenance : mapping
            JSON-able record of what the subject was made from.
        """
        images = {name: writer.summary.to_json() for name, writer in sorted(self._images.items())}
        entry = {"format": FORMAT, "images": images, "provenance": dict(provenance)}
        if self._replaces:
            # First, so that no reader is sent to the folders that are about to go.
            catalogue.update(self._store, drop=[self.subject])
        marker = group_json(tiledvol=entry)
        if not self._store.replace(catalogue.marker_key(self.subject), marker, self._generation):
            raise StoreError(
                f"{self._store.url}: {self.subject} was converted by another process meanwhile, "
                f"and stays as that one left it"
            )
        self._committed = True
        self._delete_superseded({writer.summary.path for writer in self._images.values()})
        return entry

    def _delete_superseded(self, in_force: set[str]) -> None:
        """Delete the images that the marker no longer names."""
        prefix = f"{self.subject}/"
        keys = (key.removeprefix(prefix) for key in self._store.list_keys(prefix))
        for folder in {key.partition("/")[0] for key in keys if "/" in key} - in_force:
            self._store.delete_prefix(f"{prefix}{folder}/")
        self._store.delete(self._claim)
