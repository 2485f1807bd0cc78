"""The sink on real Spark, against both brokers: what it writes, and what it refuses. Drivers die elsewhere."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from einmal.client import Admin, Producer, TransactionDriver, UnknownOutcome
from einmal.commit_protocol.commit_record import COMMIT_TOPIC
from einmal.pipeline import events
from einmal.spark import (
    OptionError,
    PipelineFailed,
    PipelineFenced,
    PipelineQuery,
    PipelineRefused,
    PreflightFailed,
    write_stream,
)
from einmal.spark.protocol.exactly_once import ExactlyOnce
from einmal.types import Header
from einmal.wire.murmur2 import partition_for_key
from tests.interop.apache_kafka import in_the_long_run
from tests.spark.conftest import long, on_both_brokers, on_both_in_the_long_run
from tests.spark.new_pipelines import NewPipeline, pipelines_in
from tests.spark.pipelines import BATCH, Pipeline, breaks_in_state, counted
from tests.spark.topics import commit_record, create, fill, numbers, pairs, records, values
from tests.suite.shared import unique

pytestmark = pytest.mark.spark


@pytest.fixture
def new_pipeline(bootstrap: str, tmp_path: Path) -> NewPipeline:
    return pipelines_in(tmp_path, bootstrap, "pipe")


class Heard(list[events.Event]):
    """A listener that keeps what it hears."""

    def __call__(self, event: events.Event) -> None:
        self.append(event)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self if isinstance(event, kind)]


def run(pipeline: Pipeline, spark: SparkSession, frame: DataFrame | None = None, /, **options: str) -> Heard:
    """Run the pipeline until nothing is left."""
    heard = Heard()
    pipeline.writer(spark, frame).options(**options).listener(heard).start().awaitTermination()
    return heard


class Stages(list[int]):
    """A listener that keeps of how many stages the job was that has written each batch with records."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__()
        self._spark = spark

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.BatchWritten) and event.records:
            # What has written the batch is the newest job of all.
            tracker = self._spark.sparkContext._jsc.sc().statusStore()
            self.append(tracker.jobsList(None).head().stageIds().size())


# --- what is written --------------------------------------------------------------------------------------------


@on_both_brokers
def test_every_record_is_written_once_to_the_partition_of_its_key_and_its_position_is_committed(
    spark: SparkSession, new_pipeline: NewPipeline
) -> None:
    pipeline = new_pipeline(25, partitions=3)
    heard, stages = Heard(), Stages(spark)
    pipeline.writer(spark, pipeline.source(spark)).listener(heard).listener(stages).start().awaitTermination()
    found = records(pipeline.bootstrap, pipeline.topic)
    assert sorted(int(record.value or b"") for _, record in found) == list(range(25))
    assert all(where.partition == partition_for_key(record.key or b"", 3) for where, record in found)
    assert [event.records for event in heard.of(events.BatchWritten)][0] == 0
    assert sum(event.records for event in heard.of(events.BatchWritten)) == 25
    assert all(event.committed for event in heard.of(events.TransactionEnded))
    assert set(stages) == {1}, "the one task that has read a batch writes it"
    with Admin({"bootstrap.servers": pipeline.bootstrap}) as admin:
        committed = admin.list_group_offsets(pipeline.name)
    assert sum(position.offset for position in committed.values()) == 25
    assert {each.topic for each in committed} == {pipeline.source_topic}


@pytest.mark.long
@on_both_in_the_long_run
def test_topic_partition_headers_and_timestamp_come_from_their_columns(
    spark: SparkSession, new_pipeline: NewPipeline, bootstrap: str
) -> None:
    pipeline = new_pipeline()
    topics = [unique("left"), unique("right")]
    create(bootstrap, *topics, partitions=3)
    number = F.col("value").cast("string").cast("int")
    frame = pipeline.source(spark).select(
        F.lit(None).cast("binary").alias("key"),
        F.col("value"),
        F.when(number % 2 == 0, topics[0]).otherwise(topics[1]).alias("topic"),
        F.when(number < 8, number % 3).alias("partition"),
        F.array(F.struct(F.lit("n").alias("key"), F.col("value").alias("value"))).alias("headers"),
        F.timestamp_millis(F.lit(1_700_000_000_000) + number).alias("timestamp"),
    )
    writer = write_stream(frame).option("kafka.bootstrap.servers", bootstrap).option("transactional.id", pipeline.name)
    writer = writer.option("checkpointLocation", str(pipeline.checkpoint)).trigger(availableNow=True)
    writer.start().awaitTermination()
    seen = []
    for topic in topics:
        for where, record in records(bootstrap, topic):
            value = record.value or b""
            assert topic == topics[int(value) % 2]
            assert int(value) >= 8 or where.partition == int(value) % 3
            assert record.headers == (Header("n", value),)
            assert record.timestamp == 1_700_000_000_000 + int(value)
            seen.append(int(value))
    assert sorted(seen) == list(range(BATCH))


