"""Record batches as no honest client makes them, each with a right CRC-32C unless its name excludes that.

The table lists what our broker answers; ``tests/interop/test_malformed_batches.py`` compares that with Apache Kafka.
"""

from __future__ import annotations

import gzip
import random
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

import cramjam
from google_crc32c import value as crc32c

from einmal.log.admission import QUICK_RECORDS
from einmal.types import ErrorCode, Header
from einmal.wire.compression import Compression, compress
from einmal.wire.record_batch import (
    CONTROL,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    NewRecord,
    encode_record,
    encode_records,
    encode_varint,
    seal_batch,
)

NONE: Final = ErrorCode.none
INVALID: Final = ErrorCode.invalid_record
CORRUPT: Final = ErrorCode.corrupt_message
TIMESTAMP: Final = ErrorCode.invalid_timestamp
TOO_LARGE: Final = ErrorCode.message_too_large
CODEC: Final = ErrorCode.unsupported_compression_type

BASE_OFFSET, LENGTH, MAGIC, ATTRIBUTES, LAST_DELTA = 0, 8, 16, 21, 23
BASE_TIME, MAX_TIME, PRODUCER_ID, EPOCH, SEQUENCE, COUNT = 27, 35, 43, 51, 53, 57
_FORMATS: Final = {
    BASE_OFFSET: ">q",
    LENGTH: ">i",
    MAGIC: ">b",
    ATTRIBUTES: ">h",
    LAST_DELTA: ">i",
    BASE_TIME: ">q",
    MAX_TIME: ">q",
    PRODUCER_ID: ">q",
    EPOCH: ">h",
    SEQUENCE: ">i",
    COUNT: ">i",
}
_HOUR: Final = 3_600_000
_INT64_MAX: Final = 2**63 - 1


class Malformed(NamedTuple):
    """``make``: the batch, at a wall clock in ms. ``verdict``: ours. ``configs``: of its topic."""

    name: str
    make: Callable[[int], bytes]
    verdict: ErrorCode
    configs: Mapping[str, str] = {}


def resealed(data: bytes | bytearray, fields: Mapping[int, int]) -> bytearray:
    """The batch with other header fields, by position, and the CRC made right again."""
    data = bytearray(data)
    for position, value in fields.items():
        struct.pack_into(_FORMATS[position], data, position, value)
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return data


def records(count: int, now: int, value: bytes = b"value") -> list[NewRecord]:
    return [NewRecord(b"key", value, now + number) for number in range(count)]


def good(count: int, now: int) -> bytes:
    return sealed(encode_records(records(count, now)), count, now)


def sealed(section: bytes, count: int, now: int, codec: Compression = Compression.NONE) -> bytes:
    """A batch of this section, which is compressed already."""
    return seal_batch(section, count, now, now + max(0, count - 1), compression=codec)


def _fields(count: int, fields: Mapping[int, int]) -> Callable[[int], bytes]:
    return lambda now: bytes(resealed(good(count, now), fields))


def _section(count: int, section: Callable[[], bytes], codec: Compression = Compression.NONE) -> Callable[[int], bytes]:
    return lambda now: sealed(section(), count, now, codec)


def body(
    *,
    attributes: bytes = b"\x00",
    since: bytes = b"\x00",
    delta: bytes = b"\x00",
    key: bytes = b"\x06key",
    value: bytes = b"\x0avalue",
    headers: bytes = b"\x00",
    size: bytes | None = None,
) -> bytes:
    """One record, field by field."""
    content = attributes + since + delta + key + value + headers
    return (encode_varint(len(content)) if size is None else size) + content


def _record(**fields: bytes) -> Callable[[int], bytes]:
    return _section(1, lambda: body(**fields))


def _varint(value: int) -> bytes:
    return encode_varint(value)


