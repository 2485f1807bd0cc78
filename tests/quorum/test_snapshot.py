"""A snapshot's bytes, and the control records."""

from __future__ import annotations

import io
from typing import Any

import pytest
from kio.schema.leader_change_message.v0.data import LeaderChangeMessage
from kio.schema.snapshot_footer_record.v0.data import SnapshotFooterRecord
from kio.schema.snapshot_header_record.v0.data import SnapshotHeaderRecord
from kio.serial import entity_reader

from einmal.quorum import control_records, snapshot
from einmal.quorum.messages import OffsetAndEpoch
from einmal.wire.control_batch import control_type
from einmal.wire.errors import WireError
from einmal.wire.record_batch import decode_records, iter_headers, read_header


def _value(batch: bytes, schema: Any, kind: int) -> Any:
    header = read_header(batch)
    assert header.is_control and not header.is_transactional
    (record,) = decode_records(batch, 0, header)
    assert control_type(record) == kind
    assert record.value is not None
    message, size = entity_reader(schema)(io.BytesIO(record.value).getvalue(), 0)
    assert size == len(record.value)
    return message


def test_control_records_are_kafkas() -> None:
    change = _value(control_records.leader_change(3, (1, 2, 3), (2, 3), 7), LeaderChangeMessage, 2)
    assert (change.version, change.leader_id) == (0, 3)
    assert [voter.voter_id for voter in change.voters] == [1, 2, 3]
    assert [voter.voter_id for voter in change.granting_voters] == [2, 3]
    header = _value(control_records.snapshot_header(99, 7), SnapshotHeaderRecord, 3)
    assert (header.version, header.last_contained_log_timestamp) == (0, 99)
    footer = _value(control_records.snapshot_footer(7, base_offset=4, leader_epoch=1), SnapshotFooterRecord, 4)
    assert footer.version == 0


@pytest.mark.parametrize("count", [0, 1, 7, 30])
def test_what_is_in_a_snapshot_comes_out_again(count: int) -> None:
    values = [bytes([number]) * 100_000 for number in range(count)]
    data = snapshot.encode(values, 5, last_contained_log_timestamp=1, timestamp=2)
    assert snapshot.decode(data) == values
    headers = [header for _position, header in iter_headers(data)]
    assert [header.base_offset for header in headers[1:]] == [header.next_offset for header in headers[:-1]]
    assert {header.partition_leader_epoch for header in headers} == {5}


def test_half_a_snapshot_is_none() -> None:
    data = snapshot.encode([b"value"] * 3, 5, last_contained_log_timestamp=1, timestamp=2)
    for end in range(len(data)):
        with pytest.raises(WireError):
            snapshot.decode(data[:end])
    with pytest.raises(WireError):
        snapshot.decode(data[:-1] + b"x")


def test_the_file_name_contains_the_snapshots_end_offset() -> None:
    name = "00000000000000000012-0000000003.checkpoint"
    assert snapshot.file_name(OffsetAndEpoch(12, 3)) == name
    assert snapshot.id_of(name) == OffsetAndEpoch(12, 3)
    for other in ("recovery-checkpoint", name + ".tmp", "1-1.checkpoint", "x" * 20 + "-0000000003.checkpoint"):
        assert snapshot.id_of(other) is None
