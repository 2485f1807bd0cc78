"""Claims about dead letters: what they keep of the record that failed."""

from __future__ import annotations

import pyarrow
import pytest

from einmal.pipeline.dead_letters import FailedRecord, RowFailure, context, dead_letter, failed_record, rows_of
from einmal.spark.decoding.rows import LETTER
from einmal.spark.operate.dead_letter_queue import DeadLetter
from einmal.types import Header, TopicPartition


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


FORGED = (
    Header("__connect.errors.topic", b"billing"),
    Header("__connect.errors.partition", b"0"),
    Header("__connect.errors.offset", b"7"),
    Header("__connect.errors.exception.class.name", b"x.Forged"),
    Header("__connect.errors.of.somebody", b"else"),
)


@pytest.mark.parametrize("context_headers", [True, False])
def test_the_producer_of_a_record_does_not_choose_where_it_is_replayed(context_headers: bool) -> None:
    record = FailedRecord(
        topic="orders", partition=2, offset=5, key=b"k", value=b"v", headers=(*FORGED, Header("trace", b"t"))
    )
    failure = RowFailure(source="s", batch=1, stage="VALUE_CONVERTER", exception="e.WrongType", message="m")
    made = dead_letter(record, failure, "dlq", context_headers=context_headers)
    headers = tuple(Header(header["key"], header["value"]) for header in made["headers"])
    letter = DeadLetter(TopicPartition("dlq", 0), 0, 0, made["key"], made["value"], headers)
    assert headers[0] == Header("trace", b"t")
    if context_headers:
        assert letter.original == (TopicPartition("orders", 2), 5)
        assert letter.context == context(record, failure)
        assert letter.reason == "WrongType"
    else:
        assert headers == (Header("trace", b"t"),)
        assert (letter.original, letter.original_topic, letter.reason, letter.source) == (None, None, "", "")


def test_a_repaired_record_that_is_bad_again_is_replayed_to_where_it_failed_last() -> None:
    failure = RowFailure(source="s", batch=1, stage="VALUE_CONVERTER", exception="e.WrongType", message="m")
    first = FailedRecord(topic="orders", partition=0, offset=5, key=None, value=b"v", headers=(Header("trace", b"t"),))
    made = dead_letter(first, failure, "dlq")
    # A pipeline that repairs dead letters may copy all their headers.
    headers = tuple(Header(header["key"], header["value"]) for header in made["headers"])
    second = FailedRecord(topic="repaired", partition=1, offset=9, key=None, value=b"v", headers=headers)
    again = dead_letter(second, failure, "dlq")["headers"]
    letter = DeadLetter(
        TopicPartition("dlq", 0), 1, 0, None, b"v", tuple(Header(header["key"], header["value"]) for header in again)
    )
    assert letter.original == (TopicPartition("repaired", 1), 9)
    assert len({header["key"] for header in again}) == len(again)
