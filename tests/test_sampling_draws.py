"""Uniform, label and weighted draws, held against brute force over all voxels."""

import json
import pickle
import subprocess
import sys
import time
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from conftest import write_subject

import tiledvol as tv
from tiledvol.errors import StoreError
from tiledvol.sampling import LabelSampler, UniformSampler, WeightedSampler, patch_start, transfer
from tiledvol.sampling.cache import IndexCache
from tiledvol.sampling.choice import inverse_cdf
from tiledvol.sampling.draw import LabelPick, WeightPick

RNG = np.random.default_rng(5)
VOXEL = (1, 1, 1)  # with this patch size, a patch's start is the voxel drawn


class Duck(dict):
    """A subject put together from volumes of others."""

    def __init__(self, name, **volumes):
        super().__init__(volumes)
        self.id = name


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    """Return two subjects, and their arrays: b has no class 3, and one block wholly of class 2."""
    url = tmp_path_factory.mktemp("cohort") / "two.tvol"
    arrays = {}
    for name, shape, ids in (("a", (9, 6, 5), [0, 1, 3]), ("b", (5, 8, 6), [0, 2, 7])):
        seg = RNG.choice(np.array(ids, np.uint8), shape, p=[0.7, 0.25, 0.05])
        density = (RNG.random(shape) * (RNG.random(shape) > 0.4)).astype(np.float32)
        density[:4, :4, :4], density[-1] = 0.5, 0
        arrays[name] = {"ct": np.zeros(shape, np.int16), "seg": seg, "map": density}
    arrays["b"]["seg"][:4, :4, :4] = 2
    for name, a in arrays.items():
        write_subject(url, name, {"ct": a["ct"], "map": a["map"]}, {"seg": a["seg"]}, chunk=4)
    return list(tv.open(url).values()), arrays


def voxels_drawn(bound, arrays, indices):
    """Return how often each (subject, voxel) was drawn."""
    drawn = Counter()
    for index in indices:
        draw = bound.draw(1, 0, index)
        voxel = draw.start
        if voxel is None:
            values = arrays[draw.subject][draw.pick.image][draw.pick.box.slices]
            voxel = draw.pick.locate(values)
        drawn[draw.subject, voxel] += 1
    return drawn


def assert_distribution(drawn, expected):
    """Chi-square at 0.001, its critical value by Wilson and Hilferty; nothing else was drawn."""
    assert drawn.keys() <= expected.keys()
    assert sum(expected.values()) == pytest.approx(1)
    n, k = drawn.total(), len(expected) - 1
    assert n * min(expected.values()) > 5
    statistic = sum((drawn[key] - n * p) ** 2 / (n * p) for key, p in expected.items())
    assert statistic < k * (1 - 2 / (9 * k) + 3.09 * (2 / (9 * k)) ** 0.5) ** 3


def voxels(array, value):
    return [tuple(v) for v in np.argwhere(array == value).tolist()]


# Uniform


@pytest.mark.parametrize("weights", [None, {"a": 3, "b": 1}])
def test_uniform_over_valid_positions(cohort, weights):
    subjects, _ = cohort
    bound = UniformSampler().bind(subjects, (4, 5, 3), "ct", weights=weights)
    drawn = Counter((d.subject, d.start) for d in (bound.draw(0, 0, i) for i in range(6_000)))
    share = {"a": 1 / 2, "b": 1 / 2} if weights is None else {"a": 3 / 4, "b": 1 / 4}
    valid = {"a": np.ndindex(6, 2, 3), "b": np.ndindex(2, 4, 4)}
    number = {"a": 36, "b": 32}
    expected = {(s, v): share[s] / number[s] for s in valid for v in valid[s]}
    assert_distribution(drawn, expected)
    assert bound.length is None


def test_a_volume_smaller_than_the_patch_is_centred(cohort):
    bound = UniformSampler().bind(cohort[0][:1], (9, 9, 9), "ct")
    assert {bound.draw(0, 0, i).start for i in range(20)} == {(0, -1, -2)}


def test_a_patch_moves_inside_the_volume():
    assert patch_start((99, 99, 99), (64, 64, 64), (100, 100, 100)) == (36, 36, 36)
    assert patch_start((0, 50, 31), (64, 64, 64), (2, 100, 100, 100)) == (0, 18, 0)
    assert patch_start((5, 5, 5), (64, 10, 11), (10, 10, 10)) == (-27, 0, 0)


