"""Claims about the problems that the preflight reports, from the facts of a cluster."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from einmal.client import Admin, NewTopic
from einmal.declare.pipeline import parse
from einmal.event_log import event_of, fields_of
from einmal.options.source import topics_of
from einmal.spark import PreflightFailed, StreamWriter, write_stream
from einmal.spark.declare.explanation import facts_of
from einmal.spark.declare.inspection import READ, WRITE, ClusterFacts, TopicFacts
from einmal.spark.declare.preflight import read_problems, shuffle_problems, transaction_problems, write_problems
from einmal.types import ErrorCode
from tests.interop.einmal_broker import EinmalBroker
from tests.spark.bad_rows import Payments, bad, good
from tests.spark.pipelines import Pipeline
from tests.spark.topics import create
from tests.suite.shared import unique

DESCRIBE = 1 << 8


def topic(**fields: Any) -> TopicFacts:
    facts: dict[str, Any] = {"name": "t", "partitions": 2, "replicas": 3}
    return TopicFacts(**(facts | fields))


def cluster(**fields: Any) -> ClusterFacts:
    known: dict[str, Any] = {
        "servers": "h:1",
        "brokers": 3,
        "transaction_version": 2,
        "verifies": True,
        "topics": {},
    }
    return ClusterFacts(**(known | fields))


def test_no_problem_is_reported_if_all_operations_are_allowed_or_none_is_needed() -> None:
    for operations in (topic().operations, 1 << READ | 1 << WRITE | DESCRIBE):
        assert read_problems(topic(operations=operations)) == []
        assert write_problems(topic(operations=operations), reads=True) == []
    assert transaction_problems(cluster()) == []


def test_a_right_that_is_missing_is_named() -> None:
    (problem,) = read_problems(topic(operations=DESCRIBE))
    assert problem == ("the client may not read topic 't'", "grant Read on this Topic")
    (problem,) = write_problems(topic(operations=DESCRIBE | 1 << READ))
    assert problem == ("the client may not write to topic 't'", "grant Write on this Topic")
    assert len(write_problems(topic(operations=DESCRIBE), reads=True)) == 2


def test_a_topic_that_is_hidden_is_no_topic_that_is_missing() -> None:
    hidden = topic(error=ErrorCode.topic_authorization_failed, partitions=0, replicas=0)
    assert "may not see" in read_problems(hidden)[0][0]
    assert "may not see" in write_problems(hidden)[0][0]
    gone = topic(error=ErrorCode.unknown_topic_or_partition, partitions=0, replicas=0)
    assert "does not exist" in read_problems(gone)[0][0]


def test_a_topic_with_fewer_replicas_than_min_insync_replicas_can_be_written() -> None:
    assert write_problems(topic(replicas=1, settings={"min.insync.replicas": "2"})) == []


def test_commit_records_must_not_be_deleted_with_time() -> None:
    deleted = topic(settings={"cleanup.policy": "delete"})
    assert write_problems(deleted) == []
    assert "cleanup.policy=delete" in write_problems(deleted, reads=True)[0][0]


def test_transactions_need_the_name_and_brokers_that_refuse_late_writes() -> None:
    refused = (("transactional.id", "paid", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),)
    found = transaction_problems(cluster(refused=refused, verifies=False))
    assert "may not use the transactional.id 'paid'" in found[0][0]
    assert "KIP-890" in found[1][0]


def test_the_topics_of_a_source_are_those_that_it_names() -> None:
    assert topics_of({"subscribe": "a, b"}) == ["a", "b"]
    assert topics_of({"assign": '{"b":[1],"a":[0,1]}'}) == ["a", "b"]
    assert topics_of({"subscribepattern": ".*"}) == []


@pytest.mark.spark
def test_the_preflight_reports_all_problems_before_the_first_batch(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    pipeline = Pipeline(bootstrap, str(tmp_path), unique("missing"))
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topics([NewTopic(pipeline.topic, 1, 1)])
    frame = pipeline.source(spark).selectExpr("partition AS value")
    with pytest.raises(PreflightFailed) as failed:
        pipeline.writer(spark, frame).start()
    found = "\n".join(what for what, _ in failed.value.missing)
    assert 'column "value" is string or binary' in found
    assert f"topic '{pipeline.source_topic}', a source, does not exist" in found
    assert len(failed.value.missing) == 2
    assert not (tmp_path / pipeline.name / "offsets").exists()


@pytest.mark.spark
def test_topics_that_rows_are_going_to_name_are_looked_at(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    pipeline = Pipeline(bootstrap, str(tmp_path), unique("missing"))
    create(bootstrap, pipeline.source_topic)
    frame = pipeline.source(spark).selectExpr("value", "'no topic!' AS topic")
    writer = write_stream(frame).option("kafka.bootstrap.servers", bootstrap).topics("no topic!")
    writer = writer.option("transactional.id", pipeline.name).option("checkpointLocation", str(pipeline.checkpoint))
    with pytest.raises(PreflightFailed, match="no topic!"):
        writer.start()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[EinmalBroker]:
    """On which nothing has ever been committed."""
    broker = EinmalBroker(tmp_path / "broker")
    broker.start()
    yield broker
    broker.stop()


@pytest.mark.spark
@pytest.mark.long
def test_dead_letters_beside_a_database_find_their_cluster_prepared(
    spark: SparkSession, own_broker: EinmalBroker, tmp_path: Path
) -> None:
    payments = Payments(own_broker.bootstrap, tmp_path)
    payments.create()
    payments.settings = payments.tolerant
    payments.send([good(1), bad(0), good(2)])
    into_database(payments, spark, tmp_path).start().awaitTermination()
    with closing(sqlite3.connect(tmp_path / "payments.db")) as connection:
        assert sorted(connection.execute("SELECT id FROM payments")) == [(1,), (2,)]
    assert [letter.reason for letter in payments.dead()] == ["MalformedValue"]


def into_database(payments: Payments, spark: SparkSession, tmp_path: Path) -> StreamWriter:
    frame = payments.source(spark).selectExpr("value.id", "value.amount")
    writer = write_stream(frame).format("sqlite").options(path=str(tmp_path / "payments.db"), table="payments")
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).option("transactional.id", payments.name)
    return writer.trigger(availableNow=True)


@pytest.mark.spark
def test_what_dead_letters_beside_a_database_need_is_reported(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    payments = Payments(bootstrap, tmp_path)
    create(bootstrap, payments.topic)
    for topic in ("no topic!", "__einmal_commits", payments.topic):
        payments.settings = payments.tolerant | {"errors.deadletterqueue.topic.name": topic}
        with pytest.raises(PreflightFailed) as failed:
            into_database(payments, spark, tmp_path).start()
        assert topic in "\n".join(what for what, _ in failed.value.missing)


@pytest.mark.spark
def test_a_topic_whose_rows_come_back_to_it_is_refused(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    pipeline = Pipeline(bootstrap, str(tmp_path), unique("circle"))
    create(bootstrap, pipeline.source_topic)
    writer = write_stream(pipeline.source(spark).select("value")).option("kafka.bootstrap.servers", bootstrap)
    writer = writer.option("transactional.id", pipeline.name).option("checkpointLocation", str(pipeline.checkpoint))
    with pytest.raises(
        PreflightFailed, match=f"topic '{pipeline.source_topic}' is the source of rows that the query writes"
    ):
        writer.option("topic", pipeline.source_topic).start()
    payments = Payments(bootstrap, tmp_path)
    payments.create()
    payments.settings = payments.tolerant | {"errors.deadletterqueue.topic.name": payments.topic}
    with pytest.raises(PreflightFailed, match=f"topic '{payments.topic}' is the source"):
        payments.run(spark)


@pytest.mark.spark
def test_a_query_may_write_what_another_of_its_sources_reads_and_topics_that_rows_name(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    payments = Payments(bootstrap, tmp_path)
    payments.create()
    payments.settings = payments.tolerant
    payments.send([good(1), bad(0)])
    good_rows = payments.source(spark).selectExpr("cast(value.id as string) as value", f"'{payments.out}' as topic")
    reader = spark.readStream.format("einmal").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("subscribe", f"{payments.letters},{payments.out}").option("startingOffsets", "earliest")
    report = reader.load().where("false").selectExpr("cast(value as string) as value", "topic")
    writer = write_stream(good_rows.union(report)).topics(payments.topic, payments.out)
    writer = writer.option("kafka.bootstrap.servers", bootstrap).option("transactional.id", payments.name)
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    writer.start().awaitTermination()
    assert (payments.output(), len(payments.dead())) == (["1"], 1)


@pytest.mark.spark
def test_a_dead_letter_topic_that_deletes_by_time_is_a_warning(
    spark: SparkSession, bootstrap: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    payments = Payments(bootstrap, tmp_path)
    create(bootstrap, payments.topic, payments.out)
    create(bootstrap, payments.letters, settings={"retention.ms": "604800000"})
    payments.settings = payments.tolerant
    payments.run(spark)
    assert [fields_of(record) for record in caplog.records if event_of(record) == "dead_letters_expire"] == [
        {"topic": payments.letters, "retention_ms": 604800000}
    ]


@pytest.mark.parametrize("kind", ["einmal", "kafka"])
def test_a_source_in_another_cluster_hides_no_condition_of_dead_letters(
    bootstrap: str, own_broker: EinmalBroker, tmp_path: Path, kind: str
) -> None:
    letters = unique("letters")
    create(bootstrap, letters, settings={"retention.ms": "604800000"})
    text = f"""
        transactional.id = "x"
        checkpointLocation = "/c"
        [sources.orders]
        kafka.bootstrap.servers = "{bootstrap}"
        subscribe = "orders"
        [sources.others]
        format = "{kind}"
        kafka.bootstrap.servers = "{own_broker.bootstrap}"
        subscribe = "orders"
        [sinks.rows]
        from = "orders"
        type = "sqlite"
        path = "{tmp_path / "rows.db"}"
        table = "rows"
        errors.tolerance = "all"
        errors.deadletterqueue.topic.name = "{letters}"
    """
    (sink,) = facts_of(parse(text, {}, {}), None).sinks
    assert sink.letter_facts is not None and sink.letter_facts.deletes_after_ms == 604800000


@pytest.mark.spark
@pytest.mark.parametrize("database", [False, True])
@pytest.mark.representatives(1)
def test_a_dead_letter_topic_that_the_start_creates_is_looked_at_too(
    spark: SparkSession, bootstrap: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, database: bool
) -> None:
    payments = Payments(bootstrap, tmp_path)
    create(bootstrap, payments.topic, payments.out)
    payments.settings = payments.tolerant
    if database:
        into_database(payments, spark, tmp_path).start().awaitTermination()
    else:
        payments.run(spark)
    (expiring,) = [fields_of(record) for record in caplog.records if event_of(record) == "dead_letters_expire"]
    assert expiring["topic"] == payments.letters


@pytest.mark.spark
def test_a_session_that_would_mix_two_runs_of_a_task_is_not_written_from(spark: SparkSession) -> None:
    assert shuffle_problems(spark) == []
    name = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"
    spark.conf.set(name, "false")
    try:
        ((problem, way_out),) = shuffle_problems(spark)
    finally:
        spark.conf.unset(name)
    assert (name in problem, way_out) == (True, f"set {name}=true")
