"""What needs no Spark runs where none is installed: a table and files are ingested, their topics mirrored, Arrow rows
written to topics."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from einmal.client import Admin, Consumer, ConsumerRecord, NewTopic, TopicPartition
from einmal.types import Header
from einmal.wire.murmur2 import partition_for_key
from tests.cli.test_without_extras import PROGRAM, WITHOUT
from tests.interop.einmal_broker import EinmalBroker
from tests.sinks.postgres.server import PASSWORD, PostgresServer, until
from tests.suite.patience import patient
from tests.suite.shared import shared, unique

pytestmark = pytest.mark.system

SPARK = ("pyspark", "py4j", "pyarrow", "numpy", "einmal.spark")
ROWS = 50
TOPICS = (
    WITHOUT
    + """
import datetime
import pyarrow
from einmal.sinks.arrow_rows import ArrowRows
from einmal.sinks.kafka.sink import KafkaRowSink
from einmal.sinks.sink import Opening
from einmal.testing.sinks.driving import record_of

TIME = datetime.datetime(2024, 5, 17, 12, 0, 0, 123_999, tzinfo=datetime.UTC)
HEADER = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])

def table(batch_id, first):
    number = range(first, first + 3)
    return pyarrow.table({
        "key": pyarrow.array(["a", None, "b"], pyarrow.string()),
        "value": pyarrow.array([f"{batch_id}.{each}" for each in number], pyarrow.large_string()),
        "topic": ["left", "right", "left"],
        "partition": pyarrow.array([None, None, 1], pyarrow.int64()),
        "headers": pyarrow.array([[{"key": "h", "value": b"v"}], [], None], pyarrow.list_(HEADER)),
        "timestamp": pyarrow.array([TIME] * 3, pyarrow.timestamp("us", "UTC")),
        "unused": [1, 2, 3],
    })

for run in range(2):
    sink = KafkaRowSink({"bootstrap.servers": commands[0], "compression.type": "zstd"})
    rows = [ArrowRows([table(batch_id, 0), table(batch_id, 3)]) for batch_id in range(2)]
    assert sink.problems("rows", rows[0].schema) == []
    point = sink.commit_point(Opening(name="rows"))
    identity = point.acquire(None)
    found = point.read()
    # The first run ends in the middle of the second batch.
    for batch_id in range(0 if found is None else found.batch_id + 1, 2):
        outputs = point.stage(identity, batch_id, rows[batch_id])
        point.record(identity, record_of("rows", batch_id, outputs))
        if (run, batch_id) != (0, 1):
            identity = point.commit(identity) or point.acquire(identity)
    point.close()
    sink.close()
"""
)


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
        # An older transaction that is open, of another test, holds them back.
        oldest = "pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
        below = f"SELECT bool_and(xmin::text::bigint < {oldest}) FROM {table}"
        until(lambda: connection.execute(below).fetchone() == (True,), "no older transaction is open")
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

            def is_read(consumer: Consumer = consumer, read: list[bytes | None] = read) -> bool:
                read += [record.value for record in consumer.poll(1_000)]
                return len(read) >= ROWS

            until(is_read, f"all of {topic} is there")
        assert len(set(read)) == len(read) == ROWS


def test_arrow_rows_are_written_to_topics_once(brokers: tuple[EinmalBroker, EinmalBroker]) -> None:
    broker, _ = brokers
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, num_partitions=2) for topic in ("left", "right")])
    blocked = ("pyspark", "py4j", "einmal.spark")
    done = subprocess.run(
        [sys.executable, "-c", TOPICS, json.dumps([blocked, [broker.bootstrap]])],
        capture_output=True,
        text=True,
        timeout=patient(120),
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    places = [TopicPartition(topic, index) for topic in ("left", "right") for index in range(2)]
    with Consumer(bootstrap_servers=broker.bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign(places)
        consumer.seek_to_beginning()
        read: list[ConsumerRecord] = []
        while len(read) < 2 * 2 * 3:
            read += consumer.poll(1_000)
        assert consumer.poll(0) == []
    time = 1_715_947_200_123
    expected = {
        (batch_id, first): [
            ("left", partition_for_key(b"a", 2), b"a", (Header("h", b"v"),), time),
            ("right", (batch_id + part) % 2, None, (), time),
            ("left", 1, b"b", (), time),
        ]
        for batch_id in range(2)
        for part, first in enumerate((0, 3))
    }
    assert {
        each.value: (each.topic, each.partition, each.key, tuple(each.headers), each.timestamp) for each in read
    } == {
        f"{batch_id}.{first + number}".encode(): record
        for (batch_id, first), records in expected.items()
        for number, record in enumerate(records)
    }
