"""The name is the same, the thing is not: copied checkpoints, other names and clusters, older drivers, expired ids.

Each is found by identity and refused before anybody is fenced, or recovers by itself.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from einmal.client import Admin, Producer, RequestRefused, TransactionDriver, UnknownOutcome
from einmal.pipeline import events
from einmal.spark import PipelineFailed, PipelineFenced, PipelineRefused, write_stream
from einmal.spark.protocol.execution import FORMAT_SETTING
from einmal.types import TransactionVersion
from tests.interop.apache_kafka import ApacheKafka, KafkaUnavailable
from tests.interop.einmal_broker import EinmalBroker
from tests.spark.conftest import KINDS, TV1_KINDS, long, on_both_in_the_long_run, on_both_tv1_in_the_long_run
from tests.spark.new_pipelines import NewPipeline, pipelines_in
from tests.spark.pipelines import BATCH, Pipeline, breaks_in_state, counted
from tests.spark.topics import create, fill, numbers, pairs, values
from tests.suite.shared import unique

pytestmark = pytest.mark.spark

_EXPIRED_S = 300.0


@pytest.fixture
def new_pipeline(bootstrap: str, tmp_path: Path) -> NewPipeline:
    return pipelines_in(tmp_path, bootstrap, "same", records=2 * BATCH, width=1)


@pytest.fixture(params=["1", "2"])
def state_format(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    provider = "spark.sql.streaming.stateStore.providerClass"
    before = {name: spark.conf.get(name) for name in (FORMAT_SETTING, provider)}
    spark.conf.set(FORMAT_SETTING, request.param)
    yield request.param
    for name, value in before.items():
        spark.conf.set(name, value or "")


class Died(Exception):
    """Raised by a listener: the driver goes no further, and leaves everything as it is."""


def dies_at(kind: type[Any], batch_id: int) -> Callable[[events.Event], None]:
    def listener(event: events.Event) -> None:
        if isinstance(event, kind) and event.batch_id == batch_id:
            raise Died

    return listener


def run(
    pipeline: Pipeline, spark: SparkSession, frame: DataFrame | None = None, /, **options: str
) -> list[events.Event]:
    heard: list[events.Event] = []
    pipeline.writer(spark, frame).options(**options).listener(heard.append).start().awaitTermination()
    return heard


def die(pipeline: Pipeline, spark: SparkSession, kind: type[Any], batch_id: int) -> None:
    query = pipeline.writer(spark).listener(dies_at(kind, batch_id)).start()
    with pytest.raises(PipelineFailed, match="Died"):
        query.awaitTermination()


def acquisitions(heard: list[events.Event]) -> list[events.Event]:
    return [event for event in heard if isinstance(event, events.NameTaken)]


# --- copied checkpoints -----------------------------------------------------------------------------------------------


def commits(pipeline: Pipeline) -> list[str]:
    return sorted(path.name for path in (pipeline.checkpoint / "commits").iterdir())


def refused_once_its_copy_has_moved_on(pipeline: Pipeline, spark: SparkSession) -> None:
    """The original; also as an adopted one."""
    for options, reason in (
        ({}, "belongs to the query with checkpoint .*copy"),
        ({"einmal.adopt": "true"}, "a driver that never ran on the checkpoint|is not at batch"),
    ):
        with pytest.raises(PipelineRefused, match=reason):
            pipeline.writer(spark).options(**options).start()


@pytest.mark.long
@pytest.mark.parametrize("state_format", ["2"], indirect=True)
def test_an_original_is_not_finished_from_the_commit_record_of_its_copy_at_its_batch_or_behind_it(
    spark: SparkSession, new_pipeline: NewPipeline, state_format: str, tmp_path: Path
) -> None:
    pipeline = new_pipeline(2 * BATCH, kind="random state")
    die(pipeline, spark, events.BatchWritten, 2)
    copy = tmp_path / "copy"
    shutil.copytree(pipeline.checkpoint, copy)
    moved, adopt = {"checkpointLocation": str(copy)}, {"einmal.adopt": "true"}
    done = commits(pipeline)
    assert "2" not in done
    run(pipeline, spark, **moved, **adopt)
    with pytest.raises(PipelineRefused, match="a driver that never ran on the checkpoint"):
        pipeline.writer(spark).options(**adopt).start()
    fill(pipeline.bootstrap, pipeline.source_topic, range(2 * BATCH, 3 * BATCH))
    run(pipeline, spark, **moved)
    refused_once_its_copy_has_moved_on(pipeline, spark)
    assert commits(pipeline) == done
    outputs = pairs(pipeline.bootstrap, pipeline.topic)
    assert breaks_in_state(outputs) == []
    assert counted(outputs) == 3 * BATCH


# In every run: above, with one more restart of the copy, which format 1 does not promise.
@pytest.mark.long
def test_an_original_is_not_finished_from_the_commit_record_of_its_copy(
    spark: SparkSession, new_pipeline: NewPipeline, state_format: str, tmp_path: Path
) -> None:
    pipeline = new_pipeline(3 * BATCH, kind="random state")
    die(pipeline, spark, events.BatchWritten, 2)
    copy = tmp_path / "copy"
    shutil.copytree(pipeline.checkpoint, copy)
    moved = {"checkpointLocation": str(copy)}
    run(pipeline, spark, **moved, **{"einmal.adopt": "true"})
    done = commits(pipeline)
    refused_once_its_copy_has_moved_on(pipeline, spark)
    assert commits(pipeline) == done
    fill(pipeline.bootstrap, pipeline.source_topic, range(3 * BATCH, 4 * BATCH))
    run(pipeline, spark, **moved)
    outputs = pairs(pipeline.bootstrap, pipeline.topic)
    assert breaks_in_state(outputs) == []
    assert counted(outputs) == 4 * BATCH


@pytest.mark.long
def test_an_original_at_the_batch_that_its_copy_committed_keeps_its_own_state(
    spark: SparkSession, new_pipeline: NewPipeline, state_format: str, tmp_path: Path
) -> None:
    pipeline = new_pipeline(2 * BATCH, kind="random state")
    die(pipeline, spark, events.BatchWritten, 2)
    copy = tmp_path / "copy"
    shutil.copytree(pipeline.checkpoint, copy)
    run(pipeline, spark, **{"checkpointLocation": str(copy), "einmal.adopt": "true"})
    with pytest.raises(PipelineRefused, match="a driver that never ran on the checkpoint"):
        pipeline.writer(spark).option("einmal.adopt", "true").start()
    assert not (pipeline.checkpoint / "commits" / "2").exists()


def test_a_commit_file_is_not_finished_where_its_state_is_missing(
    spark: SparkSession, new_pipeline: NewPipeline
) -> None:
    pipeline = new_pipeline(kind="random state")
    die(pipeline, spark, events.TransactionEnded, 2)
    lost = list((pipeline.checkpoint / "state").rglob("3_*"))
    assert lost
    for path in lost:
        path.unlink()
    with pytest.raises(PipelineRefused, match="the state of batch 2 is incomplete: .*/state/0/0/3_.* does not exist"):
        pipeline.writer(spark).start()
    assert not (pipeline.checkpoint / "commits" / "2").exists()


@on_both_in_the_long_run
def test_a_copied_checkpoint_and_another_name_are_refused_before_the_running_original_is_fenced(
    spark: SparkSession, new_pipeline: NewPipeline, tmp_path: Path
) -> None:
    pipeline = new_pipeline()
    run(pipeline, spark)
    shutil.copytree(pipeline.checkpoint, tmp_path / "copy")
    heard: list[events.Event] = []
    writer = pipeline.writer(spark).option("checkpointLocation", str(tmp_path / "copy")).listener(heard.append)
    with pytest.raises(PipelineRefused, match="a copy of that checkpoint or its new location(?s:.*)pipeline adopt"):
        writer.start()
    assert heard == []
    # Also where there is nothing new to read.
    writer = pipeline.writer(spark).option("transactional.id", unique("other")).listener(heard.append)
    with pytest.raises(PipelineRefused, match="is at batch 3, but no commit record exists(?s:.*)adopt"):
        writer.start().awaitTermination()
    assert heard == [], "nobody is fenced"
    fill(pipeline.bootstrap, pipeline.source_topic, range(2 * BATCH, 3 * BATCH))
    run(pipeline, spark)
    assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(3 * BATCH))


@pytest.mark.long
@on_both_in_the_long_run
def test_a_start_that_spark_refuses_does_not_fence_the_running_query(
    spark: SparkSession, new_pipeline: NewPipeline
) -> None:
    pipeline = new_pipeline()
    name = unique("query")
    running = pipeline.writer(spark).queryName(name).trigger(processingTime="0 seconds").start()
    try:
        running.processAllAvailable()
        heard: list[events.Event] = []
        for second in (
            pipeline.writer(spark).queryName(name),
            pipeline.writer(spark).outputMode("complete"),
            # Its checkpoint is that of the query that runs.
            pipeline.writer(spark),
        ):
            with pytest.raises(PipelineRefused, match="runs in this session already|Spark refuses the query"):
                second.listener(heard.append).start()
        assert heard == []
        fill(pipeline.bootstrap, pipeline.source_topic, range(2 * BATCH, 3 * BATCH))
        running.processAllAvailable()
    finally:
        running.stop()
    assert running.exception() is None
    assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(3 * BATCH))


# --- other names ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_batch_0_that_is_committed_under_one_name_is_not_committed_under_another(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    """Spark's own sources have rows in batch 0."""
    topic, name = unique("files"), unique("first")
    create(bootstrap, topic)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("1\n2\n3\n")

    def writer(name: str) -> Any:
        frame = spark.readStream.format("text").load(str(tmp_path / "in"))
        made = write_stream(frame).option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
        made = made.option("checkpointLocation", str(tmp_path / "checkpoint")).option("transactional.id", name)
        return made.trigger(availableNow=True)

    query = writer(name).listener(dies_at(events.TransactionEnded, 0)).start()
    with pytest.raises(PipelineFailed, match="Died"):
        query.awaitTermination()
    with pytest.raises(PipelineRefused, match=f"was last used under transactional.id '{name}'(?s:.*)adopt"):
        writer(unique("second")).start().awaitTermination()
    writer(name).start().awaitTermination()
    assert sorted(values(bootstrap, topic)) == ["1", "2", "3"]


