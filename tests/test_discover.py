import os
from pathlib import Path

import pytest
from trees import VOXELS, grow, save

from tiledvol.errors import SourceError
from tiledvol_converters.discover import Discovery, discover


def named(found: Discovery) -> set[tuple[str, str]]:
    """Return what was found as (``subject/image``, kind)."""
    return {(f"{p.subject}/{name}", kind) for p in found.plans for name, kind, _ in p.sources}


def reasons(found: Discovery) -> dict[str, str]:
    return {failure.name: failure.reason for failure in found.failures}


@pytest.mark.parametrize(
    ("path", "name", "kind"),
    [
        # in sub-folders: the folders' names
        ("case_001/ct.nii.gz", "case_001/ct", "image"),
        ("case_001/case_001_ct.nii.gz", "case_001/ct", "image"),
        ("case_001/case_001-ct.nii", "case_001/ct", "image"),
        ("case_001/case_001.nii.gz", "case_001/image", "image"),
        ("case_001/case_0012.nii.gz", "case_001/case_0012", "image"),
        ("case_001/scan two.nii.gz", "case_001/scan two", "image"),
        ("BraTS21_7/BraTS21_7_t1ce.nii.gz", "BraTS21_7/t1ce", "image"),
        ("BraTS21_7/BraTS21_7_seg.nii.gz", "BraTS21_7/seg", "label"),
        ("p1/ct_seg.nii.gz", "p1/ct_seg", "label"),
        ("p1/aparc+aseg.nii.gz", "p1/aparc+aseg", "label"),
        ("site/p1/p1_t1.nii.gz", "site_p1/t1", "image"),
        ("p1/visit2/p1_visit2_t1.nii.gz", "p1_visit2/t1", "image"),
        ("p1/v1.2.nii.gz", "p1/v1.2", "image"),
        # BIDS and TotalSegmentator
        ("sub-01/anat/sub-01_T1w.nii.gz", "sub-01/T1w", "image"),
        ("sub-01/func/sub-01_task-rest_bold.nii.gz", "sub-01/task-rest_bold", "image"),
        ("sub-01/ses-2/anat/sub-01_ses-2_T1w.nii.gz", "sub-01_ses-2/T1w", "image"),
        ("s0001/segmentations/liver.nii.gz", "s0001/liver", "label"),
        # folders by kind
        ("imagesTr/x_001.nii.gz", "x_001/image", "image"),
        ("labelsTr/x_001.nii.gz", "x_001/label", "label"),
        ("images/x.nii.gz", "x/image", "image"),
        ("masks/x.nii.gz", "x/label", "label"),
        ("Labels_test/x.nii.gz", "x/label", "label"),
        ("Task01/imagesTs/x.nii.gz", "Task01_x/image", "image"),
        ("images/p1_ct.nii.gz", "p1/ct", "image"),
        ("labels/p1_ct.nii.gz", "p1/label", "label"),
        ("labels/p1_seg.nii.gz", "p1/seg", "label"),
        ("p1/images/ct.nii.gz", "p1/ct", "image"),
        ("p1/labels/seg.nii.gz", "p1/seg", "label"),
        # right in the folder
        ("p1_ct.nii.gz", "p1/ct", "image"),
        ("p1-T1w.nii.gz", "p1/T1w", "image"),
        ("p1_FLAIR.nii", "p1/FLAIR", "image"),
        ("p1_2020_seg.nii.gz", "p1_2020/seg", "label"),
        ("p1_GT.nii.gz", "p1/GT", "label"),
        ("p1.mask.nii.gz", "p1/mask", "label"),
        ("case_001.nii.gz", "case_001/image", "image"),
        ("ct.nii.gz", "given/ct", "image"),
        ("ct_seg.nii.gz", "given/ct_seg", "label"),
    ],
)
def test_names_of_a_file_in_a_folder(tmp_path: Path, path: str, name: str, kind: str) -> None:
    given = grow(tmp_path / "given", [path])
    assert named(discover([given])) == {(name, kind)}


