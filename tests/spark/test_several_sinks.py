"""Claims about a query with rows for topics and for a database: each has each batch once; in one commit, the same
batch."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from einmal.commit_protocol.commit_record import COMMIT_TOPIC
from einmal.declare.document import DeclarationError
from einmal.declare.pipeline import parse
from einmal.options.sink import TWO_PHASE_COMMIT
from einmal.options.values import Options
from einmal.pipeline import events
from einmal.sinks.commit_point import RowCommitPoint
from einmal.sinks.sink import Opening
from einmal.sinks.sqlite import SQLiteSink
from einmal.spark import PipelineRefused
from einmal.spark.api.program import load, writer
from einmal.spark.protocol.query import PipelineQuery
from einmal.spark.sinks.frame_rows import FrameRows
from einmal.spark.sinks.kafka.commit_point import KafkaFrameCommitPoint
from einmal.spark.sinks.kafka.sink import KafkaFrameSink
from einmal.spark.sinks.part import Part
from einmal.spark.sinks.two_phase import FrameTwoPhaseSink
from tests.cli.running import Cli
from tests.interop.einmal_broker import EinmalBroker
from tests.sinks.postgres.rig import record
from tests.spark.conftest import long
from tests.spark.topics import create, fill, values
from tests.suite.shared import unique

pytestmark = pytest.mark.spark

DECLARED = """
transactional.id = "{name}"
checkpointLocation = "{checkpoint}"
kafka.bootstrap.servers = "{bootstrap}"
{setting}
trigger.availableNow = true

[sources.numbers]
subscribe = "{name}-in"
startingOffsets = "earliest"
maxOffsetsPerTrigger = 15

[views]
drawn = "SELECT CAST(value AS STRING) AS number, CAST({draw} AS STRING) AS drawn FROM numbers"
events = "SELECT concat(number, ' ', drawn) AS value FROM drawn"

[sinks.events]
from = "events"
topic = "{name}"