# --- older drivers ----------------------------------------------------------------------------------------------------


def restart_beside_a_newer_instance(
    spark: SparkSession, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, *, newer_is_writing: bool
) -> None:
    real, calls = TransactionDriver.end_txn, []
    config = {"bootstrap.servers": pipeline.bootstrap, "transactional.id": pipeline.name}
    with Producer(config) as newer:

        def unanswered(self: TransactionDriver, identity: Any, *, committed: bool) -> Any:
            calls.append(committed)
            if len(calls) != 2:
                return real(self, identity, committed=committed)
            newer.init_transactions()
            if newer_is_writing:
                newer.begin_transaction()
                newer.send(pipeline.topic, b"newer").result()
            raise UnknownOutcome(detail="EndTxn")

        monkeypatch.setattr(TransactionDriver, "end_txn", unanswered)
        heard: list[events.Event] = []
        with pytest.raises(PipelineFenced, match="PRODUCER_FENCED"):
            pipeline.writer(spark).listener(heard.append).start().awaitTermination()
        assert [type(event) for event in heard].count(events.QueryRestarted) == 1
        assert len(acquisitions(heard)) == 1
        if not newer_is_writing:
            newer.begin_transaction()
            newer.send(pipeline.topic, b"newer").result()
        newer.commit_transaction()
    assert values(pipeline.bootstrap, pipeline.topic) == ["newer"]


