"""A key-value store with time-outs, and errors that name the store and key."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import tensorstore as ts

from tiledvol.errors import ReadTimeoutError, StoreError
from tiledvol.storage.spec import TIMEOUT_S, check_process, default_context, kvstore_spec


class Store:
    """A folder or object-store prefix.

    Parameters
    ----------
    url : str or path
        See `tiledvol.storage.spec.kvstore_spec`.
    context : tensorstore.Context, optional
        Threads and caches to share; by default those of the process.
    timeout : float
        Seconds after which an operation that has not finished is an error.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        context: ts.Context | None = None,
        timeout: float = TIMEOUT_S,
    ) -> None:
        self.url = os.fspath(url)
        self.timeout = timeout
        self.context = context
        self._spec = kvstore_spec(url)

    @cached_property
    def _context(self) -> ts.Context:
        remote = self._spec["driver"] not in ("file", "memory")
        return self.context or default_context(remote)

    @cached_property
    def _kv(self) -> ts.KvStore:
        """The opened store: at first use, so that unpickling in a forked process cannot fail."""
        check_process()
        opened: ts.KvStore = self.result(
            ts.KvStore.open(self._spec, context=self._context), "opening it"
        )
        return opened

    def __reduce__(self) -> tuple[type[Store], tuple[str, None, float]]:
        """Pickle by address: the receiving process opens the store anew, in its own context."""
        return (Store, (self.absolute_url, None, self.timeout))

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    @property
    def absolute_url(self) -> str:
        """The URL, not relative to the working directory."""
        return str(self.local_path) if self.local_path else self.url

    @property
    def local_path(self) -> Path | None:
        """The folder of a local store, else None."""
        return Path(self._spec["path"]) if self._spec["driver"] == "file" else None

    @property
    def writable(self) -> bool:
        """Whether this kind of store takes writes at all."""
        return bool(self._spec["driver"] != "http")

    def result(self, future: Any, what: str) -> Any:
        """Wait for a tensorstore future.

        Raises
        ------
        ReadTimeoutError, StoreError
            Naming the store and ``what`` was being done.
        """
        try:
            return future.result(timeout=self.timeout)
        except TimeoutError as error:
            raise ReadTimeoutError(
                f"{self.url}: {what} did not finish within {self.timeout:g} s; the store may be "
                f"unreachable (give a longer timeout= if it is only slow)"
            ) from error
        except (ValueError, OSError) as error:
            raise StoreError(f"{self.url}: {what} failed: {reason(error)}") from error

    def read(self, key: str) -> bytes | None:
        """Return the value of a key, or None if there is none."""
        return self.read_generation(key)[0]

    def read_generation(self, key: str) -> tuple[bytes | None, bytes]:
        """Return the value of a key (None if missing) and its generation."""
        check_process()
        found = self.result(self._kv.read(key), f"reading {key}")
        value = bytes(found.value) if found.state == "value" else None
        return value, found.stamp.generation

    def read_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Return the values of those keys that exist, read concurrently."""
        check_process()
        futures = {key: self._kv.read(key) for key in keys}
        found = {key: self.result(f, f"reading {key}") for key, f in futures.items()}
        return {key: bytes(r.value) for key, r in found.items() if r.state == "value"}

    def write(self, key: str, value: bytes) -> None:
        """Write a key, all or nothing."""
        self.check_writable()
        self.result(self._kv.write(key, value), f"writing {key}")

    def update(self, key: str, change: Callable[[bytes | None], bytes]) -> None:
        """Replace a key by ``change(its value)``; repeated while other writers come between."""
        while True:
            value, generation = self.read_generation(key)
            if self.replace(key, change(value), generation):
                return

    def replace(self, key: str, value: bytes, generation: bytes) -> bool:
        """Write a key if it is still of this generation; tell whether it was."""
        self.check_writable()
        future = self._kv.write(key, value, if_equal=generation)
        return bool(self.result(future, f"writing {key}").generation)

    def create(self, key: str, value: bytes) -> bool:
        """Write a key that is missing; tell whether it was. Of several writers one succeeds."""
        found, generation = self.read_generation(key)
        return found is None and self.replace(key, value, generation)

    def delete(self, key: str) -> None:
        """Delete a key, and on a local file system its folder if that is empty then."""
        self.check_writable()
        self.result(self._kv.delete_range(ts.KvStore.KeyRange(key, key + "\0")), f"deleting {key}")
        if self.local_path:
            with suppress(OSError):
                (self.local_path / key).parent.rmdir()

    def delete_prefix(self, prefix: str) -> None:
        """Delete all keys below ``prefix``, which ends with a slash."""
        self.check_writable()
        self.result(self._kv.delete_range(_prefix_range(prefix)), f"deleting {prefix}*")
        if self.local_path:  # the empty folders that keys leave behind
            shutil.rmtree(self.local_path / prefix, ignore_errors=True)

    def list_keys(self, prefix: str = "") -> list[str]:
        """Return all keys that begin with ``prefix``."""
        check_process()
        found = self.result(self._kv.list(_prefix_range(prefix)), f"listing {prefix}*")
        return [key.decode() for key in found]

    def array_spec(self, path: str) -> dict[str, Any]:
        """Return tensorstore's description of the zarr v3 array at ``path``."""
        return {
            "driver": "zarr3",
            "kvstore": {**self._spec, "path": f"{self._spec['path']}{path}/"},
            "recheck_cached_data": "open",
            "recheck_cached_metadata": "open",
            "fill_missing_data_reads": False,
            "store_data_equal_to_fill_value": True,
        }

    def create_array(self, path: str, metadata: dict[str, Any]) -> ts.TensorStore:
        """Create a zarr v3 array for writing, replacing one that is there."""
        self.check_writable()
        spec = {**self.array_spec(path), "metadata": metadata}
        # No cache: the writer's buffers are lent, not copied, and a cached block that refers to
        # one would change when the buffer serves again.
        context = ts.Context({"cache_pool": {"total_bytes_limit": 0}}, parent=self._context)
        array: ts.TensorStore = self.result(
            ts.open(spec, create=True, delete_existing=True, context=context), f"creating {path}"
        )
        return array

    def open_array(self, path: str) -> Any:
        """Return a future of the zarr v3 array at ``path``, opened for reading."""
        check_process()
        return ts.open(
            self.array_spec(path),
            read=True,
            write=False,
            open=True,
            context=self._context,
        )

    def check_writable(self) -> None:
        """Raise `StoreError` if this kind of store takes no writes at all."""
        check_process()
        if not self.writable:
            raise StoreError(f"{self.url}: an http store can only be read")


def reason(error: Exception) -> str:
    """Return what tensorstore says went wrong, without the description of the array."""
    return str(error).partition(" [tensorstore_spec=")[0]


def _prefix_range(prefix: str) -> ts.KvStore.KeyRange:
    """Return the range of the keys that begin with ``prefix``."""
    data = prefix.encode()
    stop = data[:-1] + bytes([data[-1] + 1]) if data else b""
    return ts.KvStore.KeyRange(data, stop)
