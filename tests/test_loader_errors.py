"""What cannot be read is named, or skipped and counted; what cannot work is refused at once."""

import re
import shutil

import numpy as np
import pytest
from cohort import stream, write_cohort
from conftest import write_subject

import tiledvol as tv
from tiledvol.errors import GeometryError, PatchError, ReadTimeoutError, StoreError
from tiledvol.loading.selection import same_grid

LABELS = tv.LabelSampler("seg", foreground=1 / 3)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    return write_cohort(tmp_path_factory.mktemp("errors") / "three.tvol")


@pytest.fixture
def damaged(cohort, tmp_path):
    """A copy of the dataset in which the ct of subject b has a damaged block, (1, 0, 0)."""
    url = tmp_path / "damaged.tvol"
    shutil.copytree(cohort.url, url)
    volume = tv.open(url)["b"]["ct"]
    shard = shard_of(volume, "0/0/0")
    data = bytearray(shard.read_bytes())
    index = np.frombuffer(data[-4 - 16 * 16 : -4], "<u8").reshape(4, 2, 2, 2)
    data[int(index[1, 0, 0, 0]) + 40] ^= 255
    shard.write_bytes(data)
    return type(cohort)(url, cohort.arrays, cohort.affines)


def shard_of(volume, index):
    (folder,) = volume._store.local_path.glob(f"{volume.subject}*/{volume.name}/0/c")
    return folder / index


def first_error(loader):
    with pytest.raises(PatchError) as caught:
        list(loader)
    return str(caught.value)


# Damage


def test_a_damaged_block_is_named_by_index_subject_image_and_block(cohort, damaged):
    reference = stream(cohort.loader(sampler=LABELS, patches_per_epoch=40))
    touched = [
        index
        for subject, (x, y, z, *stop), index, *_ in reference
        if subject == "b" and x < 32 and stop[0] > 16 and y < 16 and z < 16
    ]
    loader = damaged.loader(sampler=LABELS, patches_per_epoch=40)
    message = first_error(loader)
    found = re.match(r"index (\d+), subject b: .*b/ct: block \(1, 0, 0\) is damaged", message)
    assert int(found[1]) == touched[0]
    assert loader.state_dict()["position"] == touched[0] // 2  # what came before was delivered


def test_a_shard_deleted_in_the_middle_of_an_epoch_is_named(tmp_path):
    cohort = write_cohort(tmp_path / "three.tvol")
    loader = cohort.loader(batch_size=1, prefetch_batches=1, patches_per_epoch=60)
    iterator = iter(loader)
    next(iterator)
    shard_of(cohort.open()["c"]["seg"], "0/0/0").unlink()
    with pytest.raises(PatchError, match=r"index \d+, subject c: .*c/seg: block \(0, .* missing"):
        list(iterator)


def test_skipped_patches_are_counted_and_replaced(cohort, damaged):
    reference = stream(cohort.loader(sampler=LABELS, patches_per_epoch=60))
    loader = damaged.loader(sampler=LABELS, patches_per_epoch=60, on_error="skip")
    patches = stream(loader)
    replaced = [i for i, (a, b) in enumerate(zip(patches, reference, strict=True)) if a != b]
    stats = loader.stats()
    assert replaced
    assert stats["skipped"] >= len(replaced)
    assert len(stats["skipped_errors"]) == min(stats["skipped"], 20)
    assert all("b/ct: block (1, 0, 0)" in error for error in stats["skipped_errors"])
    # A foreground draw is replaced by another.
    bound = LABELS.bind(list(cohort.open().values()), (24, 24, 24), "ct")
    quota = [bound.draw(0, 0, i).pick is not None for i in range(60)]
    for place, batch in enumerate(damaged.loader(1, 1, sampler=LABELS, patches_per_epoch=60)):
        if quota[place]:
            assert batch["seg"].any()


