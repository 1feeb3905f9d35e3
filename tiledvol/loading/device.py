"""From host buffers to tensors on the device, without making the host wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]
Tensors = dict[str, torch.Tensor]

WIDER = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}
"""torch computes hardly anything in these types: the next that holds their values is delivered."""


@dataclass(frozen=True)
class Sent:
    """Tensors on their way to the device, and the event after which they are there."""

    tensors: Tensors
    arrival: torch.cuda.Event | None = None


class Mover:
    """Brings the arrays of batches to a device: `send` when they are read, `receive` when used.

    To a GPU the copies run on a stream of their own, from pinned memory, while training computes;
    integers cross the bus as they are stored and are converted there. Neither call makes the host
    wait for the GPU: the stream that receives does.

    Parameters
    ----------
    device : torch.device
        Where batches go.
    dtype : torch.dtype or None
        Of images; None keeps the stored type.
    labels : frozenset of str
        Which arrays are labels, and stay integers.
    """

    def __init__(
        self, device: torch.device, dtype: torch.dtype | None, labels: frozenset[str]
    ) -> None:
        self._device = device
        self._dtype = dtype
        self._labels = labels
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._leaving: list[tuple[torch.cuda.Event, Mapping[str, Array]]] = []

    def send(self, arrays: Mapping[str, Array]) -> Sent:
        """Begin to copy arrays, which are kept until their copies are done; for one thread."""
        # Asking whether an event has passed does not wait for it.
        self._leaving = [(e, kept) for e, kept in self._leaving if not e.query()]  # type: ignore[no-untyped-call]
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        if self._stream is None:
            return Sent(tensors)
        with torch.cuda.stream(self._stream):
            tensors = {k: t.to(self._device, non_blocking=True) for k, t in tensors.items()}
            arrival = self._stream.record_event()
        self._leaving.append((arrival, arrays))
        return Sent(tensors, arrival)

    def receive(self, sent: Sent) -> Tensors:
        """Return the tensors in their types, in order with the current stream's work."""
        if sent.arrival is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(sent.arrival)
            for tensor in sent.tensors.values():
                tensor.record_stream(current)  # they were allocated for the other stream
        return {
            name: tensor.to(self._device, self._delivered(name, tensor.dtype))
            for name, tensor in sent.tensors.items()
        }

    def _delivered(self, name: str, dtype: torch.dtype) -> torch.dtype:
        if self._dtype is not None and name not in self._labels:
            return self._dtype
        return WIDER.get(dtype, dtype)


def buffer_dtype(
    stored: np.dtype[Any], label: bool, device: torch.device, dtype: torch.dtype | None
) -> np.dtype[Any]:
    """Return the type of a batch's host buffer.

    For another device the stored one, so that fewer bytes cross the bus; on the CPU that of the
    tensor, so that the one copy from the read converts as well.
    """
    if device.type != "cpu":
        return stored
    wanted = torch.from_numpy(np.empty(0, stored)).dtype
    wanted = dtype if dtype is not None and not label else WIDER.get(wanted, wanted)
    try:
        return torch.empty(0, dtype=wanted).numpy().dtype
    except TypeError:  # such as bfloat16, which numpy lacks
        return stored
