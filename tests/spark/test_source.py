"""The source on real Spark, against both brokers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import TimestampType

from einmal.client import Admin, Producer
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.commit_protocol.positions import topics_in
from einmal.types import TopicPartition
from tests.spark.conftest import on_both_in_the_long_run
from tests.spark.topics import create, fill
from tests.suite.shared import unique

pytestmark = pytest.mark.spark


def read(spark: SparkSession, bootstrap: str, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("einmal").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    return reader.options(**options).load()


def stream(
    spark: SparkSession, bootstrap: str, checkpoint: Path, sink: str, **options: str
) -> list[tuple[int, list[int]]]:
    """Run a query over the source until nothing is left: (batch id, sorted numbers) of every batch."""
    seen: list[tuple[int, list[int]]] = []

    def note(frame: DataFrame, batch_id: int) -> None:
        seen.append((batch_id, sorted(int(row.value) for row in frame.select("value").collect())))

    reader = spark.readStream.format("einmal").option("kafka.bootstrap.servers", bootstrap).options(**options)
    query = (
        reader.load()
        .selectExpr("cast(value as string) as value")
        .writeStream.foreachBatch(note)
        .option("checkpointLocation", str(checkpoint / sink))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return seen


@pytest.mark.long
@on_both_in_the_long_run
def test_a_batch_query_has_the_columns_of_sparks_kafka_source(spark: SparkSession, bootstrap: str) -> None:
    topic = unique("columns")
    create(bootstrap, topic, partitions=1)
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        producer.send(topic, b"v", b"k", headers=[("h", b"1"), ("h", None)], timestamp=1_700_000_000_123)
        producer.send(topic, None, None, timestamp=1_700_000_000_124)
    frame = read(spark, bootstrap, topic, includeHeaders="true")
    assert frame.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    first, second = frame.orderBy("offset").selectExpr("*", "unix_millis(timestamp) as ms").collect()
    assert (bytes(first.key), bytes(first.value), first.topic, first.partition) == (b"k", b"v", topic, 0)
    assert (first.offset, first.ms, first.timestampType) == (0, 1_700_000_000_123, 0)
    assert [(header.key, header.value) for header in first.headers] == [("h", b"1"), ("h", None)]
    assert (second.key, second.value, second.headers, second.ms) == (None, None, None, 1_700_000_000_124)


def test_starting_and_ending_offsets_choose_the_records(spark: SparkSession, bootstrap: str) -> None:
    topic = unique("bounds")
    create(bootstrap, topic, partitions=1)
    fill(bootstrap, topic, range(10))
    frame = read(
        spark,
        bootstrap,
        topic,
        startingOffsets=json.dumps({topic: {"0": 3}}),
        endingOffsets=json.dumps({topic: {"0": 7}}),
        minPartitions="3",
    )
    assert frame.rdd.getNumPartitions() == 3
    assert sorted(int(row.value) for row in frame.collect()) == [3, 4, 5, 6]


def test_timestamps_are_instants_whatever_the_session_calls_a_timestamp(spark: SparkSession, bootstrap: str) -> None:
    topic = unique("ntz")
    create(bootstrap, topic, partitions=1)
    fill(bootstrap, topic, [1])
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        frame = read(spark, bootstrap, topic)
        assert frame.schema["timestamp"].dataType == TimestampType()
        assert frame.count() == 1
        assert [row.value for row in frame.collect()] == [b"1"]
    finally:
        spark.conf.unset("spark.sql.timestampType")


@pytest.mark.long
def test_a_starting_timestamp_chooses_the_first_record_at_or_after_it(spark: SparkSession, bootstrap: str) -> None:
    topic = unique("times")
    create(bootstrap, topic, partitions=1)
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for number in range(5):
            producer.send(topic, str(number), timestamp=1_700_000_000_000 + number * 1000)
    frame = read(spark, bootstrap, topic, startingTimestamp="1700000002500")
    assert sorted(int(row.value) for row in frame.collect()) == [3, 4]


@pytest.mark.long
def test_times_end_a_range_too_and_may_differ_by_partition(spark: SparkSession, bootstrap: str) -> None:
    topic = unique("until")
    create(bootstrap, topic, partitions=2)
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for number in range(10):
            producer.send(topic, str(number), partition=number % 2, timestamp=1_700_000_000_000 + number * 1000)
    frame = read(spark, bootstrap, topic, startingTimestamp="1700000002000", endingTimestamp="1700000005000")
    assert sorted(int(row.value) for row in frame.collect()) == [2, 3, 4]
    times = {topic: {"0": 1_700_000_004_000, "1": 1_700_000_009_000}}
    frame = read(spark, bootstrap, topic, startingOffsetsByTimestamp=json.dumps(times))
    assert sorted(int(row.value) for row in frame.collect()) == [4, 6, 8, 9]
    frame = read(spark, bootstrap, topic, endingOffsetsByTimestamp=json.dumps(times))
    assert sorted(int(row.value) for row in frame.collect()) == [0, 1, 2, 3, 5, 7]


@on_both_in_the_long_run
def test_two_reads_of_a_range_return_the_same_rows_while_others_write_and_abort(
    spark: SparkSession, bootstrap: str
) -> None:
    topic = unique("repeated")
    create(bootstrap, topic)
    columns = "topic", "partition", "offset", "key", "value", "timestamp"
    with Producer({"bootstrap.servers": bootstrap, "transactional.id": unique("id")}) as producer:

        def transaction(numbers: range, *, aborts: bool) -> None:
            producer.begin_transaction()
            for number in numbers:
                producer.send(topic, str(number), f"k{number}")
            producer.flush()
            if aborts:
                producer.abort_transaction()
            else:
                producer.commit_transaction()

        producer.init_transactions()
        for start in range(0, 60, 10):
            transaction(range(start, start + 10), aborts=start % 20 == 10)
        producer.begin_transaction()
        producer.send(topic, "open", partition=0)
        producer.flush()
        frame = read(spark, bootstrap, topic).select(*columns)
        first = sorted(map(tuple, frame.collect()))
        assert sorted(int(row[4]) for row in first) == [n for n in range(60) if n % 20 < 10]
        ends = read(spark, bootstrap, topic).groupBy("partition").agg({"offset": "max"}).collect()
        assert len(ends) == 2
        producer.abort_transaction()
        transaction(range(60, 70), aborts=False)
        transaction(range(70, 80), aborts=True)
        fill(bootstrap, topic, range(80, 90))
        assert sorted(map(tuple, frame.collect())) == first, "the same frame: the range is load()'s"
        assert frame.count() == len(first)
        explicit = {topic: {str(row["partition"]): row["max(offset)"] + 1 for row in ends}}
        again = read(spark, bootstrap, topic, endingOffsets=json.dumps(explicit)).select(*columns)
        assert sorted(map(tuple, again.collect())) == first, "another frame with the same offsets"
    assert read(spark, bootstrap, topic).count() == len(first) + 20


def test_an_unreadable_range_is_an_error_with_the_cause(spark: SparkSession, bootstrap: str) -> None:
    topic = unique("said")
    create(bootstrap, topic, partitions=1)
    fill(bootstrap, topic, range(3))
    # Long enough for the answer with the reason, on a busy machine too.
    impatient = {"kafka.default.api.timeout.ms": "15000"}
    with pytest.raises(Exception, match="UNKNOWN_TOPIC_OR_PARTITION"):
        read(spark, bootstrap, unique("nowhere"), **impatient).collect()
    backwards = {"startingOffsets": json.dumps({topic: {"0": 2}}), "endingOffsets": json.dumps({topic: {"0": 1}})}
    with pytest.raises(Exception, match="from offset 2 to 1, which lies before it"):
        read(spark, bootstrap, topic, **backwards).collect()
    with pytest.raises(Exception, match=r'"endingOffsets" must have an offset for each of'):
        read(spark, bootstrap, topic, endingOffsets=json.dumps({topic: {"7": 1}})).collect()
    with Producer({"bootstrap.servers": bootstrap, "transactional.id": unique("id")}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, "3")
        producer.flush()
        with pytest.raises(Exception, match="transaction that began before offset 4 .* is still open"):
            read(spark, bootstrap, topic, endingOffsets=json.dumps({topic: {"0": 4}}), **impatient).collect()
        producer.commit_transaction()
    assert read(spark, bootstrap, topic, endingOffsets=json.dumps({topic: {"0": 4}})).count() == 4


def test_batches_are_bounded_and_end_with_the_existing_records(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    topic = unique("bounded")
    create(bootstrap, topic)
    fill(bootstrap, topic, range(25))
    batches = stream(
        spark, bootstrap, tmp_path, "a", subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="10"
    )
    assert batches[0] == (0, []), "the first batch only writes down where the query begins"
    assert sorted(number for _, batch in batches for number in batch) == list(range(25))
    assert all(len(batch) <= 12 for _, batch in batches)
    offsets = json.loads((tmp_path / "a" / "offsets" / "0").read_text().splitlines()[2])
    assert topics_in(offsets) == {topic: {"0": 0, "1": 0}}, "the JSON of Spark's Kafka source"


@on_both_in_the_long_run
def test_a_restart_resumes_where_the_checkpoint_ends_and_reads_new_partitions_from_their_start(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    prefix = unique("pattern")
    create(bootstrap, f"{prefix}.a", partitions=1)
    fill(bootstrap, f"{prefix}.a", range(3))
    options = {"subscribePattern": f"{prefix}[.].*", "startingOffsets": "latest"}
    assert stream(spark, bootstrap, tmp_path, "q", **options) == [(0, [])]
    fill(bootstrap, f"{prefix}.a", range(3, 6))
    create(bootstrap, f"{prefix}.b", partitions=1)
    fill(bootstrap, f"{prefix}.b", range(6, 9))
    assert stream(spark, bootstrap, tmp_path, "q", **options) == [(1, [3, 4, 5, 6, 7, 8])]


@on_both_in_the_long_run
def test_aborted_records_are_not_shown_and_a_batch_ends_before_an_open_transaction(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    topic = unique("committed")
    create(bootstrap, topic, partitions=1)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    with Producer({"bootstrap.servers": bootstrap, "transactional.id": unique("id")}) as producer:
        with producer.transaction() as transaction:
            transaction.send(topic, "1")
        producer.begin_transaction()
        producer.send(topic, "2")
        producer.flush()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send(topic, "3")
        producer.flush()
        fill(bootstrap, topic, [4])
        assert [batch for _, batch in stream(spark, bootstrap, tmp_path, "q", **options)] == [[], [1]]
        producer.commit_transaction()
    assert [batch for _, batch in stream(spark, bootstrap, tmp_path, "q", **options)] == [[3, 4]]
    frame = read(spark, bootstrap, topic, **{"kafka.isolation.level": "read_uncommitted"})
    assert sorted(int(row.value) for row in frame.collect()) == [1, 2, 3, 4]


@on_both_in_the_long_run
def test_records_deleted_before_they_were_read_fail_the_query_by_default(spark: SparkSession, bootstrap: str) -> None:
    topic = unique("lost")
    create(bootstrap, topic, partitions=1)
    fill(bootstrap, topic, range(6))
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.delete_records({TopicPartition(topic, 0): 4})
    deleted = {"startingOffsets": json.dumps({topic: {"0": 1}})}
    beyond = {"endingOffsets": json.dumps({topic: {"0": 9}}), "kafka.default.api.timeout.ms": "15000"}
    for lost in (deleted, beyond):
        with pytest.raises(Exception, match="failOnDataLoss"):
            read(spark, bootstrap, topic, **lost).collect()
        frame = read(spark, bootstrap, topic, failOnDataLoss="false", **lost)
        assert sorted(int(row.value) for row in frame.collect()) == [4, 5]


def test_a_misspelt_option_is_an_error_before_anything_is_read(spark: SparkSession, bootstrap: str) -> None:
    with pytest.raises(Exception, match='did you mean "startingOffsets"'):
        read(spark, bootstrap, "t", startingOffset="earliest").collect()


def test_the_cluster_is_recognised_by_another_of_its_addresses(bootstrap: str) -> None:
    port = bootstrap.rpartition(":")[2]
    cluster = KafkaCluster({"bootstrap.servers": bootstrap})
    try:
        assert cluster.is_reached_by(f"localhost:{port}")
    finally:
        cluster.close()
