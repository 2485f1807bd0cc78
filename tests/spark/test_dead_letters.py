"""Claims about dead letters: what they keep of the record that failed."""

from __future__ import annotations

import pyarrow
import pytest

from einmal.pipeline.dead_letters import RowFailure, dead_letter, failed_record, rows_of
from einmal.spark.decoding.rows import LETTER
from einmal.types import Header


@pytest.mark.parametrize(
    ("milliseconds", "is_kept"), [(-1, False), (0, True), (1_700_000_000_000, True), ((2**63 - 1) // 1_000, True)]
)
def test_a_record_without_a_timestamp_gets_that_of_its_dead_letter(milliseconds: int, is_kept: bool) -> None:
    timestamp = milliseconds * 1_000
    headers = [{"key": "trace", "value": b"t"}]
    row = {"topic": "t", "partition": 1, "offset": 7, "key": None, "value": b"{", "headers": headers}
    kind = pyarrow.timestamp("us", tz="UTC")
    batch = pyarrow.RecordBatch.from_pylist([row])
    batch = batch.append_column("timestamp", pyarrow.array([timestamp], pyarrow.int64()).view(kind))
    record = failed_record(rows_of(batch)[0])
    assert record.timestamp == (timestamp if is_kept else None)
    assert (record.topic, record.partition, record.offset) == ("t", 1, 7)
    assert (record.key, record.value, record.headers) == (None, b"{", (Header("trace", b"t"),))
    failure = RowFailure(source="s", batch=1, stage="VALUE_CONVERTER", exception="E", message="m")
    made = pyarrow.RecordBatch.from_pylist([dead_letter(record, failure, "dlq")], schema=LETTER)
    assert made.column("timestamp").view("int64").to_pylist() == [timestamp if is_kept else None]