def test_subjects_of_weight_zero_are_not_drawn(cohort):
    bound = UniformSampler().bind(cohort[0], VOXEL, "ct", weights={"a": 0, "b": 2.5})
    assert {bound.draw(0, 0, i).subject for i in range(200)} == {"b"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": {"a": 1}}, "no weight for b"),
        ({"weights": {"a": 1, "b": -1}}, "b: -1"),
        ({"weights": {"a": 1, "b": float("nan")}}, "b: nan"),
        ({"weights": {"a": 0, "b": 0}}, "all 0"),
        ({"patches_per_subject": 0}, "patches_per_subject=0"),
        ({"patch_size": (8, 0, 8)}, r"patch_size=\(8, 0, 8\).*at least 1"),
        ({"patch_size": (8, 8)}, r"patch_size=\(8, 8\).*three"),
        ({"patch_size": (8.0, 8, 8)}, "three whole numbers"),
        ({"subjects": []}, "no subjects"),
    ],
)
def test_bind_refuses(cohort, options, message):
    arguments = {"subjects": cohort[0], "patch_size": (4, 4, 4), "reference": "ct"} | options
    with pytest.raises(ValueError, match=message):
        UniformSampler().bind(**arguments)


def test_bind_refuses_subjects_of_one_id_and_those_without_the_reference(cohort):
    with pytest.raises(ValueError, match="same id"):
        UniformSampler().bind([cohort[0][0]] * 2, VOXEL, "ct")
    with pytest.raises(StoreError, match="no image 'mr' in a, b"):
        UniformSampler().bind(cohort[0], VOXEL, "mr")
    ducks = [Duck(f"s{i}") for i in range(8)]
    with pytest.raises(StoreError, match="in s0, s1, s2, s3, s4 and 3 more"):
        UniformSampler().bind(ducks, VOXEL, "mr")


def test_seeds_outside_64_bits_are_refused(cohort):
    bound = UniformSampler().bind(cohort[0], VOXEL, "ct")
    bound.draw(2**64 - 1, 0, 0)
    for seed in (-1, 2**64):
        with pytest.raises(ValueError, match=f"seed={seed}"):
            bound.draw(seed, 0, 0)


# Label


@pytest.mark.parametrize("weights", [None, {"a": 3, "b": 1}])
def test_label_without_classes_takes_a_subject_then_a_class_then_a_voxel(cohort, weights):
    subjects, arrays = cohort
    bound = LabelSampler("seg", foreground=1).bind(subjects, VOXEL, "ct", weights=weights)
    share = {"a": 1 / 2, "b": 1 / 2} if weights is None else {"a": 3 / 4, "b": 1 / 4}
    expected = {}
    for subject, classes in (("a", [1, 3]), ("b", [2, 7])):
        for c in classes:
            found = voxels(arrays[subject]["seg"], c)
            expected |= {(subject, v): share[subject] / 2 / len(found) for v in found}
    assert_distribution(voxels_drawn(bound, arrays, range(15_000)), expected)


@pytest.mark.parametrize("classes", [{2: 1, 1: 3, 0: 2}, [0, 1, 2]])
def test_label_with_classes_takes_a_class_then_a_subject_then_a_voxel(cohort, classes):
    subjects, arrays = cohort
    bound = LabelSampler("seg", classes, foreground=1).bind(
        subjects, VOXEL, "ct", weights={"a": 1, "b": 4}
    )
    share = classes if isinstance(classes, dict) else dict.fromkeys(classes, 1)
    having = {0: {"a": 1 / 5, "b": 4 / 5}, 1: {"a": 1}, 2: {"b": 1}}
    expected = {}
    for c, subjects_with in having.items():
        for subject, p in subjects_with.items():
            found = voxels(arrays[subject]["seg"], c)
            p_voxel = p * share[c] / sum(share.values()) / len(found)
            expected |= {(subject, v): p_voxel for v in found}
    assert_distribution(voxels_drawn(bound, arrays, range(15_000)), expected)


def test_background_draws_of_a_label_are_uniform(cohort):
    subjects, arrays = cohort
    bound = LabelSampler("seg", foreground=0.2).bind(subjects[:1], VOXEL, "ct")
    background = [i for i in range(6_000) if i % 5 != 4]
    expected = {("a", v): 1 / 270 for v in np.ndindex(9, 6, 5)}
    assert_distribution(voxels_drawn(bound, arrays, background), expected)


