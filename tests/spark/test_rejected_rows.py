"""Rows that a database rejects, on real Spark: each is one dead letter, the others are loaded once, and a run that ends
at any step is continued."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import DataFrame, SparkSession

from einmal.client import Admin, Producer
from einmal.options.sink import TWO_PHASE_COMMIT
from einmal.pipeline import events
from einmal.spark import OptionError, PipelineError, PreflightFailed, write, write_stream
from einmal.spark.api.letter_part import TOPICS_COLUMN
from einmal.spark.api.program import load, writer
from einmal.spark.declare.explanation import facts_of
from einmal.spark.operate.dead_letter_queue import DeadLetterQueue, Selection
from einmal.spark.operate.ownership import KafkaOwnership
from einmal.spark.operate.progress import Progress
from einmal.spark.protocol.query import PipelineQuery
from einmal.types import Header, TopicPartition
from tests.interop.einmal_broker import EinmalBroker
from tests.spark.bad_rows import Letter, letter_of
from tests.spark.conftest import long
from tests.spark.topics import create, records, values
from tests.suite.shared import unique

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCHEMA = "CREATE TABLE loaded (number BIGINT CHECK (number % 10 <> 9), text VARCHAR)"
WHY = {"sqlite": "constraint_check", "duckdb": "check"}
HEADERS = (Header("trace", b"abc"),)


def rejected(numbers: Sequence[int]) -> list[int]:
    return [number for number in numbers if number % 10 == 9]


def good(numbers: Sequence[int]) -> list[int]:
    return [number for number in numbers if number % 10 != 9]


class Loading:
    """A pipeline from a topic of numbers into a table that rejects every tenth."""

    def __init__(self, bootstrap: str, directory: Path, kind: str = "sqlite") -> None:
        self.bootstrap, self.directory, self.kind = bootstrap, directory, kind
        self.name = unique("loading")
        self.topic, self.letters = f"{self.name}-in", f"{self.name}-dlq"
        self.database = directory / f"{self.name}.{kind}"
        self.errors = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": self.letters}
        self.record = "struct(topic, partition, offset)"
        self.stateful = False
        create(bootstrap, self.topic, self.letters)
        self.execute(SCHEMA)

    def execute(self, *statements: str) -> list[Any]:
        connect: Any = {"sqlite": sqlite3, "duckdb": duckdb}[self.kind].connect
        with closing(connect(str(self.database))) as connection:
            found = [connection.execute(statement).fetchall() for statement in statements][-1]
            connection.commit()
        return list(found)

    def send(self, numbers: Sequence[int]) -> None:
        with Producer({"bootstrap.servers": self.bootstrap}) as producer:
            for number in numbers:
                producer.send(self.topic, f"secret {number}", f"k{number}", headers=HEADERS)

    def source(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.format("einmal").option("kafka.bootstrap.servers", self.bootstrap)
        reader = reader.option("subscribe", self.topic).option("startingOffsets", "earliest")
        frame = reader.option("maxOffsetsPerTrigger", "20").load()
        return frame.dropDuplicates(["key"]) if self.stateful else frame

    @property
    def columns(self) -> list[str]:
        number = "CAST(substring(CAST(value AS STRING), 8) AS BIGINT) AS number"
        return [number, "CAST(value AS STRING) AS text", *([f"{self.record} AS einmal_record"] if self.record else [])]

    def start(self, spark: SparkSession, *listeners: events.Listener, **options: str) -> PipelineQuery:
        writer = write_stream(self.source(spark).selectExpr(*self.columns)).format(self.kind)
        writer = writer.options(path=str(self.database), table="loaded", **self.errors, **options)
        writer = writer.option("checkpointLocation", str(self.directory / self.name))
        writer = writer.option("transactional.id", self.name).trigger(availableNow=True)
        for listener in listeners:
            writer = writer.listener(listener)
        return writer.start()

    def run(self, spark: SparkSession, **options: str) -> list[events.Event]:
        happened: list[events.Event] = []
        self.start(spark, happened.append, **options).awaitTermination()
        return happened

    def loaded(self) -> list[int]:
        return sorted(number for (number,) in self.execute("SELECT number FROM loaded"))

    def dead(self) -> list[Letter]:
        return [letter_of(record) for _, record in records(self.bootstrap, self.letters)]

    def dead_numbers(self) -> list[int]:
        return sorted(int((letter.value or b"").split()[1]) for letter in self.dead())


class Crash(Exception):
    """Raised by a listener, which is outside of every sink: nothing takes it for an answer."""


def crash_between(loading: Loading, spark: SparkSession) -> None:
    """End a run when the good rows of a batch are committed, and the dead letters of its rejected rows are not."""

    def crash(event: events.Event) -> None:
        if isinstance(event, events.TransactionEnded) and loading.loaded():
            raise Crash("Crash")

    with pytest.raises(Exception, match="Crash"):
        loading.start(spark, crash).awaitTermination()


def crashing_at(count: int) -> events.Listener:
    """Ends the run at its event of this number."""
    heard = 0

    def hear(event: events.Event) -> None:
        nonlocal heard
        if not isinstance(event, events.PartitionClaimed | events.PartitionWritten):
            heard += 1
            if heard == count:
                raise Crash("Crash")

    return hear


def _names(heard: list[str]) -> events.Listener:
    def hear(event: events.Event) -> None:
        if not isinstance(event, events.PartitionClaimed | events.PartitionWritten):
            heard.append(type(event).__name__)

    return hear


@pytest.fixture(params=["sqlite", long("duckdb")])
def loading(request: pytest.FixtureRequest, bootstrap: str, tmp_path: Path) -> Loading:
    return Loading(bootstrap, tmp_path, request.param)


@pytest.fixture
def sqlite(bootstrap: str, tmp_path: Path) -> Loading:
    return Loading(bootstrap, tmp_path)


def test_a_rejected_row_is_one_dead_letter_and_replayed_after_a_correction_every_row_is_loaded_once(
    spark: SparkSession, loading: Loading, caplog: pytest.LogCaptureFixture
) -> None:
    loading.send(range(55))
    progress = Progress(loading.name)
    with caplog.at_level(logging.DEBUG, "einmal"):
        happened = loading.run(spark)
    for event in happened:
        progress.hear(event, 0.0)
    assert loading.loaded() == good(range(55))
    letters = loading.dead()
    assert sorted((each.key, each.value) for each in letters) == sorted(
        (f"k{number}".encode(), f"secret {number}".encode()) for number in rejected(range(55))
    )
    sent = {(at, int(record.offset)): record.value for at, record in records(loading.bootstrap, loading.topic)}
    assert all(sent[each.position] == each.value for each in letters)
    assert {each.headers for each in letters} == {HEADERS}
    assert {each.context["__connect.errors.stage"] for each in letters} == {"TASK_PUT"}
    assert {each.context["__connect.errors.connector.name"] for each in letters} == {loading.name}
    assert all(int(each.context["__connect.errors.batch.id"]) >= 0 for each in letters)
    assert {each.reason for each in letters} == {WHY[loading.kind]}
    (executing,) = {each.context["__connect.errors.class.name"] for each in letters}
    assert executing.endswith("Sink")
    assert progress.dead_letters == {(loading.name, "TASK_PUT", WHY[loading.kind]): 5}
    assert "secret" not in caplog.text
    assert not any("secret" in each.context["__connect.errors.exception.message"] for each in letters)
    assert any("constraint_check to" in each or " check to" in each for each in caplog.messages)
    replay_after_a_correction(loading)
    loading.run(spark)
    assert loading.loaded() == list(range(55))
    assert len(loading.dead()) == 5


def replay_after_a_correction(loading: Loading) -> None:
    loading.execute(
        "ALTER TABLE loaded RENAME TO before",
        "CREATE TABLE loaded (number BIGINT, text VARCHAR)",
        "INSERT INTO loaded SELECT * FROM before",
        "DROP TABLE before",
    )
    with DeadLetterQueue({"bootstrap.servers": loading.bootstrap}, loading.letters) as queue:
        (group,) = queue.groups()
        assert (group.source, group.stage, group.topic) == (loading.name, "TASK_PUT", loading.topic)
        assert queue.replay(Selection(stages=frozenset({"TASK_PUT"}))).copied == 5
        assert queue.replay(Selection()).copied == 0


@pytest.mark.long
@pytest.mark.parametrize("stateful", [False, True])
def test_a_run_that_ends_at_any_step_is_continued_and_repeats_nothing(
    spark: SparkSession, sqlite: Loading, stateful: bool
) -> None:
    sqlite.stateful = stateful
    sent = 0
    at: set[str] = set()
    for count in range(1, 14):
        # Every run has a batch to end in.
        sqlite.send(range(sent, sent + 20))
        sent += 20
        heard: list[str] = []
        try:
            sqlite.start(spark, _names(heard), crashing_at(count)).awaitTermination()
        except Exception as error:  # noqa: BLE001 - the run that was ended
            assert "Crash" in str(error)
            at.add(heard[-1])
    # A crash before the record fails the attempt, not the run.
    assert at >= {"NameTaken", "BatchStarted", "BatchWritten", "TransactionEnded", "DeadLettersWritten"}
    sqlite.run(spark)
    assert sqlite.loaded() == good(range(sent))
    assert sqlite.dead_numbers() == rejected(range(sent))


@pytest.mark.long
def test_the_dead_letters_of_a_committed_batch_are_written_by_the_next_run(
    spark: SparkSession, sqlite: Loading
) -> None:
    sqlite.stateful = True
    sqlite.send(range(20))
    crash_between(sqlite, spark)
    assert sqlite.loaded() == good(range(20)) and sqlite.dead() == []
    assert len(sqlite.execute("SELECT * FROM einmal_rejected")) == 2
    # Its batch is not run again, as its state is complete.
    happened = sqlite.run(spark)
    assert not [event for event in happened if isinstance(event, events.BatchStarted)]
    assert sqlite.dead_numbers() == rejected(range(20))


@pytest.mark.long
def test_more_rejected_rows_than_the_limit_stop_the_pipeline_and_nothing_is_written(
    spark: SparkSession, sqlite: Loading
) -> None:
    sqlite.send(range(19))
    limit = "errors.deadletterqueue.limit"
    with pytest.raises(PipelineError, match=r"ToleranceExceeded: .*1 or more of 19 rows of batch 1 are rejected"):
        sqlite.run(spark, **{limit: "0"})
    assert sqlite.loaded() == [] and sqlite.dead() == []
    sqlite.run(spark, **{limit: "1"})
    assert sqlite.loaded() == good(range(19)) and sqlite.dead_numbers() == [9]


@pytest.mark.long
def test_the_dead_letter_of_a_record_that_no_source_has_has_only_headers(
    spark: SparkSession, sqlite: Loading, caplog: pytest.LogCaptureFixture
) -> None:
    sqlite.record = (
        "struct(CASE WHEN offset < 10 THEN topic ELSE 'other' END AS topic, partition, offset + 100000 AS offset)"
    )
    sqlite.send(range(30))
    sqlite.run(spark)
    assert sqlite.loaded() == good(range(30))
    letters = sqlite.dead()
    assert [(each.key, each.value, each.headers) for each in letters] == [(None, None, ())] * 3
    assert all(each.position[1] >= 100_000 for each in letters)


@pytest.mark.long
def test_the_dead_letter_of_a_record_that_was_deleted_meanwhile_has_only_headers(
    spark: SparkSession, sqlite: Loading
) -> None:
    sqlite.stateful = True
    sqlite.send(range(20))
    crash_between(sqlite, spark)
    with Admin({"bootstrap.servers": sqlite.bootstrap}) as admin:
        admin.delete_records({TopicPartition(sqlite.topic, partition): -1 for partition in range(2)})
    sqlite.run(spark)
    letters = sqlite.dead()
    assert [(each.key, each.value, each.headers) for each in letters] == [(None, None, ())] * 2
    assert {each.reason for each in letters} == {"constraint_check"}


def test_a_query_without_records_is_refused(spark: SparkSession, sqlite: Loading) -> None:
    sqlite.record = ""
    with pytest.raises(PreflightFailed, match="einmal_record") as refused:
        sqlite.start(spark)
    assert "struct(topic, partition, offset) AS einmal_record" in str(refused.value)


def test_a_batch_write_and_other_sources_have_no_dead_letters(spark: SparkSession, sqlite: Loading) -> None:
    options = {"path": str(sqlite.database), "table": "loaded", **sqlite.errors}
    with pytest.raises(OptionError, match="a batch write has no dead letters"):
        write(spark.range(1)).format("sqlite").options(**options).save()
    rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    writer = write_stream(rates).format("sqlite").options(**options).option("transactional.id", sqlite.name)
    with pytest.raises(OptionError, match="from einmal's source"):
        writer.option("checkpointLocation", str(sqlite.directory / "rates")).start()


@pytest.mark.long
def test_a_rejected_row_stops_the_pipeline_by_default_until_it_begins_to_tolerate_rows_by_adopting_its_record(
    spark: SparkSession, sqlite: Loading
) -> None:
    errors, sqlite.errors = sqlite.errors, {}
    sqlite.send(range(9))
    sqlite.run(spark)
    assert sqlite.loaded() == list(range(9)), "the record is not stored also where no row is tolerated"
    sqlite.send(range(9, 20))
    with pytest.raises(PipelineError, match="CHECK constraint failed"):
        sqlite.run(spark)
    assert sqlite.loaded() == list(range(9)) and sqlite.dead() == []
    sqlite.errors = errors
    with pytest.raises(PipelineError, match=r"no commit record exists(.|\n)*einmal\.adopt"):
        sqlite.run(spark)
    sqlite.run(spark, **{"einmal.adopt": "true"})
    sqlite.run(spark)
    assert sqlite.loaded() == good(range(20)) and sqlite.dead_numbers() == [9, 19]
    with KafkaOwnership({"bootstrap.servers": sqlite.bootstrap}) as ownership:
        committed = ownership.committed()
    assert sqlite.name not in committed
    assert committed[f"{sqlite.name}/rejected"].record is not None
    # Without tolerance it continues, too, and the other way round it is asked for again.
    sqlite.errors = {}
    sqlite.send(range(20, 25))
    sqlite.run(spark)
    assert sqlite.loaded() == good(range(25))


@pytest.mark.parametrize("counts", [long((3, 4, 5, 6, 7, 8, 9, 10, 100))], ids=["every"])
def test_with_two_phase_commit_the_dead_letters_follow_in_a_transaction_of_their_own(
    spark: SparkSession, two_phase: EinmalBroker, tmp_path: Path, counts: tuple[int, ...]
) -> None:
    loading = Loading(two_phase.bootstrap, tmp_path)
    out = f"{loading.name}-out"
    create(two_phase.bootstrap, out)
    sent = 0
    for count in counts:
        loading.send(range(sent, sent + 20))
        sent += 20
        frame = loading.source(spark)
        topics = frame.selectExpr(f"struct(CAST(value AS STRING) AS value, '{out}' AS topic) AS {TOPICS_COLUMN}")
        rows = frame.selectExpr(f"struct({', '.join(loading.columns)}) AS stored")
        writer = write_stream(topics.unionByName(rows, allowMissingColumns=True))
        writer = writer.option("kafka.bootstrap.servers", two_phase.bootstrap)
        writer = writer.option(f"kafka.{TWO_PHASE_COMMIT}", "true").option("transactional.id", loading.name)
        options = {"path": str(loading.database), "table": "loaded", **loading.errors}
        writer = writer.sinks({"stored": ("sqlite", options)}, topics=True).topics(out)
        writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
        try:
            writer.listener(crashing_at(count)).start().awaitTermination()
        except Exception as error:  # noqa: BLE001 - the run that was ended
            assert "Crash" in str(error)
    assert loading.loaded() == good(range(sent))
    assert loading.dead_numbers() == rejected(range(sent))
    assert sorted(values(two_phase.bootstrap, out)) == sorted(f"secret {number}" for number in range(sent))


@pytest.mark.long
def test_each_sink_of_a_declaration_has_dead_letters_of_its_own(
    spark: SparkSession, sqlite: Loading, tmp_path: Path
) -> None:
    other, out = f"{sqlite.name}-other", f"{sqlite.name}-out"
    create(sqlite.bootstrap, other, out)
    sqlite.execute("CREATE TABLE even (number BIGINT CHECK (number % 2 = 0))")
    sqlite.send(range(30))
    tolerant = 'errors.tolerance = "all"\n        errors.deadletterqueue.topic.name'
    text = f"""
        transactional.id = "{sqlite.name}"
        checkpointLocation = "{tmp_path / "checkpoint"}"
        kafka.bootstrap.servers = "{sqlite.bootstrap}"
        trigger.availableNow = true
        [sources.numbers]
        subscribe = "{sqlite.topic}"
        startingOffsets = "earliest"
        maxOffsetsPerTrigger = 20
        [views]
        rows = "SELECT {", ".join(sqlite.columns)}, value FROM numbers"
        all = "SELECT number, text, einmal_record FROM rows"
        numbers_alone = "SELECT number, einmal_record FROM rows"
        [sinks.all]
        from = "all"
        type = "sqlite"
        path = "{sqlite.database}"
        table = "loaded"
        {tolerant} = "{sqlite.letters}"
        [sinks.even]
        from = "numbers_alone"
        type = "sqlite"
        path = "{sqlite.database}"
        table = "even"
        {tolerant} = "{other}"
        errors.deadletterqueue.context.headers.enable = "false"
        [sinks.topic]
        from = "rows"
        topic = "{out}"
    """
    path = tmp_path / "pipeline.toml"
    path.write_text(text)
    program = load(path, {})
    for count in (9, 12, 14, 100):
        try:
            writer(program, spark).listener(crashing_at(count)).start().awaitTermination()
        except Exception as error:  # noqa: BLE001 - the run that was ended
            assert "Crash" in str(error)
    assert sqlite.loaded() == good(range(30)) and sqlite.dead_numbers() == [9, 19, 29]
    assert {each.context["__connect.errors.connector.name"] for each in sqlite.dead()} == {f"{sqlite.name}/all"}
    assert sorted(sqlite.execute("SELECT number FROM even")) == [(number,) for number in range(0, 30, 2)]
    assert sorted(values(sqlite.bootstrap, other)) == sorted(f"secret {number}" for number in range(1, 30, 2))
    assert {record.headers for _, record in records(sqlite.bootstrap, other)} == {HEADERS}
    assert len(values(sqlite.bootstrap, out)) == 30
    sinks = {each.table: each.letters for each in facts_of(program.declaration, None).sinks}
    assert sorted(sinks.values()) == sorted([sqlite.letters, other])
