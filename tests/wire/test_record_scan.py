"""The scan of records agrees with the decoder, and its short way with its long one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einmal.types import Header
from einmal.wire import record_scan
from einmal.wire.errors import CorruptBatch, InvalidRecord
from einmal.wire.record_batch import NewRecord, decode_records, encode_batch, encode_records, encode_varint, read_header
from einmal.wire.record_scan import Scanned, TimeBounds, TooLong, record_times, scan_records
from tests.suite.interpreted import interpreted

NOW = 1_700_000_000_000
SOURCE = interpreted(record_scan)
"""Compiled, it compares no records, and no constant can be patched."""


def outcome(section: bytes, count: int, scan: Any = scan_records, **settings: Any) -> Scanned | tuple[int, str]:
    try:
        found: Scanned = scan(section, count, NOW, TimeBounds(NOW - 1_000, NOW + 1_000), **settings)
        return found
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
    scan = SOURCE.scan_records
    found = [(section, count, outcome(section, count, scan, needs_keys=True)) for section, count in variants(1, 150)]
    monkeypatch.setattr(SOURCE, "_ALIKE_MIN", 1 << 40)
    for section, count, short in found:
        assert short == outcome(section, count, scan, needs_keys=True)
    assert sum(isinstance(short, SOURCE.Scanned) for *_, short in found) > 150
    assert sum(not isinstance(short, SOURCE.Scanned) for *_, short in found) > 100


_TIMES = st.sampled_from([
    (0,), (5,), (0, 1, 2, 3), (0, -1, -2), (62, 63, 64, 65), (70, 80, 500, -90), (-70, -80), (8_191, 8_192),
    (900, 1_001), (-1_001, 0), (-1 - NOW, 0), (-1 - NOW,), (1 << 40, 0), (-1 << 63, (1 << 63) - 1),
])  # fmt: skip
_PADS = st.sampled_from([{}, {}, *({which: size} for which in range(6) for size in (2, 3, 5)), {0: 9}, {0: 10}])
_COUNTS = st.one_of(*[st.integers(1, 300)] * 15, st.integers(8_170, 8_300))
_HEADERS = st.sampled_from([b"", b"", b"\x02k\x01", b"\x06k\xc3\xbc\x04vv", b"\x80\x01" + b"k" * 64 + b"\x00"])


def padded(value: int, size: int) -> bytes:
    """A varint of at least so many bytes: the surplus ones mean nothing."""
    encoded = bytearray(encode_varint(value))
    while len(encoded) < size:
        encoded[-1] |= 0x80
        encoded.append(0)
    return bytes(encoded)


@st.composite
def nearly_alike(draw: st.DrawFn) -> tuple[bytes, int]:
    """Records of one layout, or of two, with bytes changed: one, or the same one in many records."""
    count, times, seed = draw(_COUNTS), draw(_TIMES), draw(st.integers(0, 1 << 32))
    source = random.Random(seed)
    pads = {**dict.fromkeys(range(6), 0), **draw(_PADS)}
    key = draw(st.sampled_from([None, b"", b"k", b"k" * 64]))
    values = draw(st.sampled_from([(None,), (b"",), (b"v",), (b"v" * 63,), (b"v" * 70, b"v" * 69), (b"", None)]))
    header, headers = draw(_HEADERS), draw(st.integers(1, 3))
    changes_at = draw(st.integers(0, 400))
    position, records = 0, []
    layouts: list[list[int]] = []
    for index in range(count):
        value = values[index >= changes_at and len(values) > 1]
        parts = (
            b"\x00" + padded(source.choice(times) if index else 0, pads[0]) + padded(index, pads[1]),
            padded(-1 if key is None else len(key), pads[2]),
            key or b"",
            padded(-1 if value is None else len(value), pads[3]),
            value or b"",
            padded(headers if header else 0, pads[4]) + header * headers,
        )
        body = b"".join(parts)
        size = padded(len(body), pads[5])
        records.append(size + body)
        before_key = position + len(size) + len(parts[0]) + len(parts[1])
        value_size_at = before_key + len(parts[2])
        value_at = value_size_at + len(parts[3])
        headers_at = value_at + len(parts[4])
        layouts.append([*range(position, before_key), *range(value_size_at, value_at)])
        position += len(records[-1])
        layouts[-1] += range(headers_at, position)
    section = bytearray(b"".join(records))
    for _ in range(draw(st.integers(0, 2))):
        first, many = draw(st.integers(0, count - 1)), draw(st.sampled_from([1, 1, 30, count]))
        which, byte = draw(st.integers(0, 20)), draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0x81, 0xFF]))
        for layout in layouts[first : first + many]:
            section[layout[which % len(layout)]] = byte
    return bytes(section[: draw(st.sampled_from([None, None, None, -1]))]), count


_scanned = given(nearly_alike(), st.booleans(), st.sampled_from([None, 0, 100]), st.integers(0, 3))


@settings(max_examples=25)
@_scanned
def test_records_compared_are_scanned_as_records_walked(
    batch: tuple[bytes, int], needs_keys: bool, headers_max: int | None, begin: int
) -> None:
    _same(batch, needs_keys, headers_max, begin)


@pytest.mark.long
@settings(max_examples=1_000)
@_scanned
def test_records_compared_are_scanned_as_records_walked_in_many_examples(
    batch: tuple[bytes, int], needs_keys: bool, headers_max: int | None, begin: int
) -> None:
    _same(batch, needs_keys, headers_max, begin)


def _same(batch: tuple[bytes, int], needs_keys: bool, headers_max: int | None, begin: int) -> None:
    section, count = batch

    def found(alike_min: int) -> Scanned | tuple[int, str] | None:
        limits = {"begin": begin, "needs_keys": needs_keys, "headers_max": headers_max}
        with patch.object(SOURCE, "_ALIKE_MIN", alike_min):
            try:
                return outcome(b"\x80" * begin + section, count, SOURCE.scan_records, **limits)
            except SOURCE.TooLong:
                return None

    walked = found(1 << 40)
    assert found(2) == walked
    assert found(24) == walked


def test_every_byte_of_an_offset_delta_is_compared() -> None:
    bodies = [b"\x00\x00" + padded(delta, 3) + b"\x01\x01\x00" for delta in range(64)]
    assert isinstance(outcome(b"".join(encode_varint(len(body)) + body for body in bodies), 64), Scanned)
    bodies[30] = b"\x00\x00" + padded(30 + 8_192, 3) + b"\x01\x01\x00"
    changed = b"".join(encode_varint(len(body)) + body for body in bodies)
    assert outcome(changed, 64) == (30, "record 30: offset delta 8222, not 30")


@pytest.mark.parametrize("since", [-1_001, 1_001])
def test_a_timestamp_out_of_bounds_is_found_among_records_laid_out_alike(since: int) -> None:
    times = [NOW, *[NOW - 500, NOW + 500] * 30]
    times[40] = NOW + since
    section = encode_records([NewRecord(b"k", b"v", time) for time in times])
    assert outcome(section, 61) == Scanned(NOW + 500, [], [(40, NOW + since)])


def test_an_overlong_offset_delta_does_not_pass_for_the_layout_of_a_block() -> None:
    """Its second byte would be the key's size in the records after it."""
    first = b"\x00\x00" + b"\x80\x00" + b"\x01\x01\x00"
    others = [b"\x00\x00" + bytes([2 * delta]) + b"\x00\x01\x01\x00" for delta in range(1, 64)]
    section = b"".join(encode_varint(len(body)) + body for body in (first, *others))
    assert not isinstance(outcome(section, 64), Scanned)


def test_a_shorter_timestamp_does_not_pass_for_the_layout_of_a_block() -> None:
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


@pytest.mark.parametrize(("headers", "count"), [(10, 10), (1, 100)], ids=["walked", "compared"])
def test_more_headers_than_may_be_looked_at_are_left_for_later(headers: int, count: int) -> None:
    section = encode_records([NewRecord(None, None, NOW, (Header("k", None),) * headers)] * count)
    with pytest.raises(TooLong):
        scan_records(section, count, NOW, TimeBounds(), headers_max=99)
    assert scan_records(section, count, NOW, TimeBounds(), headers_max=100).max_timestamp == NOW
