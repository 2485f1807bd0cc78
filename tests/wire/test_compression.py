"""Codecs, the framings of Kafka's clients, and bombs."""

from __future__ import annotations

import gzip
import random
import resource
import struct
import tracemalloc

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einmal.wire.compression import Compression, compress, decompress
from einmal.wire.errors import CorruptBatch, TooLarge, TooLong
from tests.wire.compressed import in_blocks

_CODECS = list(Compression)[1:]


@given(data=st.binary(max_size=100_000), codec=st.sampled_from(Compression))
def test_what_is_compressed_is_decompressed(data: bytes, codec: Compression) -> None:
    assert decompress(codec, compress(codec, data)) == data


@pytest.mark.parametrize("codec", _CODECS)
@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 300_000])
def test_sizes_around_blocks_and_buffers(codec: Compression, size: int) -> None:
    data = bytes(i * i % 251 for i in range(size))
    assert decompress(codec, compress(codec, data), size) == data


def test_snappy_comes_raw_too() -> None:
    data = b"raw as librdkafka writes it" * 1000
    assert decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data


def test_gzip_of_several_members_is_one_text() -> None:
    assert decompress(Compression.GZIP, gzip.compress(b"one ") + gzip.compress(b"two")) == b"one two"


@pytest.mark.parametrize("size", [0, 1, 2**20 - 1, 2**20, 2**20 + 1, 3 * 2**20])
@pytest.mark.parametrize("byte", [b"a", None])
def test_gzip_members_around_the_size_of_a_part(size: int, byte: bytes | None) -> None:
    data = byte * size if byte else random.Random(size).randbytes(size)
    member = gzip.compress(data, 1)
    assert decompress(Compression.GZIP, member * 2, 2 * size) == data * 2
    with pytest.raises(CorruptBatch):
        decompress(Compression.GZIP, member[:-1], size)


def test_lz4_blocks_are_independent_as_java_demands() -> None:
    flags = compress(Compression.LZ4, b"x" * 200_000)[4]
    assert flags & 0x20


@pytest.mark.parametrize("codec", _CODECS)
def test_a_decompression_bomb_is_refused_without_allocating_its_size(codec: Compression) -> None:
    bomb = compress(codec, bytes(200_000_000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TooLarge):
        decompress(codec, bomb, 1_000_000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40_000


def test_claims_of_size_are_not_believed() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    claimed = b"\xff\xff\xff\x7f"  # a snappy preamble: 268,435,455 bytes
    for data in (claimed + b"\x00", b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, 5) + claimed + b"\x00"):
        with pytest.raises(CorruptBatch):
            decompress(Compression.SNAPPY, data, 1 << 30)
    zstd = bytes.fromhex("28b52ffda0") + struct.pack("<I", 2**31) + b"\x01\x00\x00"
    lz4 = bytes.fromhex("04224d186840") + struct.pack("<Q", 2**40) + b"\x00"
    for codec, data in ((Compression.ZSTD, zstd), (Compression.LZ4, lz4)):
        with pytest.raises(CorruptBatch):
            decompress(codec, data, 1 << 30)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40_000


@pytest.mark.parametrize("codec", _CODECS)
def test_data_that_ends_early_or_is_none_is_corrupt(codec: Compression) -> None:
    whole = compress(codec, b"some text that is long enough to be cut" * 10)
    for broken in (whole[: len(whole) // 2], b"\xffjunk that no codec knows", whole[:-1]):
        with pytest.raises(CorruptBatch):
            decompress(codec, broken)


def test_xerial_blocks_may_not_end_after_the_data() -> None:
    header = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for tail in (b"\x00\x00", struct.pack(">i", 100) + b"x", struct.pack(">i", -1) + b"x"):
        with pytest.raises(CorruptBatch):
            decompress(Compression.SNAPPY, header + tail)


@pytest.mark.parametrize("codec", [Compression.SNAPPY, Compression.LZ4])
def test_blocks_are_counted_before_they_are_decompressed(codec: Compression) -> None:
    data = in_blocks(codec, [b"abc"] * 50)
    assert decompress(codec, data, strict=True, blocks_max=50) == b"abc" * 50
    with pytest.raises(TooLong):
        decompress(codec, data, strict=True, blocks_max=49)


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_what_decompresses_to_much_is_in_memory_once(codec: Compression) -> None:
    size = 48 * 1024 * 1024
    data = compress(codec, bytes(size))
    tracemalloc.start()
    try:
        assert len(decompress(codec, data, 64 * 1024 * 1024)) == size
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.6 * size