def test_a_frame_without_keys_is_written_without_a_shuffle(spark: SparkSession, new_pipeline: NewPipeline) -> None:
    pipeline = new_pipeline(20, partitions=4)
    run(pipeline, spark, pipeline.source(spark).select("value"))
    found = records(pipeline.bootstrap, pipeline.topic)
    assert sorted(int(record.value or b"") for _, record in found) == list(range(20))
    assert all(record.key is None for _, record in found)


def test_the_order_of_a_key_is_kept_in_a_batch_that_several_tasks_have_read(
    spark: SparkSession, new_pipeline: NewPipeline
) -> None:
    pipeline = new_pipeline(30, partitions=3)
    stages = Stages(spark)
    source = pipeline.source(spark, minPartitions="6").select("key", "value")
    pipeline.writer(spark, source).listener(stages).start().awaitTermination()
    assert set(stages) == {2}
    found = records(pipeline.bootstrap, pipeline.topic)
    assert sorted(int(record.value or b"") for _, record in found) == list(range(30))
    assert all(where.partition == partition_for_key(record.key or b"", 3) for where, record in found)
    by_key: dict[bytes, list[int]] = {}
    for _, record in found:
        by_key.setdefault(record.key or b"", []).append(int(record.value or b""))
    assert len(by_key) == 5
    assert all(written == sorted(written) for written in by_key.values())


@on_both_in_the_long_run
def test_tasks_write_in_turns_where_they_have_read_and_keep_the_order_of_keys(
    spark: SparkSession, new_pipeline: NewPipeline
) -> None:
    pipeline = new_pipeline(0, partitions=2)
    count, padding = 3_000, "x" * 10_000
    with Producer({"bootstrap.servers": pipeline.bootstrap}) as producer:
        for number in range(count):
            key = number % 50
            producer.send(pipeline.source_topic, f"{number} {padding}", f"{key}", partition=key % 2)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 200)
    source = pipeline.source(spark, maxOffsetsPerTrigger=str(count)).select("key", "value")
    heard, stages = Heard(), Stages(spark)
    writer = pipeline.writer(spark, source).option("kafka.batch.size", "100000").listener(stages).listener(heard)
    try:
        writer.start().awaitTermination()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert set(stages) == {1}
    written = [(each.partition, each.count) for each in heard.of(events.PartitionWritten)]
    assert len(written) == 8, "each of two tasks had two turns in each of two partitions"
    assert sum(number for _, number in written) == count
    by_key: dict[bytes, list[int]] = {}
    for where, record in records(pipeline.bootstrap, pipeline.topic):
        assert where.partition == partition_for_key(record.key or b"", 2)
        by_key.setdefault(record.key or b"", []).append(int((record.value or b"").split()[0]))
    assert by_key == {b"%d" % key: list(range(key, count, 50)) for key in range(50)}


@pytest.mark.parametrize("how", [long(None), long("select"), "join"])
def test_tasks_write_where_they_have_read_whatever_a_batch_is_selected_from_or_joined_with(
    spark: SparkSession, new_pipeline: NewPipeline, how: str | None
) -> None:
    pipeline = new_pipeline(0, partitions=4)
    count = 4_400
    with Producer({"bootstrap.servers": pipeline.bootstrap}) as producer:
        for number in range(count):
            producer.send(pipeline.source_topic, f"{number}", f"{number}", partition=number % 4)
    stages = Stages(spark)

    def transform(frame: DataFrame, batch_id: int) -> DataFrame:
        value = f"concat(CAST(value AS STRING), '.', {batch_id}) AS value"
        frame = frame.where("value IS NOT NULL").selectExpr("key", value)
        table = spark.range(count).selectExpr("CAST(CAST(id AS STRING) AS BINARY) AS key")
        return frame if how == "select" else frame.join(F.broadcast(table), "key")

    source = pipeline.source(spark, maxOffsetsPerTrigger=str(count)).select("key", "value")
    writer = pipeline.writer(spark, source).listener(stages)
    (writer if how is None else writer.each_batch(transform)).start().awaitTermination()
    assert stages == [1]
    written = sorted(f"{number}" if how is None else f"{number}.1" for number in range(count))
    assert sorted(values(pipeline.bootstrap, pipeline.topic)) == written


