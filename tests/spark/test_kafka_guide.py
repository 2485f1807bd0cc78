"""Each row of Spark's Structured Streaming + Kafka Integration Guide, tried here: docs/spark-kafka-options.md.

What the sink's rows mean is in ``test_sink`` and ``test_batch``; deleted records (``failOnDataLoss``) are in
``test_source``, named sources in ``test_source_names``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from einmal.client import Producer
from einmal.options.sink import sink_options
from einmal.options.source import source_options
from einmal.options.values import OptionError
from tests.spark.pipelines import Pipeline
from tests.spark.topics import create, fill, numbers
from tests.suite.shared import unique

pytestmark = pytest.mark.spark

TIME = 1_700_000_000_000
"""Of record 0. Record n is in partition n % 2, at offset n // 2, n seconds later."""
COUNT = 10
EVERY = list(range(COUNT))


@dataclass(frozen=True)
class Topic:
    bootstrap: str
    name: str


@pytest.fixture(scope="module")
def topic(node_of: Callable[[str], Any]) -> Topic:
    made = Topic(node_of("einmal").bootstrap, unique("guide"))
    create(made.bootstrap, made.name, partitions=2)
    with Producer({"bootstrap.servers": made.bootstrap}) as producer:
        for number in EVERY:
            producer.send(
                made.name,
                str(number),
                partition=number % 2,
                headers=[("n", str(number).encode())],
                timestamp=TIME + number * 1000,
            )
    return made


def options(topic: Topic, given: dict[str, Any]) -> dict[str, str]:
    """``T`` stands for the topic; what is not text becomes JSON."""
    texts = {name: each if isinstance(each, str) else json.dumps(each) for name, each in given.items()}
    chosen = {} if {"assign", "subscribePattern"} & given.keys() else {"subscribe": topic.name}
    named = {name: text.replace("T", topic.name) for name, text in texts.items()}
    return {"kafka.bootstrap.servers": topic.bootstrap} | chosen | named


def numbers_of(frame: DataFrame) -> list[int]:
    return sorted(int(bytes(row.value)) for row in frame.select("value").collect())


# --- batches --------------------------------------------------------------------------------------------------------

BATCHES: dict[str, list[tuple[dict[str, Any], list[int]]]] = {
    "assign": [({"assign": {"T": [1]}}, [1, 3, 5, 7, 9])],
    "subscribePattern": [({"subscribePattern": "T.*"}, EVERY)],
    "startingOffsets": [
        ({"startingOffsets": "earliest"}, EVERY),
        ({"startingOffsets": {"T": {"0": 3, "1": -2}}}, [1, 3, 5, 6, 7, 8, 9]),
        ({"startingOffsets": "latest"}, []),
    ],
    "startingTimestamp": [({"startingTimestamp": str(TIME + 6500)}, [7, 8, 9])],
    "startingOffsetsByTimestamp": [
        ({"startingOffsetsByTimestamp": {"T": {"0": TIME, "1": TIME + 9000}}}, [0, 2, 4, 6, 8, 9])
    ],
    "startingOffsetsByTimestampStrategy": [({"startingTimestamp": str(TIME + 60_000)}, [])],
    "endingOffsets": [
        ({"endingOffsets": "latest"}, EVERY),
        ({"endingOffsets": {"T": {"0": 1, "1": -1}}}, [0, 1, 3, 5, 7, 9]),
    ],
    "endingTimestamp": [({"endingTimestamp": str(TIME + 2000)}, [0, 1])],
    "endingOffsetsByTimestamp": [({"endingOffsetsByTimestamp": {"T": {"0": TIME + 4000, "1": TIME + 1000}}}, [0, 2])],
    "failOnDataLoss": [({"failOnDataLoss": "false"}, EVERY)],
    "groupIdPrefix": [({"groupIdPrefix": "prefix"}, EVERY)],
    "kafka.group.id": [({"kafka.group.id": "group"}, EVERY)],
    "kafka.isolation.level": [({"kafka.isolation.level": "read_uncommitted"}, EVERY)],
}


