"""Many in, many out: topics of several clusters in one query, several topics in one transaction, records kept whole."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from einmal.client import Admin, Producer
from einmal.commit_protocol.positions import topics_in
from einmal.pipeline import events
from einmal.spark import (
    PipelineError,
    PipelineFailed,
    PipelineQuery,
    StreamWriter,
    write,
    write_stream,
)
from einmal.wire.murmur2 import partition_for_key
from einmal.wire.record_batch import Record
from tests.spark.conftest import NodeOf
from tests.spark.topics import commit_record, create, fill, numbers, records
from tests.suite.shared import unique

pytestmark = pytest.mark.spark

_SOON_S = 300


def source(spark: SparkSession, bootstrap: str, topics: str, **options: str) -> DataFrame:
    reader = spark.readStream.format("einmal").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topics)
    return reader.option("startingOffsets", "earliest").options(**options).load()


def writer(frame: DataFrame, bootstrap: str, name: str, directory: Path, **options: str) -> StreamWriter:
    chosen = write_stream(frame).option("kafka.bootstrap.servers", bootstrap).option("transactional.id", name)
    chosen = chosen.option("checkpointLocation", str(directory / name)).options(**options)
    return chosen.trigger(availableNow=True)


def until(condition: Callable[[], bool], query: PipelineQuery) -> None:
    deadline = time.monotonic() + _SOON_S
    while not condition():
        assert time.monotonic() < deadline, "not within the time"
        query.awaitTermination(0.1)


@pytest.mark.long
def test_topics_of_two_clusters_are_one_input_and_only_positions_of_the_own_one_are_committed_to_the_group(
    spark: SparkSession, bootstrap: str, node_of: NodeOf, tmp_path: Path
) -> None:
    elsewhere = node_of("einmal-TV1").bootstrap
    name, left, right, far, out = (unique(what) for what in ("many", "left", "right", "far", "out"))
    create(bootstrap, left, right, out)
    create(elsewhere, far)
    frame = source(spark, bootstrap, f"{left},{right}").select("key", "value")
    frame = frame.unionByName(source(spark, elsewhere, far).select("key", "value"))
    for start in (0, 30):
        fill(bootstrap, left, range(start, start + 10))
        fill(bootstrap, right, range(start + 10, start + 20))
        fill(elsewhere, far, range(start + 20, start + 30))
        writer(frame, bootstrap, name, tmp_path, topic=out).start().awaitTermination()
        assert numbers(bootstrap, out) == list(range(start + 30))
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        committed = admin.list_group_offsets(name)
    assert {each.topic for each in committed} == {left, right}
    assert sum(position.offset for position in committed.values()) == 40
    record = commit_record(bootstrap, name)
    assert record is not None
    assert [{topic: sum(each.values()) for topic, each in topics_in(end).items()} for end in record.end] == [
        {left: 20, right: 20},
        {far: 20},
    ]


def test_all_topics_of_a_batch_are_one_transaction(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    name, given, *topics = (unique(what) for what in ("out", "in", "a", "b", "c"))
    create(bootstrap, given, *topics)
    fill(bootstrap, given, range(30))
    number = F.col("value").cast("string").cast("int")
    topic = F.element_at(F.array(*map(F.lit, topics)), number % 3 + 1).alias("topic")
    seen: list[list[int]] = []

    def look(event: events.Event) -> None:
        if isinstance(event, events.BatchWritten) and event.records:
            assert all(len(numbers(bootstrap, each, committed=False)) == 10 for each in topics)
            seen.append([len(numbers(bootstrap, each)) for each in topics])

    frame = source(spark, bootstrap, given).select("key", "value", topic)
    writer(frame, bootstrap, name, tmp_path).listener(look).start().awaitTermination()
    assert seen == [[0, 0, 0]], "written, and nothing to be seen"
    assert [numbers(bootstrap, each) for each in topics] == [list(range(rest, 30, 3)) for rest in range(3)]


def test_key_value_headers_timestamp_and_partition_are_kept(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    name, given, out = (unique(what) for what in ("kept", "in", "out"))
    create(bootstrap, given, out, partitions=3)
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for number in range(30):
            key = None if number % 7 == 0 else b"" if number % 7 == 1 else f"kéy{number % 4}".encode()
            value = None if number % 5 == 0 else b"" if number % 5 == 1 else bytes([number, 0, 255])
            headers = [[], [("h", b"1"), ("h", None), ("", b"")]][number % 2]
            time_ms = 1_700_000_000_000 - number * 3_600_001
            producer.send(given, value, key, partition=number % 3, timestamp=time_ms, headers=headers)
    frame = source(spark, bootstrap, given, includeHeaders="true").drop("topic")
    writer(frame, bootstrap, name, tmp_path, topic=out).start().awaitTermination()

    def content(topic: str) -> list[tuple[int, Any]]:
        def plain(record: Record) -> tuple[Any, ...]:
            return record.key, record.value, record.timestamp, tuple(record.headers)

        return [(where.partition, plain(record)) for where, record in sorted(records(bootstrap, topic), key=_place)]

    assert len(content(out)) == 30
    assert content(out) == content(given)


def test_a_key_goes_where_javas_partitioner_sends_it(spark: SparkSession, bootstrap: str) -> None:
    theirs, ours = unique("theirs"), unique("ours")
    create(bootstrap, theirs, ours, partitions=7)
    keys = [f"k{number}" for number in range(300)] + ["", "é", "長い鍵" * 20, "\x00", "ab", "abc", "abcd"]
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(theirs, key=key.encode(), value=b"")
    assert producer.flush(300) == 0
    frame = spark.createDataFrame([(key, "") for key in keys], "key string, value string")
    write(frame).option("kafka.bootstrap.servers", bootstrap).option("topic", ours).save()

    def placed(topic: str) -> dict[bytes | None, int]:
        return {record.key: where.partition for where, record in records(bootstrap, topic)}

    assert len(placed(ours)) == len(keys)
    assert placed(ours) == placed(theirs)


def _place(found: tuple[Any, Record]) -> tuple[Any, int]:
    return found[0], found[1].offset


@pytest.mark.long
def test_partitions_may_be_added_while_the_query_runs_and_a_deleted_input_topic_ends_it_with_its_name(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    name, given, kept, out = (unique(what) for what in ("grown", "in", "kept", "out"))
    create(bootstrap, given, kept, out)
    frame = source(spark, bootstrap, f"{given},{kept}").select("key", "value")
    query = writer(frame, bootstrap, name, tmp_path, topic=out).trigger(processingTime="100 milliseconds").start()
    try:
        fill(bootstrap, given, range(20))
        until(lambda: len(numbers(bootstrap, out)) == 20, query)
        with Admin({"bootstrap.servers": bootstrap}) as admin:
            admin.create_partitions({given: 4, out: 5})
        with Producer({"bootstrap.servers": bootstrap}) as producer:
            for number in range(20, 120):
                producer.send(given, str(number), f"key{number}", partition=number % 4)
        until(lambda: len(numbers(bootstrap, out)) == 120, query)
        with Admin({"bootstrap.servers": bootstrap}) as admin:
            admin.delete_topics([given])
        with pytest.raises(PipelineError, match=f"{given}.*failOnDataLoss"):
            query.awaitTermination(_SOON_S)
    finally:
        query.stop()
    assert given in str(query.exception())
    assert numbers(bootstrap, out) == list(range(120))
    found = [(where, record) for where, record in records(bootstrap, out) if int(record.value or b"") >= 20]
    assert sorted(int(record.value or b"") for _, record in found) == list(range(20, 120))
    assert all(where.partition == partition_for_key(record.key or b"", 5) for where, record in found)


@pytest.mark.representatives(2)
@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        (["cast(null as string) as topic", "'v' as value"], "a row has no topic: set .option"),
        (["'no/such' as topic", "'v' as value"], "INVALID_TOPIC_EXCEPTION.*no/such|no/such.*INVALID_TOPIC_EXCEPTION"),
        (["'{topic}' as topic", "'v' as value", "7 as partition"], "a row names partition 7 of {topic}, which has 2"),
        (
            ["'{topic}' as topic", "repeat('v', 2000000) as value"],
            "MESSAGE_TOO_LARGE.*{topic}: a row.*max.request.size is",
        ),
        (
            ["'{topic}' as topic", "'v' as value", "timestamp_millis(-5) as timestamp"],
            "a row has a timestamp 5 ms before 1970",
        ),
        (
            [
                "'{topic}' as topic",
                "'v' as value",
                "array(named_struct('key', cast(null as string), 'value', cast('v' as binary))) as headers",
            ],
            "a row has a header without a key",
        ),
    ],
    ids=["no-topic", "bad-topic", "bad-partition", "large", "before-1970", "header-without-key"],
)
def test_a_row_that_cannot_be_a_record_is_named_and_nothing_is_written(
    spark: SparkSession, bootstrap: str, columns: list[str], complaint: str
) -> None:
    topic = unique("refused")
    create(bootstrap, topic)
    good = spark.range(4).selectExpr(*[each.format(topic=topic) for each in columns], "cast(null as binary) as key")
    with pytest.raises(PipelineFailed, match=complaint.format(topic=topic)) as failed:
        write(good).option("kafka.bootstrap.servers", bootstrap).save()
    assert "Traceback" not in str(failed.value)
    assert records(bootstrap, topic) == []


def test_a_batch_that_the_topic_does_not_take_is_named_with_the_way_out(spark: SparkSession, bootstrap: str) -> None:
    topic = unique("narrow")
    create(bootstrap, topic, partitions=1)
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.alter_configs(topic, {"max.message.bytes": "20000"})
    frame = spark.range(0, 100, 1, 1).selectExpr("repeat('v', 1000) as value")
    written = write(frame).option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
    with pytest.raises(PipelineFailed, match=rf"MESSAGE_TOO_LARGE.*{topic}-0.*max.message.bytes.*lower batch.size"):
        written.save()
    written.option("kafka.batch.size", "16384").save()
    assert len(records(bootstrap, topic)) == 100
