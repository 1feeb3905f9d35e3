import logging
import warnings
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from niftifiles import voxels_of

from tiledvol.errors import SourceError
from tiledvol_converters.nifti import FORMAT
from tiledvol_converters.source import open_source

NIBABEL_DATA = Path(nib.__file__).parent / "tests" / "data"


def real_files(shared):
    folders = [shared / "nifti", NIBABEL_DATA]
    names = ("*.nii", "*.nii.gz", "*.hdr", "*.hdr.gz")
    return sorted(file for folder in folders for name in names for file in folder.rglob(name))


def test_real_files_are_read_as_nibabel_reads_them(shared_data):
    read = []
    logging.getLogger("nibabel").setLevel(logging.CRITICAL)
    for path in real_files(shared_data):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                source = open_source(path, float_dtype="float64")
                image = nib.load(path)
                raw = np.asanyarray(image.dataobj.get_unscaled())
            except (SourceError, FileNotFoundError, nib.filebasedimages.ImageFileError):
                continue
        got = voxels_of(source, bounds=[1, source.info.shape[source.info.slow_axis] // 2])
        if raw.dtype.names:
            raw = np.stack([raw[name] for name in raw.dtype.names])
            raw = raw.reshape(*raw.shape[:4], -1)
            expected = np.concatenate([raw[..., t] for t in range(raw.shape[-1])])
        else:
            values = raw
            if (image.dataobj.slope, image.dataobj.inter) != (1, 0):
                values = raw.astype("f8") * image.dataobj.slope + image.dataobj.inter
            flat = values.ravel(order="F").reshape(*source.info.shape, -1, order="F")
            expected = np.moveaxis(flat, -1, 0)
        assert got.dtype == expected.dtype.newbyteorder("="), path
        np.testing.assert_array_equal(got, expected, str(path))
        if image.__class__.__name__ != "Cifti2Image":
            factor = {1: 1000, 3: 0.001}.get(int(image.header["xyzt_units"]) & 7, 1)
            units = np.diag([factor, factor, factor, 1])
            np.testing.assert_allclose(source.info.affine, units @ image.affine, err_msg=str(path))
        read.append(path.name)
    assert len(read) >= 44


def test_files_from_a_fuzzer_are_refused(shared_data):
    files = sorted((shared_data / "nifti" / "nifti_rs" / "fuzz_artifacts").iterdir())
    files.append(shared_data / "nifti" / "nifti_reader_js" / "not-nifti.nii")
    files.append(shared_data / "nifti" / "nifti_jl" / "empty.nii.gz")
    files += (shared_data / "nifti" / "nifti_rs" / "complex").iterdir()
    assert len(files) == 9
    for path in files:
        with pytest.raises(SourceError, match=path.name):
            open_source(path)
        with pytest.raises(SourceError, match=path.name):
            FORMAT.open(path, label=False, float_dtype=np.dtype("f4"))
