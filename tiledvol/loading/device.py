"""From host buffers to tensors on the device, without making the host wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]

WIDER = {"uint16": torch.int32, "uint32": torch.int64, "uint64": torch.int64}
"""torch computes hardly anything in these types: the next that holds them all is delivered."""


class Mover:
    """Turns the arrays of a batch into tensors on a device.

    On a GPU the copies run on a stream of their own, and integers are turned to floats there; the
    current stream is made to wait for it, the host never is.

    Parameters
    ----------
    device : torch.device
        Where batches go.
    dtype : torch.dtype or None
        Of images; None keeps the stored type.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype | None) -> None:
        self._device = device
        self._dtype = dtype
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._copying: list[tuple[torch.cuda.Event, list[Array]]] = []

    def move(self, arrays: Mapping[str, Array], labels: frozenset[str]) -> dict[str, torch.Tensor]:
        """Return the arrays as tensors on the device.

        Parameters
        ----------
        arrays : mapping of str to array
            From a `BufferPool`, pinned if the device is a GPU.
        labels : frozenset of str
            Which of them are labels, and stay integers.
        """
        if self._stream is None:
            return {k: self._convert(torch.from_numpy(a), k in labels) for k, a in arrays.items()}
        # What has arrived may be overwritten; asking does not wait.
        self._copying = [(e, held) for e, held in self._copying if not e.query()]  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            moved = {
                name: self._convert(
                    torch.from_numpy(array).to(self._device, non_blocking=True), name in labels
                )
                for name, array in arrays.items()
            }
            event = self._stream.record_event()
        self._copying.append((event, list(arrays.values())))
        current = torch.cuda.current_stream(self._device)
        current.wait_event(event)
        for tensor in moved.values():
            tensor.record_stream(current)
        return moved

    def _convert(self, tensor: torch.Tensor, label: bool) -> torch.Tensor:
        if not label and self._dtype is not None:
            return tensor.to(self._dtype)
        wider = WIDER.get(str(tensor.dtype).removeprefix("torch."))
        return tensor if wider is None else tensor.to(wider)


def buffer_dtype(
    stored: np.dtype[Any], label: bool, device: torch.device, dtype: torch.dtype | None
) -> np.dtype[Any]:
    """Return the type of a batch's host buffer.

    For a GPU the stored one, so that fewer bytes cross the bus; on the CPU that of the tensor,
    so that the one copy from the read converts as well.
    """
    if device.type == "cuda":
        return stored
    if not label and dtype is not None:
        return torch.empty(0, dtype=dtype).numpy().dtype
    return np.dtype(str(WIDER.get(stored.name, stored.name)).removeprefix("torch."))