[sinks.rows]
type = "sqlite"
from = "drawn"
path = "{database}"
table = "drawn"
"""
TOGETHER = 'kafka.transaction.two.phase.commit.enable = "true"'
NUMBERS = range(25)


class Declared:
    def __init__(self, spark: SparkSession, bootstrap: str, directory: Path, **fields: str) -> None:
        self.spark, self.bootstrap = spark, bootstrap
        self.name = unique("several")
        self.database = directory / "drawn.sqlite"
        given = {"setting": "", "last": "25", "draw": "2 * CAST(CAST(value AS STRING) AS INT)"} | fields
        self.file = directory / "pipeline.toml"
        self.file.write_text(
            DECLARED.format(
                name=self.name,
                checkpoint=directory / "checkpoint",
                bootstrap=bootstrap,
                database=self.database,
                **given,
            )
        )
        create(bootstrap, f"{self.name}-in", self.name)
        fill(bootstrap, f"{self.name}-in", range(int(given["last"])))

    def apart(self) -> None:
        """The same pipeline, whose topics and database are committed one after the other from now on."""
        self.file.write_text(self.file.read_text().replace(TOGETHER, ""))

    def together(self) -> None:
        self.apart()
        self.file.write_text(f"{TOGETHER}\n{self.file.read_text()}")

    def start(self, *listeners: events.Listener) -> PipelineQuery:
        started = writer(load(self.file, {}), self.spark)
        for each in listeners:
            started = started.listener(each)
        return started.start()

    def in_topic(self) -> list[str]:
        return sorted(values(self.bootstrap, self.name))

    def in_database(self, table: str = "drawn") -> list[str]:
        with sqlite3.connect(self.database) as connection:
            return sorted(f"{number} {drawn}" for number, drawn in connection.execute(f"SELECT * FROM {table}"))

    def record(self) -> Any:
        commit_point = SQLiteSink(Options({"path": str(self.database), "table": "drawn"})).commit_point(
            Opening(name=self.name)
        )
        try:
            return commit_point.look()
        finally:
            commit_point.close()


def test_each_sink_has_every_row_once_and_tasks_write_to_the_topic_what_they_have_read(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    declared = Declared(spark, bootstrap, tmp_path)
    text = declared.file.read_text()
    declared.file.write_text(text.replace("SELECT concat(", "SELECT number AS key, concat("))
    stages: list[int] = []

    def look(event: events.Event) -> None:
        if isinstance(event, events.BatchWritten) and event.records:
            tracker = spark.sparkContext._jsc.sc().statusStore()
            stages.append(tracker.jobsList(None).head().stageIds().size())

    declared.start(look).awaitTermination()
    assert set(stages) == {1}
    assert declared.in_topic() == declared.in_database() == sorted(f"{n} {2 * n}" for n in NUMBERS)
    fill(bootstrap, f"{declared.name}-in", range(25, 30))
    declared.start().awaitTermination()
    assert declared.in_topic() == declared.in_database() == sorted(f"{n} {2 * n}" for n in range(30))


@pytest.mark.long
@pytest.mark.parametrize("setting", ["", TOGETHER], ids=["apart", "together"])
def test_sorted_rows_are_in_order_in_each_partition_of_the_topic(
    spark: SparkSession, two_phase: EinmalBroker, tmp_path: Path, setting: str
) -> None:
    declared = Declared(spark, two_phase.bootstrap, tmp_path, setting=setting, last="3000")
    # The first of two tasks has more to write: it writes last, unless something keeps the order.
    padded = "rpad(number, IF(number < 1500, 10, 3000), ' ')"
    ordered = f"SELECT 'k' AS key, {padded} AS value FROM drawn ORDER BY CAST(number AS INT) DESC"
    text = declared.file.read_text()
    (line,) = (each for each in text.splitlines() if each.startswith("events = "))
    declared.file.write_text(text.replace(line, f'events = "{ordered}"').replace("Trigger = 15", "Trigger = 3000"))
    declared.start().awaitTermination()
    assert [int(each) for each in values(two_phase.bootstrap, declared.name)] == list(range(2_999, -1, -1))


# A table that is added later has a record of its own, too: the next test.
@pytest.mark.long
def test_two_tables_of_one_database_have_a_record_each(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    declared = Declared(spark, bootstrap, tmp_path)
    text = declared.file.read_text()
    topic, rows = text[text.index("[sinks.events]") : text.index("[sinks.rows]")], text[text.index("[sinks.rows]") :]
    others = rows.replace("[sinks.rows]", "[sinks.others]").replace('table = "drawn"', 'table = "others"')
    declared.file.write_text(text.replace(topic, others))
    declared.start().awaitTermination()
    fill(bootstrap, f"{declared.name}-in", range(25, 30))
    declared.start().awaitTermination()
    wanted = sorted(f"{n} {2 * n}" for n in range(30))
    assert declared.in_database("drawn") == declared.in_database("others") == wanted


@pytest.mark.long
def test_a_second_database_is_added_by_adopting_the_checkpoint_under_the_new_names(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    declared = Declared(spark, bootstrap, tmp_path)
    text = declared.file.read_text()
    topic, rows = text[text.index("[sinks.events]") : text.index("[sinks.rows]")], text[text.index("[sinks.rows]") :]
    others = rows.replace("[sinks.rows]", "[sinks.others]").replace('table = "drawn"', 'table = "others"')
    declared.file.write_text(text.replace(topic, ""))
    declared.start().awaitTermination()
    declared.file.write_text(text.replace(topic, others))
    fill(bootstrap, f"{declared.name}-in", range(25, 30))
    with pytest.raises(PipelineRefused, match="no commit record exists"):
        declared.start()
    for sink in ("rows", "others"):
        Cli(bootstrap)(
            *("pipeline", "adopt", f"{declared.name}/{sink}", "--checkpoint", str(tmp_path / "checkpoint")),
            *("--file", str(declared.file), "--yes"),
        )
    declared.start().awaitTermination()
    assert declared.in_database("drawn") == sorted(f"{n} {2 * n}" for n in range(30))
    assert declared.in_database("others") == sorted(f"{n} {2 * n}" for n in range(25, 30)), "it has its own record"


class Crash(Exception):
    """Raised by a listener, which is outside of every sink: nothing takes it for an answer."""


def crashing_after(count: int) -> events.Listener:
    """Ends the run when so many transactions were committed."""
    committed = 0

    def hear(event: events.Event) -> None:
        nonlocal committed
        if isinstance(event, events.TransactionEnded) and event.committed:
            committed += 1
            if committed == count:
                raise Crash

    return hear


# After the third, which only the topic has: the next test.
@pytest.mark.long
@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_run_that_ends_between_two_sinks_is_continued_by_the_next(
    spark: SparkSession, bootstrap: str, tmp_path: Path, count: int
) -> None:
    declared = Declared(spark, bootstrap, tmp_path)
    with pytest.raises(Exception, match="Crash"):
        declared.start(crashing_after(count)).awaitTermination()
    declared.start().awaitTermination()
    assert declared.in_topic() == declared.in_database() == sorted(f"{n} {2 * n}" for n in NUMBERS)


@pytest.mark.long
def test_a_batch_that_only_the_topics_have_is_written_to_the_database_alone_by_the_next_run(
    spark: SparkSession, two_phase: EinmalBroker, tmp_path: Path
) -> None:
    declared = Declared(spark, two_phase.bootstrap, tmp_path)
    with pytest.raises(Exception, match="Crash"):
        declared.start(crashing_after(3)).awaitTermination()
    # No other checkpoint can continue sinks that are at different positions,
    (tmp_path / "checkpoint").rename(tmp_path / "kept")
    with pytest.raises(PipelineRefused, match="committed up to different positions"):
        declared.start()
    shutil.rmtree(tmp_path / "checkpoint", ignore_errors=True)
    (tmp_path / "kept").rename(tmp_path / "checkpoint")
    # and no transaction of both can have the batch.
    declared.together()
    with pytest.raises(PipelineRefused, match="the topics would have it twice"):
        declared.start()
    declared.apart()
    declared.start().awaitTermination()
    assert declared.in_topic() == declared.in_database() == sorted(f"{n} {2 * n}" for n in NUMBERS)
    declared.together()
    fill(two_phase.bootstrap, f"{declared.name}-in", range(25, 30))
    declared.start().awaitTermination()
    assert declared.in_topic() == declared.in_database() == sorted(f"{n} {2 * n}" for n in range(30))


# What is lost between them is in every run: below.
@pytest.mark.long
def test_a_topic_and_a_database_committed_together_have_the_same_result_of_a_random_query(
    spark: SparkSession, two_phase: EinmalBroker, tmp_path: Path
) -> None:
    declared = Declared(spark, two_phase.bootstrap, tmp_path, setting=TOGETHER, draw="rand()")
    declared.start().awaitTermination()
    assert declared.in_topic() == declared.in_database()
    assert len(declared.in_topic()) == len(NUMBERS)
    assert declared.record().prepared


Verb = Callable[..., Any]


def crashing_once(monkeypatch: pytest.MonkeyPatch, verb: str, *, before: bool, at: int) -> Callable[[], bool]:
    """The ``at``-th call of a verb of the topics is not made, or its answer is lost. Returns whether it came."""
    wrapped: Verb = getattr(KafkaFrameCommitPoint, verb)
    calls = 0

    def crashing(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at and before:
            raise RuntimeError("lost request")
        result = wrapped(*arguments)
        if calls == at:
            raise RuntimeError("lost answer")
        return result

    monkeypatch.setattr(KafkaFrameCommitPoint, verb, crashing)
    return lambda: calls >= at


@pytest.mark.parametrize("before", [long(True), False])
@pytest.mark.parametrize("verb", [*map(long, ("stage", "positions", "keep")), "commit", long("complete")])
def test_whatever_is_lost_between_them_a_random_query_has_one_result_in_both(
    spark: SparkSession,
    two_phase: EinmalBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    before: bool,
) -> None:
    declared = Declared(spark, two_phase.bootstrap, tmp_path, setting=TOGETHER, draw="rand()")
    was_lost = crashing_once(monkeypatch, verb, before=before, at=1 if verb in ("keep", "complete") else 2)
    for _ in range(3):
        try:
            declared.start().awaitTermination()
            break
        except Exception as error:  # noqa: BLE001 - a run whose start was not answered is started again
            assert "lost" in str(error)
    assert was_lost()
    assert declared.in_topic() == declared.in_database()
    assert len(declared.in_topic()) == len(NUMBERS)
    assert declared.record().prepared


@pytest.mark.long
def test_a_batch_without_rows_for_topics_decides_nothing_about_the_next_one(
    spark: SparkSession, two_phase: EinmalBroker, tmp_path: Path
) -> None:
    # It has no transaction in the topics. A name of one in the database's record would be that of the next batch.
    name = unique("several")
    create(two_phase.bootstrap, name, COMMIT_TOPIC)
    schema = "topics struct<value string>, database struct<number int>"

    def opened() -> RowCommitPoint:
        client = {"bootstrap.servers": two_phase.bootstrap, TWO_PHASE_COMMIT: "true"}
        rows = SQLiteSink(Options({"path": str(tmp_path / "rows.sqlite"), "table": "rows"}))
        parts = Part(KafkaFrameSink(client, name, None), "topics"), Part(rows, "database")
        return FrameTwoPhaseSink(*parts).commit_point(Opening(name=name, runtime=spark))

    killed = opened()
    identity = killed.acquire(None)
    killed.read()
    killed.stage(identity, 0, FrameRows(spark.createDataFrame([(None, (0,))], schema)))
    killed.record(identity, record(0, 1, name))
    identity = killed.commit(identity) or identity
    killed.stage(identity, 1, FrameRows(spark.createDataFrame([(None, (1,)), (("1",), None)], schema)))
    killed.record(identity, record(1, 2, name))
    killed.close()
    following = opened()
    following.acquire(None)
    following.close()
    assert values(two_phase.bootstrap, name) == []
    with sqlite3.connect(tmp_path / "rows.sqlite") as connection:
        assert connection.execute("SELECT number FROM rows").fetchall() == [(0,)]


@pytest.mark.long
def test_a_transaction_that_the_database_has_committed_is_not_aborted_by_a_run_without_two_phase_commit(
    spark: SparkSession, two_phase: EinmalBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = Declared(spark, two_phase.bootstrap, tmp_path)
    declared.start().awaitTermination()
    fill(two_phase.bootstrap, f"{declared.name}-in", range(25, 30))
    declared.together()
    with monkeypatch.context() as patch:
        # The run that would recover in the same process fails, too.
        crashing_once(patch, "commit", before=True, at=1)
        crashing_once(patch, "keep", before=True, at=2)
        with pytest.raises(Exception, match="lost"):
            declared.start().awaitTermination()
    assert len(declared.in_database()) == 30
    declared.apart()
    with pytest.raises(PipelineRefused, match="a transaction of a two-phase commit open"):
        declared.start()
    declared.together()
    declared.start().awaitTermination()
    assert declared.in_topic() == declared.in_database() == sorted(f"{n} {2 * n}" for n in range(30))


@pytest.mark.long
def test_the_name_of_a_transaction_is_not_looked_for_in_another_cluster(
    spark: SparkSession, two_phase: EinmalBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = unique("several")
    schema = "topics struct<value string>, database struct<number int>"

    def opened(bootstrap: str) -> RowCommitPoint:
        client = {"bootstrap.servers": bootstrap, TWO_PHASE_COMMIT: "true"}
        rows = SQLiteSink(Options({"path": str(tmp_path / "rows.sqlite"), "table": "rows"}))
        parts = Part(KafkaFrameSink(client, name, None), "topics"), Part(rows, "database")
        return FrameTwoPhaseSink(*parts).commit_point(Opening(name=name, runtime=spark))

    create(two_phase.bootstrap, name, COMMIT_TOPIC)
    killed = opened(two_phase.bootstrap)
    identity = killed.acquire(None)
    killed.stage(identity, 0, FrameRows(spark.createDataFrame([(None, (1,)), (("1",), None)], schema)))
    killed.record(identity, record(0, 2, name))
    with monkeypatch.context() as patch:
        crashing_once(patch, "commit", before=True, at=1)
        with pytest.raises(RuntimeError, match="lost"):
            killed.commit(identity)
    killed.close()
    other = EinmalBroker(tmp_path / "other", settings={"transaction.two.phase.commit.enable": "true"})
    other.start()
    try:
        create(other.bootstrap, COMMIT_TOPIC)
        moved = opened(other.bootstrap)
        for verb in (moved.look, lambda: moved.acquire(None)):
            with pytest.raises(PipelineRefused, match="in the topics of cluster"):
                verb()
        moved.close()
    finally:
        other.stop()
    back = opened(two_phase.bootstrap)
    back.look()
    back.acquire(None)
    back.close()
    assert values(two_phase.bootstrap, name) == ["1"]


def test_two_phase_commit_is_refused_where_nothing_else_is_written() -> None:
    text = DECLARED.format(
        name="n", checkpoint="/c", bootstrap="h:1", database="/d", setting=TOGETHER, draw="1"
    ).partition("[sinks.rows]")[0]
    with pytest.raises(DeclarationError, match="topics and to one database"):
        parse(text, {}, {})
