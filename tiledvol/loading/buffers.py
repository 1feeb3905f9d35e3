"""Buffers for batches, used again as soon as nobody holds them."""

from __future__ import annotations

import sys
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]

FREE = 3
"""References to a buffer that nobody else holds: the list's, the loop's, the call's own."""


class BufferPool:
    """Arrays that back the tensors of batches.

    Fresh memory costs more than the voxels that go into it: every page of it faults. A tensor
    keeps a reference to its array, so an array without further references is free, however long
    a user keeps a batch.

    Parameters
    ----------
    pinned : bool
        Page-locked memory, from which a GPU copies without the CPU's help.
    """

    def __init__(self, pinned: bool = False) -> None:
        self._pinned = pinned
        self._lock = Lock()
        self._arrays: dict[tuple[tuple[int, ...], str], list[Array]] = {}

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return an array of this shape and dtype with whatever it held last."""
        with self._lock:
            arrays = self._arrays.setdefault((shape, dtype.name), [])
            for array in arrays:
                if sys.getrefcount(array) <= FREE:
                    return array
            array = self._new(shape, dtype)
            arrays.append(array)
            return array

    def _new(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if not self._pinned:
            return np.zeros(shape, dtype)
        kind = torch.from_numpy(np.empty(0, dtype)).dtype
        return torch.zeros(shape, dtype=kind, pin_memory=True).numpy()