@pytest.mark.parametrize(
    ("path", "name", "kind"),
    [
        ("p1/ct.nii.gz", "p1/ct", "image"),
        ("p1/p1_ct.nii.gz", "p1/ct", "image"),
        ("p1/case_001.nii.gz", "case_001/image", "image"),
        ("imagesTr/x.nii.gz", "x/image", "image"),
        ("labelsTr/x.nii.gz", "x/label", "label"),
        ("p1/labels/seg.nii.gz", "p1/seg", "label"),
        ("sub-01/anat/T1w.nii.gz", "sub-01/T1w", "image"),
        ("s0001/segmentations/liver.nii.gz", "s0001/liver", "label"),
    ],
)
def test_a_file_a_quoted_glob_and_an_expanded_one_give_the_same_names(
    tmp_path: Path, path: str, name: str, kind: str
) -> None:
    grow(tmp_path, [path])
    pattern = str(tmp_path / path).replace("nii", "n?i")
    assert named(discover([tmp_path / path])) == {(name, kind)}
    assert named(discover([pattern])) == {(name, kind)}


def test_a_folder_that_only_sorts_is_not_a_subject_when_given_itself(tmp_path: Path) -> None:
    grow(tmp_path, ["s0001/segmentations/liver.nii.gz", "sub-1/anat/T1w.nii.gz"])
    found = discover([tmp_path / "s0001/segmentations", tmp_path / "sub-1/anat"])
    assert named(found) == {("s0001/liver", "label"), ("sub-1/T1w", "image")}


def test_images_and_labels_of_one_subject_come_together(tmp_path: Path) -> None:
    grow(tmp_path, ["imagesTr/x.nii.gz", "labelsTr/x.nii.gz"])
    (plan,) = discover([tmp_path / "imagesTr", tmp_path / "labelsTr"]).plans
    assert plan.images == {"image": tmp_path / "imagesTr/x.nii.gz"}
    assert plan.labels == {"label": tmp_path / "labelsTr/x.nii.gz"}


def by_path(found: Discovery, root: Path) -> dict[str, str]:
    """Return ``subject/image`` of each file found, by its path below ``root``."""
    return {
        path.relative_to(root).as_posix().removesuffix(".nii"): f"{plan.subject}/{name}"
        for plan in found.plans
        for name, _, path in plan.sources
    }


@pytest.mark.parametrize(
    "expected",
    [
        pytest.param(
            {
                "imagesTr/p1_0000": "p1/image_0000",
                "imagesTr/p1_0001": "p1/image_0001",
                "labelsTr/p1": "p1/label",
                "imagesTr/p2_0000": "p2/image_0000",  # without a label
                "imagesTs/q1_0000": "q1/image_0000",
                "imagesTs/q1_0001": "q1/image_0001",
            },
            id="channels",
        ),
        pytest.param(
            {
                "imagesTr/p1_0000": "p1/image",
                "labelsTr/p1": "p1/label",
                "imagesTs/q1_0000": "q1/image",
            },
            id="one channel",
        ),
        pytest.param(
            {
                "imagesTr/amos_0001": "amos_0001/image",
                "labelsTr/amos_0001": "amos_0001/label",
                "imagesTs/amos_0002": "amos_0002/image",
            },
            id="numbers of cases",
        ),
        pytest.param(
            {
                "imagesTr/amos_0001_0000": "amos_0001/image",
                "labelsTr/amos_0001": "amos_0001/label",
                "imagesTs/amos_0002_0000": "amos_0002/image",
            },
            id="numbers of cases and of channels",
        ),
        pytest.param(
            {
                "imagesTr/p1_0000": "p1_0000/image",
                "imagesTr/p1_0001": "p1_0001/image",
                "labelsTr/p2": "p2/label",
            },
            id="no label fits",
        ),
        pytest.param(
            {
                "imagesTr/p_0001": "p/image_0001",
                "imagesTr/p_0002": "p_0002/image",
                "labelsTr/p": "p/label",
                "labelsTr/p_0002": "p_0002/label",
            },
            id="a label with the number wins",
        ),
        pytest.param(
            {
                "imagesTr/p1_CT_0000": "p1/CT_0000",
                "imagesTr/p1_CT_0001": "p1/CT_0001",
                "labelsTr/p1_CT": "p1/label",
                "imagesTr/p2_seg_0000": "p2/image_0000",
                "labelsTr/p2_seg": "p2/seg",
            },
            id="known words before the number",
        ),
        pytest.param(
            {
                "images/p1_000": "p1_000/image",
                "images/p2_00000": "p2_00000/image",
                "images/p3-0000": "p3-0000/image",
                "images/p4_0000": "p4/image",
                "masks/p1": "p1/label",
                "masks/p2": "p2/label",
                "masks/p3": "p3/label",
                "masks/p4": "p4/label",
            },
            id="four digits after an underscore",
        ),
        pytest.param(
            {"x/p1_0000": "x/p1_0000", "x/p1": "x/p1", "labelsTr/p1": "p1/label"},
            id="only in folders by kind",
        ),
        pytest.param(
            {
                "A/imagesTr/p1_0000": "A_p1/image",
                "A/labelsTr/p1": "A_p1/label",
                "B/imagesTr/p1_0000": "B_p1_0000/image",
                "B/imagesTr/p1_0001": "B_p1_0001/image",
                "B/labelsTr/p2": "B_p2/label",
                "C/imagesTr/p1_0002": "C_p1/image_0002",
                "C/labelsTr/p1": "C_p1/label",
            },
            id="each dataset for itself",
        ),
    ],
)
def test_numbered_images_are_channels_where_labels_lack_the_number(
    tmp_path: Path, expected: dict[str, str]
) -> None:
    grow(tmp_path, [f"{name}.nii" for name in expected])
    assert by_path(discover([tmp_path]), tmp_path) == expected


