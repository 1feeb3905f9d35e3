"""Every way to go through a loader, and that none leaves anything behind."""

import asyncio
import contextlib
import gc
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from pathlib import Path

import pytest
from cohort import stream, write_cohort
from torch.utils.data import DataLoader

import tiledvol as tv


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    return write_cohort(tmp_path_factory.mktemp("iteration") / "three.tvol")


@pytest.fixture(scope="module")
def reference(cohort):
    return stream(cohort.loader())


def threads():
    return {t for t in threading.enumerate() if t.name.startswith("tiledvol")}


def open_files():
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("this system does not list open files")
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(cohort):
    stream(cohort.loader(patches_per_epoch=1))  # what is opened once and for all
    before = open_files()
    yield
    gc.collect()
    assert threads() == set()
    assert open_files() == before


# Ways to go through


async def collect(loader):
    return [patch for batch in [b async for b in loader] for patch in stream([batch])]


def test_async_for(cohort, reference):
    loader = cohort.loader()
    assert asyncio.run(collect(loader)) == reference
    assert loader.epoch == 1
    assert asyncio.run(collect(loader)) == stream(cohort_at_epoch(cohort, 1))


def cohort_at_epoch(cohort, epoch):
    loader = cohort.loader()
    loader.set_epoch(epoch)
    return loader


def test_an_ordinary_loop_inside_a_running_event_loop(cohort, reference):
    """As in a Jupyter notebook."""

    async def cell():
        return stream(cohort.loader())

    assert asyncio.run(cell()) == reference


def test_the_event_loop_is_free_while_async_for_waits(cohort):
    async def main():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        async for _ in cohort.loader(prefetch_batches=1):
            pass
        ticking.cancel()
        return ticks

    assert asyncio.run(main()) > 10


def test_under_a_torch_data_loader(cohort, reference):
    loader = cohort.loader()
    wrapped = DataLoader(loader, batch_size=None)
    assert len(wrapped) == len(loader) == 6
    assert stream(wrapped) == reference
    assert stream(wrapped) == stream(cohort_at_epoch(cohort, 1))


def test_workers_of_a_torch_data_loader_are_refused(cohort, monkeypatch):
    monkeypatch.setattr("tiledvol.loading.loader.get_worker_info", lambda: "worker 0 of 2")
    with pytest.raises(RuntimeError, match="num_workers=0"):
        next(iter(cohort.loader()))


def test_two_loaders_alternate(cohort, reference):
    dataset = cohort.open()
    train, validation = (
        tv.PatchLoader(dataset, 24, 2, ["ct"], ["seg"], patches_per_epoch=12) for _ in range(2)
    )
    pairs = list(zip(train, validation, strict=True))
    assert stream([a for a, _ in pairs]) == stream([b for _, b in pairs]) == reference


def test_validation_in_the_middle_of_training(cohort, reference):
    """A loader that has read ahead and waits does not keep another from reading."""
    train, validation = cohort.loader(max_bytes_in_flight=1), cohort.loader()
    patches = []
    for batch in train:
        patches += stream([batch])
        validation.set_epoch(0)
        assert stream(validation) == reference
    assert patches == reference


def test_a_loader_has_one_iteration_at_a_time(cohort, reference):
    loader = cohort.loader()
    former = iter(loader)
    next(former)
    loader.set_epoch(0)
    assert stream(loader) == reference
    with pytest.raises(RuntimeError, match="gone through anew"):
        next(former)


def test_an_iterator_that_is_through_stays_so(cohort):
    iterator = iter(cohort.loader(patches_per_epoch=2))
    assert len(list(iterator)) == 1
    assert list(iterator) == []


def test_a_batch_is_not_lost_when_waiting_for_it_is_given_up(cohort, reference):
    async def main():
        patches = []
        iterator = aiter(cohort.loader())
        while True:
            waiting = asyncio.ensure_future(anext(iterator))
            await asyncio.sleep(0)
            waiting.cancel()  # comes too early for most batches
            try:
                with contextlib.suppress(asyncio.CancelledError):
                    patches += stream([await waiting])
                patches += stream([await anext(iterator)])
            except StopAsyncIteration:
                return patches

    assert asyncio.run(main()) == reference


# Ways to end


def test_break(cohort):
    for _ in cohort.loader():
        break
    assert threads() == set()