@on_both_in_the_long_run
@pytest.mark.parametrize("newer_is_writing", [long(False), True])
def test_an_older_driver_that_restarts_in_place_does_not_fence_the_newer_one(
    spark: SparkSession, new_pipeline: NewPipeline, monkeypatch: pytest.MonkeyPatch, newer_is_writing: bool
) -> None:
    restart_beside_a_newer_instance(spark, new_pipeline(), monkeypatch, newer_is_writing=newer_is_writing)


@pytest.mark.long
@on_both_tv1_in_the_long_run
def test_an_older_driver_that_restarts_in_place_does_not_fence_the_newer_one_under_tv1(
    spark: SparkSession, new_pipeline: NewPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    restart_beside_a_newer_instance(spark, new_pipeline(), monkeypatch, newer_is_writing=True)


# --- expired ids ------------------------------------------------------------------------------------------------------

_FORGETFUL = {
    "transactional.id.expiration.ms": "20000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
    "producer.id.expiration.ms": "5000",
    "producer.id.expiration.check.interval.ms": "500",
}


@pytest.fixture
def forgetful(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A broker that forgets idle transactional ids soon, but not within a batch."""
    maker, _, version = request.param.partition("-TV")
    level = version or "2"
    try:
        node: ApacheKafka | EinmalBroker = (
            EinmalBroker(tmp_path / "broker", {"transaction.version": level, **_FORGETFUL})
            if maker == "einmal"
            else ApacheKafka(tmp_path / "broker", transaction_version=int(level), settings=_FORGETFUL)
        )
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    node.start()
    yield node.bootstrap
    node.stop()


def wait_until_forgotten(bootstrap: str, name: str) -> None:
    deadline = time.monotonic() + _EXPIRED_S
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        while time.monotonic() < deadline:
            try:
                admin.describe_transactions([name])
            except RequestRefused:
                return
            time.sleep(0.1)
    raise AssertionError(f"{name} is not forgotten after {_EXPIRED_S} s")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["copy", "random state"])
@pytest.mark.parametrize("forgetful", [*KINDS, *TV1_KINDS], indirect=True)
def test_an_idle_pipeline_whose_id_has_expired_restarts_and_reports_it(
    spark: SparkSession, forgetful: str, tmp_path: Path, kind: str
) -> None:
    pipeline = Pipeline(forgetful, str(tmp_path), unique("idle"), kind=kind)
    create(forgetful, pipeline.source_topic, pipeline.topic, partitions=1)
    fill(forgetful, pipeline.source_topic, range(BATCH))
    heard: list[events.Event] = []
    query = pipeline.writer(spark).trigger(processingTime="0 seconds").listener(heard.append).start()
    try:
        query.processAllAvailable()
        wait_until_forgotten(forgetful, pipeline.name)
        fill(forgetful, pipeline.source_topic, range(BATCH, 2 * BATCH))
        deadline = time.monotonic() + _EXPIRED_S
        while _written(pipeline) < 2 * BATCH and query.isActive and time.monotonic() < deadline:
            time.sleep(0.2)
    finally:
        query.stop()
    assert query.exception() is None
    with TransactionDriver({"bootstrap.servers": forgetful, "transactional.id": unique("any")}) as driver:
        is_tv_1 = driver.transaction_version < TransactionVersion.TV_2
    reasons = [event.reason for event in heard if isinstance(event, events.QueryRestarted)]
    assert all("has expired" in reason for reason in reasons), reasons
    # Below TV2 the next batch asks for an epoch anyway, and gets one of a new producer id.
    assert reasons or is_tv_1
    assert _written(pipeline) == 2 * BATCH


def _written(pipeline: Pipeline) -> int:
    """The input records that the committed output accounts for."""
    if pipeline.kind == "copy":
        return len(numbers(pipeline.bootstrap, pipeline.topic))
    outputs = [("", value) for value in values(pipeline.bootstrap, pipeline.topic)]
    return counted(outputs)
