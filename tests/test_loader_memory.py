"""Memory: buffers used again but never while held, bounds on what is ahead, caches that fit."""

import asyncio
import time
import warnings

import numpy as np
import pytest
import tensorstore as ts
import torch
from cohort import CHUNK, stream, write_cohort

import tiledvol as tv
from tiledvol.loading import memory
from tiledvol.loading.buffers import BufferPool
from tiledvol.loading.engine import Engine
from tiledvol.loading.memory import available_bytes, decoded_bytes

PATCH_BYTES = 24**3 * (4 + 1)  # of ct in float32 and seg in uint8, in a batch
READ_BYTES = 24**3 * (2 + 1)  # as they are stored, but of subject c


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    return write_cohort(tmp_path_factory.mktemp("memory") / "three.tvol")


def address(tensor):
    return tensor.untyped_storage().data_ptr()


# Buffers


def test_memory_is_lent_again_when_nobody_holds_it():
    pool = BufferPool(torch.device("cpu"))
    array = pool.take((3, 4), np.dtype(np.int16))
    first = array.__array_interface__["data"][0]
    views = [array[1:], torch.from_numpy(array)[0], memoryview(array), array.view(np.uint8)]
    del array
    while views:
        other = pool.take((3, 4), np.dtype(np.int16))
        assert other.__array_interface__["data"][0] != first
        views.pop()
    del other
    addresses = {pool.take((12,), np.dtype(np.int16)).__array_interface__["data"][0]}
    assert first in addresses | {
        pool.take((3, 2), np.dtype(np.int32)).__array_interface__["data"][0]
    }


def test_memory_of_a_size_that_is_no_longer_used_is_given_up():
    pool = BufferPool(torch.device("cpu"))
    for size in range(1, 50):
        pool.take((size,), np.dtype(np.uint8))
    assert len(pool._free) == 1
    held = [pool.take((100,), np.dtype(np.uint8)) for _ in range(3)]
    assert len(pool._free) <= 1
    assert [a.shape for a in held] == [(100,)] * 3


def test_batches_that_are_kept_stay_as_they_are(cohort):
    kept, copies = [], []
    loader = cohort.loader(patches_per_epoch=60)
    for step, batch in enumerate(loader):
        part = [
            lambda t: t,
            lambda t: t[1, 0, 3:],
            lambda t: t.numpy(),
            lambda t: t.numpy()[0, 0, ::2],
            lambda t: t.flatten().view(torch.uint8)[7:],
            lambda t: None,
        ][step % 6](batch["ct"])
        if part is not None:
            kept.append(part)
            copies.append(np.array(part.tolist()))
        del batch
    stream(loader)
    for part, copy in zip(kept, copies, strict=True):
        assert np.array_equal(part.tolist(), copy)


@pytest.mark.parametrize("prefetch", [1, 3])
def test_memory_is_used_again_batch_after_batch(cohort, prefetch):
    loader = cohort.loader(patches_per_epoch=600, prefetch_batches=prefetch)
    addresses = [(address(batch["ct"]), address(batch["seg"])) for batch in loader]
    # What is ahead, the batch in the loop, and the one that is being handed to it.
    assert len({ct for ct, _ in addresses}) <= prefetch + 2
    assert len({seg for _, seg in addresses}) <= prefetch + 2


# Bounds on what is ahead


def settle(loader):
    """Return how many batches are ready once no more become so."""
    ready, since = -1, time.perf_counter()
    while time.perf_counter() - since < 0.3:
        now = loader.stats()["batches_ready"]
        if now != ready:
            ready, since = now, time.perf_counter()
        time.sleep(0.01)
    return ready


@pytest.mark.parametrize("prefetch", [1, 3])
def test_a_slow_trainer_has_at_most_the_prefetched_batches_ahead(cohort, prefetch):
    loader = cohort.loader(prefetch_batches=prefetch, patches_per_epoch=40, weights=no_c())
    bytes_before = 0
    for step, _ in zip(range(3), loader, strict=False):
        assert settle(loader) == prefetch
        needed = loader.stats()["bytes_needed"]
        assert needed == (step + 1 + prefetch) * 2 * READ_BYTES
        assert needed > bytes_before
        bytes_before = needed


