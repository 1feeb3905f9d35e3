import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
from io import StringIO
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from rich.console import Console
from trees import VOXELS, grow, save
from typer.testing import CliRunner

import tiledvol as tv
from tiledvol.cli.main import app
from tiledvol.cli.progress import Bars
from tiledvol_converters import pipeline

PROGRAM = Path(sysconfig.get_path("scripts")) / "tiledvol"
AFFINE = np.diag([1.0, 2.0, 5.0, 1.0])


class Ran:
    """What a command printed, and its exit code."""

    def __init__(self, *args: str | Path) -> None:
        result = CliRunner().invoke(app, [str(a) for a in args])
        assert result.exception is None or isinstance(result.exception, SystemExit)
        self.code = result.exit_code
        self.out = result.stdout
        self.err = result.stderr
        assert "Traceback" not in self.out + self.err

    @property
    def json(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.out)
        return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two subjects, each with a CT of 5×6×7 voxels and its segmentation."""
    for name in ("p1", "p2"):
        save(tmp_path / "in" / name / "ct.nii.gz", VOXELS, AFFINE)
        save(tmp_path / "in" / name / "seg.nii.gz", (VOXELS % 3).astype(np.uint8), AFFINE)
    return tmp_path / "in"


@pytest.fixture
def out(tmp_path: Path, data: Path) -> Path:
    assert Ran("convert", data, tmp_path / "out.tvol").code == 0
    return tmp_path / "out.tvol"


# convert


def test_convert_says_what_it_did(tmp_path: Path, data: Path) -> None:
    (data / "readme.txt").write_text("read me")
    ran = Ran("convert", data, tmp_path / "out.tvol")
    assert ran.code == 0
    assert [line.split()[:2] for line in ran.out.splitlines()] == [
        ["converted", "2"],
        ["skipped", "0"],
        ["failed", "0"],
        ["ignored", "1"],
    ]
    assert [line.split(":")[0] for line in ran.err.splitlines()] == ["converted p1", "converted p2"]
    assert {s: list(v) for s, v in tv.open(tmp_path / "out.tvol").items()} == {
        "p1": ["ct", "seg"],
        "p2": ["ct", "seg"],
    }


def test_convert_again_skips(data: Path, out: Path) -> None:
    ran = Ran("convert", data, out)
    assert ran.code == 0
    assert ran.out.splitlines() == ["converted  0", "skipped    2  unchanged", "failed     0"]
    assert ran.err == ""


def test_a_bad_file_among_good_ones(tmp_path: Path, data: Path) -> None:
    bad = data / "p1" / "seg.nii.gz"
    bad.write_bytes(bad.read_bytes()[:-5])
    text = tmp_path / "notes.txt"
    text.write_text("read me")
    ran = Ran("convert", data, text, tmp_path / "out.tvol")
    assert ran.code == 1
    lines = ran.out.splitlines()
    assert [line.split()[:2] for line in lines[:3]] == [
        ["converted", "1"],
        ["skipped", "0"],
        ["failed", "2"],
    ]
    assert lines[3] == f"failed: {text}: not a volume in any format that tiledvol knows"
    assert lines[4].startswith(f"failed: p1: {bad}: ")
    assert list(tv.open(tmp_path / "out.tvol")) == ["p2"]


def test_convert_prints_one_json_document(tmp_path: Path, data: Path) -> None:
    (data / "p1" / "seg.nii.gz").write_bytes(b"junk")
    ran = Ran("convert", data, tmp_path / "out.tvol", "--json", "--on-error", "stop")
    assert ran.code == 1
    document = ran.json
    reason = document["failed"][0].pop("reason")
    assert str(data / "p1" / "seg.nii.gz") in reason
    assert document == {
        "dataset": str(tmp_path / "out.tvol"),
        "converted": [],
        "skipped": [],
        "failed": [{"name": "p1"}],
        "not_tried": ["p2"],
        "ignored_files": 0,
        "interrupted": False,
    }

    document = Ran("convert", data / "p2", tmp_path / "out.tvol", "--json").json
    (converted,) = document["converted"]
    assert (converted["subject"], converted["voxel_bytes"]) == ("p2", VOXELS.size * 3)
    assert converted["warnings"] == []


def test_warnings_are_grouped(tmp_path: Path) -> None:
    for i in range(3):
        image = nib.Nifti1Image(VOXELS, None)
        image.header["qform_code"] = image.header["sform_code"] = 0
        nib.save(image, tmp_path / f"p{i}.nii")
    ran = Ran("convert", tmp_path, tmp_path / "out.tvol")
    assert ran.code == 0
    (warning,) = [line for line in ran.out.splitlines() if line.startswith("warning: ")]
    assert warning.startswith(f"warning: {tmp_path / 'p0.nii'}: ")
    assert warning.endswith(" (and 2 more files)")


def test_options_reach_the_store(tmp_path: Path) -> None:
    source = save(tmp_path / "p1_ct.nii", VOXELS / 4, np.diag([-1, 1, 1, 1]))
    options = ["--orientation", "lps", "--chunk", "4,4,2", "--codec", "zstd", "--float64"]
    assert Ran("convert", source, tmp_path / "out.tvol", *options).code == 0
    volume = tv.open(tmp_path / "out.tvol")["p1"]["ct"]
    assert (volume.orientation, volume.chunk_shape, volume.dtype) == ("LPS", (4, 4, 2), np.float64)
    np.testing.assert_array_equal(volume[...], VOXELS[:, ::-1] / 4)


def test_labels_subject_and_image_by_option(tmp_path: Path) -> None:
    source = save(tmp_path / "scan.nii", (VOXELS % 3).astype(np.int16))
    out = tmp_path / "out.tvol"
    names = ["--subject", "p7", "--image", "organs"]
    assert Ran("convert", source, out, *names, "--labels", "*scan*").code == 0
    assert Ran("ls", out).out == "p7/organs  label  5×6×7  uint8  1×1×1 mm  RAS\n"


def test_a_touched_file_is_converted_again_unless_its_content_counts(data: Path, out: Path) -> None:
    os.utime(data / "p1" / "ct.nii.gz", (1, 1))
    assert Ran("convert", data, out, "--checksum", "--json").json["skipped"] == ["p1", "p2"]
    assert Ran("convert", data, out, "--json").json["skipped"] == ["p2"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--chunk", "0"], "'0': give one edge in voxels, or three as in 64,64,32"),
        (["--chunk", "64,64"], "'64,64': give one edge in voxels"),
        (["--chunk", "big"], "'big': give one edge in voxels"),
        (["--orientation", "RAX"], "'RAX' is no orientation code"),
        (["--codec", "gzip"], "codec='gzip': choose one of lz4, zstd, none"),
        (["--on-error", "cry"], "'cry': choose continue or stop"),
        (["--subject", "p1"], "with one file, not 4"),
        (["--nonsense"], "No such option"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    tmp_path: Path, data: Path, args: list[str], message: str
) -> None:
    ran = Ran("convert", data, tmp_path / "out.tvol", *args)
    assert (ran.code, ran.out) == (2, "")
    unframed = " ".join(ran.err.replace("│", " ").split())
    assert message in unframed
    assert not (tmp_path / "out.tvol").exists()


def test_what_cannot_be_the_output(tmp_path: Path, data: Path, out: Path) -> None:
    file = data / "p1" / "ct.nii.gz"
    for output, message in (
        (data, "the folder is not empty and holds no tiledvol dataset"),
        (file, "is a file; give the folder of a dataset"),
        ("ftp://host/x", "unknown scheme 'ftp'"),
        ("http://127.0.0.1:9/x", "an http store can only be read"),
    ):
        ran = Ran("convert", data, output)
        assert (ran.code, ran.out) == (1, "")
        assert message in ran.err
    ran = Ran("convert", out, out)
    assert ran.code == 1
    assert f"failed: {out}: a zarr store; give the files that it was made from" in ran.out
    assert Ran("convert", file).code == 2


def test_names_of_terminals_control_sequences_are_printed_as_escapes(tmp_path: Path) -> None:
    grow(tmp_path, ["a\x1b[31mb/ct.nii.gz", "[bold]:smile:/ct.nii.gz"])
    ran = Ran("convert", tmp_path, tmp_path / "out.tvol")
    assert ran.code == 1
    assert "\x1b" not in ran.out + ran.err
    assert "a\\x1b[31mb" in ran.out
    assert "[bold]:smile:" in ran.out


def test_an_interrupt_is_a_clean_end(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert_subject = pipeline.convert_subject

    def interrupted(store: object, plan: pipeline.Plan, *rest: object) -> object:
        if plan.subject == "p2":
            raise KeyboardInterrupt
        return convert_subject(store, plan, *rest)

    monkeypatch.setattr(pipeline, "convert_subject", interrupted)
    ran = Ran("convert", data, tmp_path / "out.tvol", "--json")
    assert ran.code == 130
    assert ran.json["interrupted"] is True
    assert ran.json["not_tried"] == ["p2"]
    assert [c["subject"] for c in ran.json["converted"]] == ["p1"]
    assert ran.err.endswith(
        "tiledvol: interrupted: what was converted stays; run the same again for the rest\n"
    )


# the program itself


def test_ctrl_c_ends_the_program_with_130_and_keeps_what_is_committed(tmp_path: Path) -> None:
    big = np.random.default_rng(0).integers(0, 4000, (128, 128, 128)).astype(np.int16)
    for i in range(8):
        save(tmp_path / f"p{i:02}_ct.nii.gz", VOXELS if i < 2 else big)
    command = [PROGRAM, "convert", tmp_path, tmp_path / "out.tvol"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        for line in process.stderr:
            if line.startswith(b"converted p01"):
                break
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert errors.endswith(b"run the same again for the rest\n")
    assert output.startswith(b"converted ")
    committed = list(tv.open(tmp_path / "out.tvol"))
    assert committed[:2] == ["p00", "p01"]
    assert len(committed) < 8
    assert tv.verify(tmp_path / "out.tvol") == []
    assert subprocess.run(command, capture_output=True, check=True).returncode == 0
    assert len(tv.open(tmp_path / "out.tvol")) == 8


@pytest.mark.parametrize(
    "command", [["ls"], ["info"], ["info", "--json"], ["verify"], ["convert", "--json"]]
)
def test_a_closed_pipe_is_no_traceback(data: Path, out: Path, command: list[str]) -> None:
    name, *options = command
    given = [data] if name == "convert" else []
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        process = subprocess.run(
            [PROGRAM, name, *given, out, *options], stdout=closed, stderr=subprocess.PIPE
        )
    assert b"Traceback" not in process.stderr
    assert b"Exception ignored" not in process.stderr
    assert process.returncode != 0


def test_an_output_that_knows_no_multiplication_sign(out: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [PROGRAM, "ls", out, "p1/ct"]
    process = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert process.stdout == b"p1/ct  image  5?6?7  int16  1?2?5 mm  RAS\n"


def test_help_and_version_load_no_heavy_modules() -> None:
    code = (
        "import sys; from tiledvol.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'tensorstore', 'numpy', 'nibabel', 'isal', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    for args in (["--help"], ["--version"], *([c, "-h"] for c in ("convert", "info", "verify"))):
        process = subprocess.run([sys.executable, "-c", code, *args], capture_output=True)
        assert process.returncode == 0, process.stderr
    version = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True)
    assert version.stdout == f"tiledvol {tv.__version__}\n"


@pytest.mark.parametrize("name", ["convert", "info", "ls", "verify", "export", "reindex"])
def test_every_command_has_an_example(name: str) -> None:
    ran = Ran(name, "--help")
    assert ran.code == 0
    assert f"Example: tiledvol {name} " in ran.out


# info, ls


def test_info_of_a_dataset(out: Path) -> None:
    document = Ran("info", out, "--json").json
    on_disk = sum(p.stat().st_size for p in out.rglob("*") if p.is_file())
    assert document["subjects"] == 2
    assert document["voxel_bytes"] == 2 * 3 * VOXELS.size
    assert document["stored_bytes"] == on_disk
    assert document["ratio"] == 2 * 3 * VOXELS.size / on_disk
    assert document["images"][0] == {
        "image": "ct",
        "kind": "image",
        "subjects": 2,
        "dtypes": ["int16"],
        "orientations": ["RAS"],
        "channels": [1],
        "shape_min": [5, 6, 7],
        "shape_max": [5, 6, 7],
        "spacing_min": [1.0, 2.0, 5.0],
        "spacing_max": [1.0, 2.0, 5.0],
        "voxel_bytes": 2 * 2 * VOXELS.size,
    }
    text = Ran("info", out).out
    assert "subjects  2" in text
    assert "5×6×7" in text


def test_info_of_shapes_that_differ(tmp_path: Path) -> None:
    save(tmp_path / "a_ct.nii", VOXELS, np.diag([1, 1, 1, 1]))
    save(tmp_path / "b_ct.nii", np.zeros((4, 9, 7, 2), np.uint8), np.diag([1, 0.5, 2, 1]))
    out = tmp_path / "out.tvol"
    assert Ran("convert", tmp_path, out).code == 0
    assert "4×6×7 to 5×9×7   1×0.5×1 to 1×1×2" in Ran("info", out).out
    assert Ran("info", out, "--json").json["images"][0]["channels"] == [1, 2]


def test_info_of_a_subject(data: Path, out: Path) -> None:
    document = Ran("info", out, "p1", "--json").json
    assert document["options"] == {
        "orientation": "RAS",
        "chunk": 64,
        "codec": "lz4",
        "float_dtype": "float32",
    }
    assert document["images"][1] == {
        "image": "seg",
        "kind": "label",
        "shape": [5, 6, 7],
        "dtype": "uint8",
        "spacing": [1.0, 2.0, 5.0],
        "orientation": "RAS",
    }
    size = (data / "p1" / "ct.nii.gz").stat().st_size
    assert document["sources"]["ct"]["files"][0]["size"] == size
    assert "source of ct   ct.nii.gz" in Ran("info", out, "p1").out


def test_info_of_an_image(out: Path) -> None:
    document = Ran("info", out, "p1/ct", "--json").json
    assert document["extent_mm"] == [5.0, 12.0, 35.0]
    assert document["affine"] == AFFINE.tolist()
    assert (document["chunk_shape"], document["blocks"]) == ([5, 6, 7], [1, 1, 1])
    assert document["exact"] is True
    statistics = document["statistics"]
    assert (statistics["min"], statistics["max"]) == (0, 209)
    assert statistics["mean"] == pytest.approx(104.5, rel=1e-12)
    assert statistics["percentiles"]["50"] == 104.5
    assert statistics["nonzero"]["count"] == 209
    rows = [line.split() for line in Ran("info", out, "p1/ct").out.splitlines()]
    assert ["voxels", "210", "209"] in rows
    assert ["mean", "104.5", "105"] in rows
    assert ["50", "%", "104.5", "105"] in rows
    assert ["source", "sform_code", "2"] in rows


def test_info_shows_nan_counts_and_an_image_of_nothing_else(tmp_path: Path) -> None:
    voxels = VOXELS.astype(np.float32)
    voxels[0, 0, :2] = np.nan
    voxels[1, 1, 1] = np.inf
    save(tmp_path / "a.nii", voxels)
    save(tmp_path / "b.nii", np.full((3, 3, 3), np.nan, np.float32))
    out = tmp_path / "out.tvol"
    assert Ran("convert", tmp_path, out).code == 0
    rows = [line.split() for line in Ran("info", out, "a/image").out.splitlines()]
    assert ["NaN", "2"] in rows
    assert ["+Inf", "1"] in rows
    document = Ran("info", out, "b/image", "--json").json
    assert document["statistics"]["nan"] == 27
    assert Ran("info", out, "b/image").code == 0


def test_info_of_a_label(out: Path) -> None:
    document = Ran("info", out, "p1/seg", "--json").json
    assert document["classes"] == [
        {"class": c, "voxels": 70, "millilitres": pytest.approx(0.7)} for c in range(3)
    ]
    assert Ran("info", out, "p1/seg").out.splitlines()[-1].split() == ["2", "70", "0.700"]


def test_info_of_what_another_writer_stored(tmp_path: Path) -> None:
    from conftest import write_subject

    write_subject(tmp_path / "out.tvol", "p1", {"ct": VOXELS})
    for name in ("p1", "p1/ct"):
        assert Ran("info", tmp_path / "out.tvol", name).code == 0
        assert Ran("info", tmp_path / "out.tvol", name, "--json").json["options"] is None


def test_info_of_a_store_that_is_no_folder(data: Path) -> None:
    url = "memory://cli_info/"
    assert Ran("convert", data, url).code == 0
    document = Ran("info", url, "--json").json
    assert (document["subjects"], document["stored_bytes"], document["ratio"]) == (2, None, None)
    assert "1.3 kB of voxels\n" in Ran("info", url).out


def test_ls(out: Path) -> None:
    assert Ran("ls", out).out.splitlines() == [
        "p1/ct   image  5×6×7  int16  1×2×5 mm  RAS",
        "p1/seg  label  5×6×7  uint8  1×2×5 mm  RAS",
        "p2/ct   image  5×6×7  int16  1×2×5 mm  RAS",
        "p2/seg  label  5×6×7  uint8  1×2×5 mm  RAS",
    ]
    assert [line[:6] for line in Ran("ls", out, "p2").out.splitlines()] == ["p2/ct ", "p2/seg"]
    assert [line[:5] for line in Ran("ls", out, "*/ct").out.splitlines()] == ["p1/ct", "p2/ct"]
    document = Ran("ls", out, "*2/s*", "--json").json
    assert [(s["subject"], [i["image"] for i in s["images"]]) for s in document["subjects"]] == [
        ("p2", ["seg"])
    ]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["ls", "OUT", "q*"], "nothing is called 'q*'"),
        (["ls", "GONE"], "no tiledvol dataset here"),
        (["info", "GONE"], "no tiledvol dataset here"),
        (["info", "OUT", "q"], "has no subject 'q'; there is p1, p2"),
        (["info", "OUT", "q/ct"], "has no subject 'q'; there is p1, p2"),
        (["info", "OUT", "p1/t1"], "p1 has no image 't1'; there is ct, seg"),
        (["verify", "OUT", "q"], "no subject q"),
        (["verify", "GONE"], "no tiledvol dataset here"),
        (["export", "OUT", "p1", "x.nii"], "p1 has no image ''; there is ct, seg"),
        (["export", "OUT", "p1/ct", "x.mha"], "name the file .nii or .nii.gz"),
        (["export", "OUT", "p1/ct", "gone/x.nii"], "gone/x.nii: "),
        (["reindex", "GONE"], "no tiledvol dataset here"),
    ],
)
def test_what_is_not_there_is_one_line_and_exit_code_1(
    tmp_path: Path, out: Path, args: list[str], message: str
) -> None:
    places = {"OUT": str(out), "GONE": str(tmp_path / "gone")}
    ran = Ran(*(places.get(a, a) for a in args))
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.count("\n") == 1
    assert message in ran.err


# verify, export, reindex


def test_verify_finds_nothing_wrong(out: Path) -> None:
    ran = Ran("verify", out)
    assert (ran.code, ran.out) == (0, "2 subjects: all is well\n")
    assert ran.err == "read p1\nread p2\n"
    assert Ran("verify", out, "p2", "--json").json == {
        "dataset": str(out),
        "subjects": ["p2"],
        "problems": [],
    }


def test_verify_names_what_is_damaged(out: Path) -> None:
    shard = next(p for p in (out / "p1" / "ct" / "0" / "c").rglob("*") if p.is_file())
    content = bytearray(shard.read_bytes())
    content[10] ^= 1
    shard.write_bytes(content)
    ran = Ran("verify", out)
    assert ran.code == 1
    problem, summary = ran.out.splitlines()
    assert "p1/ct" in problem
    assert "(0, 0, 0)" in problem
    assert summary == "2 subjects: 1 problem found"
    ran = Ran("verify", out, "--json")
    assert ran.code == 1
    assert ran.json["problems"] == [problem]
    assert Ran("verify", out, "p2").code == 0


def test_export_gives_the_file_back(tmp_path: Path, data: Path, out: Path) -> None:
    target = tmp_path / "ct.nii.gz"
    ran = Ran("export", out, "p1/ct", target)
    assert (ran.code, ran.out) == (0, f"{target}\n")
    image = nib.load(target)
    np.testing.assert_array_equal(np.asarray(image.dataobj), VOXELS)
    np.testing.assert_array_equal(image.affine, AFFINE)
    again = Ran("export", out, "p2/ct", target)
    assert again.code == 1
    assert f"{target}: exists already" in again.err
    assert Ran("export", out, "p2/ct", target, "--force").code == 0


def test_reindex(out: Path) -> None:
    (out / "catalogue.json").unlink()
    assert Ran("reindex", out).out == f"{out}: 2 subjects\n"
    assert (out / "catalogue.json").exists()


# on a terminal


def test_bars_on_a_terminal() -> None:
    screen = StringIO()
    with Bars(Console(file=screen, force_terminal=True, width=80)) as bars:
        bars.begin(2)
        bars.volume("p1/ct", 30, 60)
        bars.subject("converted p1")
        bars.volume("p2/ct", 30, 60)
        bars.volume("p2/ct", 30, 120)  # begun anew in a wider type
        bars.subject("")
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    assert "p1/ct" in shown
    assert "50 %" in shown
    assert "converted p1\n" in shown
    assert shown.rstrip().endswith("2 of 2")


def test_a_summary_of_many_that_were_not_tried(tmp_path: Path) -> None:
    grow(tmp_path, [f"p{i:02}.nii" for i in range(13)])
    (tmp_path / "p00.nii").write_bytes(b"junk")
    ran = Ran("convert", tmp_path, tmp_path / "out.tvol", "--on-error", "stop")
    assert "not tried  12  p01, p02, p03, p04, p05, p06, p07, p08, p09, p10, ..." in ran.out


def test_listing_ten_thousand_images_takes_seconds(tmp_path: Path, out: Path) -> None:
    marker = (out / "p1" / "zarr.json").read_text()
    for i in range(5000):
        folder = out / f"x{i:04}"
        folder.mkdir()
        (folder / "zarr.json").write_text(marker)
    assert Ran("reindex", out).code == 0
    started = time.perf_counter()
    assert len(Ran("ls", out).out.splitlines()) == 10004
    assert time.perf_counter() - started < 10
