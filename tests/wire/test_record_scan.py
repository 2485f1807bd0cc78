"""The scan of records agrees with the decoder, and finds what is malformed among records that are alike."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from einmal.types import Header
from einmal.wire.errors import CorruptBatch, InvalidRecord, TooLong
from einmal.wire.record_batch import NewRecord, decode_records, encode_batch, encode_records, encode_varint, read_header
from einmal.wire.record_scan import Scanned, TimeBounds, record_times, scan_records

NOW = 1_700_000_000_000


def outcome(section: bytes, count: int) -> Scanned | tuple[int, str]:
    try:
        return scan_records(section, count, NOW, TimeBounds(NOW - 1_000, NOW + 1_000))
    except InvalidRecord as error:
        return error.index, str(error)


def padded(value: int, size: int) -> bytes:
    """A varint of at least so many bytes: the surplus ones mean nothing."""
    encoded = bytearray(encode_varint(value))
    while len(encoded) < size:
        encoded[-1] |= 0x80
        encoded.append(0)
    return bytes(encoded)


def test_every_byte_of_an_offset_delta_counts() -> None:
    bodies = [b"\x00\x00" + padded(delta, 3) + b"\x01\x01\x00" for delta in range(64)]
    assert isinstance(outcome(b"".join(encode_varint(len(body)) + body for body in bodies), 64), Scanned)
    bodies[30] = b"\x00\x00" + padded(30 + 8_192, 3) + b"\x01\x01\x00"
    changed = b"".join(encode_varint(len(body)) + body for body in bodies)
    assert outcome(changed, 64) == (30, "record 30: offset delta 8222, not 30")


@pytest.mark.parametrize("since", [-1_001, 1_001])
def test_a_timestamp_out_of_bounds_is_found_among_records_that_are_alike(since: int) -> None:
    times = [NOW, *[NOW - 500, NOW + 500] * 30]
    times[40] = NOW + since
    section = encode_records([NewRecord(b"k", b"v", time) for time in times])
    assert outcome(section, 61) == Scanned(NOW + 500, [], [(40, NOW + since)])


def test_an_overlong_offset_delta_shifts_no_later_field() -> None:
    """Its second byte would be the key's size in the records after it."""
    first = b"\x00\x00" + b"\x80\x00" + b"\x01\x01\x00"
    others = [b"\x00\x00" + bytes([2 * delta]) + b"\x00\x01\x01\x00" for delta in range(1, 64)]
    section = b"".join(encode_varint(len(body)) + body for body in (first, *others))
    assert not isinstance(outcome(section, 64), Scanned)


def test_a_shorter_timestamp_shifts_no_later_field() -> None:
    """Its second byte would be the offset delta of that record."""
    bodies = [b"\x00" + padded(5, 2) + bytes([2 * delta]) + b"\x01\x01\x00" for delta in range(64)]
    assert isinstance(outcome(b"".join(encode_varint(len(body)) + body for body in bodies), 64), Scanned)
    bodies[30] = b"\x00" + b"\x0a\x00" + bytes([60]) + b"\x01\x01\x00"
    changed = b"".join(encode_varint(len(body)) + body for body in bodies)
    assert outcome(changed, 64) == (30, "record 30: offset delta 0, not 30")


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


@pytest.mark.parametrize(("headers", "count"), [(10, 10), (1, 100)])
def test_more_headers_than_may_be_looked_at_are_left_for_later(headers: int, count: int) -> None:
    section = encode_records([NewRecord(None, None, NOW, (Header("k", None),) * headers)] * count)
    with pytest.raises(TooLong):
        scan_records(section, count, NOW, TimeBounds(), headers_max=99)
    assert scan_records(section, count, NOW, TimeBounds(), headers_max=100).max_timestamp == NOW