def test_channels_are_found_whichever_way_the_folders_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(tmp_path, ["imagesTr/p1_0000.nii", "labelsTr/p1.nii"])
    monkeypatch.chdir(tmp_path / "imagesTr")
    for inputs in (
        ["../imagesTr", "../labelsTr"],
        [".", str(tmp_path / "labelsTr")],
        ["p1_0000.nii", "../labelsTr/*"],
    ):
        assert named(discover(inputs)) == {("p1/image", "image"), ("p1/label", "label")}
    assert named(discover(["."])) == {("p1_0000/image", "image")}  # nothing says it is a channel


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("lesion", {("p1/ct", "image"), ("p1/lesion", "label"), ("p1_roi/image", "image")}),
        ("LES*", {("p1/ct", "image"), ("p1/lesion", "label"), ("p1_roi/image", "image")}),
        ("*_ROI", {("p1/ct", "image"), ("p1_lesion/image", "image"), ("p1_roi/label", "label")}),
        ("*roi.nii", {("p1/ct", "image"), ("p1_lesion/image", "image"), ("p1_roi/label", "label")}),
        ("x/p1_c*", {("p1/ct", "label"), ("p1_lesion/image", "image"), ("p1_roi/image", "image")}),
        ("y/p1_c*", {("p1/ct", "image"), ("p1_lesion/image", "image"), ("p1_roi/image", "image")}),
    ],
)
def test_labels_by_pattern(tmp_path: Path, pattern: str, expected: set[tuple[str, str]]) -> None:
    grow(tmp_path, ["x/p1_ct.nii", "x/p1_lesion.nii", "x/p1_roi.nii"])
    assert named(discover([tmp_path / "x"], labels=[pattern])) == expected


def test_a_pattern_names_an_image_in_a_tree(tmp_path: Path) -> None:
    grow(tmp_path, ["p1/liver.nii.gz", "p1/ct.nii.gz"])
    assert named(discover([tmp_path], labels=["liver"])) == {
        ("p1/liver", "label"),
        ("p1/ct", "image"),
    }