@pytest.mark.representatives(3)
@pytest.mark.parametrize("row", BATCHES)
def test_a_batch_query_reads_what_the_row_selects(spark: SparkSession, topic: Topic, row: str) -> None:
    for given, expected in BATCHES[row]:
        assert numbers_of(spark.read.format("einmal").options(**options(topic, given)).load()) == expected, given


@pytest.mark.representatives(1)
@pytest.mark.parametrize(("row", "value", "tasks"), [("minPartitions", "4", 4), ("maxRecordsPerPartition", "2", 6)])
def test_a_row_divides_partitions_among_tasks(
    spark: SparkSession, topic: Topic, row: str, value: str, tasks: int
) -> None:
    frame = spark.read.format("einmal").options(**options(topic, {row: value})).load()
    assert frame.rdd.getNumPartitions() == tasks
    assert numbers_of(frame) == EVERY


def test_the_columns_are_those_of_the_guide(spark: SparkSession, topic: Topic) -> None:
    frame = spark.read.format("einmal").options(**options(topic, {"includeHeaders": "true"})).load()
    kinds = "binary binary string int bigint timestamp int array<struct<key:string,value:binary>>"
    names = "key value topic partition offset timestamp timestampType headers"
    assert frame.dtypes == list(zip(names.split(), kinds.split(), strict=True))
    first = frame.orderBy("timestamp").selectExpr("*", "unix_millis(timestamp) as ms").first()
    assert first is not None
    assert (first.topic, first.partition, first.offset, first.timestampType, first.ms) == (topic.name, 0, 0, 0, TIME)
    assert [(each.key, bytes(each.value)) for each in first.headers] == [("n", b"0")]


def test_a_time_without_records_may_be_an_error(spark: SparkSession, topic: Topic) -> None:
    given = {"startingTimestamp": str(TIME + 60_000), "startingOffsetsByTimestampStrategy": "error"}
    with pytest.raises(PySparkException, match="no record"):
        spark.read.format("einmal").options(**options(topic, given)).load().collect()


# --- without Spark --------------------------------------------------------------------------------------------------

REFUSED = {
    "kafka.auto.offset.reset": "startingOffsets",
    "kafka.key.deserializer": "CAST",
    "kafka.value.deserializer": "CAST",
    "kafka.enable.auto.commit": "leave it out",
    "kafka.interceptor.classes": "classes of Java's client do not run here",
    "kafka.sasl.kerberos.service.name": "GSSAPI is not supported; use SCRAM-SHA-512 or OAUTHBEARER",
}
ENDINGS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
WITHOUT_EFFECT = ("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs")
SOURCE = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}


@pytest.mark.representatives(2)
@pytest.mark.parametrize("row", REFUSED)
def test_a_setting_of_the_consumer_is_refused_with_what_takes_its_role(row: str) -> None:
    with pytest.raises(OptionError, match=REFUSED[row]):
        source_options(SOURCE | {row: "x"}, streaming=True)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("row", ENDINGS)
def test_a_stream_has_no_end(row: str) -> None:
    with pytest.raises(OptionError, match="a stream has no end"):
        source_options(SOURCE | {row: "1"}, streaming=True)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("row", WITHOUT_EFFECT)
def test_a_row_without_effect_is_named(row: str) -> None:
    assert source_options(SOURCE | {row: "1"}, streaming=True).without_effect == (row,)


def test_the_sinks_rows_are_accepted_or_refused_by_name() -> None:
    sink = {"kafka.bootstrap.servers": "h:1", "transactional.id": "x", "checkpointLocation": "/c", "topic": "t"}
    assert sink_options(sink | {"includeHeaders": "true"}).without_effect == ("includeHeaders",)
    for name, value in (("kafka.acks", "1"), ("kafka.enable.idempotence", "false")):
        with pytest.raises(OptionError, match=f"leave {name} out"):
            sink_options(sink | {name: value})


