import asyncio
import http.server
import multiprocessing
import os
import pickle
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tensorstore as ts
from conftest import write_subject
from hypothesis import given
from hypothesis import strategies as st

import tiledvol as tv
from tiledvol.errors import BlockError, GeometryError, ReadTimeoutError, StoreError

RNG = np.random.default_rng(7)


def chunks_decoded():
    """Return how many chunks tensorstore has decoded so far, by its own metric."""
    found = ts.experimental_collect_matching_metrics("/tensorstore/cache/chunk_cache/reads")
    return sum(value["value"] for metric in found for value in metric["values"])


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    array = RNG.integers(-999, 999, (150, 70, 130)).astype(np.int16)
    url = tmp_path_factory.mktemp("volume") / "made.tvol"
    return array, write_subject(url, "case", {"volume": array})["volume"]


@pytest.mark.parametrize(
    ("key", "chunks"),
    [
        (np.s_[58:66, :10, :10], 2),
        (np.s_[64:128, :10, :10], 1),
        (np.s_[64:128], 6),
        (np.s_[::70, 0, 0], 3),
        (np.s_[5, 5, 5], 1),
        (np.s_[-1, -1, -1], 1),
        (np.s_[...], 18),
        (np.s_[127:63:-1, 64:, 64:128], 1),
    ],
)
def test_a_read_decodes_exactly_the_chunks_that_it_touches(stored, key, chunks):
    array, volume = stored
    fresh = tv.open(volume._store.url, context=tv.make_context(0))["case"]["volume"]
    before = chunks_decoded()
    assert np.array_equal(fresh[key], array[key])
    assert chunks_decoded() - before == chunks


def test_blocks_of_a_box_are_those_that_a_read_decodes(stored):
    _, volume = stored
    fresh = tv.open(volume._store.url, context=tv.make_context(0))["case"]["volume"]
    for box in (
        tv.Box((58, 0, 60), (66, 70, 70)),
        tv.Box((-9, -9, -9), (1, 1, 1)),
        tv.Box((149, 69, 129), (400, 400, 400)),
    ):
        before = chunks_decoded()
        fresh.read_sync(box)
        assert chunks_decoded() - before == len(volume.blocks_of(box))
    assert volume.blocks_of(tv.Box((58, 0, 60), (66, 10, 70))) == [
        (0, 0, 0),
        (0, 0, 1),
        (1, 0, 0),
        (1, 0, 1),
    ]
    assert volume.blocks_of(tv.Box((150, 0, 0), (160, 10, 10))) == []


small = RNG.integers(0, 255, (7, 1, 12)).astype(np.uint8)
MARGIN = 40
starts = st.tuples(*[st.integers(-MARGIN, MARGIN)] * 3)
sizes = st.tuples(*[st.integers(0, 12)] * 3)


@pytest.fixture(scope="module")
def stored_small(tmp_path_factory):
    url = tmp_path_factory.mktemp("small") / "made.tvol"
    return write_subject(url, "case", {"volume": small}, chunk=5)["volume"]


@given(starts, sizes, st.sampled_from(["constant", "edge", "reflect"]))
def test_boxes_that_reach_outside_are_padded_as_numpy_pads(stored_small, start, size, mode):
    padded = np.pad(small, 2 * MARGIN, mode=mode)
    stop = tuple(a + n for a, n in zip(start, size, strict=True))
    expected = padded[
        tuple(slice(a + 2 * MARGIN, b + 2 * MARGIN) for a, b in zip(start, stop, strict=True))
    ]
    found = stored_small.read_sync(tv.Box(start, stop), pad=mode)
    assert np.array_equal(found, expected)
    assert found.dtype == np.uint8


def test_the_constant_is_a_value_of_the_dtype(stored):
    array, volume = stored
    box = tv.Box((-1, 0, 0), (1, 1, 1))
    assert volume.read_sync(box, fill=-1024).ravel().tolist() == [-1024, array[0, 0, 0]]
    for fill in (40_000, 0.5, float("nan")):
        with pytest.raises(ValueError, match=r"fill=.*int16"):
            volume.read_sync(box, fill=fill)
    with pytest.raises(ValueError, match="pad='wrap'"):
        volume.read_sync(box, pad="wrap")
    with pytest.raises(ValueError, match="only with pad='constant'"):
        volume.read_sync(box, pad="edge", fill=1)