def no_c():
    return {"a": 1, "b": 1, "c": 0}


@pytest.mark.parametrize(("batches", "ahead"), [(0.1, 1), (1, 1), (2, 2), (2.9, 2), (5, 5)])
def test_bytes_bound_what_is_ahead(cohort, batches, ahead):
    bound = round(batches * 2 * (PATCH_BYTES + READ_BYTES))
    loader = cohort.loader(
        max_bytes_in_flight=bound, prefetch_batches=8, patches_per_epoch=40, weights=no_c()
    )
    iterator = iter(loader)
    assert settle(loader) == ahead
    next(iterator)
    assert settle(loader) == ahead
    assert loader.stats()["bytes_needed"] == (ahead + 1) * 2 * READ_BYTES
    del iterator


def test_the_bytes_of_whole_volumes_count_as_they_are(cohort):
    sizes = {k: cohort.arrays[k]["inst"].size * (4 + 2) for k in "abc"}
    bound = sizes["a"] + sizes["b"]
    loader = tv.PatchLoader(
        cohort.open(), 1, 1, labels=["inst"], sampler=tv.WholeSampler(), max_bytes_in_flight=bound
    )
    iterator = iter(loader)
    assert settle(loader) == 2
    del iterator


def test_the_engine_makes_items_in_order_within_its_bounds():
    """Sizes are known only while an item is made, and some items are made faster than others."""
    waited_for, ahead = 0, []

    async def make(number, admit):
        await asyncio.sleep(0.002 * (5 - number % 5))
        await admit(number % 3 + 1)
        ahead.append(sum(n % 3 + 1 for n in range(waited_for + 1, number + 1)))
        await asyncio.sleep(0.001)
        return number

    def maker(number):
        return lambda admit: make(number, admit)

    engine = Engine(map(maker, range(30)), max_bytes=5, max_items=6)
    taken = []
    for number in range(30):
        waited_for = number
        taken.append(engine.take())
    engine.close()
    assert taken == list(range(30))
    assert 3 <= max(ahead) <= 5


# Caches


def blocks_read():
    """Return how often tensorstore has looked up a block without finding it."""
    found = ts.experimental_collect_matching_metrics("/tensorstore/cache/miss_count")
    return sum(value["value"] for metric in found for value in metric["values"])


def test_the_whole_dataset_stays_in_memory_where_asked(cohort):
    loader = cohort.loader(cache_bytes="all", patches_per_epoch=200)
    first = stream(loader)
    stream(loader)
    before = blocks_read()
    loader.set_epoch(0)
    assert stream(loader) == first
    assert blocks_read() == before


def test_the_bytes_of_all_blocks(cohort):
    volumes = [cohort.open()["b"][name] for name in ("ct", "pet")]
    blocks = 4 * 2 * 2  # of 16³ in 50 × 30 × 28
    assert decoded_bytes(volumes) == blocks * ((CHUNK**3 * 2 + 512) + 2 * (CHUNK**3 * 4 + 512))


@pytest.mark.parametrize(("cache", "said"), [("100TiB", "cache_bytes='100TiB'"), ("all", "whole")])
def test_a_cache_larger_than_memory_warns(cohort, monkeypatch, cache, said):
    if cache == "all":
        monkeypatch.setattr(memory, "available_bytes", lambda: 1000)
    with pytest.warns(UserWarning, match=f"{said}.*GiB of memory are available") as caught:
        cohort.loader(cache_bytes=cache)
    assert caught[0].filename.endswith("cohort.py")


def test_a_cache_that_fits_does_not_warn(cohort):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cohort.loader(cache_bytes="64MiB")
        cohort.loader(cache_bytes="all")


def test_the_memory_of_a_container_counts(tmp_path, monkeypatch):
    everything = available_bytes()
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("2000000\n")
    assert available_bytes() == 3_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes() == pytest.approx(everything, rel=0.5)


def test_a_cache_for_a_mapping_of_subjects_is_refused(cohort):
    with pytest.raises(ValueError, match="make_context"):
        tv.PatchLoader({"a": cohort.open()["a"]}, 8, images=["ct"], cache_bytes=0)
