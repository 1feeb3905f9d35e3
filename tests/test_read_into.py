"""Volume.read_into: the same voxels as read, in memory that is there already."""

import asyncio
import gc
import weakref

import numpy as np
import pytest
from conftest import write_subject

import tiledvol as tv
from tiledvol.errors import BlockError

RNG = np.random.default_rng(9)
VOXELS = RNG.integers(-999, 999, (2, 70, 40, 50)).astype(np.int16)


@pytest.fixture(scope="module", params=["lz4", "none"])
def subject(request, tmp_path_factory):
    url = tmp_path_factory.mktemp("into") / "d.tvol"
    images = {"four": VOXELS, "three": VOXELS[0]}
    return write_subject(url, "s", images, chunk=32, codec=request.param)


def read_into(volume, *args, **options):
    asyncio.run(volume.read_into(*args, **options))


@pytest.mark.parametrize("dtype", ["int16", "int32", "float32", "float64", "float16"])
@pytest.mark.parametrize(
    ("start", "stop"),
    [((3, 4, 5), (60, 40, 33)), ((-5, 10, -3), (20, 50, 60)), ((90,) * 3, (95,) * 3)],
)
@pytest.mark.parametrize("pad", ["constant", "edge", "reflect"])
def test_voxels_are_those_of_read(subject, start, stop, pad, dtype):
    box = tv.Box(start, stop)
    options = {"pad": pad, "fill": 7 if pad == "constant" else None}
    for volume in subject.values():
        expected = volume.read_sync(box, **options).astype(dtype)
        out = np.full(expected.shape, 99, dtype)
        read_into(volume, box, out, **options)
        assert np.array_equal(out, expected)


def test_memory_of_any_strides(subject):
    whole = np.zeros((2, 50, 2, 40, 70), np.float32)
    out = whole[:, ::-1, 1].transpose(0, 3, 2, 1)
    read_into(subject["four"], tv.Box((0, 0, 0), (70, 40, 50)), out)
    assert np.array_equal(out, VOXELS)
    assert not whole[:, :, 0].any()


def test_what_does_not_fit_is_refused(subject):
    volume, box = subject["three"], tv.Box((0, 0, 0), (4, 4, 4))
    with pytest.raises(ValueError, match=r"does not fit an array of shape \(4, 4, 5\)"):
        read_into(volume, box, np.zeros((4, 4, 5), np.int16))
    with pytest.raises(ValueError, match="pad='wrap'"):
        read_into(volume, box, np.zeros((4, 4, 4), np.int16), pad="wrap")
    with pytest.raises(ValueError, match=r"fill=0\.5"):
        read_into(volume, box, np.zeros((4, 4, 4), np.int16), fill=0.5)


def test_a_missing_shard_is_named(tmp_path):
    subject = write_subject(tmp_path / "d.tvol", "s", {"ct": VOXELS[0]}, chunk=32)
    next((tmp_path / "d.tvol").glob("s*/ct/0/c/0/0/0")).unlink()
    with pytest.raises(BlockError, match=r"s/ct: block \(0, 0, 0\)"):
        read_into(subject["ct"], tv.Box((0, 0, 0), (40, 40, 40)), np.zeros((40, 40, 40), np.int16))


class Owner:
    """Owns memory as the loader's buffers are owned: who uses the memory keeps the owner alive."""

    def __init__(self):
        self.memory = np.zeros((70, 40, 50), np.float32)
        self.__array_interface__ = self.memory.__array_interface__


def test_memory_is_kept_until_a_read_that_was_given_up_is_over(subject):
    async def main():
        owners = [Owner() for _ in range(40)]
        memory = [owner.memory for owner in owners]
        owned = [weakref.ref(owner) for owner in owners]
        box = tv.Box((0, 0, 0), (70, 40, 50))
        reads = [subject["three"].read_into(box, np.asarray(owner)) for owner in owners]
        owners.clear()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*reads), 1e-4)
        reads.clear()
        for _ in range(200):
            gc.collect()  # the frames that errors hold
            if not any(owner() for owner in owned):
                break
            await asyncio.sleep(0.01)
        assert not any(owner() for owner in owned)
        for array in memory:
            array[...] = -1
        await asyncio.sleep(0.1)
        assert all((array == -1).all() for array in memory)  # nobody has written since

    asyncio.run(main())
