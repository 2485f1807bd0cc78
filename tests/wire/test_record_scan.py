"""The scan of records agrees with the decoder, and its short way with its long one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from einmal.types import Header
from einmal.wire import record_scan
from einmal.wire.errors import CorruptBatch, InvalidRecord
from einmal.wire.record_batch import NewRecord, decode_records, encode_batch, encode_records, encode_varint, read_header
from einmal.wire.record_scan import Scanned, TimeBounds, TooLong, record_times, scan_records

NOW = 1_700_000_000_000


def outcome(section: bytes, count: int, **settings: Any) -> Scanned | tuple[int, str]:
    try:
        return scan_records(section, count, NOW, TimeBounds(NOW - 1_000, NOW + 1_000), **settings)
    except InvalidRecord as error:
        return error.index, str(error)


def uniform(source: random.Random) -> tuple[bytes, int]:
    """Records of one layout, as many as one to five blocks have, now and then around where varints grow."""
    first = source.choice((0, 0, 0, 8_100))
    count = first + source.randint(20, 320)
    key = source.choice((None, b"", b"key", b"k" * 100))
    value = source.choice((None, b"", b"x" * 20, b"x" * 70, b"x" * 9_000 if not first else b""))
    since = source.choice((0, 30, 100, -20))
    return encode_records([NewRecord(key, value, NOW), *[NewRecord(key, value, NOW + since)] * (count - 1)]), count


def variants(seed: int, rounds: int) -> Iterator[tuple[bytes, int]]:
    source = random.Random(seed)
    for _ in range(rounds):
        section, count = uniform(source)
        yield section, count
        for _ in range(4):
            changed = bytearray(section)
            for _ in range(source.randint(1, 2)):
                at = source.randrange(len(changed))
                changed[at] = source.choice((changed[at] ^ (1 << source.randrange(8)), 0x80, 0, 1))
            yield bytes(changed), count


def test_blocks_of_records_laid_out_alike_are_scanned_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(section, count, outcome(section, count, needs_keys=True)) for section, count in variants(1, 150)]
    monkeypatch.setattr(record_scan, "_ALIKE_MIN", 1 << 40)
    for section, count, short in found:
        assert short == outcome(section, count, needs_keys=True)
    assert sum(isinstance(short, Scanned) for *_, short in found) > 150
    assert sum(not isinstance(short, Scanned) for *_, short in found) > 100


def test_an_overlong_offset_delta_does_not_pass_for_the_layout_of_a_block() -> None:
    """Its second byte would be the key's size in the records after it."""
    first = b"\x00\x00" + b"\x80\x00" + b"\x01\x01\x00"
    others = [b"\x00\x00" + bytes([2 * delta]) + b"\x00\x01\x01\x00" for delta in range(1, 64)]
    section = b"".join(encode_varint(len(body)) + body for body in (first, *others))
    assert not isinstance(outcome(section, 64), Scanned)


def test_what_is_scanned_can_be_decoded_with_the_same_times() -> None:
    source = random.Random(2)
    headers = (Header("", None), Header("h" * 100, b"v"))
    for _ in range(300):
        records = [
            NewRecord(
                source.choice((None, b"k" * source.randrange(200))),
                source.choice((None, b"v" * source.randrange(20_000))),
                NOW + source.randrange(-900, 900),
                headers[: source.randrange(3)],
            )
            for _ in range(source.randrange(1, 100))
        ]
        data = encode_batch(records)
        header = read_header(data)
        section = data[61:]
        decoded = decode_records(data, 0, header)
        scanned = scan_records(section, len(records), header.base_timestamp, TimeBounds(NOW - 1_000, NOW + 1_000))
        assert scanned == (max(record.timestamp for record in decoded), [], [])
        times = [(header.base_timestamp + since, delta) for since, delta in record_times(section, len(records))]
        assert times == [(record.timestamp, record.offset) for record in decoded]


def test_the_times_of_noise_end_or_are_corrupt() -> None:
    source = random.Random(3)
    for _ in range(2_000):
        with suppress(CorruptBatch):
            assert len(list(record_times(source.randbytes(60), 5))) == 5


def test_more_headers_than_may_be_looked_at_are_left_for_later() -> None:
    section = encode_records([NewRecord(None, None, NOW, (Header("k", None),) * 10)] * 10)
    with pytest.raises(TooLong):
        scan_records(section, 10, NOW, TimeBounds(), headers_max=99)
    assert scan_records(section, 10, NOW, TimeBounds(), headers_max=100).max_timestamp == NOW
