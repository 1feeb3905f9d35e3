"""Copies to a GPU, with its streams and events replaced by ones that tell what was done."""

import contextlib

import numpy as np
import pytest
import torch

from tiledvol.loading.buffers import BufferPool
from tiledvol.loading.device import Mover, buffer_dtype

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)


class FakeGPU:
    """Records in ``log`` what the mover does; ``arrived`` events have passed."""

    def __init__(self, monkeypatch):
        self.log = []
        self.arrived = set()
        self.inside = None
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: self.stream("side"))
        monkeypatch.setattr(torch.cuda, "stream", self.enter)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.stream("current"))
        monkeypatch.setattr(torch.Tensor, "to", lambda t, *a, **k: self.to(t, *a, **k))
        monkeypatch.setattr(
            torch.Tensor, "record_stream", lambda t, s: self.log.append(("used by", s.name))
        )
        monkeypatch.setattr(torch.cuda, "synchronize", self.forbidden)

    def stream(self, name):
        gpu = self

        class Stream:
            def __init__(self):
                self.name = name

            def record_event(self):
                event = Event()
                gpu.log.append(("event", gpu.inside or "current"))
                return event

            def wait_event(self, event):
                gpu.log.append(("wait", name))

        class Event:
            def query(self):
                return self in gpu.arrived

            synchronize = wait = gpu.forbidden

        return Stream()

    @contextlib.contextmanager
    def enter(self, stream):
        self.inside = stream.name
        yield
        self.inside = None

    def to(self, tensor, device, dtype=None, non_blocking=False):
        self.log.append(("copy" if dtype is None else "convert", self.inside or "current"))
        assert dtype is not None or non_blocking
        return tensor.clone() if dtype is None else tensor.type(dtype)

    def forbidden(self, *_):
        raise AssertionError("the host must not wait for the GPU")


@pytest.fixture
def gpu(monkeypatch):
    return FakeGPU(monkeypatch)


def test_copies_run_on_a_stream_of_their_own_and_conversions_where_they_are_used(gpu):
    mover = Mover(GPU, torch.float32, frozenset({"seg"}))
    sent = mover.send({"ct": np.ones(3, np.int16), "seg": np.ones(3, np.uint16)})
    assert gpu.log == [("copy", "side"), ("copy", "side"), ("event", "side")]
    gpu.log.clear()
    tensors = mover.receive(sent)
    assert gpu.log == [
        ("wait", "current"), ("used by", "current"), ("used by", "current"),
        ("convert", "current"), ("convert", "current"),
    ]  # fmt: skip
    assert [t.dtype for t in tensors.values()] == [torch.float32, torch.int32]


def test_buffers_are_free_only_when_their_copies_are_done(gpu):
    pool = BufferPool(CPU)
    mover = Mover(GPU, None, frozenset())
    events = []
    for _ in range(3):
        sent = mover.send({"ct": pool.take((5,), np.dtype(np.int16))})
        events.append(sent.arrival)
        mover.receive(sent)
        del sent
    assert len(pool._free) == 0
    gpu.arrived.update(events[:2])
    mover.send({})
    assert len(pool._free) == 2
    gpu.arrived.add(events[2])
    mover.send({})
    assert len(pool._free) == 3


@pytest.mark.parametrize(
    ("stored", "label", "dtype", "cpu", "delivered"),
    [
        ("int16", False, torch.float32, "float32", torch.float32),
        ("int16", False, None, "int16", torch.int16),
        ("uint16", False, None, "int32", torch.int32),
        ("uint8", True, torch.float32, "uint8", torch.uint8),
        ("uint16", True, torch.float32, "int32", torch.int32),
        ("uint32", True, torch.float32, "int64", torch.int64),
        ("float64", False, torch.float16, "float16", torch.float16),
        ("int16", False, torch.bfloat16, "int16", torch.bfloat16),
    ],
)
def test_integers_stay_as_stored_on_their_way_to_another_device(
    stored, label, dtype, cpu, delivered
):
    assert buffer_dtype(np.dtype(stored), label, GPU, dtype) == np.dtype(stored)
    assert buffer_dtype(np.dtype(stored), label, CPU, dtype) == np.dtype(cpu)
    mover = Mover(CPU, dtype, frozenset({"x"} if label else ()))
    array = np.array([1, 2, 3], cpu)
    (tensor,) = mover.receive(mover.send({"x": array})).values()
    assert tensor.dtype == delivered
    assert tensor.tolist() == [1, 2, 3]


def test_on_the_cpu_tensors_share_the_memory_of_the_buffer():
    mover = Mover(CPU, torch.float32, frozenset({"seg"}))
    arrays = {"ct": np.zeros(3, np.float32), "seg": np.zeros(3, np.uint8)}
    tensors = mover.receive(mover.send(arrays))
    for name, array in arrays.items():
        array[1] = 5
        assert tensors[name].tolist() == [0, 5, 0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_real_gpu():
    pool = BufferPool(GPU)
    array = pool.take((4, 5), np.dtype(np.int16))
    array[...] = np.arange(20).reshape(4, 5)
    assert torch.from_numpy(array).is_pinned()
    mover = Mover(GPU, torch.float32, frozenset())
    (tensor,) = mover.receive(mover.send({"x": array})).values()
    assert tensor.device == GPU
    assert tensor.tolist() == np.arange(20.0).reshape(4, 5).tolist()
