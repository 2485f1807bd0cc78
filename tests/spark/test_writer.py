"""``df.writeStream.format("einmal")`` on real Spark: what it writes, refuses and fences. Drivers die elsewhere."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from einmal.chaos.processes import command_of
from einmal.client import Admin
from einmal.spark import register
from einmal.types import Header
from einmal.wire.murmur2 import partition_for_key
from tests.spark.conftest import on_both_in_the_long_run
from tests.spark.new_pipelines import NewPipeline, pipelines_in
from tests.spark.pipelines import BATCH, Pipeline, format_writer
from tests.spark.topics import commit_record, create, fill, numbers, records
from tests.suite.shared import unique

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def new_pipeline(bootstrap: str, tmp_path: Path) -> NewPipeline:
    return pipelines_in(tmp_path, bootstrap, "format")


def run(pipeline: Pipeline, spark: SparkSession, **options: str) -> StreamingQuery:
    query = format_writer(pipeline, spark).options(**options).start()
    query.awaitTermination()
    return query


@on_both_in_the_long_run
def test_every_batch_is_one_transaction_with_its_commit_record(spark: SparkSession, new_pipeline: NewPipeline) -> None:
    pipeline = new_pipeline(3 * BATCH)
    run(pipeline, spark)
    assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(3 * BATCH))
    record = commit_record(pipeline.bootstrap, pipeline.name)
    assert record is not None
    assert record.checkpoint == f"file:{pipeline.checkpoint}"
    assert record.batch_id == 3
    assert record.records == BATCH
    fill(pipeline.bootstrap, pipeline.source_topic, range(3 * BATCH, 4 * BATCH))
    run(pipeline, spark)
    assert numbers(pipeline.bootstrap, pipeline.topic, committed=False) == list(range(4 * BATCH))
    with Admin({"bootstrap.servers": pipeline.bootstrap}) as admin:
        positions = admin.list_group_offsets(pipeline.name)
    assert sum(position.offset for position in positions.values()) == 4 * BATCH
    assert {each.topic for each in positions} == {pipeline.source_topic}


@pytest.mark.long
def test_a_thread_of_its_own_starts_queries_once_it_is_registered(
    spark: SparkSession, new_pipeline: NewPipeline
) -> None:
    pipeline = new_pipeline(BATCH)

    def unregistered() -> None:
        # Spark looks in this thread's active session, which there is not; should it find the sink, the hint can go.
        with pytest.raises(Py4JJavaError, match="DATA_SOURCE_NOT_FOUND"):
            format_writer(pipeline, spark).start()

    def registered() -> None:
        register(spark)
        run(pipeline, spark)

    for program in (unregistered, registered):
        with ThreadPoolExecutor(1) as thread:
            thread.submit(program).result()
    assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(BATCH))


@pytest.mark.long
def test_topic_partition_headers_and_timestamp_come_from_their_columns(
    spark: SparkSession, new_pipeline: NewPipeline, bootstrap: str
) -> None:
    pipeline = new_pipeline()
    topics = [unique("left"), unique("right")]
    create(bootstrap, *topics, partitions=3)
    number = F.col("value").cast("string").cast("int")
    frame = pipeline.source(spark).select(
        "key",
        "value",
        F.when(number % 2 == 0, topics[0]).otherwise(topics[1]).alias("topic"),
        F.when(number < 8, number % 3).alias("partition"),
        F.array(F.struct(F.lit("n").alias("key"), F.col("value").alias("value"))).alias("headers"),
        F.timestamp_millis(F.lit(1_700_000_000_000) + number).alias("timestamp"),
        "offset",
    )
    writer = frame.writeStream.format("einmal").options(**pipeline.client_options)
    writer = writer.option("kafka.compression.type", "zstd").option("transactional.id", pipeline.name)
    writer.option("checkpointLocation", str(pipeline.checkpoint)).trigger(availableNow=True).start().awaitTermination()
    seen = []
    for topic in topics:
        for where, record in records(bootstrap, topic):
            value = record.value or b""
            assert topic == topics[int(value) % 2]
            assert where.partition == (int(value) % 3 if int(value) < 8 else partition_for_key(record.key or b"", 3))
            assert record.headers == (Header("n", value),)
            assert record.timestamp == 1_700_000_000_000 + int(value)
            seen.append(int(value))
    assert sorted(seen) == list(range(BATCH))


@pytest.mark.long
def test_a_query_with_state_continues_over_a_restart(spark: SparkSession, new_pipeline: NewPipeline) -> None:
    pipeline = new_pipeline(2 * BATCH)

    def counted() -> None:
        keys = pipeline.source(spark).groupBy("key").count()
        frame = keys.selectExpr("key", "cast(count as string) as value")
        format_writer(pipeline, spark, frame).outputMode("complete").start().awaitTermination()

    counted()
    fill(pipeline.bootstrap, pipeline.source_topic, range(2 * BATCH, 3 * BATCH))
    counted()
    per_key = [2, 4, 6]
    assert sorted(numbers(pipeline.bootstrap, pipeline.topic)) == sorted(per_key * 5)


def driver_of(spark: SparkSession) -> psutil.Process:
    jvm: Any = spark._jvm
    return psutil.Process(jvm.java.lang.ProcessHandle.current().pid())


def keepers(spark: SparkSession) -> dict[int, psutil.Process]:
    """The keepers of this driver, by pid: they name the process that they end with. Other tests have some, too."""
    driver = str(driver_of(spark).pid)
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or [""]
        if "einmal.spark.writer.keeper" in command and command[-1] == driver:
            found[process.pid] = process
    return found


def daemons_children(spark: SparkSession) -> list[psutil.Process]:
    """Spark's Python workers that a daemon has forked: of planning, of tasks, of commits."""
    kept = keepers(spark)
    children = driver_of(spark).children()
    daemons = [each for each in children if any(part.endswith(".daemon") for part in command_of(each.pid).split())]
    return [child for daemon in daemons for child in daemon.children() if child.pid not in kept]


