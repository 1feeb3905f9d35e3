"""A conversion killed at any moment leaves whole subjects, and the same command finishes it."""

import os
import random
import subprocess
import sys
import time

import nibabel as nib
import numpy as np
import pytest

import tiledvol as tv
from tiledvol.errors import StoreError
from tiledvol_converters import convert

KILLS = 20
SUBJECTS = 10


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Ten subjects with an image and a label each, large enough to be interrupted anywhere."""
    folder = tmp_path_factory.mktemp("sources")
    rng = np.random.default_rng(0)
    for i in range(SUBJECTS):
        (folder / f"case_{i}").mkdir()
        voxels = rng.integers(0, 4096, (128, 100, 150), np.int16)
        nib.save(nib.Nifti1Image(voxels, np.eye(4)), folder / f"case_{i}/ct.nii")
        nib.save(nib.Nifti1Image((voxels > 4000).astype(np.uint8), np.eye(4)),
                 folder / f"case_{i}/seg.nii")  # fmt: skip
    return folder


def start(sources, target):
    return subprocess.Popen(
        [sys.executable, "-c", "from tiledvol.cli.main import main; main()",
         "convert", str(sources), str(target)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def visible(target):
    """Return the committed subjects, each of which must be whole."""
    try:
        dataset = tv.open(target)
    except StoreError:
        return set()
    assert tv.verify(target) == []
    for subject in dataset.values():
        assert sorted(subject) == ["ct", "seg"]
    return set(dataset)


def files_of(target):
    return sum(len(files) for _, _, files in os.walk(target))  # folders may vanish meanwhile


def test_a_conversion_killed_at_twenty_random_moments(sources, tmp_path):
    assert start(sources, tmp_path / "whole.tvol").wait() == 0
    whole = files_of(tmp_path / "whole.tvol")
    moments = random.Random(1)
    target = tmp_path / "d.tvol"
    sizes = []
    for _ in range(KILLS):
        if len(sizes) and sizes[-1] == SUBJECTS:  # finished: begin anew
            target = tmp_path / f"d{len(sizes)}.tvol"
        # Moments are counted in files written, so that they fall within a run on any machine.
        enough = moments.uniform(files_of(target), whole)
        process = start(sources, target)
        while process.poll() is None and files_of(target) < enough:
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.02))
        process.kill()
        process.communicate()
        there = visible(target)
        sizes.append(len(there))
    assert len(set(sizes)) > 2, f"the kills hit nothing: {sizes}"
    process = start(sources, target)
    assert process.wait() == 0, process.stderr.read()
    assert visible(target) == {f"case_{i}" for i in range(SUBJECTS)}
    assert np.array_equal(
        tv.open(target)["case_7"]["ct"][...],
        np.asanyarray(nib.load(sources / "case_7/ct.nii").dataobj),
    )


def test_a_replacement_killed_leaves_the_old_or_the_new(sources, tmp_path):
    target = tmp_path / "d.tvol"
    assert start(sources, target).wait() == 0
    for i in range(SUBJECTS):
        path = sources / f"case_{i}/ct.nii"
        path.write_bytes(path.read_bytes())  # another time of modification
    process = start(sources, target)
    process.stderr.readline()  # the first subject has been replaced
    process.kill()
    process.communicate()
    assert len(visible(target)) >= SUBJECTS - 1
    assert start(sources, target).wait() == 0
    assert len(visible(target)) == SUBJECTS


def test_processes_convert_different_subjects_at_once(sources, tmp_path):
    target = tmp_path / "d.tvol"
    halves = [sources / f"case_{i}" for i in range(SUBJECTS)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", "from tiledvol.cli.main import main; main()",
             "convert", str(folder / "ct.nii"), str(target), "--subject", folder.name,
             "--image", "ct"],
        )
        for folder in halves[:4]
    ]  # fmt: skip
    assert [p.wait() for p in processes] == [0] * 4
    assert sorted(tv.open(target)) == [f"case_{i}" for i in range(4)]
    assert (target / "catalogue.json").read_text().count("case_") == 4
    assert tv.verify(target) == []


DYING = """
import os, sys
import numpy as np
from tiledvol.storage.store import Store
from tiledvol_converters import convert

left = int(sys.argv[4])

def dying(method):
    def call(self, *args):
        global left
        if left == 0:
            os._exit(9)
        left -= 1
        return method(self, *args)
    return call

for name in ("write", "update", "delete_prefix", "create_array"):
    setattr(Store, name, dying(getattr(Store, name)))
convert(sys.argv[1], "s", {"a": sys.argv[2], "b": sys.argv[3]})
"""


def test_a_replacement_that_dies_before_any_of_its_writes_leaves_old_or_new(tmp_path):
    old = np.random.default_rng(0).integers(0, 99, (20, 20, 20)).astype(np.int16)
    for name, array in (("old", old), ("new", old + 1)):
        nib.save(nib.Nifti1Image(array, np.eye(4)), tmp_path / f"{name}.nii")
    target = tmp_path / "d.tvol"
    convert(target, "s", {"a": tmp_path / "old.nii", "b": tmp_path / "old.nii"})
    for writes in range(40):
        child = [sys.executable, "-c", DYING, target, *[tmp_path / "new.nii"] * 2, str(writes)]
        code = subprocess.run(child, check=False).returncode
        subject = tv.open(target)["s"]
        found = {int(subject[name][3, 4, 5]) - int(old[3, 4, 5]) for name in ("a", "b")}
        assert found in ({0}, {1}), f"after {writes} writes: neither the old nor the new"
        assert tv.verify(target) == []
        if found == {1}:
            convert(target, "s", {"a": tmp_path / "old.nii", "b": tmp_path / "old.nii"})
        if code == 0:
            break
    assert code == 0
    assert writes > 10
    folders = [p for p in (target / "s").iterdir() if p.is_dir()]
    assert len(folders) == 2, "what crashes left behind is cleared by the next replacement"
