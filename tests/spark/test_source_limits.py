"""What a batch of the source begins with and ends at, asked of the readers without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from einmal.client import Admin, Producer
from einmal.commit_protocol.source_offsets import PlannedRange, Positions
from einmal.options.source import source_options
from einmal.spark import OptionError
from einmal.spark.source.data_loss import PositionRefused
from einmal.spark.source.planner import SourcePlanner
from einmal.spark.source.source import KafkaDataSource, KafkaStreamReader, Piece, RangeUnknown, StillOpen, read_piece
from einmal.types import Offset, TopicPartition
from tests.interop.topics import at_last
from tests.spark.topics import create, fill
from tests.suite.shared import unique

pytestmark = pytest.mark.spark
FAR_FUTURE_MS = 4_000_000_000_000
COLUMNS = (
    StructType()
    .add("key", "binary")
    .add("value", "binary")
    .add("topic", "string")
    .add("partition", "integer")
    .add("offset", "long")
    .add("timestamp", "timestamp")
    .add("timestampType", "integer")
)


@contextmanager
def reader_of(bootstrap: str, topic: str, **options: str) -> Iterator[KafkaStreamReader]:
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"} | options
    reader = KafkaStreamReader(source_options(given, streaming=True))
    yield reader
    reader.stop()


def test_a_small_batch_waits_until_there_is_enough(bootstrap: str) -> None:
    topic = unique("least")
    create(bootstrap, topic)
    with reader_of(bootstrap, topic, minOffsetsPerTrigger="5", maxTriggerDelay="1h") as reader:
        start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        fill(bootstrap, topic, range(2))
        first = reader.latestOffset(start, ReadAllAvailable())
        assert first != start, "the first batch of a run does not wait"
        fill(bootstrap, topic, range(4))
        assert reader.latestOffset(first, ReadAllAvailable()) == first
        fill(bootstrap, topic, range(1))
        assert reader.latestOffset(first, ReadAllAvailable()) != first


def test_a_full_batch_does_not_wait_although_its_parts_are_rounded_down(bootstrap: str) -> None:
    topic = unique("full")
    create(bootstrap, topic, partitions=3)
    options = {"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "10", "maxTriggerDelay": "1h"}
    with reader_of(bootstrap, topic, **options) as reader:
        position = reader.latestOffset(reader.initialOffset(), ReadMaxRows(10))
        fill(bootstrap, topic, range(40))
        for _ in range(2):
            before, position = position, reader.latestOffset(position, ReadMaxRows(10))
            assert position != before


@pytest.mark.long
def test_available_now_reads_a_small_rest_at_once(bootstrap: str) -> None:
    topic = unique("rest")
    create(bootstrap, topic)
    with reader_of(bootstrap, topic, minOffsetsPerTrigger="5", maxTriggerDelay="1h") as reader:
        position = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        for _ in range(2):
            fill(bootstrap, topic, range(2))
            reader.prepareForTriggerAvailableNow()
            before, position = position, reader.latestOffset(position, ReadAllAvailable())
            assert position != before


def test_a_time_without_a_record_begins_at_the_end_or_is_an_error(bootstrap: str) -> None:
    topic = unique("time")
    create(bootstrap, topic, partitions=1)
    fill(bootstrap, topic, range(3))
    late = {"startingTimestamp": str(FAR_FUTURE_MS)}
    with reader_of(bootstrap, topic, **late) as reader:
        assert reader.initialOffset()[topic] == {"0": 3}
    complaint = f"no record at or after {FAR_FUTURE_MS} ms in {topic}-0"
    strict = reader_of(bootstrap, topic, **late, startingOffsetsByTimestampStrategy="error")
    with strict as reader, pytest.raises(OptionError, match=complaint):
        reader.initialOffset()


def test_a_batch_0_that_another_source_has_planned_and_not_finished_is_not_left_out(bootstrap: str) -> None:
    topic = unique("moved")
    create(bootstrap, topic, partitions=1)
    fill(bootstrap, topic, range(3))
    with reader_of(bootstrap, topic) as reader:
        start = reader.initialOffset()
        with pytest.raises(PositionRefused, match="start the query once more with its former source"):
            reader.partitions(start, {topic: {"0": 3}})


def test_one_batch_of_a_new_query_is_reported_as_empty(bootstrap: str, caplog: pytest.LogCaptureFixture) -> None:
    topic = unique("once")
    create(bootstrap, topic, partitions=1)
    for limit, expected in ((ReadMaxRows(10), 0), (ReadAllAvailable(), 1)):
        with reader_of(bootstrap, topic) as reader:
            start = reader.initialOffset()
            assert reader.latestOffset(start, limit) == start
        assert caplog.text.count("use trigger(availableNow=True)") == expected


def test_a_partition_that_comes_while_a_range_is_looked_up_is_not_part_of_it(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = unique("grows")
    create(bootstrap, topic, partitions=1)
    fill(bootstrap, topic, range(3))
    ending = SourcePlanner.ending

    def later(planner: SourcePlanner) -> Positions:
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_partitions({topic: 2})
        return at_last(lambda: ending(planner), lambda ends: len(ends) == 2)

    monkeypatch.setattr(SourcePlanner, "ending", later)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    pieces = KafkaDataSource(options).reader(COLUMNS).partitions()
    read = [str(bounds.topic_partition) for piece in pieces if isinstance(piece, Piece) for bounds in piece.ranges]
    assert read == [f"{topic}-0"]


def arrow_rows(bootstrap: str, topic: str, end: int, **options: str) -> Iterator[Any]:
    """What a task reads of partition 0 up to ``end``, piece by piece."""
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic} | options
    piece = Piece([PlannedRange(TopicPartition(topic, 0), Offset(0), Offset(end))], {})
    return read_piece(source_options(given, streaming=False), piece)


def test_records_that_still_exist_are_read_although_retention_overtakes_the_reader(
    bootstrap: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = unique("overtaken")
    create(bootstrap, topic, partitions=1)
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for _ in range(30):
            producer.send(topic, bytes(900_000))
    pieces = arrow_rows(bootstrap, topic, 30, failOnDataLoss="false")
    offsets = next(pieces).column("offset").to_pylist()
    read = len(offsets)
    assert read < 25, "one piece is not everything"
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 25})
    for rows in pieces:
        offsets += rows.column("offset").to_pylist()
    # What the reader had fetched already is not lost.
    assert offsets == [*range(len(offsets) - 5), *range(25, 30)]
    assert len(offsets) >= read + 5
    assert f"offsets {len(offsets) - 5} to 24" in caplog.text


def test_deleted_records_are_not_read_although_others_of_their_batch_exist(
    bootstrap: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = unique("halved")
    create(bootstrap, topic, partitions=1)
    with Producer({"bootstrap.servers": bootstrap, "linger.ms": 1_000}) as producer:
        for _ in range(20):
            producer.send(topic, bytes(900_000))
        producer.flush()
        for number in range(6):
            producer.send(topic, str(number))
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 3})
        pieces = arrow_rows(bootstrap, topic, 30, failOnDataLoss="false")
        offsets = next(pieces).column("offset").to_pylist()
        admin.delete_records({TopicPartition(topic, 0): 23})
    for rows in pieces:
        offsets += rows.column("offset").to_pylist()
    assert offsets == [*range(3, len(offsets)), *range(23, 26)]
    assert "offsets 0 to 2;" in caplog.text
    assert "offsets 26 to 29 cannot be read: the log ends at offset 26; it was truncated" in caplog.text


def test_records_behind_an_open_transaction_are_waited_for_not_left_out(bootstrap: str) -> None:
    topic = unique("open")
    create(bootstrap, topic, partitions=1)
    fill(bootstrap, topic, range(2))
    lenient = {"failOnDataLoss": "false", "kafka.default.api.timeout.ms": "1000"}
    with Producer({"bootstrap.servers": bootstrap, "transactional.id": topic}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, "2")
        producer.flush()
        with pytest.raises(StillOpen, match="is still open"):
            list(arrow_rows(bootstrap, topic, 3, **lenient))
        producer.commit_transaction()
    assert [rows.num_rows for rows in arrow_rows(bootstrap, topic, 3, **lenient)] == [3]


def test_columns_that_the_source_does_not_have_are_refused_before_any_task(bootstrap: str) -> None:
    topic = unique("columns")
    create(bootstrap, topic, partitions=1)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    source, with_headers = KafkaDataSource(options), KafkaDataSource(options | {"includeHeaders": "true"})
    source.streamReader(COLUMNS).stop()
    for schema in (StructType().add("value", "string"), StructType([*COLUMNS.fields[:-1]])):
        for asked in (source, with_headers):
            with pytest.raises(OptionError, match=r"(?s)the columns of this source are key binary, .*\.schema\("):
                asked.reader(schema)
            with pytest.raises(OptionError, match=r"the columns of this source are key binary, "):
                asked.streamReader(schema)
    without_nulls = StructType([*StructType().add("key", "binary", False), *COLUMNS.fields[1:]])
    with pytest.raises(OptionError, match=r"cannot be NOT NULL"):
        source.reader(without_nulls)


def test_a_partition_without_an_end_is_named_with_the_numbers_that_an_end_can_have(bootstrap: str) -> None:
    topic = unique("ends")
    create(bootstrap, topic, partitions=2)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    for name, words in (("startingOffsets", "-2 stands for earliest, -1 for"), ("endingOffsets", "-1 stands for")):
        source = KafkaDataSource(options | {name: json.dumps({topic: {"0": 0}})})
        with pytest.raises(RangeUnknown, match=f"\nhint: {words} latest$"):
            source.reader(COLUMNS)