def failure(query: StreamingQuery) -> str:
    """Why it ends."""
    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination(120)
    return str(raised.value)


@pytest.mark.long
def test_processes_that_die_between_two_batches_are_replaced(spark: SparkSession, new_pipeline: NewPipeline) -> None:
    pipeline = new_pipeline()
    before = keepers(spark)
    query = format_writer(pipeline, spark).trigger(processingTime="0 seconds").start()
    try:
        query.processAllAvailable()
        for process in daemons_children(spark):
            process.kill()
        fill(pipeline.bootstrap, pipeline.source_topic, range(BATCH, 2 * BATCH))
        query.processAllAvailable()
        assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(2 * BATCH))
        (keeper,) = (process for pid, process in keepers(spark).items() if pid not in before)
        keeper.kill()
        fill(pipeline.bootstrap, pipeline.source_topic, range(2 * BATCH, 3 * BATCH))
        query.processAllAvailable()
        assert numbers(pipeline.bootstrap, pipeline.topic, committed=False) == list(range(3 * BATCH))
    finally:
        query.stop()


def test_a_batch_whose_keeper_dies_is_aborted_and_written_by_the_next_start(
    spark: SparkSession, new_pipeline: NewPipeline, tmp_path: Path
) -> None:
    pipeline = new_pipeline()
    started, go = tmp_path / "started", tmp_path / "go"

    @F.udf("string", useArrow=False)
    def waiting(value: bytes) -> str:
        started.touch()
        deadline = time.monotonic() + 60
        while not go.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return value.decode()

    frame = pipeline.source(spark).select("key", waiting("value").alias("value"))
    before = keepers(spark)
    query = format_writer(pipeline, spark, frame).start()
    while not started.exists():
        assert query.isActive
        time.sleep(0.05)
    (keeper,) = (process for pid, process in keepers(spark).items() if pid not in before)
    keeper.kill()
    go.touch()
    failure(query)
    assert numbers(pipeline.bootstrap, pipeline.topic) == []
    run(pipeline, spark)
    assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(BATCH))


