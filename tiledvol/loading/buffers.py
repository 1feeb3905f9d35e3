"""Buffers for batches, used again as soon as nobody holds them."""

from __future__ import annotations

from collections import deque
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]


class BufferPool:
    """Memory that backs the tensors of batches.

    Fresh memory costs more than the voxels that go into it: every page of it faults. So what was
    lent is lent again, but only once the array, and every view and tensor that shares its memory,
    is gone: a batch that is kept stays as it is.

    Parameters
    ----------
    device : torch.device
        Where batches go. For a GPU memory is page-locked, so that it copies without the CPU's help.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free = deque[Array]()
        self._made = 0

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return an array with whatever its memory held last; for one thread at a time."""
        size = prod(shape) * dtype.itemsize
        memory = self._reuse(size)
        if memory is None:
            self._drop_spare()
            memory = self._make(size)
            self._made += size
        return np.asarray(_Lease(memory, self._free)).view(dtype).reshape(shape)

    def _reuse(self, size: int) -> Array | None:
        # Popped and put back one by one: others give back meanwhile.
        for _ in range(len(self._free)):
            memory = self._free.popleft()
            if memory.nbytes == size:
                return memory
            self._free.append(memory)
        return None

    def _drop_spare(self) -> None:
        """Keep no more free memory of other sizes than is lent."""
        free = sum(memory.nbytes for memory in tuple(self._free))
        while self._free and free > self._made - free:
            dropped = self._free.popleft().nbytes
            free -= dropped
            self._made -= dropped

    def _make(self, size: int) -> Array:
        if self._device.type != "cuda":
            return np.empty(size, np.uint8)
        with torch.cuda.device(self._device):  # else pinned memory is tied to the first GPU
            return np.asarray(torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy())


class _Lease:
    """The owner of an array's memory: numpy and torch keep it for as long as they refer to that."""

    def __init__(self, memory: Array, free: deque[Array]) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._memory = memory
        self._free = free

    def __del__(self) -> None:
        self._free.append(self._memory)
