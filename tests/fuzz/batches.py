"""Record batches: valid ones, malformed ones whose CRC is right, bombs, and floods."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Sequence
from typing import Final

import cramjam
import google_crc32c

from einmal.types import Header
from einmal.wire.compression import Compression, compress
from einmal.wire.record_batch import NewRecord, encode_batch, encode_varint

_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = 17
_CRC_FROM: Final = 21
_LENGTH_AT: Final = 8
_ATTRIBUTES_AT: Final = 21
_TRANSACTIONAL: Final = 0x10
_PRODUCER_AT: Final = 43
_PRODUCER: Final = struct.Struct(">qhi")
_HEADER_SIZE: Final = 61
_BOMB_BYTES: Final = 48 * 1024 * 1024
_FLOOD: Final = 2_000_000
"""Headers of one record: a few hundred bytes that take a second to check."""
_FIELDS: Final = (
    (">i", _LENGTH_AT),
    (">i", 12),
    (">b", 16),
    (">h", _ATTRIBUTES_AT),
    (">i", 23),
    (">q", 27),
    (">q", 35),
    (">q", 43),
    (">h", 51),
    (">i", 53),
    (">i", 57),
)
"""Length, leader epoch, magic, attributes, last offset delta, first and max timestamp, producer, count."""
_NUMBERS: Final = (0, 1, -1, 2, 3, 100, 2**15 - 1, -(2**15), 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))


def sealed(batch: bytearray) -> bytes:
    """With the CRC that its bytes have."""
    if len(batch) >= _CRC_FROM:
        _CRC.pack_into(batch, _CRC_AT, google_crc32c.value(bytes(batch[_CRC_FROM:])))
    return bytes(batch)


class Batches:
    """``now_ms``: the time of valid records, near the broker's."""

    def __init__(self, source: random.Random, now_ms: int) -> None:
        self._source = source
        self._now_ms = now_ms
        self._valid = [self._new(codec) for codec in Compression for _ in range(12)]
        self._bombs = _bombs(self._valid[0])
        self._floods = _floods(self._valid[0])

    def any(self, source: random.Random, producers: Sequence[int]) -> bytes:
        """Valid in one of three cases. ``producers``: ids of some that there are."""
        chance = source.random()
        if chance < 0.25:
            return source.choice(self._valid)
        if chance < 0.252:
            return source.choice(self._bombs)
        if chance < 0.2525:
            return source.choice(self._floods)
        if chance < 0.35 and producers:
            return self._of_producer(source, source.choice(producers))
        return self._malformed(source)

    def _new(self, codec: Compression) -> bytes:
        source = self._source
        records = [
            NewRecord(
                source.choice((None, b"key", source.randbytes(8))),
                source.choice((None, b"", b"value", source.randbytes(60))),
                self._now_ms - source.randrange(1000),
                (Header("header", b"x"),) * source.randrange(3),
            )
            for _ in range(source.randint(1, 8))
        ]
        if source.random() < 0.3:
            producer_id, epoch, sequence = source.choice((1, 5, 1000, 10**9)), 0, source.choice((0, 5))
            return encode_batch(
                records, compression=codec, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
            )
        return encode_batch(records, compression=codec)

    def _of_producer(self, source: random.Random, producer_id: int) -> bytes:
        """Often in a transaction."""
        batch = bytearray(source.choice(self._valid))
        if source.random() < 0.7:
            batch[_ATTRIBUTES_AT + 1] |= _TRANSACTIONAL
        _PRODUCER.pack_into(batch, _PRODUCER_AT, producer_id, source.choice((0, 0, 1, 2)), source.choice((0, 0, 1, 5)))
        return sealed(batch)

    def _malformed(self, source: random.Random) -> bytes:
        batch = bytearray(source.choice(self._valid))
        for _ in range(source.randint(1, 3)):
            how = source.randrange(5)
            if how == 0:
                layout, at = source.choice(_FIELDS)
                if at + struct.calcsize(layout) <= len(batch):
                    _pack(layout, batch, at, source.choice(_NUMBERS))
            elif how == 1 and len(batch) > _HEADER_SIZE:
                batch[source.randrange(_HEADER_SIZE, len(batch))] = source.choice((0, 1, 0x7F, 0x80, 0xFF))
            elif how == 2:
                del batch[source.randrange(len(batch) + 1) :]
            elif how == 3:
                batch += source.choice((b"\x00", batch[:20], bytes(batch)))
            else:
                batch[source.randrange(len(batch) or 1) : 0] = source.choice((b"\xff" * 5, b"\x80\x80\x01", b"\x00"))
        if source.random() < 0.7 and len(batch) >= _HEADER_SIZE:
            struct.pack_into(">i", batch, _LENGTH_AT, len(batch) - 12)
        return sealed(batch) if source.random() < 0.95 else bytes(batch)


def _pack(layout: str, batch: bytearray, at: int, value: int) -> None:
    bits = struct.calcsize(layout) * 8
    value &= 2**bits - 1
    struct.pack_into(layout, batch, at, value - 2**bits if value >= 2 ** (bits - 1) else value)


def _floods(template: bytes) -> list[bytes]:
    """Valid records of very many headers, in one record or in ten, and very many records."""
    floods = []
    for records, headers in ((1, _FLOOD), (10, _FLOOD // 10), (100_000, 0)):
        section = b"".join(_record(delta, headers) for delta in range(records))
        for codec in (Compression.LZ4, Compression.ZSTD):
            batch = bytearray(template[:_HEADER_SIZE]) + compress(codec, section)
            for layout, at, value in ((">i", _LENGTH_AT, len(batch) - 12), (">h", _ATTRIBUTES_AT, codec.value)):
                struct.pack_into(layout, batch, at, value)
            for at, value in ((23, records - 1), (57, records)):
                struct.pack_into(">i", batch, at, value)
            # Of no producer, whatever the template's is; all records have the first one's time.
            batch[35:43] = batch[27:35]
            struct.pack_into(">qhi", batch, _PRODUCER_AT, -1, -1, -1)
            floods.append(sealed(batch))
    return floods


def _record(offset_delta: int, headers: int) -> bytes:
    """Without key and value; its headers have empty keys, and no values."""
    content = b"\0\0" + encode_varint(offset_delta) + b"\1\1" + encode_varint(headers) + b"\0\1" * headers
    return encode_varint(len(content)) + content


def _bombs(template: bytes) -> list[bytes]:
    """Zeros of every codec: a few kilobytes that become many megabytes."""
    zeros = bytes(_BOMB_BYTES)
    sections = {
        Compression.GZIP: zlib.compress(zeros, 9, wbits=31),
        Compression.SNAPPY: bytes(cramjam.snappy.compress_raw(zeros[: 4 * 1024 * 1024])),
        Compression.LZ4: compress(Compression.LZ4, zeros),
        Compression.ZSTD: bytes(cramjam.zstd.compress(zeros)),
    }
    bombs = []
    for codec, section in sections.items():
        for count in (1, 2**31 - 1, 1_000_000):
            batch = bytearray(template[:_HEADER_SIZE]) + section
            struct.pack_into(">i", batch, _LENGTH_AT, len(batch) - 12)
            struct.pack_into(">h", batch, _ATTRIBUTES_AT, codec.value)
            struct.pack_into(">i", batch, 23, count - 1)
            struct.pack_into(">i", batch, 57, count)
            bombs.append(sealed(batch))
    return bombs