PADDED = "rpad(CAST(number AS STRING), IF(number < 1500, 3000, 10), ' ') AS value"
"""The first of two tasks has more to write: it writes last, unless something keeps the order."""


@pytest.mark.long
@pytest.mark.parametrize(
    "sort",
    [
        lambda frame: frame.orderBy("number"),
        long(lambda frame: frame.orderBy("number").localCheckpoint()),
        long(lambda frame: frame.sparkSession.createDataFrame(frame.orderBy("number").collect(), frame.schema)),
        long(lambda frame: frame.repartitionByRange(2, "number").sortWithinPartitions("number")),
    ],
    ids=["sort", "checkpoint", "collected", "ranges"],
)
def test_a_sorted_batch_is_in_order_in_each_partition(
    spark: SparkSession, new_pipeline: NewPipeline, sort: Callable[[DataFrame], DataFrame]
) -> None:
    pipeline = new_pipeline(3_000, partitions=2)
    source = pipeline.source(spark, maxOffsetsPerTrigger="3000")
    source = source.selectExpr("key", "CAST(CAST(value AS STRING) AS INT) AS number")

    def transform(frame: DataFrame, _batch_id: int) -> DataFrame:
        return sort(frame).selectExpr("key", PADDED)

    pipeline.writer(spark, source).each_batch(transform).start().awaitTermination()
    by_partition: dict[int, list[int]] = {}
    for where, record in records(pipeline.bootstrap, pipeline.topic):
        by_partition.setdefault(where.partition, []).append(int(record.value or b""))
    assert sorted(number for found in by_partition.values() for number in found) == list(range(3_000))
    assert all(found == sorted(found) for found in by_partition.values())


# The transformation of a join is in every run: above.
@pytest.mark.long
def test_each_batch_may_be_transformed_before_it_is_written(spark: SparkSession, new_pipeline: NewPipeline) -> None:
    pipeline = new_pipeline(20)

    def count(frame: DataFrame, batch_id: int) -> DataFrame:
        return frame.groupBy("key").count().selectExpr("key", f"concat({batch_id}, ':', count) as value")

    pipeline.writer(spark).each_batch(count).start().awaitTermination()
    per_batch: dict[str, int] = {}
    for value in values(pipeline.bootstrap, pipeline.topic):
        batch_id, _, counted_rows = value.partition(":")
        per_batch[batch_id] = per_batch.get(batch_id, 0) + int(counted_rows)
    assert sum(per_batch.values()) == 20


def assert_sparks_own_commit_file_equals_the_commit_record(pipeline: Pipeline) -> None:
    newest = max(int(path.name) for path in (pipeline.checkpoint / "commits").iterdir() if path.name.isdecimal())
    record = commit_record(pipeline.bootstrap, pipeline.name)
    assert record is not None
    assert record.batch_id == newest
    assert record.commit_text == (pipeline.checkpoint / "commits" / str(newest)).read_text()


# --- tasks die --------------------------------------------------------------------------------------------------


def long_on(*values: str) -> Any:
    """One more case for ``make test-long``: a broker and what happens on it."""
    return pytest.param(*values, marks=pytest.mark.long)


def dies_once(flag: Path, how: str) -> Callable[[Any], Any]:
    """A function for mapInArrow that fails, or kills its process, the first time it has seen rows."""

    def body(batches: Any) -> Any:
        for batch in batches:
            yield batch
            if batch.num_rows and not flag.exists():
                flag.touch()
                if how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise RuntimeError("a task of the user's fails")

    return body


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("bootstrap", "how"),
    [("einmal", "raise"), ("einmal", "kill"), *(in_the_long_run("apache", how) for how in ("raise", "kill"))],
    indirect=["bootstrap"],
)
def test_a_stateless_batch_whose_task_died_is_aborted_and_written_again(
    spark: SparkSession, new_pipeline: NewPipeline, tmp_path: Path, how: str
) -> None:
    pipeline = new_pipeline(20)
    frame = pipeline.frame(spark)
    heard = run(pipeline, spark, frame.mapInArrow(dies_once(tmp_path / "flag", how), frame.schema))
    assert [event.committed for event in heard.of(events.TransactionEnded)].count(False) == 1
    assert not heard.of(events.QueryRestarted)
    assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(20))