# --- queries --------------------------------------------------------------------------------------------------------


class Heard(StreamingQueryListener):
    def __init__(self) -> None:
        self.names: list[str] = []

    def onQueryStarted(self, event: Any) -> None:
        self.names.append("started")

    def onQueryProgress(self, event: Any) -> None:
        self.names.append("progress")

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        self.names.append("terminated")


def stream(spark: SparkSession, topic: Topic, **given: str) -> DataFrame:
    chosen = options(topic, {"startingOffsets": "earliest", **given})
    return spark.readStream.format("einmal").options(**chosen).load()


def test_limits_batches_and_progress_are_those_of_the_guide(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    """maxOffsetsPerTrigger, minOffsetsPerTrigger, maxTriggerDelay, foreachBatch, availableNow, lastProgress."""
    seen: list[list[int]] = []
    frame = stream(spark, topic, maxOffsetsPerTrigger="4", minOffsetsPerTrigger="2", maxTriggerDelay="1h")
    writer = frame.writeStream.foreachBatch(lambda batch, _: seen.append(numbers_of(batch)))
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    query.awaitTermination()
    assert seen[0] == []
    assert [len(each) for each in seen[1:]] == [4, 4, 2]
    assert sorted(sum(seen, [])) == EVERY
    last = query.recentProgress[-1].sources[0]
    ends = {name: json.loads(str(getattr(last, name)))[topic.name] for name in ("endOffset", "latestOffset")}
    assert ends == dict.fromkeys(ends, {"0": COUNT // 2, "1": COUNT // 2})
    assert last.metrics == {}


@pytest.mark.long
def test_to_table_and_real_time(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    table = unique("guide").replace("-", "_")
    frame = stream(spark, topic)
    writer = frame.select("value").writeStream.option("checkpointLocation", str(tmp_path / "1"))
    writer.trigger(availableNow=True).toTable(table, format="parquet").awaitTermination()
    assert numbers_of(spark.table(table)) == EVERY
    spark.sql(f"drop table {table}")
    # A keyword that PySpark's types do not have.
    real_time: dict[str, Any] = {"realTime": "5 minutes"}
    realtime = frame.select("value").writeStream.format("noop").outputMode("update")
    realtime = realtime.option("checkpointLocation", str(tmp_path / "2")).trigger(**real_time)
    with pytest.raises(PySparkException, match="STREAMING_REAL_TIME_MODE"):
        realtime.start().awaitTermination()


def test_processed_all_available_and_listeners_with_the_sink(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    pipeline = Pipeline(bootstrap, str(tmp_path), unique("guide"))
    create(bootstrap, pipeline.source_topic, pipeline.topic)
    fill(bootstrap, pipeline.source_topic, range(5))
    heard = Heard()
    spark.streams.addListener(heard)
    try:
        query = pipeline.writer(spark).trigger(processingTime="0 seconds").start()
        query.processAllAvailable()
        assert numbers(bootstrap, pipeline.topic) == list(range(5))
        query.stop()
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    finally:
        spark.streams.removeListener(heard)
    assert heard.names[0] == "started" and heard.names[-1] == "terminated" and "progress" in heard.names


# --- the page -------------------------------------------------------------------------------------------------------


def test_the_page_has_every_option_and_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs" / "spark-kafka-options.md").read_text()
    source = page.partition("## Source: positions")[2].partition("## Sink")[0]
    rows = re.findall(r"^\| `([\w.]+)` \|", source, re.MULTILINE)
    tried = {*BATCHES, *REFUSED, *ENDINGS, *WITHOUT_EFFECT, "minPartitions", "maxRecordsPerPartition"}
    tried |= {"maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"}
    assert sorted(rows) == sorted(tried - {"assign", "subscribePattern"})
