"""Batch writes on real Spark: one transaction each, and once however often they are run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from einmal.client import TransactionDriver, UnknownOutcome
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.commit_protocol.commit_record import COMMIT_TOPIC
from einmal.pipeline import events
from einmal.spark import (
    BatchWriter,
    OptionError,
    PipelineFailed,
    PipelineFenced,
    PipelineRefused,
    PreflightFailed,
    Written,
    write,
)
from einmal.wire.murmur2 import partition_for_key
from tests.spark.conftest import on_both_in_the_long_run, on_both_tv1_in_the_long_run
from tests.spark.topics import create, numbers, records
from tests.suite.shared import unique

pytestmark = pytest.mark.spark


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = unique("batch")
    create(bootstrap, name, partitions=3)
    return name


def rows(spark: SparkSession, count: int, *, keyed: bool = True) -> DataFrame:
    """The numbers below ``count`` as values, in four partitions."""
    key = ["concat('k', id % 5) as key"] if keyed else []
    return spark.range(0, count, 1, 4).selectExpr(*key, "cast(id as string) as value")


def writer(frame: DataFrame, bootstrap: str, topic: str, **options: Any) -> BatchWriter:
    chosen = write(frame).format("kafka").mode("append").option("kafka.bootstrap.servers", bootstrap)
    return chosen.option("topic", topic).options(**options)


def named(name: str, version: int) -> dict[str, Any]:
    return {"transactional.id": name, "txnVersion": version}


@pytest.mark.representatives(1)
@on_both_in_the_long_run
@pytest.mark.parametrize("keyed", [True, False])
def test_a_frame_is_written_as_one_transaction(spark: SparkSession, bootstrap: str, topic: str, keyed: bool) -> None:
    heard: list[events.Event] = []
    assert writer(rows(spark, 100, keyed=keyed), bootstrap, topic).listener(heard.append).save() == Written(100, False)
    found = records(bootstrap, topic)
    assert sorted(int(record.value or b"") for _, record in found) == list(range(100))
    if keyed:
        assert all(where.partition == partition_for_key(record.key or b"", 3) for where, record in found)
    assert [event.committed for event in heard if isinstance(event, events.TransactionEnded)] == [True]
    names = [event.transactional_id for event in heard if isinstance(event, events.NameTaken)]
    # Also what is behind the open transaction of another: a tombstone is in no transaction.
    everything = records(bootstrap, COMMIT_TOPIC, committed=False)
    left = [record.value for _, record in everything if record.key == names[0].encode()]
    assert left[-1] is None, "a write that cannot be asked for again leaves nothing behind"


@on_both_in_the_long_run
def test_a_batch_that_is_run_again_is_written_once_and_the_next_one_too(
    spark: SparkSession, bootstrap: str, topic: str
) -> None:
    name = unique("series")
    assert writer(rows(spark, 10), bootstrap, topic, **named(name, 7)).save() == Written(10, False)
    heard: list[events.Event] = []
    again = writer(rows(spark, 10), bootstrap, topic, **named(name, 7)).listener(heard.append).save()
    assert again == Written(10, already_in=True)
    assert heard == [events.BatchAlreadyIn(7)], "nobody is fenced for it"
    assert numbers(bootstrap, topic, committed=False) == list(range(10))
    assert writer(rows(spark, 20), bootstrap, topic, **named(name, 9)).save() == Written(20, False)
    with pytest.raises(
        PipelineRefused, match="txnVersion 8 of .* comes after 9.*\nhint: increase txnVersion with every batch"
    ):
        writer(rows(spark, 10), bootstrap, topic, **named(name, 8)).save()


def dies_once(flag: Path, *, kills: bool) -> Callable[[Any], Any]:
    def body(batches: Any) -> Any:
        for batch in batches:
            yield batch
            if batch.num_rows and not flag.exists():
                flag.touch()
                if kills:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise RuntimeError("a task of the user's fails")

    return body


@on_both_tv1_in_the_long_run
def test_a_write_whose_task_died_is_aborted_and_begun_again_under_another_epoch(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    frame = rows(spark, 50, keyed=False)
    body = dies_once(tmp_path / "flag", kills=True)
    heard: list[events.Event] = []
    writer(frame.mapInArrow(body, frame.schema), bootstrap, topic).listener(heard.append).save()
    assert [event.committed for event in heard if isinstance(event, events.TransactionEnded)] == [False, True]
    assert numbers(bootstrap, topic) == list(range(50))


@pytest.mark.long
def test_a_write_that_never_goes_through_leaves_nothing_and_names_the_cause(
    spark: SparkSession, bootstrap: str, topic: str
) -> None:
    frame = rows(spark, 10).selectExpr("key", "cast(raise_error('no such currency') as string) as value")
    with pytest.raises(PipelineFailed, match="no such currency"):
        writer(frame, bootstrap, topic).save()
    assert numbers(bootstrap, topic) == []


@on_both_in_the_long_run
def test_a_lost_answer_to_end_txn_is_looked_up_and_the_batch_written_once(
    spark: SparkSession, bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = TransactionDriver.end_txn
    calls: list[bool] = []

    def committed_but_never_told(self: TransactionDriver, identity: Any, *, committed: bool) -> Any:
        answer = real(self, identity, committed=committed)
        calls.append(committed)
        if len(calls) == 1:
            raise UnknownOutcome(detail="EndTxn")
        return answer

    monkeypatch.setattr(TransactionDriver, "end_txn", committed_but_never_told)
    assert writer(rows(spark, 10), bootstrap, topic).save() == Written(10, already_in=False)
    assert numbers(bootstrap, topic, committed=False) == list(range(10))
    assert calls == [True]


@on_both_in_the_long_run
def test_of_two_copies_of_a_job_the_earlier_dies_and_the_batch_is_in_once(
    spark: SparkSession, bootstrap: str, topic: str
) -> None:
    name = unique("copies")
    second: list[Written] = []

    def copy(event: events.Event) -> None:
        if isinstance(event, events.BatchWritten) and not second:
            second.append(writer(rows(spark, 10), bootstrap, topic, **named(name, 1)).save())

    with pytest.raises(PipelineFenced, match="another instance"):
        writer(rows(spark, 10), bootstrap, topic, **named(name, 1)).listener(copy).save()
    assert second == [Written(10, already_in=False)]
    assert numbers(bootstrap, topic) == list(range(10))
    assert writer(rows(spark, 10), bootstrap, topic, **named(name, 1)).save().already_in


def test_a_write_that_is_interrupted_leaves_no_reader_waiting(spark: SparkSession, bootstrap: str, topic: str) -> None:
    def interrupt(event: events.Event) -> None:
        if isinstance(event, events.BatchWritten):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        writer(rows(spark, 10), bootstrap, topic).listener(interrupt).save()
    cluster = KafkaCluster({"bootstrap.servers": bootstrap})
    try:
        partitions = cluster.partitions([topic])
        assert sum(cluster.latest(partitions, committed=False).values()) >= 10
        deadline = time.monotonic() + 300
        while cluster.latest(partitions, committed=True) != cluster.latest(partitions, committed=False):
            assert time.monotonic() < deadline, "the transaction is still open"
    finally:
        cluster.close()
    assert numbers(bootstrap, topic) == []


@pytest.mark.long
def test_adaptive_execution_changes_nothing(spark: SparkSession, bootstrap: str, topic: str) -> None:
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    try:
        frame = rows(spark, 200).groupBy("key").count().selectExpr("key", "cast(count as string) as value")
        assert writer(frame, bootstrap, topic).save() == Written(5, False)
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", "false")
    assert numbers(bootstrap, topic) == [40] * 5


def test_an_empty_frame_is_a_batch_too(spark: SparkSession, bootstrap: str, topic: str) -> None:
    name = unique("empty")
    assert writer(rows(spark, 0), bootstrap, topic, **named(name, 1)).save() == Written(0, False)
    assert writer(rows(spark, 0), bootstrap, topic, **named(name, 1)).save() == Written(0, True)


def test_a_partition_that_no_int_holds_is_refused_whatever_sparks_casts_do(
    spark: SparkSession, bootstrap: str, topic: str
) -> None:
    frame = spark.range(1).selectExpr("'a' as value", "4294967297L as partition")
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        with pytest.raises(PipelineFailed, match="names partition 4294967297"):
            writer(frame, bootstrap, topic).save()
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    assert numbers(bootstrap, topic, committed=False) == []


def test_invalid_writes_are_reported_before_anything_is_written(
    spark: SparkSession, bootstrap: str, topic: str
) -> None:
    frame = rows(spark, 1)
    with pytest.raises(OptionError, match='"txnVersion" is missing'):
        writer(frame, bootstrap, topic, **{"transactional.id": "a"}).save()
    with pytest.raises(OptionError, match='"transactional.id" is missing'):
        writer(frame, bootstrap, topic, txnVersion=1).save()
    with pytest.raises(OptionError, match="can be appended to"):
        write(frame).mode("overwrite")
    with pytest.raises(OptionError, match="batch DataFrame"):
        write(spark.readStream.format("rate").load())
    with pytest.raises(PreflightFailed, match='the batch cannot be written, 1 thing.*\n.*column "value" is missing'):
        writer(frame.select("key"), bootstrap, topic).save()
