"""``einmal ingest`` into Apache Kafka, whose listener has SASL_SSL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from einmal.client import Admin, NewTopic
from tests.ingest.sources import committed
from tests.security.secure_kafka import CANARY, SecureKafka
from tests.suite import warm
from tests.suite.shared import shared, unique

pytestmark = [pytest.mark.interop, pytest.mark.slow]


@pytest.fixture(scope="session")
def apache() -> SecureKafka:
    node: SecureKafka = shared("secure-apache")
    return node


def ingest(directory: Path, name: str) -> list[dict[str, object]]:
    arguments = ["einmal", "ingest", name, "--available-now", "--format", "json"]
    done = warm.run(arguments, cwd=directory, timeout=300)
    assert (done.returncode, CANARY in done.stdout + done.stderr) == (0, False), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_lines_are_ingested_once_over_sasl_ssl(apache: SecureKafka, tmp_path: Path) -> None:
    settings = apache.settings("SCRAM-SHA-512")
    name = unique("logs")
    lines = [f"kafka.{name} = {json.dumps(value)}" for name, value in settings.items()]
    lines += [f"[ingest.{name}]", 'type = "files"', 'path = "*.log"', f'topic = "{name}"', 'key = "file"']
    (tmp_path / "pipeline.toml").write_text("\n".join(lines))
    with Admin(settings) as admin:
        admin.create_topics([NewTopic(name, num_partitions=2)])
    log = tmp_path / "app.log"
    log.write_text("1\n2\n")
    assert ingest(tmp_path, name) == [{"ingest": name, "batch_id": 0, "records": 2}]
    assert ingest(tmp_path, name) == []
    with log.open("a") as file:
        file.write("3\n")
    assert [each["records"] for each in ingest(tmp_path, name)] == [1]
    values = [value for partition in committed(settings, name, 2) for value in partition]
    assert values == [b"1", b"2", b"3"]


def test_duplicates_of_the_source_are_found_again_after_a_start(apache: SecureKafka, tmp_path: Path) -> None:
    settings = apache.settings("SCRAM-SHA-512")
    lines = [f"kafka.{name} = {json.dumps(value)}" for name, value in settings.items()]
    name = unique("events")
    lines += [f"[ingest.{name}]", 'type = "files"', 'path = "*.log"', f'topic = "{name}"']
    lines += [f"[ingest.{name}.deduplicate]", 'key = "value.id"', 'window = "1 h"']
    (tmp_path / "pipeline.toml").write_text("\n".join(lines))
    with Admin(settings) as admin:
        admin.create_topics([NewTopic(name, num_partitions=2)])
    log = tmp_path / "app.log"
    for text, written, removed in (
        ('{"id": 1}\n{"id": 1}\n', 1, 1),
        ('{"id": 1}\n{"id": 2}\n', 1, 2),
        ('{"id": 2}\n', 0, 3),
    ):
        with log.open("a") as file:
            file.write(text)
        (line,) = ingest(tmp_path, name)
        assert line["records"] == written
        counts = {"different": 0, "without_key": 0, "late": 0}
        batch, total = {"duplicates": 1, **counts}, {"duplicates": removed, **counts}
        assert line["deduplication"] == {"batch": batch, "total": total}