def _garbage(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


def _lz4(data: bytes, *, block_linked: bool = False) -> bytes:
    compressor = cramjam.lz4.Compressor(block_linked=block_linked)
    compressor.compress(data)
    return bytes(compressor.finish())


_bombs: Final[Mapping[Compression, Callable[[bytes], bytes]]] = {
    Compression.GZIP: lambda data: zlib.compress(data, wbits=31),
    Compression.ZSTD: lambda data: bytes(cramjam.zstd.compress(data)),
    Compression.LZ4: _lz4,
}


def _deltas(*deltas: int, codec: Compression = Compression.NONE) -> Callable[[int], bytes]:
    section = b"".join(encode_record(0, delta, b"key", b"value", ()) for delta in deltas)
    return _section(len(deltas), lambda: compress(codec, section), codec)


def _times(*offsets_ms: int, codec: Compression = Compression.NONE, header_says: int = 0) -> Callable[[int], bytes]:
    """Records so far from now; the header's latest time is ``header_says`` from now."""

    def make(now: int) -> bytes:
        section = b"".join(encode_record(each, number, b"key", b"v", ()) for number, each in enumerate(offsets_ms))
        return bytes(
            resealed(sealed(compress(codec, section), len(offsets_ms), now, codec), {MAX_TIME: now + header_says})
        )

    return make


def _headers(*headers: tuple[str, bytes | None]) -> bytes:
    return encode_record(0, 0, b"key", b"value", tuple(Header(*each) for each in headers))


_STRUCTURE: Final = [
    Malformed("no bytes", lambda now: b"", INVALID),
    Malformed("a header cut short", lambda now: good(1, now)[:40], INVALID),
    Malformed("a batch cut short", lambda now: good(2, now)[:-1], INVALID),
    Malformed("a byte after the batch", lambda now: good(1, now) + b"\x00", INVALID),
    Malformed("half a batch after the batch", lambda now: good(1, now) + good(1, now)[:50], INVALID),
    Malformed("two batches", lambda now: good(1, now) + good(1, now), INVALID),
    Malformed("a wrong CRC", lambda now: good(1, now)[:-1] + b"\x01", CORRUPT),
    Malformed("length 0", _fields(1, {LENGTH: 0}), CORRUPT),
    Malformed("length -1", _fields(1, {LENGTH: -1}), CORRUPT),
    Malformed("length of a header less a byte", _fields(1, {LENGTH: 48}), CORRUPT),
    Malformed("length 2^31-1", _fields(1, {LENGTH: 2**31 - 1}), INVALID),
    Malformed("magic 1", _fields(1, {MAGIC: 1}), INVALID),
    Malformed("magic 0", _fields(1, {MAGIC: 0}), INVALID),
    Malformed("magic 3", _fields(1, {MAGIC: 3}), INVALID),
    Malformed("magic -1", _fields(1, {MAGIC: -1}), INVALID),
    Malformed("base offset 5", _fields(1, {BASE_OFFSET: 5}), INVALID),
    Malformed("base offset -1", _fields(1, {BASE_OFFSET: -1}), INVALID),
    Malformed("no records", lambda now: bytes(resealed(sealed(b"", 0, now), {LAST_DELTA: 0})), INVALID),
    Malformed("no records, last offset delta -1", lambda now: bytes(resealed(sealed(b"", 0, now), {})), INVALID),
    Malformed("one record more than there is", _fields(3, {COUNT: 4, LAST_DELTA: 3}), INVALID),
    Malformed("one record fewer than there is", _fields(3, {COUNT: 2, LAST_DELTA: 1}), INVALID),
    Malformed("count 2^31-1", _fields(3, {COUNT: 2**31 - 1, LAST_DELTA: 2**31 - 2}), INVALID),
    Malformed("count -1", _fields(3, {COUNT: -1, LAST_DELTA: -2}), INVALID),
    Malformed("count below the last offset delta", _fields(3, {LAST_DELTA: 5}), INVALID),
    Malformed("last offset delta below the count", _fields(3, {LAST_DELTA: 1}), INVALID),
    Malformed("a control batch", _fields(1, {ATTRIBUTES: CONTROL}), INVALID),
    Malformed("a transactional control batch", _fields(1, {ATTRIBUTES: CONTROL | TRANSACTIONAL}), INVALID),
    Malformed("transactional without a producer", _fields(1, {ATTRIBUTES: TRANSACTIONAL}), INVALID),
    Malformed("a producer without a sequence", _fields(1, {PRODUCER_ID: 7, EPOCH: 0}), INVALID),
    Malformed("a producer with sequence -2", _fields(1, {PRODUCER_ID: 7, EPOCH: 0, SEQUENCE: -2}), INVALID),
    Malformed("a producer without an epoch", _fields(1, {PRODUCER_ID: 7, EPOCH: -1, SEQUENCE: 0}), INVALID),
    Malformed("codec 5", _fields(1, {ATTRIBUTES: 5}), CODEC),
    Malformed("codec 6", _fields(1, {ATTRIBUTES: 6}), CODEC),
    Malformed("codec 7", _fields(1, {ATTRIBUTES: 7}), CODEC),
    Malformed("a delete horizon", _fields(1, {ATTRIBUTES: 0x40}), INVALID),
    Malformed("unused attributes", _fields(1, {ATTRIBUTES: 0x180}), NONE),
    Malformed("sequence without a producer", _fields(1, {SEQUENCE: 5}), NONE),
]

_RECORDS: Final = [
    Malformed("50 bytes of garbage", _section(1, lambda: _garbage(50, 1)), INVALID),
    Malformed("garbage as three records", _section(3, lambda: _garbage(50, 2)), INVALID),
    Malformed("zeroes", _section(1, lambda: bytes(50)), INVALID),
    Malformed("ones", _section(1, lambda: b"\xff" * 50), INVALID),
    Malformed("record size 0", _record(size=b"\x00"), INVALID),
    Malformed("record size one too small", _record(size=_varint(13)), INVALID),
    Malformed("record size one too large", _record(size=_varint(15)), INVALID),
    Malformed("negative record size", _record(size=_varint(-5)), INVALID),
    Malformed("record size 2^31-1", _record(size=_varint(2**31 - 1)), INVALID),
    Malformed("record size of six bytes", _record(size=b"\x9e\x80\x80\x80\x80\x00"), INVALID),
    Malformed("record size overlong, in five bytes", _record(size=b"\x9c\x80\x80\x80\x00"), NONE),
    Malformed("a record that ends after the batch", _section(1, lambda: body()[:-3]), INVALID),
    Malformed("bytes after the last record", _section(1, lambda: body() + b"\x00\x00"), INVALID),
    Malformed("record attributes", _record(attributes=b"\x7f"), NONE),
    Malformed("record attributes of 128", _record(attributes=b"\x80"), INVALID),
    Malformed("key size 2^31-1", _record(key=_varint(2**31 - 1)), INVALID),
    Malformed("key size past the record", _record(key=_varint(100) + b"key"), INVALID),
    Malformed("key size -2", _record(key=_varint(-2)), INVALID),
    Malformed("value size 2^31-1", _record(value=_varint(2**31 - 1)), INVALID),
    Malformed("value size past the record", _record(value=_varint(7) + b"value"), INVALID),
    Malformed("value size -2", _record(value=_varint(-2)), INVALID),
    Malformed(
        "key over the value of the next record", _section(2, lambda: body(key=_varint(15) + b"key") * 2), INVALID
    ),
    Malformed("-1 headers", _record(headers=_varint(-1)), INVALID),
    Malformed("one header that is not there", _record(headers=_varint(1)), INVALID),
    Malformed("2^31-1 headers", _record(headers=_varint(2**31 - 1)), INVALID),
    Malformed("a header with a null key", _record(headers=b"\x02\x01\x02v"), INVALID),
    Malformed("a header with key size -2", _record(headers=b"\x02" + _varint(-2) + b"\x02v"), INVALID),
    Malformed("a header with key size 100", _record(headers=b"\x02" + _varint(100) + b"\x02v"), INVALID),
    Malformed("a header with value size -2", _record(headers=b"\x02\x02k" + _varint(-2)), INVALID),
    Malformed("a header with value size 100", _record(headers=b"\x02\x02k" + _varint(100) + b"v"), INVALID),
    Malformed("a header key that is not UTF-8", _record(headers=b"\x02\x04\xff\xfe\x02v"), INVALID),
    Malformed("a header key that is empty", _section(1, lambda: _headers(("", b"v"))), NONE),
    Malformed("a header with a null value", _section(1, lambda: _headers(("k", None), ("k", b""))), NONE),
    Malformed("offset deltas from 1", _deltas(1, 2, 3), INVALID),
    Malformed("offset deltas with a gap", _deltas(0, 2, 3), INVALID),
    Malformed("offset deltas that repeat", _deltas(0, 0, 0), INVALID),
    Malformed("offset deltas that fall", _deltas(2, 1, 0), INVALID),
    Malformed("a negative offset delta", _deltas(0, -1, 2), INVALID),
    Malformed("compressed offset deltas from 1", _deltas(1, 2, 3, codec=Compression.GZIP), INVALID),
    Malformed("compressed offset deltas that fall", _deltas(2, 1, 0, codec=Compression.LZ4), INVALID),
    Malformed("offset delta of eleven bytes", _record(delta=b"\x80" * 10 + b"\x00"), INVALID),
    Malformed("timestamp delta of eleven bytes", _record(since=b"\x80" * 10 + b"\x00"), INVALID),
]

_TIMES: Final = [
    Malformed("two hours ahead", _times(2 * _HOUR, header_says=2 * _HOUR), TIMESTAMP),
    Malformed("two hours ahead, which the header hides", _times(0, 2 * _HOUR, 0), TIMESTAMP),
    Malformed("ahead, compressed, hidden", _times(0, 2 * _HOUR, codec=Compression.ZSTD), TIMESTAMP),
    Malformed("in time, but the header is ahead", _times(0, 1, header_says=9 * _HOUR), NONE),
    Malformed("the header says -1", lambda now: bytes(resealed(good(2, now), {MAX_TIME: -1})), NONE),
    Malformed("the header says 2^63-1", lambda now: bytes(resealed(good(2, now), {MAX_TIME: _INT64_MAX})), NONE),
    Malformed("past 2^63-1", lambda now: bytes(resealed(good(2, now), {BASE_TIME: _INT64_MAX})), TIMESTAMP),
    Malformed("LogAppendTime of a producer", _fields(1, {ATTRIBUTES: LOG_APPEND_TIME}), TIMESTAMP),
    Malformed("no timestamp", lambda now: bytes(resealed(good(1, -1), {MAX_TIME: -1})), NONE),
    Malformed("two hours behind", _times(0, -2 * _HOUR), TIMESTAMP, {"message.timestamp.before.max.ms": str(_HOUR)}),
    Malformed(
        "LogAppendTime where the topic has it",
        _fields(1, {ATTRIBUTES: LOG_APPEND_TIME}),
        TIMESTAMP,
        {"message.timestamp.type": "LogAppendTime"},
    ),
    Malformed(
        "ahead where the topic has LogAppendTime", _times(2 * _HOUR), NONE, {"message.timestamp.type": "LogAppendTime"}
    ),
]

_COMPACT: Final = {"cleanup.policy": "compact"}
_MIXED: Final = body() + body(delta=b"\x02", key=b"\x01") + body(delta=b"\x04")
_KEYS: Final = [
    Malformed("no key", _record(key=b"\x01"), INVALID, _COMPACT),
    Malformed("one of three without a key", _section(3, lambda: _MIXED), INVALID, _COMPACT),
    Malformed("an empty key", _record(key=b"\x00"), NONE, _COMPACT),
    Malformed("garbage, compacted", _section(1, lambda: _garbage(50, 3)), INVALID, _COMPACT),
]


def _three(now: int) -> bytes:
    return encode_records(records(3, now))


_EACH_CODEC: Final[Mapping[str, Callable[[Compression, int], bytes]]] = {
    "no section": lambda codec, now: b"",
    "a section of nothing": lambda codec, now: compress(codec, b""),
    "garbage": lambda codec, now: _garbage(50, 4),
    "garbage inside": lambda codec, now: compress(codec, _garbage(50, 5)),
    "cut short": lambda codec, now: compress(codec, _three(now))[:-6],
    "bytes after it": lambda codec, now: compress(codec, _three(now)) + b"after",
    "a record too few": lambda codec, now: compress(codec, encode_records(records(2, now))),
    "a record too many": lambda codec, now: compress(codec, encode_records(records(4, now))),
    "not compressed": lambda codec, now: _three(now),
}
"""Sections of batches that claim to have three records."""
_CODECS: Final = list(Compression)[1:]
_LYING: Final = {COUNT: 2**31 - 1, LAST_DELTA: 2**31 - 2}


def _for_each_codec() -> Iterator[Malformed]:
    for codec in _CODECS:
        for name, section in _EACH_CODEC.items():
            yield Malformed(
                f"{codec.name}: {name}",
                partial(_sealed_section, section, codec),
                INVALID,
            )
        yield Malformed(f"{codec.name}: count 2^31-1", partial(_lying, _compressed(codec, _three)), INVALID)
    for codec, bomb in _bombs.items():
        yield Malformed(
            f"{codec.name}: 70 MB of zeroes",
            _section(1, partial(_exploding, bomb), codec),
            TOO_LARGE,
            {"max.message.bytes": "10000000"},
        )


def _sealed_section(section: Callable[[Compression, int], bytes], codec: Compression, now: int) -> bytes:
    return sealed(section(codec, now), 3, now, codec)


def _lying(make: Callable[[int], bytes], now: int) -> bytes:
    return bytes(resealed(make(now), _LYING))


def _exploding(bomb: Callable[[bytes], bytes]) -> bytes:
    return bomb(encode_record(0, 0, None, bytes(70 << 20), ()))


def _compressed(codec: Compression, section: Callable[[int], bytes], count: int = 3) -> Callable[[int], bytes]:
    return lambda now: sealed(compress(codec, section(now)), count, now, codec)


def _halves(now: int) -> tuple[bytes, bytes]:
    first, second = records(2, now)
    return encode_record(0, 0, first.key, first.value, ()), encode_record(1, 1, second.key, second.value, ())


def _gzip_members(now: int) -> bytes:
    return sealed(b"".join(map(gzip.compress, _halves(now))), 2, now, Compression.GZIP)


def _lz4_frames(now: int) -> bytes:
    return sealed(b"".join(map(_lz4, _halves(now))), 2, now, Compression.LZ4)


def _linked_lz4(now: int) -> bytes:
    section = encode_records(records(2, now, random.Random(6).randbytes(200_000)))
    return sealed(_lz4(section, block_linked=True), 2, now, Compression.LZ4)


def _skippable_first(now: int) -> bytes:
    skippable = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
    return sealed(skippable + compress(Compression.ZSTD, _three(now)), 3, now, Compression.ZSTD)


def _raw_snappy(now: int) -> bytes:
    return sealed(bytes(cramjam.snappy.compress_raw(_three(now))), 3, now, Compression.SNAPPY)


def _other_xerial(now: int) -> bytes:
    framed = compress(Compression.SNAPPY, _three(now))
    return sealed(framed[:11] + b"\x02" + framed[12:], 3, now, Compression.SNAPPY)


def _lying_snappy(now: int) -> bytes:
    return sealed(b"\x80\x80\x80\x80\x08" + bytes(20), 1, now, Compression.SNAPPY)


_COMPRESSED: Final = [
    *_for_each_codec(),
    Malformed("GZIP: two members", _gzip_members, INVALID),
    Malformed("LZ4: two frames", _lz4_frames, INVALID),
    Malformed("LZ4: blocks that depend on each other", _linked_lz4, INVALID),
    Malformed("ZSTD: a skippable frame before it", _skippable_first, INVALID),
    Malformed("SNAPPY: raw", _raw_snappy, NONE),
    Malformed("SNAPPY: framing of version 2", _other_xerial, INVALID),
    Malformed("SNAPPY: claims 2^31 bytes", _lying_snappy, INVALID),
]


def _many(codec: Compression) -> Callable[[int], bytes]:
    """So many records that they are checked in the background, the last but one of them malformed."""

    def make(now: int) -> bytes:
        count = QUICK_RECORDS + 1
        section = encode_records(records(count, now)) + body(delta=_varint(count), headers=b"\x03")
        section += body(delta=_varint(count + 1))
        return sealed(compress(codec, section), count + 2, now, codec)

    return make


_LONG: Final = [Malformed(f"{codec.name}: the last but one of many", _many(codec), INVALID) for codec in Compression]
MALFORMED: Final = [*_STRUCTURE, *_RECORDS, *_TIMES, *_KEYS, *_COMPRESSED, *_LONG]


def mutated(seed: int, count: int, now: int) -> Iterator[bytes]:
    """Good batches of every codec with one to three changes of their records, before or after compression."""
    source = random.Random(seed)
    for number in range(count):
        codec = source.choice(list(Compression))
        size = source.randint(1, 4)
        headers = (Header("name", b"value"), Header("", None))
        section = b"".join(
            encode_record(source.randrange(100), delta, source.choice((None, b"key")), b"value", headers)
            for delta in range(size)
        )
        if number % 2:
            data = sealed(compress(codec, _changed(section, source)), size, now, codec)
        else:
            data = sealed(_changed(compress(codec, section), source), size, now, codec)
        yield data


def _changed(data: bytes, source: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(source.randint(1, 3)):
        position = source.randrange(len(changed))
        kind = source.randrange(4)
        if kind == 0:
            changed[position] ^= 1 << source.randrange(8)
        elif kind == 1:
            changed[position] = source.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            changed[position:position] = source.choice((b"\x00", b"\x80", b"\x01\x02"))
        elif len(changed) > 1:
            del changed[position]
    return bytes(changed)