def test_classes_of_one_block_need_no_read(cohort):
    bound = LabelSampler("seg", [2], foreground=1).bind(cohort[0], VOXEL, "ct")
    draws = [bound.draw(0, 0, i) for i in range(1_500)]
    inside = [d for d in draws if d.start is not None]
    assert {d.start for d in inside} == set(np.ndindex(4, 4, 4))
    assert all(d.pick.block != (0, 0, 0) for d in draws if d.pick is not None)


def test_a_foreground_voxel_at_the_border_moves_the_patch_inside(tmp_path):
    seg = np.zeros((100, 100, 100), np.uint8)
    seg[99, 99, 99] = 1
    subject = write_subject(tmp_path / "border.tvol", "case", {}, {"seg": seg})
    draw = LabelSampler("seg", foreground=1).bind([subject], (64, 64, 64), "seg").draw(0, 0, 0)
    voxel = draw.pick.locate(subject["seg"].read_sync(draw.pick.box))
    assert voxel == (99, 99, 99)
    assert patch_start(voxel, (64, 64, 64), subject["seg"].shape) == (36, 36, 36)


def test_a_label_with_channels_is_drawn_in_any_of_them(tmp_path):
    seg = RNG.choice(np.array([0, 1], np.uint8), (2, 5, 4, 6))
    subject = write_subject(tmp_path / "channels.tvol", "case", {}, {"seg": seg}, chunk=4)
    bound = LabelSampler("seg", foreground=1).bind([subject], VOXEL, "seg")
    drawn = voxels_drawn(bound, {"case": {"seg": seg}}, range(4_000))
    both = seg.sum(axis=0, dtype=int)
    expected = {("case", v): both[v] / both.sum() for v in np.ndindex(both.shape) if both[v]}
    assert_distribution(drawn, expected)


def test_an_instance_map_of_5000_ids_draws_each_alike(tmp_path):
    seg = np.zeros((48, 48, 48), np.uint16)
    seg.ravel()[::20][:5_000] = np.arange(1, 5_001)
    seg[40:, 40:, 40:] = 1  # one id is far larger than the others
    ids = np.unique(seg)[1:]
    subject = write_subject(tmp_path / "cells.tvol", "case", {}, {"seg": seg}, chunk=16)
    bound = LabelSampler("seg", foreground=1).bind([subject], VOXEL, "seg")
    drawn = Counter()
    for (_, voxel), n in voxels_drawn(bound, {"case": {"seg": seg}}, range(40_000)).items():
        drawn[int(seg[voxel])] += n
    assert len(ids) > 4_900
    assert_distribution(drawn, {int(i): 1 / len(ids) for i in ids})


def test_a_label_on_another_grid_is_matched_in_the_world(tmp_path):
    ct, seg = np.zeros((20, 20, 20), np.int16), np.zeros((10, 10, 10), np.uint8)
    seg[7, 2, 9], seg[4:8, :4, :4] = 1, 2
    coarse = np.diag([2.0, 2, 2, 1])
    coarse[:3, 3] = 0.5, 0.5, 0.5  # the corners of the two coincide
    fine = write_subject(tmp_path / "fine.tvol", "case", {"ct": ct})["ct"]
    label = write_subject(tmp_path / "coarse.tvol", "case", {}, {"seg": seg}, coarse, chunk=4)
    subject = Duck("case", ct=fine, seg=label["seg"])
    draw = LabelSampler("seg", [1], foreground=1).bind([subject], VOXEL, "ct").draw(0, 0, 0)
    voxel = draw.pick.locate(label["seg"].read_sync(draw.pick.box))
    assert voxel == (7, 2, 9)
    assert transfer(voxel, label["seg"], fine) == (15, 5, 19)
    constant = LabelSampler("seg", [2], foreground=1).bind([subject], VOXEL, "ct")
    starts = {constant.draw(0, 0, i).start for i in range(1_000)}
    assert starts == {
        (x, y, z) for x in (9, 11, 13, 15) for y in (1, 3, 5, 7) for z in (1, 3, 5, 7)
    }


