"""The stream of patches: a function of the seed, whatever the settings; resumed, and shared."""

import itertools
import json
import socket
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest
import torch
from cohort import stream, write_cohort

import tiledvol as tv
from tiledvol.errors import StateError

LABELS = tv.LabelSampler("seg", foreground=1 / 3)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    return write_cohort(tmp_path_factory.mktemp("stream") / "three.tvol")


@pytest.fixture(scope="module")
def reference(cohort):
    return stream(cohort.loader(sampler=LABELS, prefetch_batches=1))


@pytest.mark.parametrize(
    ("prefetch", "max_bytes", "cache"),
    list(itertools.product([1, 8], [1, "1GiB"], [0, "64MiB"])),
)
def test_the_stream_is_the_same_whatever_the_settings(
    cohort, reference, prefetch, max_bytes, cache
):
    loader = cohort.loader(
        sampler=LABELS,
        prefetch_batches=prefetch,
        max_bytes_in_flight=max_bytes,
        cache_bytes=cache,
    )
    assert stream(loader) == reference


def test_the_batch_size_changes_only_how_patches_are_put_together(cohort, reference):
    assert stream(cohort.loader(batch_size=5, sampler=LABELS)) == reference


def test_a_fresh_process_draws_the_same(cohort, reference):
    script = f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        import tiledvol as tv
        from cohort import Cohort, stream
        cohort = Cohort(Path({str(cohort.url)!r}), {{}}, {{}})
        print(stream(cohort.loader(sampler=tv.LabelSampler("seg", foreground=1 / 3))))
    """
    run = [sys.executable, "-c", textwrap.dedent(script)]
    printed = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == repr(reference)


def test_epochs_and_seeds_differ(cohort, reference):
    loader = cohort.loader(sampler=LABELS)
    assert loader.epoch == 0
    epochs = [stream(loader) for _ in range(3)]
    assert loader.epoch == 3
    assert epochs[0] == reference
    other = stream(cohort.loader(sampler=LABELS, seed=1))
    assert len({str(s) for s in (*epochs, other)}) == 4
    loader.set_epoch(1)
    assert stream(loader) == epochs[1]


def test_an_epoch_that_was_left_is_not_gone_on_with(cohort, reference):
    """As when Lightning tries two batches of validation before training."""
    grid = cohort.loader(16, sampler=tv.GridSampler(), patches_per_epoch=None)
    whole = stream(grid)
    for _ in zip(range(2), grid, strict=False):
        pass
    assert stream(grid) == whole
    loader = cohort.loader(sampler=LABELS)
    iter(loader)
    assert stream(loader) == reference  # of which nothing had been taken


@pytest.mark.parametrize("taken", [1, 3, 6])
def test_a_loader_goes_on_where_another_stood(cohort, reference, taken):
    first = cohort.loader(sampler=LABELS, prefetch_batches=4)
    for _ in zip(range(taken), first, strict=False):
        pass
    state = json.loads(json.dumps(first.state_dict()))
    # After the last of the six batches the next epoch is what is left.
    assert (state["epoch"], state["position"]) == ((0, taken) if taken < 6 else (1, 0))
    second = cohort.loader(sampler=LABELS, prefetch_batches=2, max_bytes_in_flight=1)
    second.load_state_dict(state)
    assert taken == 6 or stream(second) == reference[2 * taken :]
    assert second.epoch == 1
    assert stream(second) == stream(first)  # the next epoch, whole


def test_the_state_after_an_epoch_is_that_before_the_next(cohort):
    loader = cohort.loader(sampler=LABELS)
    stream(loader)
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (1, 0)
    other = cohort.loader(sampler=LABELS)
    other.load_state_dict(state)
    assert stream(other) == stream(loader)


def test_the_state_does_not_count_what_was_only_read_ahead(cohort):
    loader = cohort.loader(sampler=LABELS, prefetch_batches=6)
    iterator = iter(loader)
    next(iterator)
    while loader.stats()["batches_ready"] < 5:
        pass
    assert loader.state_dict()["position"] == 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 1}, r"seed \(0 there, 1 here\)"),
        ({"batch_size": 3}, r"batch_size \(2 there, 3 here\)"),
        ({"rank": 0, "world_size": 2}, r"world_size \(1 there, 2 here\)"),
        ({"patches_per_epoch": 13}, r"patches_per_epoch \(12 there, 13 here\)"),
        ({"patch_size": 23}, "patch_size"),
        ({"spacing": 1.0}, "spacing"),
        ({"images": ["pet"]}, "images"),
        ({"sampler": tv.UniformSampler()}, r"sampler \(\"Label.* there, 'Uniform.* here\)"),
        ({"sampler": tv.LabelSampler("inst")}, "sampler"),
        ({"weights": {"a": 1, "b": 1, "c": 2}}, "subjects, shapes or classes"),
    ],
)
def test_the_state_of_other_patches_is_refused(cohort, change, named):
    state = cohort.loader(sampler=LABELS).state_dict()
    other = cohort.loader(**({"sampler": LABELS} | change))
    with pytest.raises(StateError, match=named):
        other.load_state_dict(state)


def test_the_state_of_another_dataset_is_refused(cohort, tmp_path):
    state = cohort.loader(sampler=LABELS).state_dict()
    fewer = {k: v for k, v in cohort.open().items() if k != "b"}
    loader = tv.PatchLoader(fewer, 24, 2, ["ct"], ["seg"], LABELS, patches_per_epoch=12)
    with pytest.raises(StateError, match=r"subjects \(3 there, 2 here\)"):
        loader.load_state_dict(state)
    with pytest.raises(StateError, match="version"):
        loader.load_state_dict({})


# Ranks


@pytest.mark.parametrize(("length", "world_size"), [(12, 3), (13, 4)])
def test_ranks_take_disjoint_shares_of_equal_length(cohort, length, world_size):
    whole = stream(cohort.loader(sampler=LABELS, patches_per_epoch=length))
    loaders = [
        cohort.loader(
            sampler=LABELS, patches_per_epoch=length, rank=rank, world_size=world_size, batch_size=1
        )
        for rank in range(world_size)
    ]
    shares = [stream(loader) for loader in loaders]
    assert {len(share) for share in shares} == {-(-length // world_size)}
    assert {len(loader) for loader in loaders} == {-(-length // world_size)}
    together = [patch for share in shares for patch in share]
    assert together[:length] == whole
    extra = len(together) - length
    assert together[length:] == whole[:extra]  # padded by going on from the beginning
    assert max(Counter(together).values()) == 1 + bool(extra)


@pytest.fixture
def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def worker(rank, port, url, results):
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    loader = tv.PatchLoader(
        tv.open(url), 24, 2, ["ct"], ["seg"], tv.LabelSampler("seg"), patches_per_epoch=12
    )
    results.put((rank, loader.rank, loader.world_size, stream(loader)))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def test_two_processes_of_torch_distributed_share_an_epoch(cohort, reference, free_port):
    spawn = torch.multiprocessing.get_context("spawn")
    results = spawn.Queue()
    processes = [
        spawn.Process(target=worker, args=(rank, free_port, str(cohort.url), results))
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    found = sorted(results.get(timeout=120) for _ in processes)
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    assert [(rank, own, size) for rank, own, size, _ in found] == [(0, 0, 2), (1, 1, 2)]
    assert found[0][3] + found[1][3] == reference