@pytest.mark.long
def test_a_stateful_query_whose_task_died_is_restarted_and_state_agrees(
    spark: SparkSession, new_pipeline: NewPipeline, tmp_path: Path
) -> None:
    pipeline = new_pipeline(20, kind="random state")
    body = dies_once(tmp_path / "flag", "raise")
    heard = Heard()
    writer = pipeline.writer(spark).each_batch(lambda frame, _: frame.mapInArrow(body, frame.schema))
    writer.listener(heard).start().awaitTermination()
    assert len(heard.of(events.QueryRestarted)) == 1
    outputs = pairs(pipeline.bootstrap, pipeline.topic)
    assert breaks_in_state(outputs) == []
    assert counted(outputs) == 20
    assert_sparks_own_commit_file_equals_the_commit_record(pipeline)


def loses_its_shuffle_once(flag: Path, local: str) -> Callable[[Any], Any]:
    """A function for mapInArrow behind a shuffle: the first time all its tasks fail, and take with them what the stage
    before them has written, so that Spark runs that stage, and the state in it, again."""

    def body(batches: Any) -> Any:
        from pyspark import TaskContext

        rows = list(batches)
        context = TaskContext.get()
        assert context is not None
        if any(batch.num_rows for batch in rows) and context.attemptNumber() == 0 and not flag.exists():
            if context.partitionId() == 0:
                files = sorted(Path(local).rglob("shuffle_*_*_0.data"), key=lambda path: path.stat().st_mtime)
                newest = files[-1].name.split("_")[1]
                for path in files:
                    if path.name.split("_")[1] == newest:
                        path.unlink()
                flag.touch()
            raise RuntimeError("fetch it again")
        yield from rows

    return body


def test_a_state_stage_that_ran_twice_is_not_committed(
    spark: SparkSession, new_pipeline: NewPipeline, tmp_path: Path
) -> None:
    pipeline = new_pipeline(20, kind="random state")
    local = spark.sparkContext.getConf().get("spark.local.dir")
    assert local is not None
    body = loses_its_shuffle_once(tmp_path / "flag", local)
    heard = Heard()

    def refetch(frame: DataFrame, _: int) -> DataFrame:
        return frame.repartition(1).mapInArrow(body, frame.schema)

    pipeline.writer(spark).each_batch(refetch).listener(heard).start().awaitTermination()
    assert (tmp_path / "flag").exists()
    outputs = pairs(pipeline.bootstrap, pipeline.topic)
    assert breaks_in_state(outputs) == []
    assert counted(outputs) == 20


def test_a_batch_that_never_goes_through_ends_the_query_with_the_cause(
    spark: SparkSession, new_pipeline: NewPipeline
) -> None:
    pipeline = new_pipeline()

    def always(batches: Any) -> Any:
        for batch in batches:
            if batch.num_rows:
                raise ValueError("no such column in the record")
            yield batch

    frame = pipeline.frame(spark)
    query = pipeline.writer(spark, frame.mapInArrow(always, frame.schema)).start()
    with pytest.raises(PipelineFailed, match="ValueError: no such column in the record"):
        query.awaitTermination()
    assert numbers(pipeline.bootstrap, pipeline.topic) == []
    assert isinstance(query.exception(), PipelineFailed)


# --- answers get lost, others take over -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bootstrap", "kind"),
    [
        long_on("einmal", "copy"),
        ("einmal", "random state"),
        in_the_long_run("apache", "copy"),
        in_the_long_run("apache", "random state"),
    ],
    indirect=["bootstrap"],
)
def test_a_lost_answer_to_end_txn_is_cleared_up_from_the_commit_record(
    spark: SparkSession, new_pipeline: NewPipeline, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    pipeline = new_pipeline(20, kind=kind)
    real = TransactionDriver.end_txn
    calls = []

    def committed_but_never_told(self: TransactionDriver, identity: Any, *, committed: bool) -> Any:
        answer = real(self, identity, committed=committed)
        calls.append(committed)
        if len(calls) == 2:
            raise UnknownOutcome(detail="EndTxn")
        return answer

    monkeypatch.setattr(TransactionDriver, "end_txn", committed_but_never_told)
    heard = run(pipeline, spark)
    assert len(heard.of(events.QueryRestarted)) == 1
    if kind == "copy":
        assert numbers(pipeline.bootstrap, pipeline.topic, committed=False) == list(range(20))
    else:
        assert breaks_in_state(pairs(pipeline.bootstrap, pipeline.topic)) == []
        assert counted(pairs(pipeline.bootstrap, pipeline.topic)) == 20


@on_both_in_the_long_run
def test_a_driver_that_was_fenced_writes_nothing_more(spark: SparkSession, new_pipeline: NewPipeline) -> None:
    pipeline = new_pipeline()

    def successor(event: events.Event) -> None:
        if isinstance(event, events.BatchWritten) and event.batch_id == 1:
            config = {"bootstrap.servers": pipeline.bootstrap, "transactional.id": pipeline.name}
            with TransactionDriver(config) as driver:
                driver.init_producer_id()

    query = pipeline.writer(spark).listener(successor).start()
    with pytest.raises(PipelineFenced, match="another instance"):
        query.awaitTermination()
    assert numbers(pipeline.bootstrap, pipeline.topic) == []
    run(pipeline, spark)
    assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(BATCH))


