"""What a loader tells of itself is what happened."""

import time

import pytest
import tensorstore as ts
from cohort import CHUNK, stream, write_cohort

import tiledvol as tv
from tiledvol.loading.telemetry import Telemetry


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    return write_cohort(tmp_path_factory.mktemp("stats") / "three.tvol")


def blocks_read():
    """Return how many blocks tensorstore was asked for so far, by its own metric."""
    found = ts.experimental_collect_matching_metrics("/tensorstore/cache/chunk_cache/reads")
    return sum(value["value"] for metric in found for value in metric["values"])


def test_a_loader_tells_nothing_before_it_has_begun(cohort):
    stats = cohort.loader().stats()
    assert stats["verdict"] == "nothing loaded yet"
    numbers = [v for v in stats.values() if isinstance(v, (int, float))]
    assert numbers == [0] * len(numbers)


def test_bytes_are_those_of_the_voxels_and_of_the_blocks_that_they_lie_in(cohort):
    # One read at a time: reads in flight share the blocks that they have in common.
    one = {"a": cohort.open()["a"]}
    loader = tv.PatchLoader(one, 20, 1, ["ct"], patches_per_epoch=40, prefetch_batches=1)
    before = blocks_read()
    locations = [loc for batch in loader for loc in batch["location"].tolist()]
    stats = loader.stats()
    assert stats["bytes_needed"] == 40 * 20**3 * 2
    volume = cohort.open()["a"]["ct"]
    blocks = sum(len(volume.blocks_of(tv.Box(loc[:3], loc[3:]))) for loc in locations)
    assert blocks_read() - before == blocks
    assert stats["bytes_touched"] == blocks * CHUNK**3 * 2
    assert stats["bytes_decoded"] == stats["bytes_touched"]  # a local dataset has no cache
    assert stats["cache_hits"] == 0
    assert 0 < stats["bytes_read"] < 2 * stats["bytes_touched"]


def test_bytes_of_channels_and_of_the_blocks_that_tell_where_a_patch_lies(cohort):
    one = {"c": cohort.open()["c"]}
    loader = tv.PatchLoader(
        one, 24, 1, ["pet"], sampler=tv.LabelSampler("seg", foreground=1), patches_per_epoch=3
    )
    list(loader)  # reads the block index, too
    touched, needed = loader.stats()["bytes_touched"], loader.stats()["bytes_needed"]
    before = blocks_read()
    boxes = [tv.Box(b["location"][0, :3], b["location"][0, 3:]) for b in loader]
    blocks = sum(len(one["c"]["pet"].blocks_of(box)) for box in boxes)
    picks = blocks_read() - before - blocks
    assert picks in (1, 2, 3)
    stats = loader.stats()
    assert stats["bytes_touched"] - touched == (blocks * 4 + picks) * CHUNK**3
    # Inside the volume a patch of 24³ has 20 × 24 × 24 voxels.
    of_picks = stats["bytes_needed"] - needed - 3 * 2 * 20 * 24 * 24 * 4
    assert 0 < of_picks <= picks * CHUNK**3


def test_what_the_cache_has_is_not_decoded(cohort):
    loader = cohort.loader(cache_bytes="all", patches_per_epoch=100)
    stream(loader)
    first = loader.stats()
    stream(loader)
    second = loader.stats()
    assert first["bytes_decoded"] < first["bytes_touched"]
    assert second["cache_hits"] > first["cache_hits"] > 0
    assert second["bytes_decoded"] < 1.3 * first["bytes_decoded"]
    assert second["bytes_touched"] > 1.7 * first["bytes_touched"]


def test_counts_and_times_go_on_over_epochs(cohort):
    loader = cohort.loader(patches_per_epoch=5)
    for epoch in (1, 2, 3):
        began = time.perf_counter()
        for _ in loader:
            time.sleep(0.02)
        elapsed = time.perf_counter() - began
        stats = loader.stats()
        assert (stats["patches"], stats["batches"]) == (5 * epoch, 3 * epoch)
        assert 0.04 * epoch <= stats["seconds"]
        assert stats["patches_per_second"] == stats["patches"] / stats["seconds"]
        assert stats["seconds_waited_lately"] <= elapsed
        assert stats["batches_ready"] == 0
    time.sleep(0.1)
    assert loader.stats()["seconds"] == stats["seconds"]  # pauses do not count


def test_a_slow_trainer_is_found_to_be_the_limit(cohort):
    loader = cohort.loader(patches_per_epoch=20)
    for step, _ in enumerate(loader):
        time.sleep(0.2 if step == 0 else 0.05)
    stats = loader.stats()
    assert stats["share_waited_lately"] < 0.5
    assert stats["patches_per_second_lately"] < 2 / 0.05
    if stats["share_waited_lately"] <= 0.05:
        assert stats["verdict"].startswith("training is the limit")


@pytest.mark.parametrize(
    ("waited", "thread", "processor", "said"),
    [
        (0.04, 0.9, 0.9, "training is the limit: it waited for batches 4.0% of the time"),
        (0.50, 0.7, 0.9, "assembling batches is the limit"),
        (0.50, 0.3, 0.9, "decoding is the limit: 4 processors are 90% busy"),
        (0.50, 0.3, 0.2, "reading is the limit: processors are only 20% busy"),
    ],
)
def test_verdicts(monkeypatch, waited, thread, processor, said):
    clock = {"perf_counter": 0.0, "thread_time": 0.0, "process_time": 0.0}
    for name in clock:
        monkeypatch.setattr(time, name, lambda name=name: clock[name])
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(4), raising=False)
    telemetry = Telemetry()
    telemetry.start()
    for _ in range(80):
        clock["perf_counter"] += 1
        clock["thread_time"] += thread
        clock["process_time"] += 4 * processor
        telemetry.assembled()
        telemetry.delivered(2, waited)
    stats = telemetry.summary(3)
    assert stats["verdict"].startswith(said)
    assert stats["batches_ready"] == 3
    assert stats["seconds"] == 80
    assert stats["seconds_waited"] == pytest.approx(80 * waited)
    assert stats["seconds_waited_lately"] == pytest.approx(50 * waited)
    assert stats["patches_per_second_lately"] == 2
