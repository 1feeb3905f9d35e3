"""Patches at another spacing, against scipy's float64 interpolation and exact ramps."""

import itertools

import numpy as np
import pytest
import torch
from cohort import affine_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import map_coordinates

import tiledvol as tv
from tiledvol.geometry import Box, apply_affine
from tiledvol.loading.resample import resample_into
from tiledvol.sampling.request import PatchRequest, ResampledGrid
from tiledvol.storage import catalogue
from tiledvol.storage.writer import SubjectWriter, create_dataset

RNG = np.random.default_rng(5)
VOXELS = RNG.integers(-1000, 1000, (2, 13, 11, 12)).astype(np.int16)
LABELS = RNG.integers(0, 2**16, (1, 13, 11, 12)).astype(np.uint16)
WHOLE = Box((0, 0, 0), (13, 11, 12))

# Axes that are askew by a hair count as straight: see `tiledvol.loading.resample.STRAIGHT`.
angles = st.sampled_from([0.0, np.pi / 2, np.pi]) | st.floats(0.01, 1.5) | st.floats(-1.5, -0.01)
matrices = st.builds(
    lambda turns, scales, shift: _matrix(turns, scales, shift),
    st.tuples(angles, angles),
    st.tuples(*[st.floats(0.2, 2.5)] * 3),
    st.tuples(*[st.floats(-6, 14)] * 3),
)


def _matrix(turns, scales, shift):
    about_z, about_x = (
        affine_of(turns[0], scales, (0, 0, 0)),
        affine_of(turns[1], (1, 1, 1), (0, 0, 0)),
    )
    roll = np.eye(4)[[1, 2, 0, 3]]
    matrix = roll @ about_x @ roll.T @ about_z
    matrix[:3, 3] = shift
    return matrix


def places(matrix, shape):
    """Return the position of every patch voxel, (3, voxels)."""
    return apply_affine(matrix, np.indices(shape).reshape(3, -1).T).T


def faces(positions, shape, margin):
    """Tell which positions lie within the outer faces of a volume, grown by a margin in voxels."""
    limits = np.array(shape)[:, None] - 0.5 + margin
    return ((positions >= -0.5 - margin) & (positions <= limits)).all(axis=0)


@settings(deadline=None)
@given(matrices, st.tuples(*[st.integers(1, 9)] * 3), st.sampled_from([VOXELS, VOXELS / 7.0]))
def test_values_are_scipy_s_in_float64(matrix, shape, source):
    target = np.full((2, *shape), np.nan, np.float32)
    resample_into(target, source, matrix, nearest=False, volume=WHOLE, fill=-7)
    where = places(matrix, shape)
    inside, beyond = faces(where, source.shape[1:], -1e-5), ~faces(where, source.shape[1:], 1e-5)
    for channel in range(2):
        found = target[channel].ravel()
        expected = map_coordinates(source[channel].astype(float), where, order=1, mode="nearest")
        assert np.allclose(found[inside], expected[inside], rtol=0, atol=1000 * 3e-7)
        assert (found[beyond] == -7).all()


@settings(deadline=None)
@given(matrices, st.tuples(*[st.integers(1, 9)] * 3))
def test_labels_are_the_nearest_voxels(matrix, shape):
    target = np.zeros((1, *shape), np.int32)
    resample_into(target, LABELS, matrix, nearest=True, volume=WHOLE, fill=0)
    where = places(matrix, shape)
    # At half way between two voxels either is the nearest.
    sure = (np.abs((where % 1) - 0.5) > 1e-6).all(axis=0) & faces(where, WHOLE.shape, 0)
    expected = map_coordinates(LABELS[0].astype(float), where, order=0, mode="nearest")
    assert np.array_equal(target.ravel()[sure], expected[sure])
    assert (target.ravel()[~faces(where, WHOLE.shape, 1e-5)] == 0).all()


def test_into_integers_values_are_rounded():
    source = np.array([0, 3], np.int16).reshape(1, 2, 1, 1)
    matrix = np.diag([0.25, 1, 1, 1])
    target = np.zeros((1, 5, 1, 1), np.int16)
    resample_into(target, source, matrix, nearest=False, volume=None, fill=0)
    assert target.ravel().tolist() == [0, 1, 2, 2, 3]  # 0, 0.75, 1.5, 2.25, 3


def test_large_label_ids_and_float64_are_exact():
    ids = np.array([2**53 + 1, 2**62], np.uint64).reshape(1, 2, 1, 1)
    target = np.zeros((1, 2, 1, 1), np.int64)
    resample_into(target, ids, np.eye(4), nearest=True, volume=None, fill=0)
    assert target.ravel().tolist() == [2**53 + 1, 2**62]
    precise = np.array([1 + 1e-12, 1 + 3e-12]).reshape(1, 2, 1, 1)
    middle = np.zeros((1, 1, 1, 1))
    shift = np.eye(4)
    shift[0, 3] = 0.5
    resample_into(middle, precise, shift, nearest=False, volume=None, fill=0)
    assert middle.item() == pytest.approx(1 + 2e-12, abs=1e-15)