def test_channels_come_in_front(make_volume):
    array = RNG.normal(size=(3, 20, 30, 40)).astype(np.float32)
    volume = make_volume(array, chunk=16)
    assert volume.shape == (3, 20, 30, 40)
    assert volume.chunk_shape == (1, 16, 16, 16)
    assert np.array_equal(volume[1:, 3, ::2], array[1:, 3, ::2])
    spatial = volume.read_sync(tv.Box((-2, 0, 5), (4, 30, 9)), pad="edge")
    expected = np.pad(array, [(0, 0), (2, 0), (0, 0), (0, 0)], mode="edge")[:, :6, :, 5:9]
    assert np.array_equal(spatial, expected)
    one = volume.read_sync(tv.Box((1, 0, 0, 0), (2, 4, 4, 4)))
    assert np.array_equal(one, array[1:2, :4, :4, :4])
    with pytest.raises(GeometryError, match="4 axes"):
        volume.read_sync(tv.Box((0, 0), (1, 1)))


def test_many_reads_in_flight_each_get_their_own(stored):
    array, volume = stored
    origins = RNG.integers(0, 60, (200, 3))

    async def read_all():
        boxes = [tv.Box(tuple(o), tuple(o + 9)) for o in origins]
        return await asyncio.gather(*(volume.read(box) for box in boxes))

    for origin, patch in zip(origins, asyncio.run(read_all()), strict=True):
        assert np.array_equal(patch, array[tuple(slice(o, o + 9) for o in origin)])


def test_small_volumes_have_blocks_no_larger_than_themselves(make_volume):
    volume = make_volume(np.zeros((512, 10, 1), np.uint8))
    assert volume.chunk_shape == (64, 10, 1)
    assert volume.grid == (8, 1, 1)


def shard_of(volume, index="0/0/0"):
    return volume._store.local_path / volume.subject / volume.name / "0" / "c" / index


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_damaged_block_is_named(make_volume, codec):
    volume = make_volume(RNG.integers(0, 99, (130, 70, 20)).astype(np.int16), codec=codec)
    path = shard_of(volume)
    data = bytearray(path.read_bytes())
    index = np.frombuffer(data[-(16 * 6 + 4) : -4], np.uint64).reshape(3, 2, 1, 2)
    data[int(index[1, 0, 0, 0]) + 17] ^= 1
    path.write_bytes(data)
    fresh = tv.open(volume._store.url)["case"]["volume"]
    assert fresh[:64].shape == (64, 70, 20)
    with pytest.raises(BlockError, match=r"case/volume: block \(1, 0, 0\)"):
        fresh[100]
    with pytest.raises(BlockError, match=r"case/volume: block \(1, 0, 0\)"):
        asyncio.run(fresh.read(tv.Box((0, 0, 0), (130, 70, 20))))


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "index"])
def test_a_damaged_shard_is_no_zeros(make_volume, codec, damage):
    volume = make_volume(np.ones((20, 20, 130), np.int16), codec=codec)
    path = shard_of(volume, "0/0/1")
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        wrong = bytes([data[-9] ^ 1])
        path.write_bytes(
            {"empty": b"", "cut": data[: len(data) // 2], "index": data[:-9] + wrong + data[-8:]}[
                damage
            ]
        )
    with pytest.raises(BlockError, match=r"case/volume: block \(0, 0, 1\)"):
        tv.open(volume._store.url)["case"]["volume"][...]


def test_an_uncompressed_volume_keeps_its_voxels_when_it_is_replaced(tmp_path):
    arrays = [np.full((70, 70, 70), value, np.int16) for value in (1, 2)]
    first = write_subject(tmp_path / "d.tvol", "a", {"ct": arrays[0]}, codec="none")["ct"]
    assert np.array_equal(first[...], arrays[0])
    second = write_subject(tmp_path / "d.tvol", "a", {"ct": arrays[1]}, codec="none")["ct"]
    assert np.array_equal(first[...], arrays[0])
    assert np.array_equal(second[...], arrays[1])


def test_a_missing_array_is_an_error_of_the_store(make_volume):
    volume = make_volume(np.ones((20, 20, 13), np.int16))
    (volume._store.local_path / "case/volume/0/zarr.json").unlink()
    fresh = tv.open(volume._store.url)["case"]["volume"]
    with pytest.raises(StoreError, match=r"case/volume: the array cannot be opened"):
        fresh[...]
    with pytest.raises(StoreError, match=r"case/volume: the array cannot be opened"):
        asyncio.run(fresh.read(tv.Box((0, 0, 0), (1, 1, 1))))


@pytest.fixture
def stalling_server(stored):
    """Serve the dataset over HTTP, but never answer for its voxels."""
    _, volume = stored
    release = threading.Event()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(volume._store.local_path))

        def do_GET(self):
            if "/c/" in self.path:
                release.wait(60)
            super().do_GET()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever).start()
    yield f"http://127.0.0.1:{server.server_port}"
    release.set()
    server.shutdown()
    server.server_close()


