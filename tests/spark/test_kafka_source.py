"""Spark's own Kafka source as the input of our sink."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from einmal.client import Admin, Producer, TransactionDriver, UnknownOutcome
from einmal.pipeline import events
from einmal.spark import PreflightFailed, StreamWriter, write_stream
from tests.interop.apache_kafka import KafkaUnavailable
from tests.spark.conftest import on_both_in_the_long_run
from tests.spark.kafka_source import add_kafka_source
from tests.spark.topics import create, fill, numbers
from tests.suite.shared import unique

pytestmark = pytest.mark.spark


@pytest.fixture
def reader(spark: SparkSession, bootstrap: str) -> Any:
    try:
        add_kafka_source(spark)
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    return reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "10")


def writer(frame: DataFrame, bootstrap: str, name: str, checkpoint: Path) -> StreamWriter:
    chosen = write_stream(frame.select("key", "value")).option("kafka.bootstrap.servers", bootstrap)
    chosen = chosen.option("topic", f"{name}-out").option("transactional.id", name)
    return chosen.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)


@on_both_in_the_long_run
def test_sparks_own_source_is_read_exactly_once_through_a_lost_answer_and_a_lost_checkpoint(
    reader: Any, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, given = unique("kafka"), unique("in")
    create(bootstrap, given, f"{name}-out")
    fill(bootstrap, given, range(15))
    with Producer({"bootstrap.servers": bootstrap, "transactional.id": unique("id")}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(given, "99")
        producer.flush()
        producer.abort_transaction()
    fill(bootstrap, given, range(15, 25))
    real = TransactionDriver.end_txn
    calls: list[bool] = []

    def committed_but_never_told(self: TransactionDriver, identity: Any, *, committed: bool) -> Any:
        answer = real(self, identity, committed=committed)
        calls.append(committed)
        if len(calls) == 2:
            raise UnknownOutcome(detail="EndTxn")
        return answer

    frame = reader.option("subscribe", given).option("kafka.isolation.level", "read_committed").load()
    heard: list[events.Event] = []
    with monkeypatch.context() as patched:
        patched.setattr(TransactionDriver, "end_txn", committed_but_never_told)
        writer(frame, bootstrap, name, tmp_path / "cp").listener(heard.append).start().awaitTermination()
    assert len([event for event in heard if isinstance(event, events.QueryRestarted)]) == 1
    assert numbers(bootstrap, f"{name}-out", committed=False) == list(range(25))
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        committed = admin.list_group_offsets(name)
        ends = admin.list_offsets(dict.fromkeys(committed, -1))
    assert {each: position.offset for each, position in committed.items()} == {
        each: end.offset for each, end in ends.items()
    }
    shutil.rmtree(tmp_path / "cp")
    fill(bootstrap, given, range(25, 30))
    writer(frame, bootstrap, name, tmp_path / "cp").start().awaitTermination()
    assert numbers(bootstrap, f"{name}-out") == list(range(30)), "it begins where the output ends"


def test_sparks_own_source_needs_an_explicit_isolation_level(reader: Any, bootstrap: str, tmp_path: Path) -> None:
    name, given = unique("kafka"), unique("in")
    create(bootstrap, given, f"{name}-out")
    frame = reader.option("subscribe", given).load()
    with pytest.raises(PreflightFailed, match='kafka.isolation.level", "read_committed"'):
        writer(frame, bootstrap, name, tmp_path / "cp").start()


@pytest.mark.long
def test_a_checkpoint_of_our_source_can_be_continued_with_sparks_own(
    reader: Any, spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    name, given = unique("back"), unique("in")
    create(bootstrap, given, f"{name}-out")
    fill(bootstrap, given, range(15))
    ours = spark.readStream.format("einmal").option("kafka.bootstrap.servers", bootstrap)
    ours = ours.option("startingOffsets", "earliest").option("subscribe", given)
    writer(ours.load(), bootstrap, name, tmp_path / "cp").start().awaitTermination()
    fill(bootstrap, given, range(15, 20))
    theirs = reader.option("subscribe", given).option("kafka.isolation.level", "read_committed")
    writer(theirs.load(), bootstrap, name, tmp_path / "cp").start().awaitTermination()
    fill(bootstrap, given, range(20, 25))
    writer(ours.load(), bootstrap, name, tmp_path / "cp").start().awaitTermination()
    assert numbers(bootstrap, f"{name}-out") == list(range(25))
