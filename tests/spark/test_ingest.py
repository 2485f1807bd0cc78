"""Ingesting by Spark's tasks: each record once and in order, although workers die and rows change."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import SparkSession

from einmal.ingest import (
    Deduplicate,
    Ingest,
    IngestBatch,
    IngestRecord,
    IngestStopped,
    Position,
    RecordPart,
    RecordSource,
    SourceNotice,
)
from einmal.ingest.tables import TableSource
from einmal.wire.murmur2 import partition_for_key
from tests.ingest.sources import NumbersSource, committed
from tests.sinks.postgres.server import PASSWORD, PostgresServer, running
from tests.spark.conftest import on_both_in_the_long_run
from tests.spark.topics import create
from tests.suite.shared import unique

pytestmark = pytest.mark.spark

PARTITIONS = 2
LAST = 600


class SplitNumbers(RecordSource):
    """The numbers below ``LAST`` in three batches. ``flag``: the first task to see that it is missing dies."""

    def __init__(self, topic: str, flag: Path) -> None:
        self.topic = topic
        self.flag = flag
        self.parts = 0

    def origin(self) -> str:
        return "numbers"

    def split(self, parts: int) -> None:
        self.parts = parts

    def read(self, position: Position | None) -> Iterator[IngestBatch | SourceNotice | None]:
        begin = position["next"] if position else 0
        for start in range(begin, LAST, LAST // 3):
            end = start + LAST // 3
            step = -(-(end - start) // self.parts)
            parts = [numbers_of(self, range(each, min(each + step, end))) for each in range(start, end, step)]
            yield IngestBatch((), {"next": end}, tuple(parts))
        yield None


def numbers_of(source: SplitNumbers, numbers: range) -> RecordPart:
    topic, flag, middle = source.topic, source.flag, numbers.start + len(numbers) // 2

    # Workers know no modules of the tests: a class of a function travels by value.
    class Part:
        def records(self) -> Iterator[IngestRecord]:
            for number in numbers:
                if number == middle > LAST // 2 and not flag.exists():
                    flag.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                yield IngestRecord(topic, b"%d" % number, b"k%d" % (number % 50))

    return Part()


def by_key(numbers: range) -> list[list[bytes]]:
    found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    for number in numbers:
        found[partition_for_key(b"k%d" % (number % 50), PARTITIONS)].append(b"%d" % number)
    return found


@on_both_in_the_long_run
@pytest.mark.long
def test_a_batch_whose_worker_was_killed_is_written_once_and_in_order(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    topic = unique("ingested")
    create(bootstrap, topic, partitions=PARTITIONS)
    source, notices, batches = SplitNumbers(topic, tmp_path / "flag"), list[SourceNotice](), list[int]()
    Ingest(
        source,
        bootstrap_servers=bootstrap,
        name=topic,
        notify=notices.append,
        committed=lambda record: batches.append(record.records),
    ).run(available_now=True, spark=spark)
    assert source.flag.exists()
    assert [notice.kind for notice in notices] == ["restart"]
    assert batches == [LAST // 3] * 3
    assert committed(bootstrap, topic, PARTITIONS) == by_key(range(LAST))


class KeylessSource(SplitNumbers):
    def read(self, position: Position | None) -> Iterator[IngestBatch | SourceNotice | None]:
        topic = self.topic

        class Part:
            def records(self) -> Iterator[IngestRecord]:
                yield IngestRecord(topic, b"x")

        yield IngestBatch((), {"next": 1}, (Part(),))


@pytest.mark.long
def test_a_record_without_a_partition_of_its_own_stops_the_ingester(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    topic = unique("ingested")
    create(bootstrap, topic, partitions=PARTITIONS)
    ingest = Ingest(KeylessSource(topic, tmp_path / "flag"), bootstrap_servers=bootstrap, name=topic)
    with pytest.raises(IngestStopped, match="neither key nor partition"):
        ingest.run(available_now=True, spark=spark)
    assert committed(bootstrap, topic, PARTITIONS) == [[], []]


def test_what_one_process_must_read_is_refused(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    with pytest.raises(IngestStopped, match="can only be read by one process\nhint: ingest it without --spark"):
        Ingest(NumbersSource("t", 4), bootstrap_servers=bootstrap, name="one").run(spark=spark)
    source = SplitNumbers("t", tmp_path / "flag")
    deduplicating = Ingest(source, bootstrap_servers=bootstrap, name="one", deduplicate=Deduplicate("key", 1_000))
    with pytest.raises(IngestStopped, match="by one process, which knows all keys"):
        deduplicating.run(spark=spark)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running() as found:
        yield found


def table_source(server: PostgresServer, topic: str) -> TableSource:
    conninfo = {name: str(value) for name, value in conninfo_to_dict(server.url, password=PASSWORD).items()}
    return TableSource(conninfo, "public.events", "id", topic, batch_rows=100)


def ids(bootstrap: str, topic: str) -> list[int]:
    return [json.loads(each)["id"] for values in committed(bootstrap, topic, PARTITIONS) for each in values]


def test_each_row_of_a_table_is_ingested_once_by_tasks_and_by_one_process(
    spark: SparkSession, bootstrap: str, server: PostgresServer
) -> None:
    topic = unique("rows")
    create(bootstrap, topic, partitions=PARTITIONS)
    server.rows("DROP TABLE IF EXISTS events")
    server.rows("CREATE TABLE events (id bigint PRIMARY KEY, t text)")
    server.rows("INSERT INTO events SELECT n, repeat('x', 50) FROM generate_series(1, 5000) n")

    def run(session: Any) -> None:
        Ingest(table_source(server, topic), bootstrap_servers=bootstrap, name=topic).run(
            available_now=True, spark=session
        )

    with server.connect() as late:
        late.execute("BEGIN")
        late.execute("INSERT INTO events VALUES (5001, 'late')")
        server.rows("INSERT INTO events SELECT n, 'y' FROM generate_series(5002, 5500) n")
        run(spark)
        # Behind the horizon of the open transaction.
        assert sorted(ids(bootstrap, topic)) == list(range(1, 5001))
        late.execute("COMMIT")
    run(None)
    server.rows("INSERT INTO events SELECT n, 'z' FROM generate_series(5501, 5600) n")
    run(spark)
    assert sorted(ids(bootstrap, topic)) == list(range(1, 5601))
    for values in committed(bootstrap, topic, PARTITIONS):
        # The first look has read them in the order of the column.
        first = [found for each in values if (found := json.loads(each)["id"]) <= 5000]
        assert first == sorted(first)


def test_the_command_refuses_what_cannot_be_split(tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text(
        'kafka.bootstrap.servers = "127.0.0.1:1"\n[ingest.logs]\ntype = "files"\npath = "*.log"\ntopic = "t"\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "einmal", "ingest", "logs", "--spark", "local[2]"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 3
    assert "type = 'files', which is read in order, by one process\nhint: ingest it without --spark" in done.stderr
