import json

import numpy as np
import pytest
from conftest import write_subject
from typer.testing import CliRunner

import tiledvol as tv
from tiledvol.cli.main import app


def test_the_demo_runs_from_end_to_end(tmp_path):
    result = CliRunner().invoke(app, ["demo", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "voxels equal: True" in result.stdout
    assert "all well" in result.stdout
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert list(tv.open(tmp_path / "demo.tvol")) == [
        "anatomical", "example4d", "example_nifti2", "functional"]  # fmt: skip
    again = CliRunner().invoke(app, ["demo", str(tmp_path)])
    assert again.exit_code == 0
    assert "skipped anatomical" in again.stdout


@pytest.mark.parametrize("labelled", [True, False])
def test_bench_measures_and_recommends(tmp_path, labelled):
    voxels = np.random.default_rng(0).integers(0, 99, (40, 40, 40)).astype(np.int16)
    labels = {"seg": (voxels > 90).astype(np.uint8)} if labelled else {}
    write_subject(tmp_path / "d.tvol", "a", {"ct": voxels}, labels, chunk=16)
    command = ["bench", str(tmp_path / "d.tvol"), "--patch", "16", "--seconds", "0.2"]
    result = CliRunner().invoke(app, [*command, "--step-ms", "1", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["images"], found["labels"]) == (["ct"], list(labels))
    assert all(m["patches"] > 0 for m in found["measured"])
    assert found["recommended"]["prefetch_batches"] in (1, 2, 4, 8)
    assert "recommended: prefetch_batches=" in CliRunner().invoke(app, command).stdout


def test_bench_of_an_empty_dataset_says_so(tmp_path):
    write_subject(tmp_path / "d.tvol", "a", {"ct": np.zeros((4, 4, 4), np.uint8)})
    for path in (tmp_path / "d.tvol/a/zarr.json", tmp_path / "d.tvol/catalogue.json"):
        path.unlink()
    result = CliRunner().invoke(app, ["bench", str(tmp_path / "d.tvol")])
    assert result.exit_code == 1
    assert "the dataset is empty" in result.output
