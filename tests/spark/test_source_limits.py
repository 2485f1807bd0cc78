"""``minOffsetsPerTrigger`` and ``startingOffsetsByTimestampStrategy``, asked of the stream reader without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from einmal.options.source import source_options
from einmal.spark import OptionError
from einmal.spark.source.source import KafkaStreamReader
from tests.spark.topics import create, fill
from tests.suite.shared import unique

pytestmark = pytest.mark.spark
FAR_FUTURE_MS = 4_000_000_000_000


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
