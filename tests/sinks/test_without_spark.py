"""What needs no Spark runs where none is installed: a table and files are ingested, and their topics mirrored."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from einmal.client import Consumer, TopicPartition
from tests.cli.test_without_extras import PROGRAM
from tests.interop.einmal_broker import EinmalBroker
from tests.sinks.postgres.server import PASSWORD, PostgresServer
from tests.suite.patience import patient
from tests.suite.shared import shared, unique

pytestmark = pytest.mark.system

SPARK = ("pyspark", "py4j", "pyarrow", "numpy", "einmal.spark")
ROWS = 50


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[tuple[EinmalBroker, EinmalBroker]]:
    source, target = EinmalBroker(tmp_path / "A"), EinmalBroker(tmp_path / "B")
    source.start()
    target.start()
    yield source, target
    source.stop()
    target.stop()


def test_a_table_and_files_are_ingested_and_mirrored(
    tmp_path: Path, brokers: tuple[EinmalBroker, EinmalBroker]
) -> None:
    source, target = brokers
    server: PostgresServer = shared("postgres")
    table = unique("orders").replace("-", "_")
    with psycopg.connect(server.url, password=PASSWORD, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {table} (id bigint PRIMARY KEY)")
        connection.execute(f"INSERT INTO {table} SELECT * FROM generate_series(1, {ROWS})")
    (tmp_path / "a.log").write_text("".join(f"line {number}\n" for number in range(ROWS)))
    (tmp_path / "ingest.toml").write_text(
        f'kafka.bootstrap.servers = "{source.bootstrap}"\n'
        '[ingest.lines]\ntype = "files"\npath = "*.log"\ntopic = "lines"\n'
        f'[ingest.rows]\ntype = "table"\nurl = "{server.url}"\npassword = "{PASSWORD}"\ntable = "{table}"\n'
        'column = "id"\ntopic = "rows"\n'
    )
    (tmp_path / "mirror.toml").write_text(
        f'clusters = ["A", "B"]\nA.bootstrap.servers = "{source.bootstrap}"\n'
        f'B.bootstrap.servers = "{target.bootstrap}"\n["A->B"]\ntopics = "lines,rows"\n'
    )
    commands = [
        ["ingest", "lines", "--file", "ingest.toml", "--available-now"],
        ["ingest", "rows", "--file", "ingest.toml", "--available-now"],
        ["mirror", "run", "A->B", "--available-now"],
        ["explain", "mirror.toml", "ingest.toml"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([SPARK, commands])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=patient(120),
    )
    found = [json.loads(line[1:]) for line in done.stdout.splitlines() if line.startswith("@")]
    assert [(command, status, said) for command, status, said in found if status != 0] == [], done.stderr[-2_000:]
    assert len(found) == len(commands)
    for topic in ("A.lines", "A.rows"):
        with Consumer(bootstrap_servers=target.bootstrap, isolation_level="read_committed") as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            consumer.seek_to_beginning()
            read: list[bytes | None] = []
            while len(read) < ROWS:
                read += [record.value for record in consumer.poll(1_000)]
        assert len(set(read)) == len(read) == ROWS