def test_reads_time_out_instead_of_hanging(stalling_server):
    volume = tv.open(stalling_server, timeout=0.5)["case"]["volume"]
    began = time.perf_counter()
    with pytest.raises(ReadTimeoutError, match=r"case/volume: reading .* within 0.5 s"):
        volume[0]
    with pytest.raises(ReadTimeoutError, match=r"case/volume: reading .* within 0.5 s"):
        asyncio.run(volume.read(tv.Box((0, 0, 0), (1, 1, 1))))
    assert time.perf_counter() - began < 10


def test_a_cancelled_first_read_harms_no_other(stored):
    array, volume = stored
    fresh = pickle.loads(pickle.dumps(volume))
    box = tv.Box((0, 0, 0), (9, 9, 9))

    async def cancel():
        task = asyncio.create_task(fresh.read(box))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert np.array_equal(fresh.read_sync(box), array[:9, :9, :9])
    assert np.array_equal(asyncio.run(fresh.read(box)), array[:9, :9, :9])


def test_mapped_shards_hold_no_file_descriptors(make_volume):
    volume = make_volume(np.ones((9, 9, 640), np.int16), codec="none", chunk=8)
    volume[0, 0, 0]
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert volume[...].all()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_volume_replaced_since_says_so(tmp_path):
    old = write_subject(tmp_path / "d.tvol", "a", {"ct": np.ones((9, 9, 9), np.int16)})["ct"]
    write_subject(tmp_path / "d.tvol", "a", {"ct": np.zeros((9, 9, 9), np.int16)})
    with pytest.raises(StoreError, match=r"replaced or deleted since .* open the dataset again"):
        old[...]


def test_what_is_no_box_is_refused(stored):
    _, volume = stored
    for box in (np.s_[0:3, 0:3, 0:3], ((0, 0, 0), (1, 1, 1))):
        with pytest.raises(TypeError, match=r"tiledvol\.Box"):
            volume.read_sync(box)


def test_pickle(stored):
    array, volume = stored
    again = pickle.loads(pickle.dumps(volume))
    assert (again.subject, again.name, again.shape) == ("case", "volume", array.shape)
    assert np.array_equal(again[3], array[3])
    dataset = pickle.loads(pickle.dumps(tv.open(volume._store.url)))
    assert np.array_equal(dataset["case"]["volume"][4], array[4])


def sum_of(volume):
    return int(volume[...].sum(dtype=np.int64))


def test_spawned_processes_read(stored):
    array, volume = stored
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(sum_of, (volume,)) == array.sum(dtype=np.int64)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not allow forks with threads")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_is_told_why_it_cannot_read(stored):
    _, volume = stored
    volume[0]
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            volume[0]
        except tv.TiledvolError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        message = pipe.read().decode()
    assert os.waitpid(child, 0)[1] == 0
    assert "spawn" in message


def test_geometry_of_a_volume(make_volume):
    affine = np.array([[0, -0.8, 0, 5], [0.5, 0, 0, 6], [0, 0, 2, 7], [0, 0, 0, 1.0]])
    volume = make_volume(np.zeros((3, 4, 5), np.uint8), affine=affine)
    assert volume.orientation == "ALS"
    assert volume.spacing == (0.5, 0.8, 2.0)
    assert np.array_equal(volume.affine, affine)
    volume.affine[0, 0] = 9
    assert np.array_equal(volume.affine, affine)
    assert "ALS" in repr(volume)
