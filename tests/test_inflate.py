import bz2
import gc
import gzip
import hashlib
import threading
import time
import zlib

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledvol.errors import SourceError
from tiledvol_converters import inflate
from tiledvol_converters.digest import new_digest
from tiledvol_converters.inflate import (
    compression_of,
    head_of,
    largest_content,
    open_stream,
)
from tiledvol_converters.readahead import read_ahead

DATA = np.random.default_rng(3).integers(0, 30, 700_001, dtype=np.uint8).tobytes()

COMPRESS = {
    "plain": bytes,
    "gzip": lambda data: gzip.compress(data, 1),
    "bzip2": lambda data: bz2.compress(data, 1),
    "zstd": lambda data: zstandard.ZstdCompressor(write_checksum=True).compress(data),
}
COMPRESSED = ["gzip", "bzip2", "zstd"]


@pytest.fixture(params=COMPRESSED)
def compress(request):
    return COMPRESS[request.param]


def read_all(path, digest=None):
    """Return content, extra bytes and garbage, read in pieces of an odd size."""
    content = bytearray()
    piece = bytearray(77_777)
    with open_stream(path, digest) as stream:
        while got := stream.readinto(memoryview(piece)):
            content += piece[:got]
        assert stream.drain() == 0
        return bytes(content), stream.garbage


def written(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", COMPRESS)
def test_content_is_read_whatever_the_compression(tmp_path, name):
    path = written(tmp_path, COMPRESS[name](DATA))
    assert read_all(path) == (DATA, 0)
    assert head_of(path, 1000) == DATA[:1000]
    assert head_of(path, 10**6) == DATA


@pytest.mark.parametrize("name", COMPRESS)
def test_compression_is_told_by_content(tmp_path, name):
    found = compression_of(COMPRESS[name](DATA)[:10])
    assert (found.name if found else "plain") == name


@pytest.mark.parametrize("name", COMPRESS)
def test_an_empty_content(tmp_path, name):
    assert read_all(written(tmp_path, COMPRESS[name](b""))) == (b"", 0)


@pytest.mark.parametrize("name", COMPRESS)
def test_digest_is_of_the_files_own_bytes(tmp_path, name):
    content = COMPRESS[name](DATA)
    digest = new_digest()
    read_all(written(tmp_path, content), digest)
    assert digest.hexdigest() == hashlib.blake2b(content, digest_size=32).hexdigest()


@pytest.mark.parametrize("name", COMPRESSED)
def test_digest_includes_padding_and_garbage(tmp_path, name):
    content = COMPRESS[name](DATA) + bytes(300_000) + b"more" * 100_000
    digest = new_digest()
    read_all(written(tmp_path, content), digest)
    assert digest.hexdigest() == hashlib.blake2b(content, digest_size=32).hexdigest()


def test_members_follow_one_another(tmp_path, compress):
    content = (
        compress(DATA[:5]) + compress(b"") + compress(DATA[5:600_000]) + compress(DATA[600_000:])
    )
    assert read_all(written(tmp_path, content)) == (DATA, 0)


def test_many_small_members(tmp_path, compress):
    content = b"".join(compress(DATA[i : i + 1000]) for i in range(0, len(DATA), 1000))
    assert read_all(written(tmp_path, content)) == (DATA, 0)


@pytest.mark.parametrize("count", [1, 7, 512, 300_000])
def test_zero_padding_is_silent(tmp_path, compress, count):
    assert read_all(written(tmp_path, compress(DATA) + bytes(count))) == (DATA, 0)


def test_a_member_after_padding_counts(tmp_path, compress):
    content = compress(DATA) + bytes(262_139) + compress(b"tail")
    assert read_all(written(tmp_path, content)) == (DATA + b"tail", 0)


@pytest.mark.parametrize("garbage", [b"x", b"\x1f", b"trailing text", b"y" * 600_000])
def test_garbage_is_counted(tmp_path, compress, garbage):
    assert read_all(written(tmp_path, compress(DATA) + garbage)) == (DATA, len(garbage))
    assert read_all(written(tmp_path, compress(DATA) + bytes(99) + garbage))[1] == len(garbage)


@pytest.mark.parametrize("name", COMPRESSED)
@pytest.mark.parametrize("part", [0.0001, 0.3, 0.7, 0.9999])
def test_a_flipped_bit_is_an_error(tmp_path, name, part):
    content = bytearray(COMPRESS[name](DATA))
    content[int(10 + part * (len(content) - 11))] ^= 4
    with pytest.raises(SourceError, match=f"file: (damaged: its {name} data|cut off)"):
        read_all(written(tmp_path, content))


@pytest.mark.parametrize("place", range(-8, 0))
def test_gzips_own_checksum_and_length_are_verified(tmp_path, place):
    content = bytearray(gzip.compress(DATA))
    content[place] ^= 1
    with pytest.raises(SourceError, match="damaged"):
        read_all(written(tmp_path, content))


@pytest.mark.parametrize("lost", [1, 4, 8, 100, 200_000])
def test_a_cut_tail_is_an_error(tmp_path, compress, lost):
    with pytest.raises(SourceError, match=r"file: cut off.*download the file again"):
        read_all(written(tmp_path, compress(DATA)[:-lost]))


def test_a_cut_second_member_is_an_error(tmp_path, compress):
    with pytest.raises(SourceError, match="cut off"):
        read_all(written(tmp_path, compress(DATA) + compress(DATA)[:-1]))


@settings(deadline=None)
@given(st.sampled_from(COMPRESSED), st.integers(0, 10**6), st.integers(1, 255))
def test_no_damage_goes_unnoticed_or_escapes(tmp_path_factory, name, place, change):
    data = DATA[:3000]
    content = bytearray(COMPRESS[name](data))
    content[place % len(content)] ^= change
    path = written(tmp_path_factory.getbasetemp(), content)
    try:
        got, _ = read_all(path)
    except SourceError:
        return
    # Only fields that say nothing of the content may change without notice: gzip's flags, time
    # and system; a magic that is no more makes the file a plain one.
    assert got in (data, bytes(content))


def test_skip_and_drain_count_what_was_there(tmp_path):
    path = written(tmp_path, gzip.compress(DATA))
    with open_stream(path) as stream:
        assert stream.skip(0) == 0
        assert stream.skip(500_000) == 500_000
        assert stream.drain() == 200_001
    with open_stream(path) as stream:
        assert stream.skip(10**9) == 700_001


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SourceError, match="nowhere: cannot be read: No such file"):
        open_stream(tmp_path / "nowhere")


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(SourceError, match="cannot be read: Is a directory"):
        open_stream(tmp_path)


