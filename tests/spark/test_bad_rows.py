"""Bad rows on real Spark: dead letters in the transaction of the good rows, each once, and what stops a pipeline."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from einmal.client import Producer
from einmal.pipeline import events
from einmal.schemas.debezium_format import UNAVAILABLE
from einmal.schemas.wire_format import framed
from einmal.spark import PipelineError, write_stream
from einmal.spark.api.letter_part import TOPICS_COLUMN
from einmal.spark.api.program import load, writer
from einmal.testing.registry_server import RegistryServer, RestError, Schemas
from einmal.types import Header
from tests.ports import loopback_ports
from tests.spark.bad_rows import KINDS, PAYMENT, Payments, bad, good
from tests.spark.conftest import long
from tests.spark.topics import create, records

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def mixed(count: int) -> list[bytes | None]:
    """A tenth of the records is bad, of five kinds in turn."""
    return [bad(number // 10) if number % 10 == 9 else good(number) for number in range(count)]


def good_ids(count: int) -> list[str]:
    return sorted(str(number) for number in range(count) if number % 10 != 9)


@pytest.fixture
def payments(bootstrap: str, tmp_path: Path) -> Payments:
    made = Payments(bootstrap, tmp_path)
    made.create()
    return made


def test_bad_rows_are_dead_letters_once_and_good_rows_are_written(spark: SparkSession, payments: Payments) -> None:
    payments.settings = payments.tolerant
    payments.send(mixed(200), [Header("trace", b"abc")])
    happened = payments.run(spark, maxOffsetsPerTrigger="60")
    assert sorted(payments.output()) == good_ids(200)
    letters = payments.dead()
    assert Counter(each.reason for each in letters) == Counter(dict.fromkeys(KINDS, 4))
    sent = payments.positions()
    assert {each.position: each.value for each in letters} == {
        at: value for at, value in sent.items() if value in {bad(number) for number in range(20)}
    }
    assert len({each.position for each in letters}) == len(letters) == 20
    assert {each.headers for each in letters} == {(Header("trace", b"abc"),)}
    assert {each.context["__connect.errors.stage"] for each in letters} == {"VALUE_CONVERTER"}
    assert {each.context["__connect.errors.connector.name"] for each in letters} == {"payments"}
    written = [each.batch_id for each in happened if isinstance(each, events.DeadLettersWritten)]
    assert {int(each.context["__connect.errors.batch.id"]) for each in letters} == set(written)
    assert len(written) > 1
    counted: Counter[tuple[str, str]] = Counter()
    for event in happened:
        if isinstance(event, events.DeadLettersWritten):
            counted.update(event.counts)
    assert counted == Counter({("VALUE_CONVERTER", kind): 4 for kind in KINDS})


@pytest.mark.long
def test_a_record_whose_time_spark_does_not_have_is_a_dead_letter(spark: SparkSession, payments: Payments) -> None:
    payments.settings = payments.tolerant
    payments.topic = f"{payments.name}-far"
    create(payments.bootstrap, payments.topic, settings={"message.timestamp.after.max.ms": str(2**63 - 1)})
    nanoseconds, microseconds = 1_700_000_000_000_000_000, 1_700_000_000_000_000
    with Producer({"bootstrap.servers": payments.bootstrap}) as producer:
        for value, timestamp in ((good(1), 0), (good(2), nanoseconds), (good(3), microseconds), (bad(1), nanoseconds)):
            producer.send(payments.topic, value, b"k", timestamp=timestamp)
    payments.run(spark)
    assert sorted(payments.output()) == ["1", "3"]
    letters = payments.dead()
    assert {each.value for each in letters} == {good(2), bad(1)}
    assert {each.reason for each in letters} == {"OutOfRange"}
    assert all("timestamp" in each.context["__connect.errors.exception.message"] for each in letters)


def test_a_bad_row_stops_the_pipeline_by_default_and_its_content_is_not_reported(
    spark: SparkSession, payments: Payments
) -> None:
    payments.send([good(1), b'{"id": "secret-4711", "amount": 1}', good(3)])
    with pytest.raises(PipelineError) as raised:
        payments.run(spark)
    text = str(raised.value)
    assert f"{payments.topic}-" in text and "offset" in text and "WrongType: $.id" in text
    assert "secret-4711" not in text
    assert payments.output() == []


@pytest.mark.long
def test_a_query_with_state_has_dead_letters_too(spark: SparkSession, payments: Payments) -> None:
    payments.settings = payments.tolerant
    payments.send(mixed(100))
    counts = payments.source(spark, maxOffsetsPerTrigger="30").groupBy("value.card").count()
    rows = counts.selectExpr("card as key", "cast(count as string) as value")
    payments.writer(rows, stateful=True).start().awaitTermination()
    latest: dict[bytes | None, int] = {}
    for _, record in records(payments.bootstrap, payments.out):
        latest[record.key] = max(latest.get(record.key, 0), int(record.value or b"0"))
    assert sum(latest.values()) == 90
    assert len({each.position for each in payments.dead()}) == len(payments.dead()) == 10


def test_more_bad_rows_than_the_limit_stop_the_pipeline_and_nothing_is_written(
    spark: SparkSession, payments: Payments
) -> None:
    payments.settings = payments.tolerant | {"errors.deadletterqueue.limit": "5%"}
    payments.send(mixed(100))
    with pytest.raises(PipelineError, match=r"10 of 100 rows .* are bad .*errors.deadletterqueue.limit"):
        payments.run(spark)
    assert payments.output() == [] and payments.dead() == []
    payments.settings = payments.tolerant | {"errors.deadletterqueue.limit": "10"}
    payments.run(spark)
    assert len(payments.output()) == 90 and len(payments.dead()) == 10


@pytest.mark.representatives(1)
@pytest.mark.parametrize("contract", ["evolve", long("discard_value"), "discard_row"])
def test_a_drift_is_an_event_and_is_handled_by_the_contract(
    spark: SparkSession, payments: Payments, contract: str
) -> None:
    payments.settings = payments.tolerant | {"schema.contract": contract}
    payments.send([good(1), b'{"id": 2, "amount": 1, "currency": "EUR"}'])
    frame = payments.source(spark)
    rescued = "_rescued_data" if "_rescued_data" in frame.columns else "cast(null as string)"
    happened: list[events.Event] = []
    rows = frame.selectExpr(f"concat_ws(' ', value.id, {rescued}) as value")
    payments.writer(rows).listener(happened.append).start().awaitTermination()
    expected = {
        "evolve": ["1", '2 {"$.currency":"EUR"}'],
        "discard_value": ["1", "2"],
        "discard_row": ["1"],
    }
    assert sorted(payments.output()) == expected[contract]
    assert [each.reason for each in payments.dead()] == ["UnknownField"] * (contract == "discard_row")
    drifts = [event for event in happened if isinstance(event, events.SchemaDrifted)]
    assert [(each.source, each.contract, each.fields) for each in drifts] == [("payments", contract, ("$.currency",))]


@pytest.mark.long
def test_a_drift_stops_a_frozen_pipeline(spark: SparkSession, payments: Payments) -> None:
    payments.settings = payments.tolerant | {"schema.contract": "freeze"}
    payments.send([b'{"id": 2, "amount": 1, "currency": "EUR"}'])
    with pytest.raises(PipelineError, match=r"offset 0: \$\.currency is a field that the declared schema"):
        payments.run(spark)
    assert payments.output() == []


def test_a_query_that_writes_no_dead_letters_drops_no_row(spark: SparkSession, payments: Payments) -> None:
    payments.settings = payments.tolerant
    payments.send(mixed(20))
    query = payments.source(spark).writeStream.format("noop").trigger(availableNow=True)
    query = query.option("checkpointLocation", str(payments.directory / "other"))
    with pytest.raises(Exception, match="nothing writes its dead letter"):
        query.start().awaitTermination()


# --- other sinks, registries ------------------------------------------------------------------------------------


@pytest.mark.long
def test_dead_letters_of_a_query_into_a_database_go_to_a_topic(
    spark: SparkSession, payments: Payments, tmp_path: Path
) -> None:
    payments.settings = payments.tolerant
    payments.send(mixed(100))
    database = tmp_path / "payments.db"
    frame = payments.source(spark, maxOffsetsPerTrigger="40").selectExpr("value.id", "value.amount")
    query = write_stream(frame).format("sqlite").options(**{"path": str(database), "table": "payments"})
    query = query.option("checkpointLocation", str(tmp_path / "c")).option("transactional.id", payments.name)
    query.trigger(availableNow=True).start().awaitTermination()
    with closing(sqlite3.connect(database)) as connection:
        ids = [str(number) for (number,) in connection.execute("SELECT id FROM payments")]
    assert sorted(ids) == good_ids(100)
    assert len({each.position for each in payments.dead()}) == len(payments.dead()) == 10


@pytest.mark.long
def test_changes_of_rows_are_rows_and_those_that_no_row_expresses_are_dead_letters(
    spark: SparkSession, payments: Payments
) -> None:
    columns = "id BIGINT NOT NULL, name STRING, price DECIMAL(6,2), at TIMESTAMP_NTZ"
    payments.avro = {"value.format": "debezium-json", "value.schema": columns}
    payments.settings = payments.tolerant
    changes = [
        ("r", None, {"id": 1, "name": "a", "price": "1.5", "at": "2026-01-02 03:04:05.5"}),
        ("u", {"id": 1}, {"id": 1, "name": UNAVAILABLE}),
        ("d", {"id": 2}, None),
        ("t", None, None),
    ]
    documents = [json.dumps({"op": op, "before": old, "after": new}).encode() for op, old, new in changes]
    payments.send([*documents, None])
    rows = payments.source(spark).where("value IS NOT NULL").selectExpr("to_json(value) AS value")
    payments.writer(rows).start().awaitTermination()
    assert sorted(payments.output()) == [
        '{"id":1,"name":"a","price":1.50,"at":"2026-01-02T03:04:05.500","__deleted":false}',
        '{"id":2,"__deleted":true}',
    ]
    assert sorted((each.reason, each.value) for each in payments.dead()) == [
        ("UnavailableValue", documents[1]),
        ("UnsupportedChange", documents[3]),
    ]


def test_an_unknown_schema_id_is_a_dead_letter_and_the_others_are_decoded(
    spark: SparkSession, payments: Payments
) -> None:
    schema = '{"type": "record", "name": "P", "fields": [{"name": "id", "type": "long"}]}'
    with RegistryServer() as registry:
        schema_id = registry.schemas.register(f"{payments.topic}-value", {"schema": schema})["id"]
        payments.avro = {"value.format": "avro", "schema.registry.url": registry.url}
        payments.settings = payments.tolerant
        payments.send([framed(schema_id, b"\x0e"), framed(77, b"\x0e"), b"no prefix", framed(schema_id, b"\x10")])
        payments.run(spark)
    assert sorted(payments.output()) == ["7", "8"]
    assert sorted(each.reason for each in payments.dead()) == ["MalformedValue", "UnknownSchemaId"]


@pytest.mark.long
def test_a_registry_that_does_not_answer_stops_the_pipeline_and_makes_no_dead_letters(
    spark: SparkSession, payments: Payments
) -> None:
    schema = '{"type": "record", "name": "P", "fields": [{"name": "id", "type": "long"}]}'
    payments.settings = payments.tolerant
    payments.send([framed(1, b"\x0e"), framed(2, b"\x0e"), b"no prefix"])
    (port,) = loopback_ports(1)
    url = f"http://127.0.0.1:{port}"
    payments.avro = {"value.format": "avro", "value.schema": schema, "schema.registry.url": url}
    with pytest.raises(PipelineError, match=r"RegistryUnavailable.*after 4 attempts"):
        payments.run(spark)
    assert payments.output() == [] and payments.dead() == []
    with RegistryServer(port) as registry:
        registry.schemas.register("p-value", {"schema": schema})
        payments.run(spark)
    assert payments.output() == ["7"]
    assert sorted(each.reason for each in payments.dead()) == ["MalformedValue", "UnknownSchemaId"]


@pytest.mark.long
def test_an_id_that_is_registered_while_a_batch_runs_has_one_verdict(spark: SparkSession, payments: Payments) -> None:
    schema = '{"type": "record", "name": "P", "fields": [{"name": "id", "type": "long"}]}'

    class RegisteredLate(Schemas):
        """Unknown to whoever asks first."""

        def by_id(self, schema_id: int) -> dict[str, Any]:
            try:
                return super().by_id(schema_id)
            except RestError:
                self.register("late-value", {"schema": schema})
                raise

    payments.settings = payments.tolerant
    payments.send([framed(1, b"\x0e")])
    aborted: list[events.Event] = []
    with RegistryServer(schemas=RegisteredLate()) as registry:
        payments.avro = {"value.format": "avro", "value.schema": schema, "schema.registry.url": registry.url}
        aborted = [
            each for each in payments.run(spark) if isinstance(each, events.TransactionEnded) and not each.committed
        ]
    assert (payments.output(), payments.dead()) == (["7"], [])
    assert len(aborted) == 1


@pytest.mark.long
def test_a_declared_pipeline_with_two_sinks_has_one_dead_letter_for_each_bad_row(
    spark: SparkSession, payments: Payments, tmp_path: Path
) -> None:
    create(payments.bootstrap, f"{payments.name}-large")
    payments.send(mixed(100))
    (tmp_path / "payment.schema.json").write_text(PAYMENT)
    text = f"""
        transactional.id = "{payments.name}"
        checkpointLocation = "{tmp_path / "checkpoint"}"
        kafka.bootstrap.servers = "{payments.bootstrap}"
        trigger.availableNow = true
        [sources.payments]
        subscribe = "{payments.topic}"
        startingOffsets = "earliest"
        maxOffsetsPerTrigger = 30
        value.format = "json"
        value.schema = "{tmp_path / "payment.schema.json"}"
        errors.tolerance = "all"
        errors.deadletterqueue.topic.name = "{payments.letters}"
        [views]
        ids = "SELECT CAST(value.id AS STRING) AS value FROM payments"
        large = "SELECT to_json(value) AS value FROM payments WHERE value.amount >= 20 AND timestamp IS NOT NULL"
        [sinks.ids]
        from = "ids"
        topic = "{payments.out}"
        [sinks.large]
        from = "large"
        topic = "{payments.name}-large"
    """
    path = tmp_path / "pipeline.toml"
    path.write_text(text)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        writer(load(path, {}), spark).start().awaitTermination()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert sorted(payments.output()) == good_ids(100)
    assert len(records(payments.bootstrap, f"{payments.name}-large")) == 18
    assert len({each.position for each in payments.dead()}) == len(payments.dead()) == 10
    sent = {record.key: record.timestamp for _, record in records(payments.bootstrap, payments.topic)}
    assert all(sent[record.key] == record.timestamp for _, record in records(payments.bootstrap, payments.letters))


@pytest.mark.long
def test_a_query_into_a_topic_and_a_database_has_its_dead_letters_among_the_topics(
    spark: SparkSession, payments: Payments, tmp_path: Path
) -> None:
    payments.settings = payments.tolerant
    payments.send(mixed(50))
    database = tmp_path / "payments.db"
    frame = payments.source(spark)
    topics = frame.selectExpr(
        f"struct(cast(value.id as string) as value, '{payments.out}' as topic) as {TOPICS_COLUMN}"
    )
    rows = frame.selectExpr("struct(value.id, value.amount) as stored")
    query = write_stream(topics.unionByName(rows, allowMissingColumns=True))
    query = query.option("kafka.bootstrap.servers", payments.bootstrap).option("transactional.id", payments.name)
    query = query.sinks({"stored": ("sqlite", {"path": str(database), "table": "payments"})}, topics=True)
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.topics(payments.out).trigger(availableNow=True).start().awaitTermination()
    with closing(sqlite3.connect(database)) as connection:
        ids = [str(number) for (number,) in connection.execute("SELECT id FROM payments")]
    assert sorted(ids) == sorted(payments.output()) == good_ids(50)
    assert len({each.position for each in payments.dead()}) == len(payments.dead()) == 5
