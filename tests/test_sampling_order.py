"""Quotas, mixes of samplers, and the order of an epoch over ranks."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from conftest import write_subject
from hypothesis import given
from hypothesis import strategies as st

import tiledvol as tv
from tiledvol.sampling import (
    GridSampler,
    LabelSampler,
    MixSampler,
    Schedule,
    UniformSampler,
    WholeSampler,
)
from tiledvol.sampling.choice import Quota, as_fraction
from tiledvol.sampling.rng import Numbers, permutation


@pytest.fixture(scope="module")
def subjects(tmp_path_factory):
    url = tmp_path_factory.mktemp("order") / "two.tvol"
    seg = np.zeros((12, 10, 9), np.uint8)
    seg[2:5, 3:5, 4] = 1
    for name in ("a", "b"):
        write_subject(url, name, {"ct": np.zeros(seg.shape, np.int16)}, {"seg": seg}, chunk=8)
    return list(tv.open(url).values())


# Quotas


@given(
    st.one_of(st.fractions(0, 1, max_denominator=10**6), st.floats(0, 1)),
    st.integers(0, 10**12),
    st.integers(0, 300),
)
def test_any_consecutive_indices_hold_the_share(share, first, n):
    quota = Quota(as_fraction(share, "share"))
    chosen = sum(quota.chooses(i) for i in range(first, first + n))
    exact = n * quota.share
    assert chosen in (exact // 1, -(-exact // 1))
    assert chosen == quota.before(first + n) - quota.before(first)
    assert abs(float(quota.share) - float(share)) < 1e-9


@pytest.mark.parametrize(("share", "exact"), [(1 / 3, Fraction(1, 3)), (0.33, Fraction(33, 100))])
def test_a_share_is_the_fraction_that_was_meant(share, exact):
    assert as_fraction(share, "share") == exact


def test_a_third_of_label_draws_is_foreground_in_every_window(subjects):
    bound = LabelSampler("seg", foreground=0.33).bind(subjects, (1, 1, 1), "ct")
    hits = np.array([bound.draw(0, 0, i).pick is not None for i in range(900)])
    windows = np.convolve(hits, np.ones(300), "valid")
    assert windows.min() >= 98
    assert windows.max() <= 100
    third = LabelSampler("seg").bind(subjects, (1, 1, 1), "ct")
    assert [third.draw(0, 0, i).pick is not None for i in range(6)] == [False, False, True] * 2


@pytest.mark.parametrize(("share", "hits"), [(0, 0), (1, 60)])
def test_none_and_all_of_the_draws_can_be_foreground(subjects, share, hits):
    bound = LabelSampler("seg", foreground=share).bind(subjects, (1, 1, 1), "ct")
    assert sum(bound.draw(0, 0, i).pick is not None for i in range(60)) == hits


# Mixes


def test_a_mix_holds_its_shares_in_every_window(subjects):
    mix = MixSampler([(LabelSampler("seg", foreground=1), 0.3), (UniformSampler(), 0.7)])
    bound = mix.bind(subjects, (1, 1, 1), "ct")
    hits = np.array([bound.draw(0, 0, i).pick is not None for i in range(400)])
    for n in (1, 2, 3, 7, 10, 55):
        windows = np.convolve(hits, np.ones(n), "valid").astype(int)
        assert set(windows) <= {int(n * 0.3 + 1e-9), -(-n * 3 // 10)}


def test_a_mix_of_three_gives_each_its_share(subjects):
    mix = MixSampler(
        [(LabelSampler("seg", foreground=1), 2), (WholeSampler(), 1), (GridSampler(), 3)]
    )
    bound = mix.bind(subjects, (5, 5, 5), "ct")
    kinds = [
        "label" if d.pick else "whole" if d.shape else "grid"
        for d in (bound.draw(0, 0, i) for i in range(600))
    ]
    assert Counter(kinds) == {"label": 200, "whole": 100, "grid": 300}
    assert [Counter(kinds[i : i + 6]) for i in range(0, 600, 6)] == [Counter(kinds[:6])] * 100


def test_a_grid_in_a_mix_gives_every_patch_once_before_any_again(subjects):
    grid = GridSampler(overlap=1)
    length = grid.bind(subjects, (5, 5, 5), "ct").length
    mix = MixSampler([(LabelSampler("seg", foreground=1), 1 / 3), (grid, 2 / 3)])
    bound = mix.bind(subjects, (5, 5, 5), "ct")
    draws = [bound.draw(0, 0, i) for i in range(3 * length)]
    patches = [(d.subject, d.start) for d in draws if d.pick is None]
    assert len(patches) == 2 * length
    first, second = patches[:length], patches[length:]
    assert len(set(first)) == length
    assert set(first) == set(second)
    assert first != second
    assert [bound.draw(0, 1, i) for i in range(3 * length)] != draws


def test_samplers_of_one_kind_in_a_mix_draw_on_their_own(subjects):
    mix = MixSampler([(UniformSampler(), 1), (UniformSampler(), 1)])
    bound = mix.bind(subjects, (1, 1, 1), "ct")
    draws = [bound.draw(0, 0, i) for i in range(400)]
    assert sum(a == b for a, b in zip(draws[::2], draws[1::2], strict=True)) < 10


def test_a_mix_passes_weights_to_what_is_endless(subjects):
    mix = MixSampler([(UniformSampler(), 1), (MixSampler([(GridSampler(), 1)]), 1)])
    bound = mix.bind(subjects, (5, 5, 5), "ct", weights={"a": 0, "b": 1}, patches_per_subject=2)
    random = {bound.draw(0, 0, i).subject for i in range(1, 60, 2)}
    grid = {bound.draw(0, 0, i).subject for i in range(0, 60, 2)}
    assert {frozenset(random), frozenset(grid)} == {frozenset("b"), frozenset("ab")}
    assert bound.length is None


def test_a_mix_tells_its_parts(subjects):
    mix = MixSampler([(UniformSampler(), 0.5), (GridSampler(2), 0.5)])
    assert (
        repr(mix) == "MixSampler([(UniformSampler(), 0.5), (GridSampler(overlap=(2, 2, 2)), 0.5)])"
    )
    one = mix.bind(subjects, (5, 5, 5), "ct").fingerprint
    assert one != mix.bind(subjects, (5, 5, 6), "ct").fingerprint
    assert [c["sampler"] for c in one["components"]] == [
        "UniformSampler()", "GridSampler(overlap=(2, 2, 2))",
    ]  # fmt: skip


@pytest.mark.parametrize("parts", [[], [(UniformSampler(), 0)], [(UniformSampler(), -1)]])
def test_a_mix_without_draws_is_refused(parts):
    with pytest.raises(ValueError, match=r"at least one|share="):
        MixSampler(parts)


# Order of an epoch


@given(st.integers(1, 60), st.integers(1, 9), st.booleans())
def test_ranks_take_equal_disjoint_shares(length, world_size, shuffle):
    ranks = [list(Schedule(length, 0, 0, shuffle, r, world_size)) for r in range(world_size)]
    assert {len(r) for r in ranks} == {-(-length // world_size)}
    together = [index for indices in ranks for index in indices]
    assert sorted(together[:length]) == list(range(length))
    assert together[length:] == [together[i % length] for i in range(len(together) - length)]
    assert shuffle or together[:length] == list(range(length))


def test_a_shuffled_epoch_has_an_order_of_its_own():
    first, again, second, other = (
        list(Schedule(50, seed, epoch, shuffle=True))
        for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0))
    )
    assert first == again
    assert len({tuple(first), tuple(second), tuple(other), tuple(range(50))}) == 4


def test_the_quota_holds_on_every_rank():
    quota = Quota(Fraction(1, 3))
    for rank in range(4):
        indices = list(Schedule(500, 0, 0, rank=rank, world_size=4))
        assert sum(quota.chooses(i) for i in indices) in (41, 42)


@pytest.mark.parametrize("options", [{"length": 0}, {"rank": 2, "world_size": 2}, {"rank": -1}])
def test_a_schedule_refuses(options):
    with pytest.raises(ValueError, match=r"length=0|rank="):
        Schedule(**({"length": 5, "seed": 0, "epoch": 0} | options))
    with pytest.raises(IndexError, match="position 5"):
        Schedule(5, 0, 0)[5]


# Numbers


def test_numbers_stay_what_they_are():
    """Change these values and every stream of patches that anyone has trained on changes."""
    numbers = Numbers(seed=1, epoch=2, index=3, stream=4)
    assert [numbers.word(), numbers.below(10), numbers.unit()] == [
        15304873005091984411,
        6,
        0.05205858038965894,
    ]
    assert permutation(6, 1, 2, 3).tolist() == [0, 2, 1, 5, 4, 3]


def test_numbers_of_different_keys_differ():
    keys = [(s, e, i, t) for s in range(4) for e in range(4) for i in range(4) for t in range(4)]
    assert len({Numbers(*key).word() for key in keys}) == 256


def test_permutations_are_uniform():
    counts = Counter(tuple(permutation(3, 0, epoch)) for epoch in range(6_000))
    assert sum((n - 1_000) ** 2 / 1_000 for n in counts.values()) < 20.5  # chi-square, 0.001
    assert len(counts) == 6


def test_below_is_uniform_and_inside():
    counts = np.bincount([Numbers(0, 0, i, 0).below(7) for i in range(7_000)])
    assert ((counts - 1_000) ** 2 / 1_000).sum() < 22.5  # chi-square, 0.001
    assert Numbers(0, 0, 0, 0).below(1) == 0
    big = 3 << 62  # a quarter of the words are rejected
    assert all(Numbers(0, 0, i, 0).below(big) < big for i in range(50))