def test_break_out_of_async_for(cohort):
    async def main():
        async for _ in cohort.loader():
            break
        return asyncio.all_tasks() - {asyncio.current_task()}, threads()

    assert asyncio.run(main()) == (set(), set())


def test_an_exception_in_the_training_loop(cohort):
    def train():
        for _ in cohort.loader():
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        train()
    assert threads() == set()


@pytest.mark.parametrize("taken", [0, 1, 6])
def test_close(cohort, taken):
    loader = cohort.loader()
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)
    assert len(threads()) >= 1
    loader.close()
    assert threads() == set()
    loader.close()
    if taken < 6:
        with pytest.raises(RuntimeError, match="was closed"):
            next(iterator)
    assert len(stream(loader)) == 12


def test_close_while_another_thread_waits_for_a_batch(cohort, monkeypatch):
    async def never(*_):
        await asyncio.sleep(60)

    monkeypatch.setattr(tv.Volume, "read_into", never)
    loader = cohort.loader()
    timer = threading.Timer(0.3, loader.close)
    timer.start()
    with pytest.raises(RuntimeError, match="was closed"):
        next(iter(loader))
    timer.join()


@pytest.mark.parametrize("half", [False, True])
def test_a_dropped_iterator_ends_its_thread(cohort, half):
    iterator = iter(cohort.loader())
    if half:
        next(iterator)
    gone = weakref.ref(iterator)
    del iterator
    assert gone() is None
    assert threads() == set()


def test_a_dropped_loader_goes_with_its_iterator(cohort):
    loader = cohort.loader()
    iterator = iter(loader)
    batch = next(iterator)
    gone = weakref.ref(loader)
    del loader
    assert next(iterator)["index"].tolist() == [2, 3]
    del iterator
    gc.collect()
    assert gone() is None
    assert batch["ct"].shape == (2, 1, 24, 24, 24)


def test_an_iterator_in_a_reference_cycle_is_collected(cohort):
    holder = {"iterator": iter(cohort.loader())}
    holder["self"] = holder
    next(holder["iterator"])
    del holder
    gc.collect()
    assert threads() == set()


def test_an_error_ends_the_iteration(cohort, monkeypatch):
    async def fail(*_):
        raise tv.TiledvolError("out of order")

    monkeypatch.setattr(tv.Volume, "read_into", fail)
    iterator = iter(cohort.loader())
    with pytest.raises(tv.TiledvolError, match=r"index 0, subject .: out of order"):
        next(iterator)
    assert threads() == set()


def test_an_error_ends_async_iteration(cohort, monkeypatch):
    async def fail(*_):
        raise tv.TiledvolError("out of order")

    async def main():
        iterator = aiter(cohort.loader())
        with pytest.raises(tv.TiledvolError, match=r"index 0, subject .: out of order"):
            await anext(iterator)
        assert threads() == set()
        with pytest.raises(RuntimeError, match="was closed"):
            await anext(iterator)

    monkeypatch.setattr(tv.Volume, "read_into", fail)
    asyncio.run(main())


# Processes


def start(cohort, body):
    script = f"""
        import sys, time
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        from cohort import Cohort
        cohort = Cohort(Path({str(cohort.url)!r}), {{}}, {{}})
    """
    code = textwrap.dedent(script) + textwrap.dedent(body)
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_process_may_exit_with_an_iteration_under_way(cohort):
    process = start(cohort, "iterator = iter(cohort.loader()); next(iterator); print('exit')")
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out, errors) == (0, "exit\n", "")


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent otherwise there")
@pytest.mark.parametrize("where", ["training", "waiting"])
def test_control_c(cohort, where):
    waiting = """
        import asyncio, tiledvol
        async def never(*_):
            print("ready", flush=True)
            await asyncio.sleep(60)
        tiledvol.Volume.read_into = never
    """
    body = """
        import threading
        try:
            for batch in cohort.loader():
                print("ready", flush=True)
                time.sleep(60)
        except KeyboardInterrupt:
            print([t.name for t in threading.enumerate()])
            raise
    """
    process = start(
        cohort, textwrap.dedent(waiting if where == "waiting" else "") + textwrap.dedent(body)
    )
    process.stdout.readline()
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    began = time.perf_counter()
    out, errors = process.communicate(timeout=60)
    assert time.perf_counter() - began < 5
    assert out.splitlines()[-1] == "['MainThread']"
    assert errors.count("Traceback") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")