# Requests


def test_a_patch_on_the_grid_of_an_image_is_its_box():
    affine = affine_of(0.4, (0.7, 0.8, 2.5), (3, 4, 5))
    grid = PatchRequest("s", (4, 5, 6), affine).source(affine)
    assert grid == type(grid)(Box((0, 0, 0), (4, 5, 6)), None)
    moved = affine.copy()
    moved[:3, 3] = apply_affine(affine, (-2, 7, 1))
    assert PatchRequest("s", (4, 5, 6), moved).source(affine).box == Box((-2, 7, 1), (2, 12, 7))
    rounded = moved.astype(np.float32).astype(float)
    assert PatchRequest("s", (4, 5, 6), rounded).source(affine).matrix is None


def test_a_turned_grid_is_not_cut_but_interpolated():
    flipped = np.diag([-1.0, 1, 1, 1])
    flipped[0, 3] = 9
    region = PatchRequest("s", (4, 4, 4), flipped).source(np.eye(4))
    assert region.box == Box((6, 0, 0), (10, 4, 4))
    assert np.array_equal(region.matrix[0], [-1, 0, 0, 3])


@settings(deadline=None)
@given(matrices, st.tuples(*[st.integers(1, 9)] * 3))
def test_the_source_box_holds_what_interpolation_needs_and_no_more(matrix, shape):
    region = PatchRequest("s", shape, matrix).source(np.eye(4))
    where = places(matrix, shape)
    low, high = np.array(region.box.start)[:, None], np.array(region.box.stop)[:, None] - 1
    slack = 1e-3 if region.matrix is None else 1e-6
    assert (where >= low - slack).all()
    assert (where <= high + slack).all()
    assert (where.min(axis=1) < low[:, 0] + 1 + slack).all()
    assert (where.max(axis=1) > high[:, 0] - 1 - slack).all()
    if region.matrix is not None:
        assert np.allclose(places(region.matrix, shape), where - low, rtol=0, atol=1e-9)


def test_a_grid_at_another_spacing_keeps_the_outer_faces(make_volume):
    affine = affine_of(0.6, (0.5, 1, 3), (9, 8, 7))
    volume = make_volume(np.zeros((20, 10, 4), np.uint8), affine=affine)
    grid = ResampledGrid(volume, (1, 0.5, 2))
    assert grid.shape == (10, 20, 6)
    for corner, other in (((0, 0, 0), (0, 0, 0)), ((20, 10, 4), (10, 20, 6))):
        face = apply_affine(affine, np.array(corner) - 0.5)
        assert np.allclose(apply_affine(grid.affine, np.array(other) - 0.5), face, atol=1e-12)
    assert ResampledGrid(volume, (100, 100, 100)).shape == (1, 1, 1)


# Through the loader


def ramp(shape, affine, direction):
    """Return the world coordinate along a direction at each voxel, float32."""
    where = apply_affine(affine, np.indices(shape).reshape(3, -1).T)
    return (where @ direction).reshape(shape).astype(np.float32)


@settings(deadline=None, max_examples=15)
@given(
    st.tuples(*[st.floats(0.4, 3)] * 3),
    st.floats(-1, 1),
    st.integers(0, 2**32),
)
def test_a_ramp_in_world_coordinates_stays_one_at_any_spacing(spacing, angle, seed):
    rng = np.random.default_rng(seed)
    direction = rng.normal(size=3)
    affines = {
        "ct": affine_of(0.3, (0.8, 0.9, 1.5), (5, 6, 7)),
        "mr": affine_of(0.3 + angle, (1.1, 0.7, 1.2), (0, 0, 0)),
    }
    shapes = {"ct": (40, 36, 24), "mr": (70, 90, 60)}
    # The second image has its middle where the first one has.
    centres = {k: apply_affine(affines[k], np.array(shapes[k]) / 2 - 0.5) for k in shapes}
    affines["mr"][:3, 3] += centres["ct"] - centres["mr"]
    url = f"memory://ramp{seed}.{angle}.tvol"
    subject = write_images(
        url, {k: (ramp(shapes[k], affines[k], direction), affines[k]) for k in shapes}
    )
    loader = tv.PatchLoader(
        {"s": subject}, 10, 1, ["ct", "mr"], spacing=spacing, patches_per_epoch=3, seed=seed
    )
    for batch in loader:
        affine = batch["affine"][0].numpy()
        world = ramp((10, 10, 10), affine, direction)
        for name in shapes:
            where = places(np.linalg.inv(affines[name]) @ affine, (10, 10, 10))
            # Between the centres of the outer voxels; beyond, values stay as there.
            inside = faces(where, shapes[name], -0.5).reshape(10, 10, 10)
            error = np.abs(batch[name][0, 0].numpy() - world)[inside]
            assert error.max(initial=0) < 2e-5


