"""``einmal ingest`` into Apache Kafka, whose listener has SASL_SSL."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from einmal.client import Admin, Consumer, NewTopic
from tests.security.secure_kafka import CANARY, SecureKafka, running_secure_kafka

pytestmark = [pytest.mark.interop, pytest.mark.slow]


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    with running_secure_kafka(tmp_path_factory.mktemp("secure")) as node:
        yield node


def ingest(directory: Path, name: str = "logs") -> list[dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-m", "einmal", "ingest", name, "--available-now", "--format", "json"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, CANARY in done.stdout + done.stderr) == (0, False), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_lines_are_ingested_once_over_sasl_ssl(apache: SecureKafka, tmp_path: Path) -> None:
    settings = apache.settings("SCRAM-SHA-512")
    lines = [f"kafka.{name} = {json.dumps(value)}" for name, value in settings.items()]
    (tmp_path / "pipeline.toml").write_text(
        "\n".join([*lines, "[ingest.logs]", 'type = "files"', 'path = "*.log"', 'topic = "logs"', 'key = "file"'])
    )
    with Admin(settings) as admin:
        admin.create_topics([NewTopic("logs", num_partitions=2)])
    log = tmp_path / "app.log"
    log.write_text("1\n2\n")
    assert ingest(tmp_path) == [{"ingest": "logs", "batch_id": 0, "records": 2}]
    assert ingest(tmp_path) == []
    with log.open("a") as file:
        file.write("3\n")
    assert [each["records"] for each in ingest(tmp_path)] == [1]
    config = {**settings, "group.id": "g", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    found = []
    with Consumer(config) as consumer:
        consumer.subscribe(["logs"])
        while polled := consumer.poll(5_000):
            found += [record.value for record in polled]
    assert found == [b"1", b"2", b"3"]


def test_duplicates_of_the_source_are_found_again_after_a_start(apache: SecureKafka, tmp_path: Path) -> None:
    settings = apache.settings("SCRAM-SHA-512")
    lines = [f"kafka.{name} = {json.dumps(value)}" for name, value in settings.items()]
    lines += ["[ingest.events]", 'type = "files"', 'path = "*.log"', 'topic = "events"']
    lines += ["[ingest.events.deduplicate]", 'key = "value.id"', 'window = "1 h"']
    (tmp_path / "pipeline.toml").write_text("\n".join(lines))
    with Admin(settings) as admin:
        admin.create_topics([NewTopic("events", num_partitions=2)])
    log = tmp_path / "app.log"
    for text, written, removed in (
        ('{"id": 1}\n{"id": 1}\n', 1, 1),
        ('{"id": 1}\n{"id": 2}\n', 1, 2),
        ('{"id": 2}\n', 0, 3),
    ):
        with log.open("a") as file:
            file.write(text)
        (line,) = ingest(tmp_path, "events")
        assert line["records"] == written
        counts = {"different": 0, "without_key": 0, "late": 0}
        batch, total = {"duplicates": 1, **counts}, {"duplicates": removed, **counts}
        assert line["deduplication"] == {"batch": batch, "total": total}
