"""Grids of patches, and whole volumes."""

import pickle
from itertools import pairwise

import numpy as np
import pytest
from conftest import write_subject
from hypothesis import given
from hypothesis import strategies as st

import tiledvol as tv
from tiledvol.sampling import GridSampler, PatchGrid, WholeSampler
from tiledvol.sampling.layout import GridLayout


@pytest.fixture(scope="module")
def subjects(tmp_path_factory):
    url = tmp_path_factory.mktemp("grid") / "two.tvol"
    write_subject(url, "a", {"ct": np.zeros((10, 10, 5), np.int16)})
    write_subject(url, "b", {"ct": np.zeros((2, 5, 12, 5), np.int16)})
    return list(tv.open(url).values())


def starts(extent, patch, overlap):
    layout = GridLayout((extent, 1, 1), (patch, 1, 1), (overlap, 0, 0))
    return [layout.start(i)[0] for i in range(layout.counts[0])]


@pytest.mark.parametrize(
    ("extent", "patch", "overlap", "expected"),
    [
        (10, 5, 2, [0, 3, 5]),
        (600, 512, 256, [0, 88]),
        (10, 5, 0, [0, 5]),
        (11, 5, 0, [0, 5, 6]),
        (5, 5, 4, [0]),
        (4, 9, 0, [-2]),
        (6, 5, 4, [0, 1]),
    ],
)
def test_the_last_patch_is_flush_with_the_border(extent, patch, overlap, expected):
    assert starts(extent, patch, overlap) == expected


@given(st.data())
def test_every_voxel_is_covered_and_no_patch_leaves_the_volume(data):
    shape = data.draw(st.tuples(*[st.integers(1, 14)] * 3))
    patch = data.draw(st.tuples(*[st.integers(1, 16)] * 3))
    overlap = tuple(data.draw(st.integers(0, p - 1)) for p in patch)
    layout = GridLayout(shape, patch, overlap)
    covered = np.zeros(shape, int)
    found = [layout.start(i) for i in range(int(np.prod(layout.counts)))]
    for start in found:
        for a, p, n in zip(start, patch, shape, strict=True):
            assert (a >= 0 and a + p <= n) or (p > n and a == -((p - n) // 2))
        covered[tuple(slice(max(a, 0), a + p) for a, p in zip(start, patch, strict=True))] += 1
    assert covered.min() >= 1
    assert found == sorted(set(found))
    for axis in range(3):
        along = sorted({start[axis] for start in found})
        assert all(b - a <= patch[axis] - overlap[axis] for a, b in pairwise(along))


def test_a_grid_goes_subject_after_subject(subjects):
    bound = GridSampler().bind(subjects, (5, 10, 5), "ct")
    assert bound.length == 4
    assert [(d.subject, d.start) for d in (bound.draw(0, 0, i) for i in range(4))] == [
        ("a", (0, 0, 0)), ("a", (5, 0, 0)), ("b", (0, 0, 0)), ("b", (0, 2, 0)),
    ]  # fmt: skip
    with pytest.raises(IndexError, match="index 4 is not among the 4"):
        bound.draw(0, 0, 4)


def test_the_patches_of_one_volume(subjects):
    grid = GridSampler(subjects[1]["ct"], (5, 8, 5), overlap=(0, 2, 0))
    assert isinstance(grid, PatchGrid)
    assert list(grid) == [tv.Box((0, 0, 0), (5, 8, 5)), tv.Box((0, 4, 0), (5, 12, 5))]
    assert (len(grid), grid[-1], grid[:1]) == (2, grid[1], [grid[0]])
    assert (grid.patch_size, grid.overlap) == ((5, 8, 5), (0, 2, 0))
    assert grid.volume is subjects[1]["ct"]
    with pytest.raises(IndexError):
        grid[2]
    assert list(GridSampler(volume=subjects[1]["ct"], patch_size=12)) == [
        tv.Box((-3, 0, -3), (9, 12, 9))
    ]


def test_grids_are_values(subjects):
    settings = GridSampler(overlap=(1, 2, 3))
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert settings != GridSampler(1)
    assert hash(GridSampler(1)) == hash(GridSampler((1, 1, 1)))
    assert repr(settings) == "GridSampler(overlap=(1, 2, 3))"
    grid = GridSampler(subjects[0]["ct"], 4, 1)
    assert list(pickle.loads(pickle.dumps(grid))) == list(grid)
    assert grid != GridSampler(1)
    assert len({grid, settings}) == 2
    assert "patch_size=(4, 4, 4), overlap=(1, 1, 1)" in repr(grid)


@pytest.mark.parametrize("overlap", [5, (0, 7, 0)])
def test_an_overlap_as_large_as_the_patch_is_refused(subjects, overlap):
    with pytest.raises(ValueError, match="less than the patch size"):
        GridSampler(overlap).bind(subjects, (5, 5, 5), "ct")
    with pytest.raises(ValueError, match="less than the patch size"):
        GridSampler(subjects[0]["ct"], 5, overlap)


@pytest.mark.parametrize("overlap", [-1, 0.5, (1, 2), (1, 1.5, 1)])
def test_an_overlap_is_whole_voxels(overlap):
    with pytest.raises(ValueError, match="overlap="):
        GridSampler(overlap)


@pytest.mark.parametrize("sampler", [GridSampler(), WholeSampler()])
@pytest.mark.parametrize("options", [{"weights": {"a": 1, "b": 1}}, {"patches_per_subject": 2}])
def test_what_visits_every_subject_draws_none(subjects, sampler, options):
    with pytest.raises(ValueError, match="visits every subject"):
        sampler.bind(subjects, (5, 5, 5), "ct", **options)


def test_whole_volumes_are_drawn_once(subjects):
    bound = WholeSampler().bind(subjects, (64, 64, 64), "ct")
    draws = [bound.draw(0, 0, i) for i in range(bound.length)]
    assert [(d.subject, d.start, d.shape) for d in draws] == [
        ("a", (0, 0, 0), (10, 10, 5)), ("b", (0, 0, 0), (5, 12, 5)),
    ]  # fmt: skip
    with pytest.raises(IndexError):
        bound.draw(0, 0, 2)
    assert bound.fingerprint != WholeSampler().bind(subjects[:1], (64, 64, 64), "ct").fingerprint
    assert bound.fingerprint != GridSampler().bind(subjects, (64, 64, 64), "ct").fingerprint