@pytest.mark.parametrize(("prefetch", "batch"), [(1, 1), (8, 3)])
def test_replacements_do_not_depend_on_the_settings(damaged, prefetch, batch):
    options = {"sampler": LABELS, "patches_per_epoch": 60, "on_error": "skip"}
    reference = stream(damaged.loader(**options))
    assert stream(damaged.loader(24, batch, prefetch_batches=prefetch, **options)) == reference


def test_a_batch_with_a_replacement_holds_what_it_says(cohort, damaged):
    for batch in damaged.loader(batch_size=3, patches_per_epoch=60, on_error="skip"):
        for i, subject in enumerate(batch["subject"]):
            for name in ("ct", "seg"):
                expected = cohort.cut(subject, name, batch["location"][i].tolist())
                assert np.array_equal(batch[name][i].numpy(), expected)


def test_a_finite_sampler_takes_the_next_patch_instead(damaged):
    def patches(**options):
        loader = damaged.loader(
            (50, 30, 28), 1, sampler=tv.GridSampler(), patches_per_epoch=None, **options
        )
        return [(b["subject"][0], int(b["index"][0])) for b in loader]

    # Four patches of a, the damaged one of b, six of c.
    assert patches(on_error="skip") == [
        *[("a", index) for index in range(4)],
        *[("c", index) for index in range(4, 11)],
    ]


def test_a_dataset_without_a_readable_patch_is_an_error_even_so(damaged):
    only = {"b": damaged.open()["b"]}
    loader = tv.PatchLoader(only, 50, images=["ct"], on_error="skip", patches_per_epoch=2)
    assert "100 draws in a row could not be read; the last: index" in first_error(loader)
    assert loader.stats()["skipped"] >= 100


def test_an_unreadable_block_index_is_an_error_of_its_draw(cohort, tmp_path):
    url = tmp_path / "copy.tvol"
    shutil.copytree(cohort.url, url)
    copy = type(cohort)(url, cohort.arrays, cohort.affines)
    (folder,) = url.glob("a*/seg/blocks")
    shutil.rmtree(folder)
    sampler = tv.LabelSampler("seg", foreground=1)
    assert re.match(r"index \d+: .*a.*seg", first_error(copy.loader(sampler=sampler)))
    loader = copy.loader(sampler=sampler, on_error="skip", patches_per_epoch=30)
    assert {subject for subject, *_ in stream(loader)} == {"b", "c"}
    assert loader.stats()["skipped"] > 0


def test_a_store_out_of_reach_is_not_skipped(cohort, monkeypatch):
    async def hang(*_):
        raise ReadTimeoutError("did not finish within 1 s")

    monkeypatch.setattr(tv.Volume, "read_into", hang)
    loader = cohort.loader(on_error="skip")
    assert re.match(r"index 0, subject .: did not finish", first_error(loader))
    assert loader.stats()["skipped"] == 0


