import contextlib
import json
import threading
import time

import numpy as np
import pytest
import zarr
from conftest import write_subject

import tiledvol as tv
from tiledvol.errors import NamingError, StoreError
from tiledvol.storage import catalogue
from tiledvol.storage.naming import check_name
from tiledvol.storage.spec import shard_shape
from tiledvol.storage.writer import SubjectWriter, create_dataset

RNG = np.random.default_rng(3)
ARRAY = RNG.integers(-50, 50, (70, 20, 130)).astype(np.int16)


def test_a_dataset_is_a_mapping_of_mappings(tmp_path):
    url = tmp_path / "d.tvol"
    for subject in ("b", "a"):
        write_subject(url, subject, {"ct": ARRAY}, {"seg": (ARRAY > 0).astype(np.uint8)})
    dataset = tv.open(url)
    assert list(dataset) == ["a", "b"]
    assert sorted(dataset["a"]) == ["ct", "seg"]
    assert dataset["a"]["seg"].kind == "label"
    assert "c" not in dataset
    with pytest.raises(KeyError, match="no subject 'c'"):
        dataset["c"]
    with pytest.raises(KeyError, match=r"'a' has no image 'mr'"):
        dataset["a"]["mr"]


@pytest.mark.parametrize("codec", ["lz4", "zstd", "none"])
def test_zarr_python_reads_what_we_write(tmp_path, codec):
    write_subject(tmp_path / "d.tvol", "a", {"ct": ARRAY}, codec=codec)
    group = zarr.open_group(tmp_path / "d.tvol", mode="r", zarr_format=3)
    array = group["a/ct/0"]
    assert np.array_equal(array[...], ARRAY)
    assert array.chunks == (64, 20, 64)
    assert array.shards == (128, 20, 64)
    assert array.metadata.dimension_names == ("x", "y", "z")
    assert group["a/ct/blocks/range"].shape == (2, 1, 3, 2)


def test_images_are_ome_ngff_multiscales(tmp_path):
    affine = np.diag([0.5, 0.8, 2, 1])
    affine[:3, 3] = [-10, 20, 30]
    write_subject(tmp_path / "d.tvol", "a", {"ct": np.zeros((2, 3, 4, 5), np.uint8)}, affine=affine)
    ome = zarr.open_group(tmp_path / "d.tvol/a/ct", mode="r").attrs["ome"]
    assert ome["version"] == "0.5"
    (scales,) = ome["multiscales"]
    assert [a["name"] for a in scales["axes"]] == ["c", "x", "y", "z"]
    assert scales["datasets"] == [
        {
            "path": "0",
            "coordinateTransformations": [
                {"type": "scale", "scale": [1, 0.5, 0.8, 2]},
                {"type": "translation", "translation": [0, -10, 20, 30]},
            ],
        }
    ]


def test_an_oblique_image_has_no_translation_in_its_ngff_metadata(tmp_path):
    affine = np.array([[0.8, -0.6, 0, 1], [0.6, 0.8, 0, 2], [0, 0, 1, 3], [0, 0, 0, 1.0]])
    write_subject(tmp_path / "d.tvol", "a", {"ct": np.zeros((3, 4, 5), np.uint8)}, affine=affine)
    ome = zarr.open_group(tmp_path / "d.tvol/a/ct", mode="r").attrs["ome"]
    (level,) = ome["multiscales"][0]["datasets"]
    assert [t["type"] for t in level["coordinateTransformations"]] == ["scale"]


@pytest.mark.parametrize(
    ("shape", "chunk", "axis", "itemsize", "expected"),
    [
        ((512, 512, 384), (64, 64, 64), 2, 2, (512, 512, 64)),
        ((512, 512, 384), (64, 64, 64), 0, 2, (64, 512, 384)),
        ((100, 90, 80), (64, 64, 64), 2, 2, (128, 128, 64)),
        ((512, 512, 384), (16, 16, 16), 2, 2, (512, 512, 64)),
        ((512, 512, 384), (96, 96, 96), 2, 2, (576, 576, 96)),
        ((2048, 1024, 384), (64, 64, 64), 2, 4, (1024, 1024, 64)),
        ((7, 100, 90, 80), (1, 64, 64, 64), 2, 2, (1, 128, 128, 64)),
    ],
)
def test_shards_span_the_plane_and_one_slab(shape, chunk, axis, itemsize, expected):
    assert shard_shape(shape, chunk, axis, itemsize) == expected