def test_other_files_in_a_folder_are_counted_and_named_ones_are_failures(tmp_path: Path) -> None:
    grow(tmp_path, ["p1/ct.nii.gz"])
    (tmp_path / "readme.txt").write_text("read me")
    (tmp_path / "p1" / "ct.json").write_text("{}")
    found = discover([tmp_path])
    assert named(found) == {("p1/ct", "image")}
    assert (found.ignored, found.failures) == (2, ())

    found = discover([tmp_path / "p1" / "*"])
    assert named(found) == {("p1/ct", "image")}
    assert reasons(found) == {
        str(tmp_path / "p1/ct.json"): "not a volume in any format that tiledvol knows"
    }


def test_content_and_not_the_name_tells_a_volume(tmp_path: Path) -> None:
    save(tmp_path / "scan.nii.gz").rename(tmp_path / "scan")
    assert named(discover([tmp_path])) == {("scan/image", "image")}


def test_a_pair_is_one_volume(tmp_path: Path) -> None:
    save(tmp_path / "p1_ct.img")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p1_ct.hdr", "p1_ct.img"]
    for inputs in ([tmp_path], [tmp_path / "*"], [tmp_path / "p1_ct.img"]):
        found = discover(inputs)
        assert [p.images for p in found.plans] == [{"ct": tmp_path / "p1_ct.hdr"}]
        assert (found.ignored, found.failures) == (0, ())


def test_hidden_files_folders_and_stores_are_left_out(tmp_path: Path) -> None:
    grow(tmp_path, ["p1/ct.nii.gz", ".hidden/ct.nii.gz", "p1/._ct.nii.gz", "old.tvol/ct.nii.gz"])
    (tmp_path / "old.tvol" / "zarr.json").write_text("{}")
    found = discover([tmp_path])
    assert named(found) == {("p1/ct", "image")}
    assert found.ignored == 0
    assert reasons(discover([tmp_path / "old.tvol"])) == {
        str(tmp_path / "old.tvol"): "a zarr store; give the files that it was made from"
    }


def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    grow(tmp_path, ["real/p1/ct.nii.gz"])
    tree = tmp_path / "tree"
    (tree / "p2").mkdir(parents=True)
    (tree / "p1").symlink_to(tmp_path / "real" / "p1")
    (tree / "p2" / "t1.nii.gz").symlink_to(tmp_path / "real" / "p1" / "ct.nii.gz")
    (tree / "p2" / "up").symlink_to(tree)
    (tree / "self").symlink_to(tree / "self")
    assert named(discover([tree])) == {("p1/ct", "image"), ("p2/t1", "image")}


def test_a_broken_link_named_like_a_volume_fails_with_its_subject(tmp_path: Path) -> None:
    grow(tmp_path, ["p1/ct.nii.gz"])
    (tmp_path / "p1" / "seg.nii.gz").symlink_to(tmp_path / "gone")
    (tmp_path / "p1" / "notes").symlink_to(tmp_path / "gone")
    found = discover([tmp_path])
    assert named(found) == {("p1/ct", "image"), ("p1/seg", "label")}  # converting it says why
    assert found.ignored == 1


@pytest.mark.timeout(20)
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p1_ct.nii.gz")
    found = discover([tmp_path, tmp_path / "p1_ct.nii.gz"])
    assert found.plans == ()
    assert list(reasons(found).values()) == [
        "holds no volume in any format that tiledvol knows, but 1 other file",
        "neither a file nor a folder",
    ]


def test_inputs_that_are_not_there(tmp_path: Path) -> None:
    found = discover([tmp_path / "gone.nii.gz", tmp_path / "*.nii", ""])
    assert reasons(found) == {
        str(tmp_path / "gone.nii.gz"): "cannot be read: No such file or directory",
        str(tmp_path / "*.nii"): "nothing matches this pattern",
        "": "cannot be read: No such file or directory",
    }


def test_a_name_with_brackets_is_no_pattern_where_it_exists(tmp_path: Path) -> None:
    save(tmp_path / "p[1]_ct.nii.gz")
    assert named(discover([tmp_path / "p[1]_ct.nii.gz"])) == {("p[1]/ct", "image")}


def test_a_file_named_twice_counts_once(tmp_path: Path) -> None:
    grow(tmp_path, ["p1/ct.nii.gz"])
    found = discover([tmp_path / "p1/ct.nii.gz", tmp_path, tmp_path / "p1/../p1/c*"])
    assert named(found) == {("p1/ct", "image")}
    assert found.failures == ()


