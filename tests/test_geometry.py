from itertools import permutations, product

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nibabel.orientations import axcodes2ornt, io_orientation, ornt_transform

from tiledvol.errors import GeometryError
from tiledvol.geometry import Box, Reorientation, check_affine, orientation_of, spacing_of

CODES = ["".join(code) for order in permutations(("RL", "AP", "SI")) for code in product(*order)]


def rotation(angles):
    x, y, z = angles
    rx = [[1, 0, 0], [0, np.cos(x), -np.sin(x)], [0, np.sin(x), np.cos(x)]]
    ry = [[np.cos(y), 0, np.sin(y)], [0, 1, 0], [-np.sin(y), 0, np.cos(y)]]
    rz = [[np.cos(z), -np.sin(z), 0], [np.sin(z), np.cos(z), 0], [0, 0, 1]]
    return np.array(rz) @ np.array(ry) @ np.array(rx)


@st.composite
def affines(draw):
    """Oblique affines: up to 20 degrees about each axis from some axis-aligned orientation."""
    angle = st.floats(-0.35, 0.35)
    spacing = st.floats(0.2, 8)
    code = draw(st.sampled_from(CODES))
    base = nib.orientations.inv_ornt_aff(
        ornt_transform(axcodes2ornt("RAS"), axcodes2ornt(code)), (2, 2, 2)
    )
    matrix = np.eye(4)
    turn = rotation([draw(angle) for _ in range(3)])
    matrix[:3, :3] = turn @ base[:3, :3] @ np.diag([draw(spacing) for _ in range(3)])
    matrix[:3, 3] = [draw(st.floats(-500, 500)) for _ in range(3)]
    return matrix


def test_there_are_48_orientations():
    assert len(set(CODES)) == 48


@given(affines())
def test_orientation_and_spacing_are_those_of_nibabel(affine):
    assert orientation_of(affine) == "".join(nib.aff2axcodes(affine))
    np.testing.assert_allclose(spacing_of(affine), nib.affines.voxel_sizes(affine), rtol=1e-12)


@given(affines(), st.sampled_from(CODES), st.tuples(*[st.integers(1, 5)] * 3))
def test_reorientation_is_that_of_nibabel(affine, target, shape):
    voxels = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
    image = nib.Nifti1Image(voxels, affine)
    change = ornt_transform(io_orientation(affine), axcodes2ornt(target))
    expected = image.as_reoriented(change)
    ours = Reorientation.between(orientation_of(affine), target)
    assert np.array_equal(ours.apply(voxels), np.asanyarray(expected.dataobj))
    np.testing.assert_allclose(ours.affine(affine, shape), expected.affine, atol=1e-9)
    assert ours.shape(shape) == expected.shape


@given(affines(), st.sampled_from(CODES), st.tuples(*[st.integers(1, 5)] * 3))
def test_reorientation_and_its_inverse_change_nothing(affine, target, shape):
    voxels = np.arange(2 * np.prod(shape)).reshape(2, *shape)
    change = Reorientation.between(orientation_of(affine), target)
    there = change.apply(voxels)
    assert np.array_equal(change.inverse.apply(there), voxels)
    back = change.inverse.affine(change.affine(affine, shape), change.shape(shape))
    np.testing.assert_allclose(back, affine, rtol=0, atol=1e-9)


def test_lps_to_ras_on_a_known_case():
    change = Reorientation.between("LPS", "RAS")
    affine = np.diag([-0.8, -0.5, 2, 1.0])
    affine[:3, 3] = [100, 90, -30]
    expected = np.diag([0.8, 0.5, 2, 1.0])
    # x of the last of 10 voxels: 100 - 9 * 0.8; y of the last of 20: 90 - 19 * 0.5
    expected[:3, 3] = [92.8, 80.5, -30]
    np.testing.assert_allclose(change.affine(affine, (10, 20, 5)), expected, atol=1e-12)