@on_both_in_the_long_run
def test_a_batch_that_outlives_its_transaction_is_an_error_that_names_the_ways_out(
    spark: SparkSession, new_pipeline: NewPipeline
) -> None:
    pipeline = new_pipeline()

    def dawdle(event: events.Event) -> None:
        if isinstance(event, events.PartitionWritten):
            wait_until_aborted(pipeline)

    writer = pipeline.writer(spark).option("kafka.transaction.timeout.ms", "5000").listener(dawdle)
    with pytest.raises(PipelineFenced, match="transaction.timeout.ms.*maxOffsetsPerTrigger"):
        writer.start().awaitTermination()
    assert numbers(pipeline.bootstrap, pipeline.topic) == []


def wait_until_aborted(pipeline: Pipeline) -> None:
    with Admin({"bootstrap.servers": pipeline.bootstrap}) as admin:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            state = admin.describe_transactions([pipeline.name])[pipeline.name].state
            if str(state).lower().replace("_", "") == "completeabort":
                return
            time.sleep(0.1)
    raise AssertionError("the coordinator did not abort the overdue transaction")


# --- starts that must not be ------------------------------------------------------------------------------------


@pytest.mark.long
@on_both_in_the_long_run
def test_a_deleted_checkpoint_of_a_stateless_query_is_resumed_where_the_output_ends(
    spark: SparkSession, new_pipeline: NewPipeline
) -> None:
    pipeline = new_pipeline(12)
    run(pipeline, spark)
    shutil.rmtree(pipeline.checkpoint)
    fill(pipeline.bootstrap, pipeline.source_topic, range(12, 20))
    run(pipeline, spark)
    assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(20))


@pytest.mark.long
def test_a_deleted_checkpoint_of_a_stateful_query_is_refused(spark: SparkSession, new_pipeline: NewPipeline) -> None:
    pipeline = new_pipeline(kind="random state")
    run(pipeline, spark)
    shutil.rmtree(pipeline.checkpoint)
    with pytest.raises(PipelineRefused, match="the state that belongs to the committed output is gone"):
        pipeline.writer(spark).start()


@on_both_in_the_long_run
@pytest.mark.long
def test_a_name_with_another_checkpoint_is_refused_and_a_checkpoint_under_another_name_unless_adopted(
    spark: SparkSession, new_pipeline: NewPipeline, tmp_path: Path
) -> None:
    pipeline = new_pipeline(12)
    run(pipeline, spark)
    copy = pipeline.writer(spark).option("checkpointLocation", str(tmp_path / "copy"))
    heard = Heard()
    with pytest.raises(PipelineRefused, match="belongs to the query with checkpoint"):
        copy.listener(heard).start()
    assert heard == [], "refused before anybody was fenced"
    fill(pipeline.bootstrap, pipeline.source_topic, range(12, 20))
    renamed = {"transactional.id": unique("renamed")}
    with pytest.raises(PipelineRefused, match="no commit record exists"):
        run(pipeline, spark, **renamed)
    run(pipeline, spark, **renamed, **{"einmal.adopt": "true"})
    assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(20))


@pytest.mark.long
def test_a_checkpoint_behind_the_commit_record_is_refused(spark: SparkSession, new_pipeline: NewPipeline) -> None:
    pipeline = new_pipeline(12)
    run(pipeline, spark)
    older = pipeline.checkpoint.with_name("older")
    shutil.copytree(pipeline.checkpoint, older)
    fill(pipeline.bootstrap, pipeline.source_topic, range(12, 40))
    run(pipeline, spark)
    shutil.rmtree(pipeline.checkpoint)
    older.rename(pipeline.checkpoint)
    with pytest.raises(PipelineRefused, match="behind the commit record|now has"):
        run(pipeline, spark)
    assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(40))