@pytest.mark.parametrize(
    ("one", "other", "name", "remedy"),
    [
        ("a/scan.nii.gz", "b/scan.nii.gz", "scan/image", "move one, or give the folder above"),
        ("a/p1_ct.nii.gz", "b/p1_CT.nii.gz", "p1/CT", "move one, or give the folder above"),
        ("a/p1.nii", "a/p1.nii.gz", "p1/image", "move one"),
    ],
)
def test_two_files_for_one_image_are_both_refused(
    tmp_path: Path, one: str, other: str, name: str, remedy: str
) -> None:
    grow(tmp_path, [one, other, "c/p9_seg.nii.gz"])
    found = discover([tmp_path / one, tmp_path / other, tmp_path / "c"])
    assert named(found) == {("p9/seg", "label")}
    ((subject, reason),) = reasons(found).items()
    assert subject == name.partition("/")[0]
    assert (
        f"{tmp_path / one} and {tmp_path / other} would both become {name}: rename or {remedy}"
        in reason
    )


@pytest.mark.parametrize(("one", "other"), [("P1", "p1"), ("caf\u00e9", "cafe\u0301")])
def test_subjects_that_some_file_systems_take_for_one_are_refused(
    tmp_path: Path, one: str, other: str
) -> None:
    grow(tmp_path, [f"{one}/ct.nii.gz", f"{other}/t1.nii.gz"])
    found = discover([tmp_path])
    assert found.plans == ()
    ((_, reason),) = reasons(found).items()
    assert f"{one}/ct.nii.gz" in reason
    assert f"{other}/t1.nii.gz" in reason


@pytest.mark.parametrize("name", ["a:b", "a\nb", "x" * 201, "a*b", " a", "a\\..\\b"])
def test_names_that_cannot_be_used_are_failures(tmp_path: Path, name: str) -> None:
    grow(tmp_path, ["good/ct.nii.gz", f"{name}/ct.nii.gz"])
    found = discover([tmp_path])
    assert named(found) == {("good/ct", "image")}
    ((path, reason),) = reasons(found).items()
    assert path == str(tmp_path / name / "ct.nii.gz")
    assert "subject name" in reason
    assert "rename the file" in reason


def test_names_of_the_format_itself_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "zarr.json.nii")
    assert "subject name 'zarr.json' is reserved" in reasons(discover([path]))[str(path)]


def test_no_path_leads_out_of_the_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(tmp_path, ["a/..nii.gz", "x/ct.nii.gz"])
    (tmp_path / "y").mkdir()
    monkeypatch.chdir(tmp_path / "y")
    found = discover(["../x/../x/ct.nii.gz", "../a/..nii.gz", "/../" + str(tmp_path / "x")])
    assert named(found) == {("x/ct", "image")}
    assert "subject name '.'" in reasons(found)["../a/..nii.gz"]


def test_names_can_be_given_with_one_file(tmp_path: Path) -> None:
    path = save(tmp_path / "a:b.nii.gz", VOXELS)
    found = discover([path], subject="p1", image="ct")
    assert named(found) == {("p1/ct", "image")}
    found = discover([path], subject="..", image="ct")
    assert found.plans == ()
    reason = reasons(found)[str(path)]
    assert reason.startswith("subject name '..' ")
    assert reason.endswith("; give another name")
    with pytest.raises(SourceError, match="with one file, not 2"):
        discover([path, save(tmp_path / "b.nii.gz")], subject="p1")


def test_a_folder_that_cannot_be_read_is_a_failure(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    grow(tmp_path, ["p1/ct.nii.gz", "p2/ct.nii.gz"])
    (tmp_path / "p2").chmod(0)
    try:
        found = discover([tmp_path])
    finally:
        (tmp_path / "p2").chmod(0o755)
    assert named(found) == {("p1/ct", "image")}
    assert reasons(found) == {str(tmp_path / "p2"): "cannot be read: Permission denied"}