def write_images(url, images):
    """Write images with an affine each as one subject."""
    store = create_dataset(url)
    with SubjectWriter(store, "s") as writer:
        for name, (array, affine) in images.items():
            kind = "label" if array.dtype.kind == "u" else "image"
            image = writer.image(name, array.shape, array.dtype, affine, kind=kind, chunk=16)
            for z in range(0, array.shape[2], 64):
                image.write((0, 0, z), array[..., z : z + 64])
            image.finish({})
        entry = writer.commit({})
    catalogue.update(store, add={"s": entry})
    return tv.open(url)["s"]


@pytest.fixture(scope="module")
def pair():
    """A CT, its label on another, oblique grid, and an image that covers only a part."""
    rng = np.random.default_rng(1)
    ct = rng.integers(-999, 999, (30, 28, 20)).astype(np.int16)
    seg = rng.integers(0, 9, (40, 44, 30)).astype(np.uint16)
    pet = rng.normal(size=(9, 9, 9)).astype(np.float32)
    images = {
        "ct": (ct, affine_of(0, (1, 1, 2), (0, 0, 0))),
        "seg": (seg, affine_of(0.2, (0.9, 0.9, 1.5), (4, -8, 0))),
        "pet": (pet, affine_of(0.5, (2, 2, 2), (8, 0, 3))),
    }
    return write_images("memory://pair.tvol", images), images


@pytest.mark.parametrize("pad", ["constant", "edge", "reflect"])
def test_images_are_aligned_by_world_coordinates(pair, pad):
    subject, images = pair
    fill = {"ct": -500, "pet": -2} if pad == "constant" else {}
    loader = tv.PatchLoader(
        {"s": subject}, (14, 40, 16), 2, ["ct", "pet"], ["seg"], spacing=(0.8, 0.9, 1.7),
        pad=pad, fill=fill, patches_per_epoch=6,
    )  # fmt: skip
    margin, outside = 80, 0
    for batch, (name, (array, affine)) in itertools.product(loader, images.items()):
        # As numpy pads, then interpolated; the constant is no neighbour of what is inside.
        padded = np.pad(array, margin, mode="edge" if pad == "constant" else pad).astype(float)
        order, error = (0, 0) if name == "seg" else (1, 1e-3 if name == "ct" else 1e-6)
        for i in range(2):
            where = places(np.linalg.inv(affine) @ batch["affine"][i].numpy(), (14, 40, 16))
            found = batch[name][i, 0].numpy().ravel()
            expected = map_coordinates(padded, where + margin, order=order)
            known = np.full(found.shape, True)
            if name == "seg":  # half way between two voxels either is the nearest
                known &= (np.abs((where % 1) - 0.5) > 1e-5).all(axis=0)
            if pad == "constant":
                known &= faces(where, array.shape, -1e-5)
                beyond = ~faces(where, array.shape, 1e-5)
                assert (found[beyond] == fill.get(name, 0)).all()
                outside += beyond.sum()
            assert np.allclose(found[known], expected[known], rtol=0, atol=error)
    assert pad != "constant" or outside > 1000


def test_an_image_elsewhere_is_all_constant():
    images = {
        name: (np.ones((9, 9, 9), np.int16), affine_of(0, (1, 1, 1), (shift, 0, 0)))
        for name, shift in (("ct", 0), ("far", 500))
    }
    subject = write_images("memory://far.tvol", images)
    (batch,) = tv.PatchLoader(
        {"s": subject}, 4, 1, ["ct", "far"], spacing=1.1, fill={"far": -3}, patches_per_epoch=1
    )
    assert (batch["ct"] == 1).all()
    assert (batch["far"] == -3).all()


def test_at_its_own_spacing_an_image_is_cut(pair):
    subject, _ = pair
    cut = tv.PatchLoader({"s": subject}, 12, 2, ["ct"], patches_per_epoch=6)
    same = tv.PatchLoader({"s": subject}, 12, 2, ["ct"], patches_per_epoch=6, spacing=(1, 1, 2))
    for a, b in zip(cut, same, strict=True):
        assert torch.equal(a["ct"], b["ct"])
        assert torch.equal(a["location"], b["location"])


def test_the_location_of_a_resampled_patch_is_its_source_box(pair):
    subject, images = pair
    (batch,) = tv.PatchLoader({"s": subject}, 8, 1, ["ct"], spacing=2, patches_per_epoch=1)
    location = batch["location"][0].numpy()
    corners = places(np.linalg.inv(images["ct"][1]) @ batch["affine"][0].numpy(), (8, 8, 8))
    assert (corners.min(axis=1) >= location[:3]).all()
    assert (corners.max(axis=1) <= location[3:] - 1).all()
    assert (location[3:] - location[:3]).tolist() == [16, 16, 8]


def test_integers_that_are_resampled_and_kept_are_rounded(pair):
    subject, _ = pair
    options = {"spacing": 1.3, "patches_per_epoch": 2}
    (floats,) = tv.PatchLoader({"s": subject}, 8, 2, ["ct"], **options)
    (kept,) = tv.PatchLoader({"s": subject}, 8, 2, ["ct"], dtype=None, **options)
    assert kept["ct"].dtype == torch.int16
    assert torch.equal(kept["ct"].float(), floats["ct"].round())
