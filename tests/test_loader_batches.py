"""What is in a batch: the stored voxels at their location, padded, with their affine."""

import numpy as np
import pytest
import torch
from cohort import SHAPES, write_cohort
from conftest import write_subject

import tiledvol as tv


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    return write_cohort(tmp_path_factory.mktemp("batches") / "three.tvol")


@pytest.mark.parametrize(
    ("pad", "fill"), [("constant", 0), ("constant", -1024), ("edge", 0), ("reflect", 0)]
)
def test_voxels_are_those_stored_at_the_location(cohort, pad, fill):
    loader = cohort.loader(
        images=["ct", "pet"], labels=["seg", "inst"], pad=pad, fill={"ct": fill},
        patches_per_epoch=30, weights={"a": 1, "b": 1, "c": 2},
    )  # fmt: skip
    seen = set()
    for batch in loader:
        assert batch["ct"].shape == (2, 1, 24, 24, 24)
        assert batch["pet"].shape == (2, 2, 24, 24, 24)
        assert [batch[k].dtype for k in ("ct", "pet", "seg", "inst")] == [
            torch.float32, torch.float32, torch.uint8, torch.int32,
        ]  # fmt: skip
        assert batch["location"].dtype == torch.int64
        for i, subject in enumerate(batch["subject"]):
            location = batch["location"][i].tolist()
            seen.add(subject)
            for name in ("ct", "pet", "seg", "inst"):
                constant = fill if name == "ct" else 0
                expected = cohort.cut(subject, name, location, pad, constant)
                assert np.array_equal(batch[name][i].numpy(), expected)
    assert seen == {"a", "b", "c"}


def test_a_volume_smaller_than_the_patch_lies_in_its_middle(cohort):
    (batch,) = cohort.loader(patches_per_epoch=1, weights={"a": 0, "b": 0, "c": 1}, fill=7)
    assert batch["location"][0].tolist()[::3] == [-2, 22]
    assert np.array_equal(batch["ct"][0, 0, [0, 1, 22, 23]].numpy(), np.full((4, 24, 24), 7))
    location = batch["location"][0].tolist()
    assert np.array_equal(batch["ct"][0].numpy(), cohort.cut("c", "ct", location, fill=7))


def test_the_affine_is_that_of_the_patch(cohort):
    for batch in cohort.loader(batch_size=3):
        assert batch["affine"].dtype == torch.float64
        for i, subject in enumerate(batch["subject"]):
            affine = cohort.affines[subject]
            start = batch["location"][i, :3].numpy()
            moved = affine.copy()
            moved[:3, 3] += affine[:3, :3] @ start
            assert np.allclose(batch["affine"][i].numpy(), moved, rtol=0, atol=1e-12)


def test_integers_are_kept_where_asked(cohort):
    subjects = {k: v for k, v in cohort.open().items() if k != "c"}
    loader = tv.PatchLoader(subjects, 16, images=["ct"], dtype=None, patches_per_epoch=2)
    (batch,) = loader
    assert batch["ct"].dtype == torch.int16
    half = tv.PatchLoader(subjects, 16, images=["ct"], dtype=torch.bfloat16, patches_per_epoch=2)
    (again,) = half
    assert torch.equal(again["ct"], batch["ct"].to(torch.bfloat16))
    # With c, which is stored in float32, all are.
    mixed = cohort.loader(dtype=None)
    assert {batch["ct"].dtype for batch in mixed} == {torch.float32}


def test_the_last_batch_has_what_is_left(cohort):
    loader = cohort.loader(batch_size=5, patches_per_epoch=12)
    assert len(loader) == 3
    assert [len(batch["subject"]) for batch in loader] == [5, 5, 2]
    assert [batch["ct"].shape[0] for batch in loader] == [5, 5, 2]


@pytest.mark.parametrize(("images", "labels"), [(["pet"], []), ([], ["inst"])])
def test_images_and_labels_alone(cohort, images, labels):
    name = [*images, *labels][0]
    batch = next(iter(cohort.loader(images=images, labels=labels)))
    for i, subject in enumerate(batch["subject"]):
        expected = cohort.cut(subject, name, batch["location"][i].tolist())
        assert np.array_equal(batch[name][i].numpy(), expected)


def test_the_quota_of_foreground_is_exact(cohort):
    sampler = tv.LabelSampler("seg", foreground=0.33)
    loader = cohort.loader(8, 1, sampler=sampler, patches_per_epoch=300)
    # Of a uniform patch of 8³ hardly one in ten holds foreground: draws are told by their centre.
    bound = sampler.bind(list(cohort.open().values()), (8, 8, 8), "ct")
    chosen = [bound.draw(0, 0, i).pick is not None for i in range(300)]
    assert 98 <= sum(chosen) <= 100
    holding = [bool(batch["seg"].any()) for batch in loader]
    assert all(has for has, foreground in zip(holding, chosen, strict=True) if foreground)


def test_foreground_patches_hold_a_voxel_of_the_class_at_their_centre(cohort):
    sampler = tv.LabelSampler("seg", classes=[2], foreground=1)
    for batch in cohort.loader(16, sampler=sampler):
        for i, subject in enumerate(batch["subject"]):
            # The one voxel of class 2 is the last of the volume: the patch is moved inside.
            assert int(batch["seg"][i, 0, -1, -1, -1]) == 2
            assert tuple(batch["location"][i, 3:].tolist()) == SHAPES[subject]