@pytest.mark.parametrize("code", ["RAX", "RRS", "RA", "RASS", "", "LRA"])
def test_bad_orientation_codes_are_refused(code):
    with pytest.raises(GeometryError, match="orientation code"):
        Reorientation.between("RAS", code)


@pytest.mark.parametrize(
    ("affine", "message"),
    [
        (np.eye(3), "4×4"),
        (np.diag([1, 1, np.nan, 1]), "NaN"),
        (np.diag([1, 1, 0, 1.0]), "singular"),
        (np.diag([1, 1, 1, 2.0]), "last row"),
        ([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], "singular"),
    ],
)
def test_affines_that_describe_no_volume_are_refused(affine, message):
    with pytest.raises(GeometryError, match=message):
        check_affine(affine)


boxes = st.lists(st.tuples(st.integers(-20, 20), st.integers(0, 20)), min_size=3, max_size=3).map(
    lambda axes: Box(tuple(a for a, _ in axes), tuple(a + n for a, n in axes))
)


@given(boxes, boxes)
def test_box_intersection_holds_the_common_voxels(a, b):
    def voxels(box):
        return {
            (x, y, z)
            for x in range(box.start[0], box.stop[0])
            for y in range(box.start[1], box.stop[1])
            for z in range(box.start[2], box.stop[2])
        }

    common = voxels(a) & voxels(b)
    assert a.intersect(b).size == len(common)
    assert voxels(a.intersect(b)) == common
    assert a.contains(b) == (voxels(b) <= voxels(a))


def test_box_arithmetic():
    box = Box((1, -2, 3), (4, 5, 9))
    assert box.shape == (3, 7, 6)
    assert box.size == 126
    assert box.pad((1, 0, 2)) == Box((0, -2, 1), (5, 5, 11))
    assert box.pad(-1) == Box((2, -1, 4), (3, 4, 8))
    assert box.translate((1, 1, -3)) == Box((2, -1, 0), (5, 6, 6))
    assert box.slices == (slice(1, 4), slice(-2, 5), slice(3, 9))
    with pytest.raises(GeometryError, match="beyond its stop"):
        Box((0, 0, 1), (1, 1, 0))
    with pytest.raises(GeometryError, match="number of axes"):
        Box((0, 0), (1, 1, 1))


def test_box_to_world_reaches_from_face_to_face():
    affine = np.diag([2, 3, -4, 1.0])
    affine[:3, 3] = [10, 20, 30]
    lower, upper = Box((0, 0, 0), (5, 2, 3)).to_world(affine)
    np.testing.assert_allclose(lower, [9, 18.5, 20])
    np.testing.assert_allclose(upper, [19, 24.5, 32])


@given(boxes.filter(lambda b: b.size > 0), affines())
def test_box_from_world_covers_the_world_box(box, affine):
    again = Box.from_world(*box.to_world(affine), affine)
    assert again.contains(box)


def test_box_from_world_is_tight_on_aligned_affines():
    affine = np.diag([-0.7, 1.1, 3.3, 1.0])
    box = Box((-4, 0, 7), (9, 3, 8))
    assert Box.from_world(*box.to_world(affine), affine) == box


@pytest.mark.parametrize(
    ("start", "stop"), [((-1.5, 0, 0), (1, 1, 1)), ((0, 0, 0), (1, 1, 2.0)), ("123", "456")]
)
def test_voxels_are_whole_numbers(start, stop):
    with pytest.raises(GeometryError, match="whole numbers"):
        Box(start, stop)
    assert Box(np.array([0, 1, 2]), np.array([3, 4, 5])) == Box((0, 1, 2), (3, 4, 5))


@pytest.mark.parametrize("edge", [np.nan, np.inf, 1e30])
def test_a_world_box_without_an_end_is_refused(edge):
    with pytest.raises(GeometryError, match="lies at no voxels"):
        Box.from_world([0, 0, 0], [1, 1, edge], np.eye(4))