def test_a_subject_without_its_marker_is_not_there(tmp_path):
    url = tmp_path / "d.tvol"
    with SubjectWriter(create_dataset(url), "a") as writer:
        image = writer.image("ct", ARRAY.shape, ARRAY.dtype, np.eye(4))
        for z in (0, 64, 128):
            image.write((0, 0, z), ARRAY[..., z : z + 64])
            assert "a" not in tv.open(url)
        image.finish({})
        assert "a" not in tv.open(url)
        writer.commit({})
    assert np.array_equal(tv.open(url)["a"]["ct"][...], ARRAY)
    assert sorted(p.name for p in (url / "a").iterdir()) == ["ct", "zarr.json"]


@pytest.mark.parametrize("there", [False, True])
def test_of_two_writers_of_a_subject_the_first_to_commit_wins(tmp_path, there):
    url = tmp_path / "d.tvol"
    if there:
        write_subject(url, "a", {"ct": ARRAY})
    store = create_dataset(url)
    with SubjectWriter(store, "a") as one, SubjectWriter(store, "a") as other:
        for writer, value in ((one, 1), (other, 2)):
            image = writer.image("ct", (4, 5, 6), np.int16, np.eye(4))
            image.write((0, 0, 0), np.full((4, 5, 6), value, np.int16))
            image.finish({})
        catalogue.update(store, add={"a": one.commit({})})
        with pytest.raises(StoreError, match="another process"):
            other.commit({})
    assert np.unique(tv.open(url)["a"]["ct"][...]).tolist() == [1]
    assert tv.verify(url) == []
    assert len([p for p in (url / "a").iterdir() if p.is_dir()]) == 1


def test_what_is_no_dataset_is_not_taken_for_one(tmp_path):
    url = tmp_path / "d.tvol"
    write_subject(url, "a", {"ct": ARRAY})
    for inside in ("a", "a/ct"):
        with pytest.raises(StoreError, match="lies inside a dataset"):
            tv.open(url / inside)
    for inside in ("a", "new"):
        with pytest.raises(StoreError, match="lies inside"):
            create_dataset(url / inside)


@pytest.mark.parametrize(
    "marker",
    [
        "{}",
        "{",
        '{"attributes": {"tiledvol": {"format": 1}}}',
        '{"attributes": {"tiledvol": {"format": 1, "images": {"a": NaN}}}}',
    ],
)
def test_one_bad_subject_does_not_hide_the_others(tmp_path, marker):
    url = tmp_path / "d.tvol"
    for subject in ("a", "b"):
        write_subject(url, subject, {"ct": ARRAY})
    (url / "x.__lock").mkdir()
    (url / "a/zarr.json").write_text(marker)
    (problem,) = tv.verify(url)
    assert "a/zarr.json" in problem
    (url / "catalogue.json").unlink()
    with pytest.warns(UserWarning, match=r"a/zarr\.json"):
        assert list(tv.open(url)) == ["b"]
    with pytest.warns(UserWarning, match=r"a/zarr\.json"):
        assert tv.reindex(url) == 1


def fail_while_writing(store):
    """Write one slab of subject a, then fail."""
    with contextlib.suppress(ZeroDivisionError), SubjectWriter(store, "a") as writer:
        image = writer.image("ct", ARRAY.shape, ARRAY.dtype, np.eye(4))
        image.write((0, 0, 0), 0 * ARRAY[..., :64])
        1 / 0  # noqa: B018


def test_a_failed_write_leaves_nothing(tmp_path):
    store = create_dataset(tmp_path / "d.tvol")
    fail_while_writing(store)
    assert not (tmp_path / "d.tvol/a").exists()


