"""Claims about dead letters: what they keep of the record that failed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from einmal.spark.decoding.dead_letters import failed_record
from einmal.types import Header

_EPOCH = datetime.fromtimestamp(0, UTC)


@pytest.mark.parametrize(("milliseconds", "is_kept"), [(-1, False), (0, True), (1_700_000_000_000, True)])
def test_a_record_without_a_timestamp_gets_that_of_its_dead_letter(milliseconds: int, is_kept: bool) -> None:
    timestamp = _EPOCH + timedelta(milliseconds=milliseconds)
    headers = [{"key": "trace", "value": b"t"}]
    row = {"topic": "t", "partition": 1, "offset": 7, "key": None, "value": b"{", "headers": headers}
    record = failed_record(row | {"timestamp": timestamp})
    assert record.timestamp == (timestamp if is_kept else None)
    assert (record.topic, record.partition, record.offset) == ("t", 1, 7)
    assert (record.key, record.value, record.headers) == (None, b"{", (Header("trace", b"t"),))
