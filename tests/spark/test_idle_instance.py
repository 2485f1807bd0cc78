"""An idle pipeline notices that another instance has acquired its name, and takes nothing else for one."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from einmal.commit_protocol.commit_record import COMMIT_TOPIC
from einmal.sinks.commit_point import Identity, SinkFenced
from einmal.sinks.kafka.commit_log import PARTITIONS, TOPIC_CONFIG
from einmal.sinks.sink import Opening
from einmal.spark import PipelineFenced
from einmal.spark.protocol import query as query_module
from einmal.spark.sinks.kafka.commit_point import KafkaFrameCommitPoint
from einmal.spark.sinks.kafka.sink import KafkaFrameSink
from einmal.testing.sinks.driving import record_of
from tests.interop.apache_kafka import in_the_long_run
from tests.spark.conftest import KINDS, TV1_KINDS
from tests.spark.pipelines import BATCH, Pipeline
from tests.spark.topics import create, fill, numbers
from tests.suite.patience import patient
from tests.suite.shared import unique

pytestmark = pytest.mark.spark


@pytest.mark.representatives(1)
@pytest.mark.parametrize("bootstrap", [*KINDS, TV1_KINDS[0], in_the_long_run(TV1_KINDS[1])], indirect=True)
def test_the_coordinator_reports_a_successor_and_no_transaction_of_ones_own(bootstrap: str) -> None:
    name = unique("idle")
    with closing(KafkaFrameSink({"bootstrap.servers": bootstrap})) as sink:
        sink.cluster.create_topic(COMMIT_TOPIC, PARTITIONS, TOPIC_CONFIG)
        with closing(sink.commit_point(Opening(name=name))) as older:
            identity = older.acquire(None)
            older.read()
            for batch_id in range(3):
                older.check(identity)
                older.record(identity, record_of(name, batch_id))
                identity = _next(older.abort(identity) if batch_id == 1 else older.commit(identity), identity)
            older.check(identity)
            with closing(sink.commit_point(Opening(name=name))) as newer:
                newer.acquire(None)
            with pytest.raises(SinkFenced, match="another instance has acquired"):
                older.check(identity)


def _next(following: Identity | None, identity: Identity) -> Identity:
    return identity if following is None else following


def test_a_pipeline_without_batches_ends_when_a_second_instance_starts(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_module, "_IDLE_CHECK_S", 0.5)
    asked: list[Identity] = []
    real = KafkaFrameCommitPoint.check

    def check(self: KafkaFrameCommitPoint, identity: Identity) -> None:
        asked.append(identity)
        real(self, identity)

    monkeypatch.setattr(KafkaFrameCommitPoint, "check", check)
    pipeline = Pipeline(bootstrap, str(tmp_path), unique("idle"))
    create(pipeline.bootstrap, pipeline.source_topic, pipeline.topic, partitions=1)
    fill(pipeline.bootstrap, pipeline.source_topic, range(BATCH))
    query = pipeline.writer(spark).trigger(processingTime="100 milliseconds").start()
    query.processAllAvailable()
    before = len(asked)
    while len(asked) < before + 3:
        assert not query.awaitTermination(0.1)
    fill(pipeline.bootstrap, pipeline.source_topic, range(BATCH, 2 * BATCH))
    query.processAllAvailable()
    assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(2 * BATCH))
    with (
        closing(KafkaFrameSink({"bootstrap.servers": pipeline.bootstrap})) as sink,
        closing(sink.commit_point(Opening(name=pipeline.name))) as newer,
    ):
        newer.acquire(None)
    with pytest.raises(PipelineFenced, match="PRODUCER_FENCED: another instance"):
        query.awaitTermination(patient(10))