@pytest.mark.parametrize("place", ["file", "memory"])
def test_a_subject_is_replaced_only_when_its_successor_is_whole(tmp_path, place):
    url = tmp_path / "d.tvol" if place == "file" else f"memory://{tmp_path.name}.tvol"
    write_subject(url, "a", {"ct": ARRAY, "old": ARRAY})
    store = create_dataset(url)
    fail_while_writing(store)
    assert np.array_equal(tv.open(url)["a"]["ct"][...], ARRAY)
    write_subject(url, "a", {"ct": ARRAY + 1})
    assert list(tv.open(url)["a"]) == ["ct"]
    assert np.array_equal(tv.open(url)["a"]["ct"][...], ARRAY + 1)
    folders = {k.split("/")[1] for k in store.list_keys("a/")}
    assert folders == {"zarr.json", tv.open(url)["a"]["ct"]._summary.path}


def test_incomplete_and_misplaced_slabs_are_refused(tmp_path):
    with SubjectWriter(create_dataset(tmp_path / "d.tvol"), "a") as writer:
        image = writer.image("ct", ARRAY.shape, ARRAY.dtype, np.eye(4))
        with pytest.raises(ValueError, match="whole blocks"):
            image.write((0, 0, 10), ARRAY[..., :64])
        image.write((0, 0, 0), ARRAY[..., :64])
        with pytest.raises(StoreError, match="not all"):
            image.finish({})
        with pytest.raises(StoreError, match="label cannot be stored as int16"):
            writer.image("seg", ARRAY.shape, ARRAY.dtype, np.eye(4), kind="label")
        with pytest.raises(StoreError, match="complex64"):
            writer.image("c", ARRAY.shape, np.complex64, np.eye(4))


def test_a_store_that_is_none_says_so(tmp_path):
    with pytest.raises(StoreError, match="no tiledvol dataset here"):
        tv.open(tmp_path / "nothing")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    with pytest.raises(StoreError, match="not what tiledvol writes"):
        tv.open(tmp_path / "other")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.doc").touch()
    with pytest.raises(StoreError, match="not empty"):
        create_dataset(tmp_path / "full")
    with pytest.raises(StoreError, match="is a file"):
        create_dataset(tmp_path / "full/thesis.doc")
    with pytest.raises(StoreError, match="unknown scheme 'ftp'"):
        tv.open("ftp://host/x")


def test_a_newer_format_is_refused(tmp_path):
    create_dataset(tmp_path / "d.tvol")
    path = tmp_path / "d.tvol/zarr.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(StoreError, match=r"format 2.*upgrade"):
        tv.open(tmp_path / "d.tvol")


def test_what_the_catalogue_lacks_or_has_too_much_is_put_right_on_opening(tmp_path):
    url = tmp_path / "d.tvol"
    for subject in ("a", "b"):
        write_subject(url, subject, {"ct": ARRAY})
    store = create_dataset(url)
    catalogue.update(store, drop=["a"])
    assert list(tv.open(url)) == ["a", "b"]
    (url / "catalogue.json").write_text("{")
    assert list(tv.open(url)) == ["a", "b"]
    assert tv.reindex(url) == 2
    (url / "b").rename(tmp_path / "elsewhere")
    assert list(tv.open(url)) == ["a"]


def test_opening_ten_thousand_subjects_takes_half_a_second(tmp_path):
    url = tmp_path / "d.tvol"
    write_subject(url, "a", {"ct": ARRAY}, {"seg": (ARRAY > 0).astype(np.uint8)})
    entry = json.loads((url / "catalogue.json").read_bytes())["subjects"]["a"]
    names = [f"case_{i:05}" for i in range(10_000)]
    for name in names:
        (url / name).mkdir()
    catalogue.update(create_dataset(url), add=dict.fromkeys(names, entry))
    times = []
    for _ in range(5):
        began = time.perf_counter()
        dataset = tv.open(url)
        times.append(time.perf_counter() - began)
    assert len(dataset) == 10_001
    assert sorted(times)[2] < 0.5


