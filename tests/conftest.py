"""Fixtures: small stores, and the real files that lie beside the checkout."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

import tiledvol as tv
from tiledvol.storage import catalogue
from tiledvol.storage.writer import SubjectWriter, create_dataset

# A busy machine is no fault of the code: time is bounded by pytest-timeout.
settings.register_profile("tiledvol", deadline=None)
settings.load_profile("tiledvol")

SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    if not SHARED.is_dir():
        pytest.skip("the real files of shared/data are not beside the checkout")
    return SHARED


def write_subject(
    url: str | Path,
    subject: str,
    images: dict[str, np.ndarray],
    labels: dict[str, np.ndarray] | None = None,
    affine: np.ndarray | None = None,
    **options: object,
) -> tv.Subject:
    """Write arrays as one subject, slab by slab, and return it as opened from the store."""
    store = create_dataset(url)
    matrix = np.eye(4) if affine is None else affine
    with SubjectWriter(store, subject) as writer:
        for kind, arrays in (("image", images), ("label", labels or {})):
            for name, array in arrays.items():
                image = writer.image(name, array.shape, array.dtype, matrix, kind=kind, **options)
                lead = array.shape[:-3]
                thickness = 64 // image.summary.chunk_shape[-1] * image.summary.chunk_shape[-1]
                for channel in np.ndindex(*lead):
                    for z in range(0, array.shape[-1], max(thickness, 1)):
                        slab = array[channel][..., z : z + thickness]
                        start = (*channel, 0, 0, z)
                        image.write(start, slab.reshape((1,) * len(lead) + slab.shape))
                image.finish({})
        entry = writer.commit({})
    catalogue.update(store, add={subject: entry})
    return tv.open(url)[subject]


@pytest.fixture
def make_volume(tmp_path: Path) -> Callable[..., tv.Volume]:
    """Return a function that stores an array and gives back its Volume."""

    def make(array: np.ndarray, kind: str = "image", **options: object) -> tv.Volume:
        named = {"volume": array}
        images, labels = (named, {}) if kind == "image" else ({}, named)
        return write_subject(tmp_path / "made.tvol", "case", images, labels, **options)["volume"]

    return make