@pytest.mark.long
def test_at_least_once_writes_without_a_transaction_and_its_checkpoint_is_ahead_of_the_commit_record(
    spark: SparkSession, new_pipeline: NewPipeline
) -> None:
    pipeline = new_pipeline()
    run(pipeline, spark)
    # Two batches.
    fill(pipeline.bootstrap, pipeline.source_topic, range(BATCH, 2 * BATCH + 5))
    heard = run(pipeline, spark, **{"processing.guarantee": "at_least_once"})
    assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(2 * BATCH + 5))
    assert not heard.of(events.NameTaken)
    assert not heard.of(events.TransactionEnded)
    fresh = new_pipeline()
    run(fresh, spark, **{"processing.guarantee": "at_least_once"})
    assert numbers(fresh.bootstrap, fresh.topic) == list(range(BATCH))
    fill(pipeline.bootstrap, pipeline.source_topic, range(2 * BATCH + 5, 30))
    with pytest.raises(PipelineRefused, match="were never committed|committed up to"):
        run(pipeline, spark)


def test_a_second_write_in_one_batch_is_refused_not_taken_for_already_in(
    spark: SparkSession, new_pipeline: NewPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = new_pipeline()
    real = ExactlyOnce.batch

    def twice(self: ExactlyOnce, *arguments: Any) -> None:
        real(self, *arguments)
        real(self, *arguments)

    monkeypatch.setattr(ExactlyOnce, "batch", twice)
    with pytest.raises(PipelineRefused, match="a second time in one foreachBatch"):
        run(pipeline, spark)


@pytest.mark.long
@on_both_in_the_long_run
def test_the_commit_record_is_found_behind_the_open_transaction_of_another(
    spark: SparkSession, new_pipeline: NewPipeline
) -> None:
    pipeline = new_pipeline(12)
    # A broker would make it for this producer with its defaults, and let it forget records.
    create(pipeline.bootstrap, COMMIT_TOPIC)
    config = {"bootstrap.servers": pipeline.bootstrap, "transactional.id": unique("other")}
    with Producer(config) as other:
        other.init_transactions()
        other.begin_transaction()
        for partition in range(16):
            other.send(COMMIT_TOPIC, b"{}", b"somebody else", partition=partition)
        other.flush()
        run(pipeline, spark)
        fill(pipeline.bootstrap, pipeline.source_topic, range(12, 20))
        heard = run(pipeline, spark)
        assert heard.of(events.BatchStarted)[0].batch_id > 0
        other.abort_transaction()
    assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(20))


def test_preflight_lists_everything_that_is_missing_at_once(
    spark: SparkSession, new_pipeline: NewPipeline, tmp_path: Path
) -> None:
    pipeline = new_pipeline()
    frame = pipeline.source(spark).select(F.col("partition").alias("value"))
    writer = pipeline.writer(spark, frame).option("kafka.bootstrap.servers", "127.0.0.1:1")
    with pytest.raises(PreflightFailed, match="2 thing") as failed:
        writer.option("kafka.default.api.timeout.ms", "1000").start()
    assert 'column "value" is string or binary, not int' in str(failed.value)
    assert "no broker answers at 127.0.0.1:1" in str(failed.value)


def test_a_batch_frame_is_not_a_stream(spark: SparkSession) -> None:
    with pytest.raises(OptionError, match="streaming DataFrame"):
        write_stream(spark.range(1))


# --- stopping ---------------------------------------------------------------------------------------------------


def test_stop_ends_the_query_between_two_batches(spark: SparkSession, new_pipeline: NewPipeline) -> None:
    pipeline = new_pipeline(30)
    in_batch, go_on = threading.Event(), threading.Event()

    def hold(event: events.Event) -> None:
        if isinstance(event, events.PartitionWritten) and event.batch_id == 1:
            in_batch.set()
            go_on.wait(300)

    query = pipeline.writer(spark).trigger(processingTime="0 seconds").listener(hold).start()
    assert in_batch.wait(300)
    stopper = threading.Thread(target=query.stop)
    stopper.start()
    go_on.set()
    stopper.join(300)
    assert_stopped(query)
    assert (pipeline.checkpoint / "commits" / "1").exists()
    some = numbers(pipeline.bootstrap, pipeline.topic)
    assert some and len(some) < 30
    run(pipeline, spark)
    assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(30))


def assert_stopped(query: PipelineQuery) -> None:
    assert not query.isActive
    assert query.exception() is None
    assert query.awaitTermination(1) is True