def test_concurrent_catalogue_updates_are_all_kept(tmp_path):
    store = create_dataset(tmp_path / "d.tvol")
    threads = [
        threading.Thread(target=catalogue.update, args=(store, {f"s{i}": {"images": {}}}))
        for i in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(catalogue.decode(store.read(catalogue.KEY), "")) == 16


def test_memory_stores_are_shared_in_a_process():
    write_subject("memory://shared.tvol", "a", {"ct": ARRAY})
    assert np.array_equal(tv.open("memory://shared.tvol")["a"]["ct"][...], ARRAY)


@pytest.mark.parametrize(
    "name",
    ["", " a", "a ", ".", "..", ".hidden", "../x", "a/b", "a\\b", "zarr.json", "a\nb", "a\0", "a*",
     "x" * 201, "p.__lock", "claim", "C:x", "\ud800"],
)  # fmt: skip
def test_names_that_could_lead_astray_are_refused(name):
    with pytest.raises(NamingError):
        check_name(name, "subject")


@pytest.mark.parametrize("name", ["case_001", "sub-01", "Müller 3", "脳", "a.b", "x" * 200])
def test_ordinary_names_are_accepted(name):
    assert check_name(name, "subject") == name


def corrupt_index(url, change):
    """Rewrite the stored per-block index of a/ct through zarr-python."""
    array = zarr.open_group(url, mode="r+", zarr_format=3)["a/ct/blocks/range"]
    values = array[...]
    change(values)
    array[...] = values


def test_verify_names_what_is_wrong(tmp_path):
    url = tmp_path / "d.tvol"
    write_subject(url, "a", {"ct": ARRAY}, {"seg": (ARRAY > 0).astype(np.uint8)})
    write_subject(url, "b", {"f": RNG.normal(size=(3, 30, 20, 70)).astype(np.float32)})
    assert tv.verify(url) == []
    corrupt_index(url, lambda index: index.__setitem__((1, 0, 2, 0), -51))
    (problem,) = tv.verify(url)
    assert "a/ct: the per-block range does not match the voxels of block (1, 0, 2)" in problem
    assert tv.verify(url, ["b"]) == []
    shard = url / "b/f/0/c/1/0/0/0"
    data = bytearray(shard.read_bytes())
    data[1000] ^= 255
    shard.write_bytes(data)
    (problem,) = tv.verify(url, ["b"])
    assert "b/f: block (1, 0, 0, 0)" in problem
    with pytest.raises(StoreError, match="no subject zz"):
        tv.verify(url, ["zz"])


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index.__setitem__((0, 1), 99_999),
        lambda index: index.__setitem__((0, 1), -1),
        lambda index: index.__setitem__(slice(None), index[::-1].copy()),
    ],
)
def test_verify_survives_a_wild_index(tmp_path, change):
    url = tmp_path / "d.tvol"
    write_subject(url, "a", {}, {"seg": (ARRAY > 0).astype(np.uint8)})
    array = zarr.open_group(url, mode="r+", zarr_format=3)["a/seg/blocks/counts"]
    values = array[...]
    change(values)
    array[...] = values
    assert any("a/seg: the per-block counts" in problem for problem in tv.verify(url))


def test_verify_misses_no_metadata(tmp_path):
    url = tmp_path / "d.tvol"
    write_subject(url, "a", {}, {"seg": (ARRAY > 0).astype(np.uint8)})
    (url / "catalogue.json").write_text(
        json.dumps(json.loads((url / "catalogue.json").read_text()), indent=2)
    )
    assert tv.verify(url) == []
    (url / "a/seg/zarr.json").unlink()
    (problem,) = tv.verify(url)
    assert "a/seg/zarr.json is missing" in problem


def test_verify_compares_the_catalogue_with_the_markers(tmp_path):
    url = tmp_path / "d.tvol"
    for subject in ("a", "b"):
        write_subject(
            url, subject, {"ct": ARRAY}, affine=np.diag([1, 1, 1 + (subject == "b"), 1.0])
        )
    (url / "a/zarr.json").write_bytes((url / "b/zarr.json").read_bytes())
    assert tv.verify(url) == [
        "a: the catalogue's entry is not the subject's own; run `tiledvol reindex`"
    ]
    tv.reindex(url)
    assert tv.open(url)["a"]["ct"].spacing == (1, 1, 2)
    assert tv.verify(url) == [
        "a/ct: its own zarr.json does not match the subject's; convert it again"
    ]


def test_verify_checks_the_stored_statistics(tmp_path):
    url = tmp_path / "d.tvol"
    write_subject(url, "a", {"ct": ARRAY})
    path = url / "a/ct/zarr.json"
    content = json.loads(path.read_text())
    content["attributes"]["tiledvol"]["statistics"]["mean"] += 0.01
    path.write_text(json.dumps(content))
    assert [p for p in tv.verify(url) if "stored statistics" in p]