def test_errors_of_the_code_are_raised_as_they_are(cohort, monkeypatch):
    async def fail(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(tv.Volume, "read_into", fail)
    with pytest.raises(ZeroDivisionError):
        next(iter(cohort.loader(on_error="skip")))


# Refused at construction


@pytest.fixture(scope="module")
def ragged(tmp_path_factory):
    """Subject a has ct and mr, b only ct; those of c lie on different grids."""
    url = tmp_path_factory.mktemp("ragged") / "r.tvol"
    voxels = np.zeros((20, 20, 20), np.int16)
    write_subject(url, "a", {"ct": voxels, "mr": voxels})
    write_subject(url, "b", {"ct": voxels})
    write_subject(url, "c", {"ct": voxels, "mr": np.zeros((10, 10, 10), np.uint8)})
    return tv.open(url)


def test_a_missing_image_is_refused_with_the_list(ragged):
    with pytest.raises(StoreError, match=r"1 of 3 subjects lack images \(b: mr\).*require='any'"):
        tv.PatchLoader(ragged, 8, images=["ct", "mr"])
    with pytest.raises(StoreError, match=r"3 of 3 subjects lack images \(a: pet; b: pet; c: pet\)"):
        tv.PatchLoader(ragged, 8, images=["pet"])
    with pytest.raises(StoreError, match="no subject has the images pet"):
        tv.PatchLoader(ragged, 8, images=["pet"], require="any")


def test_subjects_that_lack_an_image_can_be_left_out(ragged):
    loader = tv.PatchLoader(
        ragged, 8, images=["ct", "mr"], require="any", spacing=1, patches_per_epoch=40
    )
    assert {subject for batch in loader for subject in batch["subject"]} == {"a", "c"}


def test_images_on_different_grids_are_refused_unless_resampled(ragged):
    with pytest.raises(GeometryError, match=r"c: ct \(20×20×20.*and mr \(10×10×10.*spacing="):
        tv.PatchLoader({"c": ragged["c"]}, 8, images=["ct", "mr"])
    assert tv.PatchLoader({"c": ragged["c"]}, 8, images=["ct", "mr"], spacing=1)


@pytest.mark.parametrize(("change", "same"), [(1e-6, True), (1e-3, False)])
def test_affines_that_differ_by_rounding_are_one_grid(tmp_path, change, same):
    affine = np.diag([0.7, 0.7, 2.5, 1])
    volumes = []
    for name, factor in (("a", 1), ("b", 1 + change)):
        scaled = affine * [factor, factor, factor, 1]
        subject = write_subject(
            tmp_path / "d.tvol", name, {"ct": np.zeros((200, 20, 20), np.uint8)}, affine=scaled
        )
        volumes.append(subject["ct"])
    assert same_grid(*volumes) == same


def test_channels_have_to_agree(tmp_path):
    url = tmp_path / "d.tvol"
    write_subject(url, "a", {"mr": np.zeros((2, 9, 9, 9), np.int16)})
    write_subject(url, "b", {"mr": np.zeros((3, 9, 9, 9), np.int16)})
    with pytest.raises(StoreError, match=r"mr differs in its number of channels: 2 in a, 3 in b"):
        tv.PatchLoader(tv.open(url), 8, images=["mr"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"images": "ct"}, "images='ct': give a list"),
        ({"images": [], "labels": []}, "name each image once"),
        ({"images": ["ct", "ct"]}, "name each image once"),
        ({"images": ["ct", "subject"]}, "'subject' cannot be in a batch"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"prefetch_batches": 0}, "prefetch_batches=0"),
        ({"patches_per_epoch": 0}, "patches_per_epoch=0"),
        ({"seed": -1}, "seed=-1"),
        ({"on_error": "ignore"}, "on_error='ignore'"),
        ({"require": "some"}, "require='some'"),
        ({"pad": "wrap"}, "pad='wrap'"),
        ({"fill": 0.5}, "fill=0.5 does not fit ct of a: it is int16"),
        ({"fill": 40_000}, "fill=40000 does not fit ct"),
        ({"fill": {"mr": 1}}, "fill= names mr"),
        ({"fill": -1, "pad": "edge"}, "only with pad='constant'"),
        ({"spacing": 0}, "spacing=0"),
        ({"spacing": (1, 2)}, "spacing="),
        ({"units": "cm"}, "units='cm'"),
        ({"patch_size": 0}, "patch_size=0"),
        ({"max_bytes_in_flight": "1 GO"}, "max_bytes_in_flight='1 GO'"),
        ({"cache_bytes": "much"}, "cache_bytes='much'"),
        ({"rank": 1}, "give both or neither"),
        ({"rank": 2, "world_size": 2}, "rank=2 of world_size=2"),
    ],
)
def test_what_has_no_meaning_is_refused(cohort, options, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        cohort.loader(**options)


def test_an_image_is_no_label(cohort):
    with pytest.raises(StoreError, match="ct of a, b, c was converted as an image"):
        cohort.loader(images=[], labels=["ct"])
    with pytest.raises(ValueError, match="count from 0"):
        cohort.loader().set_epoch(-1)
