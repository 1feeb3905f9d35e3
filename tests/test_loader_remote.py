"""The same loader over a network: a real S3 server, and plain HTTP with byte ranges."""

import asyncio
import http.server
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from cohort import Cohort, stream, write_cohort
from weed import BUCKET, KEY, REGION, SECRET, WeedServer, serve

import tiledvol as tv
from tiledvol.errors import PatchError, StoreError
from tiledvol.storage.store import Store
from tiledvol_converters import convert

LABELS = tv.LabelSampler("seg", foreground=1 / 3)


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Cohort:
    return write_cohort(tmp_path_factory.mktemp("local") / "three.tvol")


@pytest.fixture(scope="module")
def reference(local):
    return stream(local.loader(sampler=LABELS, patches_per_epoch=24))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """An S3 server that the environment's variables point to."""
    with pytest.MonkeyPatch.context() as patch:
        for server in serve(tmp_path_factory.mktemp("weed") / "data"):
            patch.setenv("AWS_ACCESS_KEY_ID", KEY)
            patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
            patch.setenv("AWS_REGION", REGION)
            patch.setenv("AWS_ENDPOINT_URL", server.endpoint)
            yield server


@pytest.fixture(scope="module")
def remote(server: WeedServer) -> Cohort:
    return write_cohort(f"s3://{BUCKET}/three.tvol")


def loader(cohort: Cohort, timeout: float = 60, **options) -> tv.PatchLoader:
    dataset = tv.open(cohort.url, timeout=timeout, context=tv.make_context(0))
    chosen = {"images": ["ct"], "labels": ["seg"], "sampler": LABELS, "patches_per_epoch": 24}
    return tv.PatchLoader(dataset, 24, 2, **(chosen | options))


# S3


def test_patches_from_s3_are_those_of_the_local_dataset(remote, reference):
    for prefetch, cache in ((1, None), (8, 0), (4, "64MiB")):
        assert stream(loader(remote, prefetch_batches=prefetch, cache_bytes=cache)) == reference


def test_async_iteration_over_s3(remote, reference):
    async def collect():
        return [patch for batch in [b async for b in loader(remote)] for patch in stream([batch])]

    assert asyncio.run(collect()) == reference


def test_bytes_read_from_s3_are_counted(remote):
    counted = loader(remote, prefetch_batches=1)
    stream(counted)
    stats = counted.stats()
    assert 0.3 * stats["bytes_decoded"] < stats["bytes_read"] < 2 * stats["bytes_decoded"]


def test_conversion_straight_into_s3(server, tmp_path):
    rng = np.random.default_rng(2)
    voxels = rng.integers(-999, 999, (70, 60, 50)).astype(np.int16)
    labels = (voxels > 500).astype(np.uint8)
    for name, array in (("ct", voxels), ("seg", labels)):
        nib.save(nib.Nifti1Image(array, np.diag([1, 1, 2, 1])), tmp_path / f"{name}.nii.gz")
    url = f"s3://{BUCKET}/converted.tvol"
    for subject in ("one", "two", "one"):  # the third time one is replaced
        convert(url, subject, {"ct": tmp_path / "ct.nii.gz"}, {"seg": tmp_path / "seg.nii.gz"})
    dataset = tv.open(url)
    assert list(dataset) == ["one", "two"]
    assert np.array_equal(dataset["one"]["ct"][...], voxels)
    assert np.array_equal(dataset["two"]["seg"][...], labels)
    assert tv.verify(url) == []
    patches = tv.PatchLoader(dataset, 32, 2, ["ct"], ["seg"], LABELS, patches_per_epoch=4)
    for batch in patches:
        for i in range(2):
            x, y, z, *stop = batch["location"][i].tolist()
            cut = np.s_[x : stop[0], y : stop[1], z : stop[2]]
            assert np.array_equal(batch["ct"][i, 0].numpy(), voxels[cut])


def test_of_concurrent_claims_one_wins(server):
    store = Store(f"s3://{BUCKET}/claims.tvol")
    for key in ("first", "second"):
        _, generation = store.read_generation(key)
        with ThreadPoolExecutor(8) as pool:
            stamps = list(
                pool.map(
                    lambda n, key=key, missing=generation: store._kv.write(
                        key, str(n).encode(), if_equal=missing
                    ).result(timeout=30),
                    range(8),
                )
            )
        winners = [n for n, stamp in enumerate(stamps) if stamp.generation]
        assert len(winners) == 1
        assert store.read(key) == str(winners[0]).encode()


def test_concurrent_updates_of_the_catalogue_are_all_kept(server):
    store = Store(f"s3://{BUCKET}/updates.tvol")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: store.update("k", lambda v: (v or b"") + bytes([n])), range(8)))
    assert sorted(store.read("k")) == list(range(8))


def test_wrong_credentials_are_refused_by_name(server, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreError, match=f"s3://{BUCKET}/three.tvol: reading zarr.json failed"):
        tv.open(f"s3://{BUCKET}/three.tvol", context=tv.make_context(0))


def test_a_dataset_that_is_not_there(server):
    with pytest.raises(StoreError, match="no tiledvol dataset here"):
        tv.open(f"s3://{BUCKET}/nothing.tvol")


def test_the_loader_goes_on_after_the_server_was_restarted(server, remote, reference):
    patches = []
    for batch in loader(remote, prefetch_batches=2):
        patches += stream([batch])
        if len(patches) == 6:
            server.stop()
            threading.Timer(0.5, server.start).start()
    assert patches == reference


def test_what_failed_is_named_within_the_time_out(server, remote, reference):
    patches = []
    with pytest.raises(PatchError) as caught:  # noqa: PT012
        for batch in loader(remote, timeout=2, prefetch_batches=2, on_error="skip"):
            patches += stream([batch])
            if len(patches) == 6:
                server.stop()
                stopped = time.perf_counter()
    waited = time.perf_counter() - stopped
    server.start()
    assert patches == reference[: len(patches)]
    assert waited < 8
    # A read of voxels, or of the block index of a subject that had not been drawn yet.
    found = re.match(
        r"index (\d+).*: s3://.*three.tvol: .*\b[abc]/(ct|seg)\b.* within 2 s", str(caught.value)
    )
    assert int(found[1]) // 2 == len(patches) // 2
    assert {t.name for t in threading.enumerate() if t.name.startswith("tiledvol")} == set()


# HTTP


class RangeHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files, and the byte ranges of them that are asked for."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        status, total = 200, len(data)
        if asked := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "")):
            status = 206
            first = int(asked[1]) if asked[1] else total - int(asked[2])
            last = min(int(asked[2]), total - 1) if asked[1] and asked[2] else total - 1
            data = data[first : last + 1]
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{last}/{total}")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.server.sent += len(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def web(local):
    def handler(*args):
        return RangeHandler(*args, directory=str(local.url))

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.sent = 0
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_patches_over_http_are_those_of_the_local_dataset(web, local, reference):
    url = f"http://127.0.0.1:{web.server_port}"
    over_http = loader(Cohort(url, local.arrays, local.affines))
    assert stream(over_http) == reference
    stats = over_http.stats()
    # Blocks, not whole shards, were sent.
    assert web.sent < 1.5 * stats["bytes_decoded"]
    with pytest.raises(StoreError, match="only be read"):
        write_cohort(url)