ZEROS = 50_000_000
DENSEST = {
    "gzip": lambda: zlib.compress(bytes(ZEROS), 9, 31),
    "bzip2": lambda: bz2.compress(bytes(45_899_235), 9),  # all that one block can hold
    "zstd": lambda: zstandard.ZstdCompressor(level=19).compress(bytes(ZEROS)),
}


@pytest.mark.parametrize("name", COMPRESSED)
def test_no_real_file_exceeds_the_largest_content(tmp_path, name):
    content = DENSEST[name]()
    path = written(tmp_path, content)
    with open_stream(path) as stream:
        size = stream.drain()
    assert size <= largest_content(path) <= 2_000_000 * len(content)


def test_gzip_gets_within_one_percent_of_its_limit(tmp_path):
    path = written(tmp_path, DENSEST["gzip"]())
    assert 0.99 * largest_content(path) < ZEROS


@pytest.mark.parametrize("name", COMPRESSED)
def test_a_dense_file_is_not_inflated_beyond_what_is_asked(tmp_path, name, monkeypatch):
    path = written(tmp_path, DENSEST[name]())
    pieces = []
    compression = compression_of(path.read_bytes()[:10])
    assert compression is not None

    class Watched:
        def __init__(self):
            self.member = compression.member()

        def __getattr__(self, name):
            return getattr(self.member, name)

        def decompress(self, data, most):
            pieces.append(len(out := self.member.decompress(data, most)))
            return out

    watched = inflate.Compression(name, compression.magic, compression.max_ratio, Watched)
    with inflate.CompressedStream(path, watched) as stream:
        assert stream.readinto(memoryview(bytearray(3_000_000))) == 3_000_000
    assert max(pieces) <= inflate.INFLATE_BYTES
    assert sum(pieces) == 3_000_000


def test_zstd_with_a_skippable_frame_first(tmp_path):
    skippable = b"\x5a\x2a\x4d\x18" + (9).to_bytes(4, "little") + b"index data"[:9]
    assert read_all(written(tmp_path, skippable + COMPRESS["zstd"](DATA))) == (DATA, 0)


def readers():
    return [t for t in threading.enumerate() if t.name.startswith("tiledvol")]


def forever(stop):
    while not stop.is_set():
        yield object()


class TestReadAhead:
    def test_yields_in_order_and_ends(self):
        assert list(read_ahead(lambda stop: iter_numbers(50))) == list(range(50))
        assert readers() == []

    def test_an_item_is_begun_when_the_one_before_is_handed_out(self):
        begun = []

        def produce(stop):
            for i in range(6):
                begun.append(i)
                yield i

        for i in read_ahead(produce):
            time.sleep(0.02)
            assert begun == list(range(min(i + 2, 6)))

    def test_errors_arrive_after_the_items_before_them(self):
        def produce(stop):
            yield 1
            raise SourceError("broken")

        items = read_ahead(produce)
        assert next(items) == 1
        with pytest.raises(SourceError, match="broken"):
            next(items)
        assert readers() == []

    def test_closing_ends_the_thread_and_the_producer(self):
        ended = threading.Event()

        def produce(stop):
            try:
                yield from forever(stop)
            finally:
                ended.set()

        items = read_ahead(produce)
        next(items)
        items.close()
        assert readers() == []
        assert ended.is_set()

    def test_dropping_ends_the_thread(self):
        items = read_ahead(forever)
        next(items)
        assert len(readers()) == 1
        del items
        gc.collect()
        assert readers() == []

    def test_an_exception_in_the_consumer_ends_the_thread(self):
        with pytest.raises(RuntimeError, match="consumer"):
            consume_badly()
        gc.collect()
        assert readers() == []

    def test_nothing_starts_before_the_first_item_is_wanted(self):
        items = read_ahead(forever)
        assert readers() == []
        del items

    def test_work_after_the_last_item_is_done_before_the_end(self):
        done = []

        def produce(stop):
            yield 1
            time.sleep(0.05)
            done.append(True)

        assert list(read_ahead(produce)) == [1]
        assert done == [True]


def iter_numbers(count):
    yield from range(count)


def consume_badly():
    for _ in read_ahead(forever):
        raise RuntimeError("consumer")