def test_what_lies_outside_the_reference_moves_to_its_border(make_volume):
    volume = make_volume(np.zeros((4, 5, 6), np.uint8))
    assert transfer((9, 4, 6), volume, volume) == (3, 4, 5)


def test_no_foreground_is_refused_naming_the_label(tmp_path):
    empty = write_subject(tmp_path / "empty.tvol", "case", {}, {"tumour": np.zeros(VOXEL, "u1")})
    with pytest.raises(StoreError, match="foreground in label 'tumour'"):
        LabelSampler("tumour").bind([empty], VOXEL, "tumour")
    assert LabelSampler("tumour", foreground=0).bind([empty], VOXEL, "tumour").draw(0, 0, 5).start


def test_foreground_only_in_subjects_of_weight_zero_is_refused(cohort):
    with pytest.raises(StoreError, match="foreground in label 'seg'"):
        LabelSampler("seg").bind(
            [*cohort[0], Duck("c", ct=cohort[0][0]["ct"])],
            VOXEL,
            "ct",
            weights={"a": 0, "b": 0, "c": 1},
        )


def test_classes_that_no_subject_has(cohort):
    with pytest.raises(StoreError, match="classes 4, 5 in label 'seg'"):
        LabelSampler("seg", [4, 5]).bind(cohort[0], VOXEL, "ct")
    with pytest.warns(UserWarning, match="no subject has class 4, 5 in label 'seg'"):
        bound = LabelSampler("seg", [4, 3, 5], foreground=1).bind(cohort[0], VOXEL, "ct")
    assert {bound.draw(0, 0, i).pick.class_id for i in range(50)} == {3}


def test_subjects_without_the_label_serve_background_alone(cohort):
    other = Duck("c", ct=cohort[0][0]["ct"])
    bound = LabelSampler("seg", foreground=0.5).bind([*cohort[0], other], VOXEL, "ct")
    assert {bound.draw(0, 0, i).subject for i in range(1, 200, 2)} == {"a", "b"}
    assert {bound.draw(0, 0, i).subject for i in range(0, 200, 2)} == {"a", "b", "c"}


def test_label_sampler_refuses_an_image(cohort):
    with pytest.raises(StoreError, match=r"a/map is an image.*WeightedSampler"):
        LabelSampler("map").bind(cohort[0], VOXEL, "ct")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"foreground": 1.01}, "foreground=1.01"),
        ({"foreground": -0.1}, "foreground=-0.1"),
        ({"foreground": float("nan")}, "foreground=nan"),
        ({"classes": []}, "no class"),
        ({"classes": {1: 0}}, "no class"),
        ({"classes": {1: -1}}, "weight -1"),
        ({"classes": {1: float("inf")}}, "weight inf"),
        ({"classes": [-1]}, "-1 is no class id"),
        ({"classes": ["liver"]}, "'liver' is no class id"),
    ],
)
def test_label_sampler_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        LabelSampler("seg", **options)


def test_a_block_unlike_its_index_is_an_error():
    box = tv.Box((4, 4, 4), (6, 6, 6))
    values = np.array([0, 3, 0, 3, 3, 0, 0, 0], np.uint8).reshape(2, 2, 2)
    assert LabelPick("seg", (1, 1, 1), box, 3, 2).locate(values) == (5, 4, 4)
    with pytest.raises(StoreError, match=r"block \(1, 1, 1\) of seg has 3 voxels of class 3"):
        LabelPick("seg", (1, 1, 1), box, 3, 3).locate(values)
    with pytest.raises(StoreError, match=r"block \(1, 1, 1\) of map sums to 0"):
        WeightPick("map", (1, 1, 1), box, 0.5).locate(values * 0)
    with pytest.raises(ValueError, match="the values of its box"):
        WeightPick("map", (1, 1, 1), box, 0.5).locate(values[:1])


def test_a_catalogue_unlike_the_index_is_an_error(cohort, monkeypatch):
    subjects, _ = cohort
    monkeypatch.setattr(type(subjects[0]["seg"]), "classes", {9: 4})
    bound = LabelSampler("seg", foreground=1).bind(subjects, VOXEL, "ct")
    with pytest.raises(StoreError, match=r"seg has no class 9.*reindex"):
        bound.draw(0, 0, 0)


