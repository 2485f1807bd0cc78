"""Source topics that are deleted, created again, or internal: what a pipeline on real Spark then does.

What the source itself does is in ``test_recreated_topics``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from einmal.client import Admin, TransactionDriver
from einmal.client.cores.transaction_core import coordinator_error
from einmal.client.errors import KafkaError, error_for
from einmal.commit_protocol.commit_record import COMMIT_TOPIC
from einmal.commit_protocol.positions import topics_in
from einmal.pipeline import events
from einmal.spark import PipelineError, PipelineFenced, write_stream
from einmal.types import ErrorCode
from tests.spark.conftest import TV1_KINDS, long, on_both_in_the_long_run
from tests.spark.pipelines import Pipeline
from tests.spark.stream_reader import delete
from tests.spark.topics import create, fill, numbers
from tests.suite.shared import unique

pytestmark = pytest.mark.spark


@pytest.fixture
def pipeline(bootstrap: str, tmp_path: Path) -> Pipeline:
    """One that copies two topics, and has committed 20 numbers of the first and 10 of the second."""
    pipeline = Pipeline(bootstrap, str(tmp_path), unique("changed"))
    create(bootstrap, pipeline.source_topic, other(pipeline), pipeline.topic, partitions=1)
    fill(bootstrap, pipeline.source_topic, range(20))
    fill(bootstrap, other(pipeline), range(100, 110))
    return pipeline


def other(pipeline: Pipeline) -> str:
    return f"{pipeline.name}-other"


def run(pipeline: Pipeline, spark: SparkSession, **options: str) -> list[events.Event]:
    heard: list[events.Event] = []
    reader = spark.readStream.format("einmal").option("kafka.bootstrap.servers", pipeline.bootstrap)
    both = f"{pipeline.source_topic},{other(pipeline)}"
    frame = reader.options(**{"subscribe": both, "startingOffsets": "earliest"} | options).load()
    writer = pipeline.writer(spark, frame.select("key", "value")).listener(heard.append)
    writer.start().awaitTermination()
    return heard


def aborts(heard: list[events.Event]) -> int:
    return sum(isinstance(event, events.TransactionEnded) and not event.committed for event in heard)


@on_both_in_the_long_run
@pytest.mark.parametrize("count", [long(6), 20])
def test_a_recreated_topic_ends_the_pipeline_and_names_both_ids(
    spark: SparkSession, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    # Before: positions that are refused. Other codes are in tests of their own, below.
    assert_fenced_by_its_positions(pipeline, spark, monkeypatch, ErrorCode.producer_fenced)
    assert_aborted_by_its_positions(pipeline, spark, monkeypatch)
    delete(pipeline.bootstrap, pipeline.source_topic)
    create(pipeline.bootstrap, pipeline.source_topic, partitions=1)
    fill(pipeline.bootstrap, pipeline.source_topic, range(200, 200 + count))
    with pytest.raises(
        PipelineError, match=r"DataLoss: topic .* was deleted and created again \(topic id \S+, now \S+\)"
    ):
        run(pipeline, spark)
    run(pipeline, spark, failOnDataLoss="false")
    expected = [*range(20), *range(100, 110), *range(200, 200 + count)]
    assert numbers(pipeline.bootstrap, pipeline.topic) == expected


@pytest.mark.parametrize("bootstrap", ["einmal", *map(long, ("apache", *TV1_KINDS))], indirect=True)
@pytest.mark.long
def test_one_deleted_topic_costs_no_batch_of_the_others_and_refused_positions_cost_none(
    spark: SparkSession, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_not_aborted_by_its_positions(pipeline, spark, monkeypatch, ErrorCode.unknown_topic_or_partition)
    delete(pipeline.bootstrap, pipeline.source_topic)
    fill(pipeline.bootstrap, other(pipeline), range(110, 120))
    heard = run(pipeline, spark, failOnDataLoss="false")
    assert aborts(heard) == 0
    assert numbers(pipeline.bootstrap, pipeline.topic) == [*range(20), *range(100, 120)]
    with Admin({"bootstrap.servers": pipeline.bootstrap}) as admin:
        committed = admin.list_group_offsets(pipeline.name)
    reached = {each.topic: position.offset for each, position in committed.items()}
    assert reached[other(pipeline)] == 20, "lag tools see the position of the topic that is left"


# --- refused positions: each first code is in a test above ------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.group_authorization_failed,
        ErrorCode.topic_authorization_failed,
        ErrorCode.group_id_not_found,
        ErrorCode.unknown_member_id,
        ErrorCode.unsupported_version,
        ErrorCode.coordinator_load_in_progress,
    ],
)
def test_positions_that_only_lag_tools_read_cost_no_batch(
    spark: SparkSession, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, code: ErrorCode
) -> None:
    assert_not_aborted_by_its_positions(pipeline, spark, monkeypatch, code)


@pytest.mark.long
def test_positions_refused_because_the_producer_is_fenced_end_the_pipeline(
    spark: SparkSession, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_fenced_by_its_positions(pipeline, spark, monkeypatch, ErrorCode.invalid_producer_epoch)


def assert_not_aborted_by_its_positions(
    pipeline: Pipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, code: ErrorCode
) -> None:
    with monkeypatch.context() as patch:
        refuse_positions(patch, coordinator_error(code, "TxnOffsetCommit"))
        assert aborts(run(pipeline, spark)) == 0
    assert numbers(pipeline.bootstrap, pipeline.topic) == [*range(20), *range(100, 110)]


def assert_fenced_by_its_positions(
    pipeline: Pipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, code: ErrorCode
) -> None:
    with monkeypatch.context() as patch, pytest.raises(PipelineFenced):
        refuse_positions(patch, coordinator_error(code, "TxnOffsetCommit"))
        run(pipeline, spark)
    assert numbers(pipeline.bootstrap, pipeline.topic) == []


def assert_aborted_by_its_positions(pipeline: Pipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the broker asks for it: once."""
    with monkeypatch.context() as patch:
        refuse_positions(patch, error_for(ErrorCode.transaction_abortable, "TxnOffsetCommit"), times=1)
        assert aborts(run(pipeline, spark)) == 1
    assert numbers(pipeline.bootstrap, pipeline.topic) == [*range(20), *range(100, 110)]


