import gzip
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from trees import VOXELS, grow, save

import tiledvol as tv
from tiledvol.errors import StoreError
from tiledvol.storage import catalogue
from tiledvol.storage.store import Store
from tiledvol_converters import pipeline
from tiledvol_converters.convert import Options, Plan
from tiledvol_converters.pipeline import convert_dataset
from tiledvol_converters.report import Outcome, Report


def by_status(report: Report) -> dict[str, list[str]]:
    """Return the names of the outcomes by status, where there are any."""
    found: dict[str, list[str]] = {}
    for outcome in report.outcomes:
        found.setdefault(outcome.status, []).append(outcome.name)
    return found


@pytest.fixture
def three(tmp_path: Path) -> Path:
    return grow(
        tmp_path / "in", [f"p{i}/{name}.nii.gz" for i in (1, 2, 3) for name in ("ct", "seg")]
    )


def touch(path: Path) -> None:
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 10**9))


def test_voxels_geometry_and_kind_arrive(tmp_path: Path) -> None:
    affine = np.array([[-2.0, 0, 0, 90], [0, 2, 0, -126], [0, 0, 3, -72], [0, 0, 0, 1]])
    save(tmp_path / "p1_ct.nii.gz", VOXELS, affine)
    save(tmp_path / "p1_seg.nii.gz", (VOXELS % 3).astype(np.uint8), affine)
    report = convert_dataset(str(tmp_path), tmp_path / "out.tvol")
    assert by_status(report) == {"converted": ["p1"]}
    assert report.complete
    assert report.converted[0].nbytes == VOXELS.size * 3

    subject = tv.open(tmp_path / "out.tvol")["p1"]
    expected = nib.as_closest_canonical(nib.load(tmp_path / "p1_ct.nii.gz"))
    np.testing.assert_array_equal(subject["ct"][...], np.asarray(expected.dataobj))
    np.testing.assert_allclose(subject["ct"].affine, expected.affine)
    assert (subject["ct"].kind, subject["seg"].kind) == ("image", "label")
    assert subject["seg"].dtype == np.uint8


def test_an_unchanged_subject_is_skipped_and_a_touched_one_converted_again(
    tmp_path: Path, three: Path
) -> None:
    out = tmp_path / "out.tvol"
    assert by_status(convert_dataset([three], out)) == {"converted": ["p1", "p2", "p3"]}
    assert by_status(convert_dataset([three], out)) == {"skipped": ["p1", "p2", "p3"]}
    touch(three / "p2" / "seg.nii.gz")
    assert by_status(convert_dataset([three], out)) == {
        "skipped": ["p1", "p3"],
        "converted": ["p2"],
    }


def test_force_converts_what_is_unchanged(tmp_path: Path, three: Path) -> None:
    out = tmp_path / "out.tvol"
    convert_dataset([three], out)
    (shard,) = (p for p in (out / "p2/ct/0/c").rglob("*") if p.is_file())
    shard.write_bytes(shard.read_bytes()[:-20])
    assert by_status(convert_dataset([three], out)) == {"skipped": ["p1", "p2", "p3"]}
    assert len(tv.verify(out)) == 1
    again = convert_dataset([three / "p2"], out, force=True)
    assert by_status(again) == {"converted": ["p2"]}
    assert tv.verify(out) == []


