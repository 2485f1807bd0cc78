"""Markers."""

from __future__ import annotations

import pytest
from aiokafka.record.control_record import ABORT_MARKER, ControlRecord

from einmal.types import Offset
from einmal.wire.control_batch import Marker, decode_marker, encode_marker
from einmal.wire.errors import CorruptBatch
from einmal.wire.record_batch import Record, decode_records, read_header, validate


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_is_one_control_record_without_a_sequence(committed: bool) -> None:
    batch = encode_marker(7, 3, committed=committed, coordinator_epoch=5, timestamp=1000)
    header = read_header(batch)
    validate(batch, 0, header)
    assert header.attributes == 0x30
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.record_count) == (7, 3, -1, 1)
    (record,) = decode_records(batch, 0, header)
    assert decode_marker(record) == Marker(committed, 5)
    assert record.key is not None
    assert (ControlRecord.parse(record.key) == ABORT_MARKER) is not committed


def test_longer_values_of_later_versions_are_read() -> None:
    record = Record(Offset(0), 0, b"\x00\x00\x00\x01", b"\x00\x01\x00\x00\x00\x09more", ())
    assert decode_marker(record) == Marker(True, 9)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\x00" * 6),
        (b"\x00\x00", b"\x00" * 6),
        (b"\x00" * 4, None),
        (b"\x00" * 4, b"\x00" * 5),
        (b"\0\0\0\2", b""),
    ],
)
def test_what_is_no_marker_is_corrupt(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(CorruptBatch):
        decode_marker(Record(Offset(0), 0, key, value, ()))