def refuse_positions(monkeypatch: pytest.MonkeyPatch, error: KafkaError, times: int = 1_000) -> None:
    real = TransactionDriver.txn_offset_commit
    left = [error] * times

    def refused(self: TransactionDriver, *arguments: Any) -> None:
        if left:
            raise left.pop()
        real(self, *arguments)

    monkeypatch.setattr(TransactionDriver, "txn_offset_commit", refused)


# --- internal topics --------------------------------------------------------------------------------------------------


def test_the_commit_topic_is_no_source(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    create(bootstrap, COMMIT_TOPIC)
    for option, value in (("subscribe", f"orders, {COMMIT_TOPIC}"), ("assign", json.dumps({COMMIT_TOPIC: [0]}))):
        for reader in (spark.read, spark.readStream):
            with pytest.raises(Exception, match="holds the commit records of pipelines and cannot be read as a source"):
                reader.format("einmal").option("kafka.bootstrap.servers", bootstrap).option(option, value).load()


def test_a_pattern_that_matches_the_commit_topic_comes_to_an_end(spark: SparkSession, pipeline: Pipeline) -> None:
    reader = spark.readStream.format("einmal").option("kafka.bootstrap.servers", pipeline.bootstrap)
    pattern = f"__einmal.*|{pipeline.source_topic}"
    frame = reader.option("subscribePattern", pattern).option("startingOffsets", "earliest").load()
    writer = write_stream(frame.select("key", "value")).option("kafka.bootstrap.servers", pipeline.bootstrap)
    writer = writer.option("topic", pipeline.topic).option("transactional.id", pipeline.name)
    query = writer.option("checkpointLocation", str(pipeline.checkpoint)).start()
    try:
        query.processAllAvailable()
        assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(20))
        progress = query.lastProgress
        assert set(topics_in(json.loads(progress.sources[0].endOffset))) == {pipeline.source_topic}
    finally:
        query.stop()
