"""The commit topic: no pipeline writes it, it may be deleted or refuse a record, and keeps only what is small."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from einmal.client import Admin
from einmal.commit_protocol.commit_record import COMMIT_TOPIC, RESERVED_TOPICS
from einmal.options.sink import sink_options, write_options
from einmal.pipeline import events
from einmal.spark import (
    OptionError,
    PipelineError,
    PipelineFailed,
    PipelineRefused,
    PreflightFailed,
    write,
)
from einmal.spark.protocol import spark_commit
from tests.interop.apache_kafka import ApacheKafka, KafkaUnavailable, in_the_long_run
from tests.interop.einmal_broker import EinmalBroker
from tests.spark.pipelines import BATCH, Pipeline, breaks_in_state, counted
from tests.spark.topics import create, fill, numbers, records, values
from tests.suite.shared import unique

pytestmark = pytest.mark.spark


def new_pipeline(bootstrap: str, directory: Path, count: int = 2 * BATCH, **fields: Any) -> Pipeline:
    pipeline = Pipeline(bootstrap, str(directory), unique("topic"), **fields)
    create(bootstrap, pipeline.source_topic, pipeline.topic, partitions=1)
    fill(bootstrap, pipeline.source_topic, range(count))
    return pipeline


# --- internal topics are no output ------------------------------------------------------------------------------------


@pytest.mark.representatives(2)
@pytest.mark.parametrize("topic", sorted(RESERVED_TOPICS))
def test_an_internal_topic_is_refused_as_an_option(topic: str) -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": topic}
    with pytest.raises(OptionError, match="internal topic"):
        sink_options(given | {"checkpointLocation": "c", "transactional.id": "t"})
    with pytest.raises(OptionError, match="internal topic"):
        write_options(given, lambda: "name")


def test_an_internal_topic_that_rows_are_going_to_name_is_refused_before_the_start(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    pipeline = new_pipeline(bootstrap, tmp_path)
    heard: list[events.Event] = []
    with pytest.raises(PreflightFailed, match=f"{COMMIT_TOPIC} is an internal topic"):
        pipeline.writer(spark).topics(COMMIT_TOPIC).listener(heard.append).start()
    assert heard == []


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once", "at_most_once"])
@pytest.mark.long
def test_a_row_that_names_an_internal_topic_ends_the_query_and_nothing_is_written_there(
    spark: SparkSession, bootstrap: str, tmp_path: Path, guarantee: str
) -> None:
    pipeline = new_pipeline(bootstrap, tmp_path, guarantee=guarantee)
    frame = pipeline.source(spark).select(
        F.lit("somebody").alias("key"), F.lit("forged").alias("value"), F.lit(COMMIT_TOPIC).alias("topic")
    )
    writer = pipeline.writer(spark, frame)
    del writer._options["topic"]
    with pytest.raises(PipelineError, match="a row's topic __einmal_commits is an internal topic"):
        writer.start().awaitTermination()
    if guarantee == "exactly_once_v2":
        assert "forged" not in values(bootstrap, COMMIT_TOPIC, committed=False)


def test_a_batch_write_whose_row_names_an_internal_topic_is_refused(spark: SparkSession, bootstrap: str) -> None:
    frame = spark.sql(f"select 'somebody' as key, 'forged' as value, '{COMMIT_TOPIC}' as topic")
    with pytest.raises(PipelineError, match="a row's topic __einmal_commits is an internal topic"):
        write(frame).option("kafka.bootstrap.servers", bootstrap).save()


# --- the topic is gone, or takes no such record -----------------------------------------------------------------------


@pytest.fixture(params=[*map(in_the_long_run, ("einmal", "apache"))])
def own_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    try:
        node = (EinmalBroker if request.param == "einmal" else ApacheKafka)(tmp_path / "broker")
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    node.start()
    yield node.bootstrap
    node.stop()


def test_a_commit_topic_that_is_deleted_is_reported_at_the_next_batch_and_stop_returns(
    spark: SparkSession, own_broker: str, tmp_path: Path
) -> None:
    pipeline = new_pipeline(own_broker, tmp_path, BATCH)
    query = pipeline.writer(spark).trigger(processingTime="0 seconds").start()
    query.processAllAvailable()
    with Admin({"bootstrap.servers": own_broker}) as admin:
        admin.delete_topics([COMMIT_TOPIC])
    fill(own_broker, pipeline.source_topic, range(BATCH, 2 * BATCH))
    with pytest.raises(PipelineFailed, match=f"{COMMIT_TOPIC} was deleted while the pipeline ran.*einmal.adopt"):
        query.awaitTermination()
    query.stop()
    assert numbers(own_broker, pipeline.topic) == list(range(BATCH))
    with pytest.raises(PipelineRefused, match="no commit record exists"):
        pipeline.writer(spark).start().awaitTermination()
    pipeline.writer(spark).option("einmal.adopt", "true").start().awaitTermination()
    assert numbers(own_broker, pipeline.topic) == list(range(2 * BATCH))


def test_a_commit_record_that_is_too_large_reports_its_size_and_the_setting(
    spark: SparkSession, own_broker: str, tmp_path: Path
) -> None:
    pipeline = new_pipeline(own_broker, tmp_path)
    with Admin({"bootstrap.servers": own_broker}) as admin:
        admin.create_topics([_commit_topic({"max.message.bytes": "200"})])
    query = pipeline.writer(spark).start()
    said = rf"the commit record has \d+ bytes .*MESSAGE_TOO_LARGE.*max.message.bytes of {COMMIT_TOPIC}"
    with pytest.raises(PipelineFailed, match=said):
        query.awaitTermination()
    assert numbers(own_broker, pipeline.topic) == []
    with Admin({"bootstrap.servers": own_broker}) as admin:
        admin.alter_configs(COMMIT_TOPIC, {"max.message.bytes": "100000"})
    pipeline.writer(spark).start().awaitTermination()
    assert numbers(own_broker, pipeline.topic) == list(range(2 * BATCH))


def _commit_topic(configs: dict[str, str]) -> Any:
    from einmal.client import NewTopic

    return NewTopic(COMMIT_TOPIC, num_partitions=1, configs={"cleanup.policy": "compact"} | configs)


# --- a large state ----------------------------------------------------------------------------------------------------


class Died(Exception):
    """Raised by a listener: the driver goes no further."""


def die_after_end_txn(pipeline: Pipeline, spark: SparkSession, batch_id: int) -> None:
    def listener(event: events.Event) -> None:
        if isinstance(event, events.TransactionEnded) and event.batch_id == batch_id:
            raise Died

    with pytest.raises(PipelineFailed, match="Died"):
        pipeline.writer(spark).listener(listener).start().awaitTermination()


@pytest.mark.long
def test_the_commit_file_of_a_large_state_is_kept_beside_the_record_and_finished_from_there(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_commit, "IN_RECORD_MAX", 40)
    pipeline = new_pipeline(bootstrap, tmp_path, 3 * BATCH, kind="random state")
    die_after_end_txn(pipeline, spark, 2)
    (kept,) = (pipeline.checkpoint / "einmal" / "commits").glob("2.*")
    text = kept.read_bytes()
    assert text.startswith(b"v2\n") and not (pipeline.checkpoint / "commits" / "2").exists()
    checksum = kept.with_name(f".{kept.name}.crc")
    shutil.copy(checksum, tmp_path / "crc")
    checksum.unlink()
    kept.write_bytes(text.replace(b"0", b"1"))
    with pytest.raises(PipelineRefused, match="which the commit record names, is missing or damaged"):
        pipeline.writer(spark).start()
    kept.write_bytes(text)
    pipeline.writer(spark).start().awaitTermination()
    assert (pipeline.checkpoint / "commits" / "2").read_bytes() == text
    outputs = [
        ((record.key or b"").decode(), (record.value or b"").decode())
        for _, record in records(bootstrap, pipeline.topic)
    ]
    assert breaks_in_state(outputs) == []
    assert counted(outputs) == 3 * BATCH
    assert not list((pipeline.checkpoint / "einmal" / "commits").glob("0.*")), "older ones are removed"
