"""Volume: one tiled array with its geometry, and reads of any region of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from copy import deepcopy
from functools import cached_property
from itertools import product
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import tensorstore as ts

from tiledvol.errors import BlockError, GeometryError, ReadTimeoutError, StoreError
from tiledvol.geometry import Affine, Box, orientation_of, spacing_of
from tiledvol.storage import catalogue
from tiledvol.storage.attributes import ImageSummary, read_attributes
from tiledvol.storage.blocks import ImageBlocks, LabelBlocks, grid_shape
from tiledvol.storage.readers import MappedReader, Reader, TensorStoreReader, is_uncompressed
from tiledvol.storage.slicing import PAD_MODES, padded_indices, select
from tiledvol.storage.spec import check_process
from tiledvol.storage.store import Store, reason

Array = npt.NDArray[Any]
Result = TypeVar("Result")


class Volume:
    """An image or label of a subject: a tiled array of shape (X, Y, Z) or (C, X, Y, Z).

    Opening costs no I/O; voxels are read by ``volume[...]``, `read` and `read_sync`. Volumes can
    be pickled, and are safe to share between threads and event loops.

    Attributes
    ----------
    subject, name : str
        Which image this is.
    """

    def __init__(self, store: Store, subject: str, name: str, summary: ImageSummary) -> None:
        self._store = store
        self._summary = summary
        self._reader: Reader | None = None
        self.subject = subject
        self.name = name

    def __repr__(self) -> str:
        shape = "×".join(str(n) for n in self.shape)
        return (
            f"<Volume {self.subject}/{self.name}: {self.kind} {shape} {self.dtype}, "
            f"{self.orientation}, {'×'.join(f'{s:.4g}' for s in self.spacing)} mm>"
        )

    def __getstate__(self) -> dict[str, Any]:
        lasting = {k: v for k, v in self.__dict__.items() if k != "attributes"}
        return lasting | {"_reader": None}

    @property
    def summary(self) -> ImageSummary:
        """What the catalogue knows of the image."""
        return self._summary

    @property
    def shape(self) -> tuple[int, ...]:
        """(X, Y, Z), or (C, X, Y, Z) with channels or time."""
        return self._summary.shape

    @property
    def ndim(self) -> int:
        """3, or 4 with channels or time."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of voxels, all channels together."""
        return int(np.prod(self.shape))

    @property
    def nbytes(self) -> int:
        """Bytes of the voxels when decoded."""
        return self.size * self.dtype.itemsize

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the voxels, as stored and as read."""
        return self._summary.dtype

    @property
    def kind(self) -> str:
        """``"image"`` or ``"label"``."""
        return self._summary.kind

    @property
    def affine(self) -> Affine:
        """Voxel centre (i, j, k, 1) -> RAS+ mm, (4, 4) float64."""
        return self._summary.affine.copy()

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Distance in mm between voxel centres along x, y and z."""
        x, y, z = spacing_of(self._summary.affine).tolist()
        return (x, y, z)

    @property
    def orientation(self) -> str:
        """Code of the world directions nearest to the axes, e.g. ``"RAS"``."""
        return orientation_of(self._summary.affine)

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """Shape of the blocks that a read decodes, of the array's rank."""
        return self._summary.chunk_shape

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of blocks along each axis."""
        return grid_shape(self.shape, self.chunk_shape)

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """All that is stored about the image: source, scaling, statistics, provenance."""
        return read_attributes(self._store, self._path())

    @property
    def classes(self) -> dict[int, int]:
        """Of a label: voxels of each class id that occurs, 0 (background) included."""
        if self._summary.classes is not None:
            return self._summary.classes
        blocks = self.blocks()
        if not isinstance(blocks, LabelBlocks):
            raise StoreError(f"{self._name()} is an image; only labels have classes")
        return blocks.totals

    @property
    def statistics(self) -> dict[str, Any] | None:
        """Of an image, see `tiledvol.storage.statistics.Statistics.finish`; None for a label."""
        return deepcopy(self.attributes.get("statistics"))

    def _open(self) -> Any:
        """Return a future of the opened array."""
        return self._store.open_array(f"{self._path()}/0")

    def _make_reader(self, array: ts.TensorStore) -> Reader:
        """Return the reader of the opened array, after checking it against the catalogue."""
        if tuple(array.shape) != self.shape or array.dtype.numpy_dtype != self.dtype:
            raise StoreError(
                f"{self._name()}: the array is {array.shape} {array.dtype.name}, but the "
                f"catalogue says {self.shape} {self.dtype}; run `tiledvol reindex` on the dataset"
            )
        metadata = array.spec().to_json()["metadata"]
        if self._store.local_path and is_uncompressed(metadata):
            self._reader = MappedReader(self._store.local_path / self._path() / "0", metadata)
        else:
            self._reader = TensorStoreReader(array)
        return self._reader

    def blocks(self) -> ImageBlocks | LabelBlocks:
        """Return the per-block index: ranges and sums of an image, voxel counts of a label."""
        if self.kind == "label":
            return LabelBlocks(self.read_index("counts"), self.grid)
        ranges = self.read_index("range")
        return ImageBlocks(ranges[..., 0], ranges[..., 1], self.read_index("sum"))

    def read_index(self, name: str) -> Array:
        """Return an array of the per-block index, as `tiledvol.storage.blocks` names them."""
        what = f"reading the block index of {self._path()}"
        array = self._store.result(self._store.open_array(f"{self._path()}/blocks/{name}"), what)
        index = np.asarray(self._store.result(array.read(), what))
        shape, dtype = {
            "counts": ((*index.shape[:1], 3), np.dtype(np.int64)),
            "range": ((*self.grid, 2), self.dtype),
            "sum": (self.grid, np.dtype(np.float64)),
        }[name]
        if index.shape != shape or index.dtype != dtype:
            raise StoreError(
                f"{self._name()}: the per-block {name} has shape {index.shape} and type "
                f"{index.dtype}, not {shape} and {dtype}; delete the subject and convert it again"
            )
        return index

    def blocks_of(self, box: Box) -> list[tuple[int, ...]]:
        """Return the grid positions of the blocks that a read of ``box`` decodes, in C order.

        Parameters
        ----------
        box : Box
            Of the array's rank, or spatial (3 axes) for all channels. What lies outside the
            volume touches no block.
        """
        inside = self._full_box(box).intersect(Box.from_shape(self.shape))
        if inside.size == 0:
            return []
        axes = zip(inside.start, inside.stop, self.chunk_shape, strict=True)
        return list(product(*(range(a // c, -(-b // c)) for a, b, c in axes)))

    def __getitem__(self, key: Any) -> Any:
        """Return voxels by numpy's basic indexing, decoding only the blocks that they lie in.

        Raises
        ------
        IndexError
            As numpy; also for boolean and integer arrays, which are not basic indexing.
        BlockError, ReadTimeoutError
            See `read`.
        """
        selection = select(key, self.shape)
        if 0 in selection.shape:
            return np.empty(selection.shape, self.dtype)[selection.finish]
        return self._read_region(selection.region)[selection.finish]

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        """Return all voxels, so that ``numpy.asarray(volume)`` reads the volume."""
        if copy is False:
            raise ValueError("A volume lies in a store: reading it makes a copy")
        return np.asarray(self[...], dtype)

    def __len__(self) -> int:
        return self.shape[0]

    async def read(self, box: Box, pad: str = "constant", fill: float | None = None) -> Array:
        """Read a box without blocking the event loop; any number may be under way at once.

        Parameters
        ----------
        box : Box
            Region to read, in voxels of the array (3 axes; a 4th, leading one selects channels,
            else all are read). It may reach outside the volume, or lie outside entirely.
        pad : {"constant", "edge", "reflect"}
            What stands outside the volume, as in ``numpy.pad``.
        fill : float, optional
            The constant for ``pad="constant"``; 0 by default.

        Returns
        -------
        array
            Of the box's shape (with the channels in front where there are any) and the volume's
            dtype. The caller owns it.

        Raises
        ------
        BlockError
            If a block is missing or fails its checksum; it names subject, image and block.
        ReadTimeoutError
            If the read takes longer than the dataset's time-out.
        ValueError
            If ``pad`` is unknown or ``fill`` does not fit the volume's dtype.
        """
        region, finish = self._plan(box, pad, fill)
        if region is None:
            return finish(None)
        return finish(await self._wait(region, lambda reader: reader.read_async(region)))

    async def read_into(
        self, box: Box, out: Array, pad: str = "constant", fill: float | None = None
    ) -> None:
        """Read a box into memory that is there already, which is faster than a copy of `read`.

        Parameters
        ----------
        box, pad, fill
            See `read`, which also tells what is raised.
        out : array
            Of the box's shape (with the channels in front where there are any) and any strides;
            voxels are converted to its type. After an error, or when cancelled, it may still be
            written to for a while, and must not be used again.
        """
        value = self._check_padding(pad, fill)
        full = self._full_box(box)
        inside = full.intersect(Box.from_shape(self.shape))
        if out.shape != full.shape:
            raise ValueError(f"{self._name()}: {box} does not fit an array of shape {out.shape}")
        if inside != full:
            if pad != "constant":
                out[...] = await self.read(box, pad)
                return
            out[...] = value
            out = out[inside.translate([-a for a in full.start]).slices]
        if inside.size:
            region, target = inside.slices, out
            await self._wait(region, lambda reader: reader.read_into(region, target))

    async def _wait(
        self, region: tuple[slice, ...], start: Callable[[Reader], Awaitable[Result]]
    ) -> Result:
        """Return what a read gives; the array is opened first where it is not yet."""
        check_process()
        try:
            async with asyncio.timeout(self._store.timeout):
                # Not shared: a read that is cancelled would cancel the others' opening too.
                reader = self._reader or self._make_reader(await self._open())
                return await start(reader)
        except TimeoutError as error:
            raise self._timed_out(region) from error
        except ValueError as error:
            raise await asyncio.to_thread(self._explain, region, error) from error

    def read_sync(self, box: Box, pad: str = "constant", fill: float | None = None) -> Array:
        """Read a box and wait for it; see `read`."""
        region, finish = self._plan(box, pad, fill)
        if region is None:
            return finish(None)
        return finish(self._read_region(region))

    def _plan(
        self, box: Box, pad: str, fill: float | None
    ) -> tuple[tuple[slice, ...] | None, Callable[[Array | None], Array]]:
        """Return the region to read (None: nothing), and what makes the box's voxels of it."""
        value = self._check_padding(pad, fill)
        full = self._full_box(box)
        inside = full.intersect(Box.from_shape(self.shape))
        if inside == full and full.size:
            return full.slices, _as_read
        if full.size == 0:
            return None, lambda _: np.empty(full.shape, self.dtype)
        if pad == "constant":

            def place(read: Array | None) -> Array:
                out = np.full(full.shape, value, self.dtype)
                if read is not None:
                    out[inside.translate([-a for a in full.start]).slices] = read
                return out

            return (inside.slices if inside.size else None), place
        wanted = [
            padded_indices(a, b, n, pad)
            for a, b, n in zip(full.start, full.stop, self.shape, strict=True)
        ]
        source = tuple(slice(int(w.min()), int(w.max()) + 1) for w in wanted)
        local = np.ix_(*(w - s.start for w, s in zip(wanted, source, strict=True)))
        return source, lambda read: _as_read(read)[local]

    def _check_padding(self, pad: str, fill: float | None) -> Any:
        """Return the constant as a voxel of the volume."""
        if pad not in PAD_MODES:
            raise ValueError(f"pad={pad!r}: choose one of {', '.join(PAD_MODES)}")
        if fill is not None and pad != "constant":
            raise ValueError(f"fill={fill!r} has a meaning only with pad='constant'")
        if fill is None:
            return self.dtype.type(0)
        try:
            value = self.dtype.type(fill)
        except (TypeError, ValueError, OverflowError):
            value = None
        if value is None or (self.dtype.kind != "f" and value != fill):
            raise ValueError(f"fill={fill!r} does not fit {self._name()}, which is {self.dtype}")
        return value

    def _full_box(self, box: Box) -> Box:
        """Return the box with the channel axis in front where the volume has one."""
        if not isinstance(box, Box):
            raise TypeError(f"{self._name()}: give a tiledvol.Box, not {box!r}")
        if box.ndim == self.ndim:
            return box
        if box.ndim == 3:
            return Box((0, *box.start), (self.shape[0], *box.stop))
        raise GeometryError(f"{self._name()} has {self.ndim} axes, the box {box} has {box.ndim}")

    def _read_region(self, region: tuple[slice, ...]) -> Array:
        check_process()
        try:
            timeout = self._store.timeout
            reader = self._reader or self._make_reader(self._open().result(timeout=timeout))
            return reader.read(region, timeout)
        except TimeoutError as error:
            raise self._timed_out(region) from error
        except ValueError as error:
            raise self._explain(region, error) from error

    def _timed_out(self, region: tuple[slice, ...]) -> ReadTimeoutError:
        return ReadTimeoutError(
            f"{self._name()}: reading {_text(region)} did not finish within "
            f"{self._store.timeout:g} s; the store may be unreachable (tiledvol.open(..., "
            f"timeout=) if it is only slow)"
        )

    def _explain(self, region: tuple[slice, ...], error: ValueError) -> StoreError:
        """Find the block that made a read fail: read those of the region one by one."""
        key = f"{self._path()}/zarr.json"
        if self._store.read(catalogue.marker_key(self.subject)) is None or not self._store.read(
            key
        ):
            return StoreError(
                f"{self._name()}: was replaced or deleted since the dataset was opened: open the "
                f"dataset again ({reason(error)})"
            )
        reader = self._reader
        if reader is None:
            return StoreError(
                f"{self._name()}: the array cannot be opened; delete the subject and convert it "
                f"again, or convert with --force ({reason(error)})"
            )
        box = Box(tuple(s.start for s in region), tuple(s.stop for s in region))
        for position in self.blocks_of(box):
            try:
                reader.read(self.block_box(position).slices, self._store.timeout)
            except (ValueError, TimeoutError) as found:
                return BlockError(
                    f"{self._name()}: block {position} is damaged or missing; delete the subject "
                    f"and convert it again, or convert with --force ({found})"
                )
        return StoreError(f"{self._name()}: reading {_text(region)} failed: {reason(error)}")

    def block_box(self, position: tuple[int, ...]) -> Box:
        """Return the voxels of the block at a grid position."""
        start = tuple(p * c for p, c in zip(position, self.chunk_shape, strict=True))
        stop = tuple(
            min(a + c, n) for a, c, n in zip(start, self.chunk_shape, self.shape, strict=True)
        )
        return Box(start, stop)

    def _path(self) -> str:
        return f"{self.subject}/{self._summary.path}"

    def _name(self) -> str:
        return f"{self._store.url}: {self.subject}/{self.name}"


def _as_read(read: Array | None) -> Array:
    assert read is not None
    return read


def _text(region: tuple[slice, ...]) -> str:
    return "[" + ", ".join(f"{s.start}:{s.stop}" for s in region) + "]"