def test_with_checksum_content_counts_and_not_the_time(tmp_path: Path, three: Path) -> None:
    out = tmp_path / "out.tvol"
    convert_dataset([three], out)
    ct = three / "p1" / "ct.nii.gz"
    touch(ct)
    assert by_status(convert_dataset([three], out, checksum=True)) == {
        "skipped": ["p1", "p2", "p3"]
    }

    save(three / "p2" / "ct.nii", VOXELS)
    (three / "p2" / "ct.nii.gz").unlink()
    convert_dataset([three], out)
    changed = three / "p2" / "ct.nii"
    stat = changed.stat()
    content = bytearray(changed.read_bytes())
    content[-1] ^= 1
    changed.write_bytes(content)
    os.utime(changed, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert by_status(convert_dataset([three], out)) == {"skipped": ["p1", "p2", "p3"]}
    assert by_status(convert_dataset([three], out, checksum=True)) == {
        "skipped": ["p1", "p3"],
        "converted": ["p2"],
    }


@pytest.mark.parametrize("changed", ["pair.hdr", "pair.img"])
def test_either_file_of_a_pair_counts(tmp_path: Path, changed: str) -> None:
    save(tmp_path / "pair.img")
    out = tmp_path / "out.tvol"
    for checksum, expected in ((False, "converted"), (False, "skipped"), (True, "skipped")):
        report = convert_dataset([tmp_path], out, checksum=checksum)
        assert by_status(report) == {expected: ["pair"]}
    touch(tmp_path / changed)
    assert by_status(convert_dataset([tmp_path], out, checksum=True)) == {"skipped": ["pair"]}
    assert by_status(convert_dataset([tmp_path], out)) == {"converted": ["pair"]}


@pytest.mark.parametrize(
    "options", [Options(codec="zstd"), Options(chunk=32), Options("LPS"), Options("native")]
)
def test_other_options_convert_again(tmp_path: Path, three: Path, options: Options) -> None:
    out = tmp_path / "out.tvol"
    convert_dataset([three], out)
    assert by_status(convert_dataset([three], out, options=options)) == {
        "converted": ["p1", "p2", "p3"]
    }
    assert by_status(convert_dataset([three], out, options=options)) == {
        "skipped": ["p1", "p2", "p3"]
    }


def test_an_image_that_becomes_a_label_is_converted_again(tmp_path: Path) -> None:
    grow(tmp_path, ["p1/ct.nii.gz", "p1/liver.nii.gz"])
    out = tmp_path / "out.tvol"
    convert_dataset([tmp_path], out)
    report = convert_dataset([tmp_path], out, labels=["liver"])
    assert by_status(report) == {"converted": ["p1"]}
    assert tv.open(out)["p1"]["liver"].kind == "label"


def test_a_subject_is_not_replaced_by_one_that_lacks_images(tmp_path: Path, three: Path) -> None:
    out = tmp_path / "out.tvol"
    convert_dataset([three], out)
    (three / "p1" / "seg.nii.gz").unlink()
    report = convert_dataset([three], out)
    assert by_status(report) == {"failed": ["p1"], "skipped": ["p2", "p3"]}
    assert "the dataset has seg of p1 too, which would be lost" in report.failed[0].reason
    assert set(tv.open(out)["p1"]) == {"ct", "seg"}


def test_one_bad_file_does_not_stop_the_rest(tmp_path: Path, three: Path) -> None:
    bad = three / "p2" / "ct.nii.gz"
    bad.write_bytes(bad.read_bytes()[:-9])
    out = tmp_path / "out.tvol"
    report = convert_dataset([three, tmp_path / "gone"], out)
    assert by_status(report) == {
        "failed": [str(tmp_path / "gone"), "p2"],
        "converted": ["p1", "p3"],
    }
    assert not report.complete
    assert str(bad) in report.failed[1].reason
    assert list(tv.open(out)) == ["p1", "p3"]
    assert not [p for p in (out / "p2").rglob("*") if p.is_file()]


def test_stop_leaves_the_rest_untried(tmp_path: Path, three: Path) -> None:
    (three / "p2" / "ct.nii.gz").write_bytes(b"junk")
    report = convert_dataset([three], tmp_path / "out.tvol", on_error="stop")
    assert by_status(report) == {"converted": ["p1"], "failed": ["p2"]}
    assert report.untried == ("p3",)

    report = convert_dataset([three, tmp_path / "gone"], tmp_path / "no.tvol", on_error="stop")
    assert by_status(report) == {"failed": [str(tmp_path / "gone")]}
    assert report.untried == ("p1", "p2", "p3")
    assert not (tmp_path / "no.tvol").exists()

    with pytest.raises(ValueError, match="on_error='never'"):
        convert_dataset([three], tmp_path / "no.tvol", on_error="never")


def test_a_failed_conversion_leaves_the_committed_subject(tmp_path: Path, three: Path) -> None:
    out = tmp_path / "out.tvol"
    convert_dataset([three], out)
    before = {p: p.read_bytes() for p in (out / "p2").rglob("*") if p.is_file()}
    (three / "p2" / "seg.nii.gz").write_bytes(gzip.compress(b"x" * 1000))
    report = convert_dataset([three], out)
    assert by_status(report) == {"skipped": ["p1", "p3"], "failed": ["p2"]}
    assert {p: p.read_bytes() for p in (out / "p2").rglob("*") if p.is_file()} == before
    assert tv.verify(out) == []


def test_nothing_to_convert_makes_no_dataset(tmp_path: Path) -> None:
    report = convert_dataset([tmp_path / "gone"], tmp_path / "out.tvol")
    assert by_status(report) == {"failed": [str(tmp_path / "gone")]}
    assert not (tmp_path / "out.tvol").exists()


def test_plans_are_taken_as_they_are(tmp_path: Path) -> None:
    path = save(tmp_path / "a.nii.gz")
    report = convert_dataset([Plan("s", {"t1": path}), path], tmp_path / "out.tvol")
    assert by_status(report) == {"converted": ["s", "a"]}
    assert {s: list(v) for s, v in tv.open(tmp_path / "out.tvol").items()} == {
        "s": ["t1"],
        "a": ["image"],
    }


def test_names_that_differ_from_the_dataset_by_case_are_refused(tmp_path: Path) -> None:
    grow(tmp_path, ["a/P1/ct.nii.gz", "b/p1/ct.nii.gz"])
    convert_dataset([tmp_path / "a"], tmp_path / "out.tvol")
    report = convert_dataset([tmp_path / "b"], tmp_path / "out.tvol")
    assert by_status(report) == {"failed": ["p1"]}
    assert "the dataset has a subject 'P1'" in report.failed[0].reason
    assert list(tv.open(tmp_path / "out.tvol")) == ["P1"]


def test_sources_inside_the_dataset_are_refused_and_not_deleted(
    tmp_path: Path, three: Path
) -> None:
    out = tmp_path / "out.tvol"
    convert_dataset([three], out)
    mine = save(out / "p9" / "ct.nii.gz")
    report = convert_dataset([mine], out)
    assert by_status(report) == {"failed": ["p9"]}
    assert "lies in the dataset itself" in report.failed[0].reason
    assert mine.exists()


def test_the_dataset_may_lie_in_the_folder_that_is_converted(tmp_path: Path) -> None:
    grow(tmp_path, ["p1/ct.nii.gz"])
    for expected in ("converted", "skipped"):
        report = convert_dataset([tmp_path], tmp_path / "out.tvol")
        assert by_status(report) == {expected: ["p1"]}
        assert report.ignored == 0


def test_a_folder_of_other_things_is_no_dataset(tmp_path: Path, three: Path) -> None:
    with pytest.raises(StoreError, match="not empty"):
        convert_dataset([three], three)


def test_faults_of_ours_are_reported_as_such(
    tmp_path: Path, three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert_subject = pipeline.convert_subject

    def faulty(store: Store, plan: Plan, *rest: object) -> object:
        if plan.subject == "p1":
            raise ZeroDivisionError("by zero")
        return convert_subject(store, plan, *rest)

    monkeypatch.setattr(pipeline, "convert_subject", faulty)
    report = convert_dataset([three], tmp_path / "out.tvol")
    assert by_status(report) == {"failed": ["p1"], "converted": ["p2", "p3"]}
    assert report.failed[0].reason.startswith("ZeroDivisionError in test_pipeline.py:")
    assert "by zero" in report.failed[0].reason
    assert "please report it" in report.failed[0].reason


def test_a_full_disk_ends_the_run(
    tmp_path: Path, three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StoreError("writing p1/ct failed: No space left on device")

    monkeypatch.setattr(pipeline, "convert_subject", full)
    report = convert_dataset([three], tmp_path / "out.tvol")
    assert by_status(report) == {"failed": ["p1"]}
    assert report.failed[0].reason == (
        "the disk is full; free some space, and run the same again "
        "(writing p1/ct failed: No space left on device)"
    )
    assert report.untried == ("p2", "p3")


def interrupt_at(subject: str) -> Callable[..., object]:
    convert_subject = pipeline.convert_subject

    def interrupted(store: Store, plan: Plan, *rest: object) -> object:
        if plan.subject == subject:
            raise KeyboardInterrupt
        return convert_subject(store, plan, *rest)

    return interrupted


def test_an_interrupt_leaves_what_was_committed_in_the_catalogue(
    tmp_path: Path, three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.tvol"
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "convert_subject", interrupt_at("p3"))
        with pytest.raises(KeyboardInterrupt):
            convert_dataset([three], out)
    data = Store(out).read(catalogue.KEY)
    assert list(catalogue.decode(data, "") or {}) == ["p1", "p2"]
    assert by_status(convert_dataset([three], out)) == {
        "skipped": ["p1", "p2"],
        "converted": ["p3"],
    }


def test_a_subject_that_the_catalogue_lacks_is_skipped_and_catalogued(three: Path) -> None:
    url = "memory://pipeline_lacks/"
    convert_dataset([three], url)
    store = Store(url)
    catalogue.update(store, drop=["p2"])
    assert by_status(convert_dataset([three], url)) == {"skipped": ["p1", "p2", "p3"]}
    assert list(tv.open(url)) == ["p1", "p2", "p3"]


def test_a_catalogue_that_cannot_be_written_is_a_failure_and_no_loss(
    tmp_path: Path, three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StoreError("writing catalogue.json failed")

    with monkeypatch.context() as patch:
        patch.setattr(catalogue, "update", fail)
        patch.setattr(pipeline, "CATALOGUE_SECONDS", -1.0)
        report = convert_dataset([three], tmp_path / "out.tvol")
    assert by_status(report) == {"converted": ["p1", "p2", "p3"], "failed": ["catalogue.json"]}
    assert "tiledvol reindex" in report.failed[0].reason
    assert list(tv.open(tmp_path / "out.tvol")) == ["p1", "p2", "p3"]


def test_the_catalogue_is_written_while_subjects_are_converted(
    tmp_path: Path, three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    update = catalogue.update

    def watched(store: Store, **changes: object) -> None:
        written.append(sorted(changes.get("add") or {}))
        update(store, **changes)

    monkeypatch.setattr(catalogue, "update", watched)
    monkeypatch.setattr(pipeline, "CATALOGUE_SECONDS", -1.0)
    convert_dataset([three], tmp_path / "out.tvol")
    assert written == [["p1"], ["p2"], ["p3"], []]


def test_progress_is_told(tmp_path: Path, three: Path) -> None:
    class Told:
        def __init__(self) -> None:
            self.total = 0
            self.volumes: list[tuple[str, str, int, int]] = []
            self.outcomes: list[Outcome] = []

        def begin(self, outcomes: int) -> None:
            self.total = outcomes

        def volume(self, subject: str, image: str, done: int, total: int) -> None:
            self.volumes.append((subject, image, done, total))

        def finished(self, outcome: Outcome) -> None:
            self.outcomes.append(outcome)

    told = Told()
    report = convert_dataset([three / "p1", tmp_path / "gone"], tmp_path / "o", progress=told)
    assert told.total == 2
    assert told.volumes == [("p1", "ct", 420, 420), ("p1", "seg", 210, 210)]
    assert tuple(told.outcomes) == report.outcomes


def test_a_thousand_unchanged_subjects_take_seconds(tmp_path: Path) -> None:
    source = save(tmp_path / "one.nii.gz")
    folder = tmp_path / "in"
    folder.mkdir()
    for i in range(1000):
        shutil.copy2(source, folder / f"p{i:04}_ct.nii.gz")
    out = tmp_path / "out.tvol"
    convert_dataset([folder / "p0000_ct.nii.gz"], out)
    marker = (out / "p0000" / "zarr.json").read_text()
    for i in range(1, 1000):
        (out / f"p{i:04}").mkdir()
        renamed = marker.replace("p0000", f"p{i:04}")
        (out / f"p{i:04}" / "zarr.json").write_text(renamed)
    started = time.perf_counter()
    report = convert_dataset([folder], out)
    assert time.perf_counter() - started < 5
    assert len(report.skipped) == 1000