def test_a_batch_with_a_failed_task_is_written_by_the_next_start(
    spark: SparkSession, new_pipeline: NewPipeline
) -> None:
    pipeline = new_pipeline(2 * BATCH)

    @F.udf("string", useArrow=False)
    def failing(value: bytes) -> str:
        if int(value) == BATCH + 1:
            raise ValueError("not this one")
        return value.decode()

    frame = pipeline.source(spark).select("key", failing("value").alias("value"))
    assert "not this one" in failure(format_writer(pipeline, spark, frame).start())
    assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(BATCH))
    run(pipeline, spark)
    assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(2 * BATCH))


def test_a_second_query_of_a_name_is_refused_or_fences_the_first(
    spark: SparkSession, new_pipeline: NewPipeline, tmp_path: Path
) -> None:
    pipeline = new_pipeline()
    first = format_writer(pipeline, spark).trigger(processingTime="0 seconds").start()
    try:
        first.processAllAvailable()
        second = replace(pipeline, directory=str(tmp_path / "second"))
        assert "belongs to the query with checkpoint" in failure(format_writer(second, spark).start())
        fill(pipeline.bootstrap, pipeline.source_topic, range(BATCH, 2 * BATCH))
        first.processAllAvailable()
        third = replace(pipeline, directory=str(tmp_path / "third"), starting="latest")
        run(third, spark, **{"einmal.adopt": "true"})
        fill(pipeline.bootstrap, pipeline.source_topic, range(2 * BATCH, 3 * BATCH))
        assert "PRODUCER" in failure(first)
        run(third, spark)
        assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(3 * BATCH))
    finally:
        first.stop()


@pytest.mark.long
def test_a_new_checkpoint_is_refused_unless_its_owner_adopts_the_record(
    spark: SparkSession, new_pipeline: NewPipeline
) -> None:
    pipeline = new_pipeline()
    run(pipeline, spark)
    shutil.rmtree(pipeline.checkpoint)
    refused = failure(format_writer(pipeline, spark).start())
    assert "to resume would lose or repeat records" in refused
    assert "einmal.adopt=true" in refused
    assert numbers(pipeline.bootstrap, pipeline.topic, committed=False) == list(range(BATCH))
    run(pipeline, spark, **{"einmal.adopt": "true"})
    assert numbers(pipeline.bootstrap, pipeline.topic) == sorted([*range(BATCH)] * 2)


@pytest.mark.long
@pytest.mark.parametrize(("guarantee", "times"), [("at_least_once", 2), ("at_most_once", 1)])
def test_a_batch_that_spark_runs_again_outside_transactions(
    spark: SparkSession, new_pipeline: NewPipeline, guarantee: str, times: int
) -> None:
    pipeline = new_pipeline()
    run(pipeline, spark, **{"processing.guarantee": guarantee})
    assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(BATCH))
    for each in Path(pipeline.checkpoint, "commits").iterdir():
        each.unlink()
    run(pipeline, spark, **{"processing.guarantee": guarantee})
    assert numbers(pipeline.bootstrap, pipeline.topic) == sorted([*range(BATCH)] * times)
    with Admin({"bootstrap.servers": pipeline.bootstrap}) as admin:
        assert pipeline.name not in [each.transactional_id for each in admin.list_transactions()]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"processing.guarantee": "exactly_once"}, "use exactly_once_v2"),
        ({"transactional.id": ""}, 'option "transactional.id" is missing'),
        ({"topik": "a"}, "topik"),
        ({"checkpointLocation": "hdfs://nowhere/a"}, "hdfs"),
    ],
)
def test_options_that_cannot_be_kept_are_refused(
    spark: SparkSession, new_pipeline: NewPipeline, options: dict[str, str], why: str
) -> None:
    pipeline = new_pipeline()
    try:
        query = format_writer(pipeline, spark).options(**options).start()
    except Exception as error:  # noqa: BLE001 - Spark itself looks at some
        assert why in str(error)
        return
    found = failure(query)
    assert why in found
    assert "Traceback" not in found