def test_whole_subjects(cohort):
    loader = tv.PatchLoader(
        cohort.open(), 1, 1, ["ct"], ["inst"], tv.WholeSampler(), patches_per_epoch=None
    )
    batches = list(loader)
    assert [batch["subject"] for batch in batches] == [["a"], ["b"], ["c"]]
    for batch in batches:
        (subject,) = batch["subject"]
        for name in ("ct", "inst"):
            assert np.array_equal(batch[name][0, 0].numpy(), cohort.arrays[subject][name])


def test_subjects_of_different_shape_are_no_batch(cohort):
    loader = tv.PatchLoader(cohort.open(), 1, 2, ["ct"], sampler=tv.WholeSampler())
    with pytest.raises(tv.TiledvolError, match=r"indices \[0, 1\]: a, b have different shapes"):
        next(iter(loader))


def test_a_grid_covers_every_voxel_once(cohort):
    loader = cohort.loader((10, 9, 11), 3, sampler=tv.GridSampler(), patches_per_epoch=None)
    covered = {k: np.zeros(shape, int) for k, shape in SHAPES.items()}
    for batch in loader:
        for i, subject in enumerate(batch["subject"]):
            x, y, z, *stop = batch["location"][i].tolist()
            covered[subject][x : stop[0], y : stop[1], z : stop[2]] += 1
            patch = cohort.arrays[subject]["ct"][x : stop[0], y : stop[1], z : stop[2]]
            assert np.array_equal(batch["ct"][i, 0].numpy(), patch)
    assert all(c.min() == 1 for c in covered.values())
    assert covered["b"].sum() > covered["b"].size  # the last patches are flush with the border


def test_a_shuffled_grid_has_the_same_patches(cohort):
    def patches(**options):
        loader = cohort.loader(12, 4, sampler=tv.GridSampler(), patches_per_epoch=None, **options)
        return [
            (s, tuple(loc))
            for batch in loader
            for s, loc in zip(batch["subject"], batch["location"].tolist(), strict=True)
        ]

    ordered, shuffled = patches(), patches(shuffle=True)
    assert shuffled != ordered
    assert sorted(shuffled) == sorted(ordered)


def test_a_mix_holds_its_shares(cohort):
    mix = tv.MixSampler([(tv.LabelSampler("seg", foreground=1), 1), (tv.GridSampler(), 2)])
    bound = mix.bind(list(cohort.open().values()), (12, 12, 12), "ct")
    loader = cohort.loader(12, 1, sampler=mix, patches_per_epoch=30)
    foreground = [bound.draw(0, 0, i).pick is not None for i in range(30)]
    assert sum(foreground) == 10
    for batch, chosen in zip(loader, foreground, strict=True):
        assert not chosen or batch["seg"].any()


def test_patches_around_voxels_of_a_weight_map(tmp_path):
    weights = np.zeros((40, 30, 20), np.float32)
    weights[33, 5, 7] = 2
    write_subject(tmp_path / "w.tvol", "s", {"ct": weights * 3, "map": weights}, chunk=16)
    loader = tv.PatchLoader(
        tv.open(tmp_path / "w.tvol"), 8, 2, ["ct"], sampler=tv.WeightedSampler("map"),
        patches_per_epoch=4,
    )  # fmt: skip
    for batch in loader:
        assert batch["location"].tolist() == [[29, 1, 3, 37, 9, 11]] * 2
        assert torch.equal(batch["ct"][:, 0, 4, 4, 4], torch.tensor([6.0, 6.0]))


def test_a_label_alone_can_be_the_reference_and_the_sampler_s(cohort):
    sampler = tv.LabelSampler("seg", classes=[1], foreground=1)
    for spacing in (None, 1.0):
        for batch in cohort.loader(9, images=[], sampler=sampler, spacing=spacing):
            assert (batch["seg"] == 1).flatten(1).any(1).all()


@pytest.mark.parametrize("extent", [12, (12, 12, 24)])
def test_patch_sizes_in_mm(cohort, extent):
    one = {"a": cohort.open()["a"]}
    loader = tv.PatchLoader(one, extent, 1, ["ct"], units="mm", patches_per_epoch=1)
    assert loader.patch_size == ((12, 12, 6) if extent == 12 else (12, 12, 12))
    (batch,) = loader
    assert batch["ct"].shape[2:] == loader.patch_size
    with pytest.raises(ValueError, match=r"spacing differs; give spacing="):
        cohort.loader(extent, units="mm")
    resampled = cohort.loader(extent, units="mm", spacing=1.5)
    assert resampled.patch_size == ((8, 8, 8) if extent == 12 else (8, 8, 16))


def test_patches_of_one_subject_follow_each_other(cohort):
    loader = cohort.loader(patches_per_subject=4, patches_per_epoch=24)
    subjects = [subject for batch in loader for subject in batch["subject"]]
    assert all(len(set(subjects[i : i + 4])) == 1 for i in range(0, 24, 4))
    assert len(set(subjects)) > 1