def test_a_thousand_cold_draws_in_512_cubed_of_100_classes_take_under_1500_ms(tmp_path):
    seg = np.zeros((512, 512, 512), np.uint8)
    seg[:] = (np.arange(512) // 6 % 101)[:, None, None]
    seg[:, ::2] = np.arange(512) // 7 % 101
    subject = write_subject(tmp_path / "large.tvol", "case", {}, {"seg": seg})
    assert len(subject["seg"].classes) > 80
    begin = time.perf_counter()
    bound = LabelSampler("seg", foreground=1).bind(
        [tv.open(tmp_path / "large.tvol")["case"]], (128, 128, 128), "seg"
    )
    draws = [bound.draw(0, 0, i) for i in range(1_000)]
    assert time.perf_counter() - begin < 1.5
    assert len({d.pick.class_id for d in draws}) > 80


# Weighted


def test_weighted_draws_in_proportion_to_the_map(cohort):
    subjects, arrays = cohort
    bound = WeightedSampler("map").bind(subjects, VOXEL, "ct", weights={"a": 2, "b": 1})
    drawn = voxels_drawn(bound, arrays, range(20_000))
    expected = {}
    for subject, share in (("a", 2 / 3), ("b", 1 / 3)):
        density = arrays[subject]["map"].astype(np.float64)
        p = share * density / density.sum()
        expected |= {(subject, v): p[v] for v in np.ndindex(p.shape) if p[v]}
    assert drawn.keys() <= expected.keys()
    # Voxels of little weight are one cell of the chi-square together.
    cell = {key: key if p > 6 / 20_000 else "small" for key, p in expected.items()}
    drawn_cells, expected_cells = Counter(), Counter()
    for key in expected:
        drawn_cells[cell[key]] += drawn[key]
        expected_cells[cell[key]] += expected[key]
    assert_distribution(drawn_cells, expected_cells)


def test_equal_weights_of_a_block_need_no_read(cohort):
    bound = WeightedSampler("map").bind(cohort[0], VOXEL, "ct")
    starts = {bound.draw(0, 0, i).start for i in range(2_000)} - {None}
    assert starts == set(np.ndindex(4, 4, 4))


def test_weighted_works_on_integers_and_skips_subjects_of_weight_zero(tmp_path):
    url = tmp_path / "weights.tvol"
    hot = np.zeros((70, 5, 5), np.int16)
    hot[68, 1, 2], hot[3, 4, 0] = 3, 1
    write_subject(url, "cold", {"map": hot * 0})
    write_subject(url, "hot", {"map": hot})
    subjects = list(tv.open(url).values())
    bound = WeightedSampler("map").bind(subjects, VOXEL, "map")
    drawn = voxels_drawn(bound, {"hot": {"map": hot}}, range(2_000))
    assert_distribution(drawn, {("hot", (68, 1, 2)): 3 / 4, ("hot", (3, 4, 0)): 1 / 4})
    with pytest.raises(StoreError, match="'map' is zero everywhere"):
        WeightedSampler("map").bind(subjects[:1], VOXEL, "map")


@pytest.mark.parametrize(
    ("value", "message"),
    [(-0.25, "case/map has weight -0.25"), (np.nan, "NaN or inf"), (np.inf, "NaN or inf")],
)
def test_weighted_refuses_what_is_no_density(tmp_path, value, message):
    density = np.ones((9, 9, 9), np.float32)
    density[5, 5, 5] = value
    subject = write_subject(tmp_path / "wrong.tvol", "case", {"map": density}, chunk=4)
    with pytest.raises(StoreError, match=message):
        WeightedSampler("map").bind([subject], VOXEL, "map")


def test_weighted_refuses_a_label_and_a_missing_map(cohort):
    with pytest.raises(StoreError, match=r"a/seg is a label.*LabelSampler"):
        WeightedSampler("seg").bind(cohort[0], VOXEL, "ct")
    with pytest.raises(StoreError, match="no weight map 'heat' in a, b"):
        WeightedSampler("heat").bind(cohort[0], VOXEL, "ct")


def test_an_item_of_weight_zero_is_never_chosen():
    cumulative = np.cumsum([0, 1, 0, 2, 0.0])
    assert [inverse_cdf(cumulative, u) for u in (0, 1 / 3 - 1e-9, 1 / 3, 1 - 2**-53)] == [
        1,
        1,
        3,
        3,
    ]


# All of them


SAMPLERS = [
    UniformSampler(),
    LabelSampler("seg"),
    LabelSampler("seg", {1: 2, 7: 0.5}, foreground=Fraction(1, 2)),
    WeightedSampler("map"),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_draws_depend_on_seed_epoch_and_index_alone(cohort, sampler):
    subjects, _ = cohort
    arguments = (subjects, (4, 4, 4), "ct")
    bound = sampler.bind(*arguments)
    draws = [bound.draw(3, 2, i) for i in range(200)]
    again = pickle.loads(pickle.dumps(sampler)).bind(*arguments)
    assert {i: again.draw(3, 2, i) for i in reversed(range(200))} == dict(enumerate(draws))
    assert [bound.draw(4, 2, i) for i in range(200)] != draws
    assert [bound.draw(3, 3, i) for i in range(200)] != draws
    assert pickle.loads(pickle.dumps(draws)) == draws


def test_draws_are_the_same_in_another_process(cohort):
    subjects, _ = cohort
    code = (
        "import sys, tiledvol as tv; from tiledvol.sampling import LabelSampler\n"
        "bound = LabelSampler('seg').bind(list(tv.open(sys.argv[1]).values()), (4, 4, 4), 'ct')\n"
        "print([bound.draw(7, 1, i) for i in range(30)])"
    )
    url = subjects[0]._store.url
    output = subprocess.run(
        [sys.executable, "-c", code, url], capture_output=True, text=True, check=True
    ).stdout
    bound = LabelSampler("seg").bind(subjects, (4, 4, 4), "ct")
    assert output.strip() == str([bound.draw(7, 1, i) for i in range(30)])


def test_sampling_needs_no_tensorstore():
    code = "import sys, tiledvol.sampling; assert 'tensorstore' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_runs_of_indices_share_a_subject(cohort, sampler):
    bound = sampler.bind(cohort[0], VOXEL, "ct", patches_per_subject=5)
    drawn = [bound.draw(0, 0, i).subject for i in range(1_000)]
    runs = [set(drawn[i : i + 5]) for i in range(0, 1_000, 5)]
    if sampler == SAMPLERS[2]:  # class 1 is in a alone, 7 in b alone
        assert sum(len(run) == 1 for run in runs) < 200
    else:
        assert all(len(run) == 1 for run in runs)
        assert 60 < sum(run == {"a"} for run in runs) < 140


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_fingerprints_tell_settings_and_subjects_apart(cohort, sampler):
    subjects, _ = cohort
    same = sampler.bind(subjects, (4, 4, 4), "ct").fingerprint
    assert json.loads(json.dumps(same)) == sampler.bind(subjects, (4, 4, 4), "ct").fingerprint
    cropped = Duck("a", ct=subjects[1]["ct"], seg=subjects[0]["seg"], map=subjects[0]["map"])
    others = [
        sampler.bind(subjects, (4, 4, 5), "ct"),
        sampler.bind(subjects, (4, 4, 4), "map"),
        sampler.bind(subjects, (4, 4, 4), "ct", weights={"a": 1, "b": 2}),
        sampler.bind(subjects, (4, 4, 4), "ct", patches_per_subject=2),
        sampler.bind(subjects[::-1], (4, 4, 4), "ct"),
        sampler.bind([cropped, subjects[1]], (4, 4, 4), "ct"),
        LabelSampler("seg", foreground=0.3).bind(subjects, (4, 4, 4), "ct"),
    ]
    prints = [json.dumps(b.fingerprint) for b in others]
    assert len({*prints, json.dumps(same)}) == 8


def test_settings_show_themselves():
    assert repr(LabelSampler("seg", [2, 1], 0.5)) == (
        "LabelSampler(label='seg', classes={1: 1.0, 2: 1.0}, foreground=0.5)"
    )
    assert LabelSampler("seg", [2, 1]) == LabelSampler("seg", {1: 1, 2: 1, 3: 0})


def test_the_index_cache_is_bounded_by_bytes():
    loaded = []

    def load(position):
        loaded.append(position)
        return bytes(40)

    cache = IndexCache(load, len, max_bytes=100)
    for position in (0, 1, 0, 2, 0, 1):
        assert cache[position] == bytes(40)
    assert loaded == [0, 1, 2, 1]
    single = IndexCache(load, len, max_bytes=10)
    assert single[5] is single[5]
