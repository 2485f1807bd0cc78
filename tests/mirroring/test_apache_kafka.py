"""A mirror between our broker and Apache Kafka, in both directions; Apache Kafka's listener has SASL_SSL."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from einmal.client import Admin, Consumer, NewTopic, Producer
from tests.interop.einmal_broker import EinmalBroker
from tests.security.secure_kafka import CANARY, SecureKafka, running_secure_kafka

pytestmark = [pytest.mark.interop, pytest.mark.slow]

Settings = Mapping[str, str]


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    with running_secure_kafka(tmp_path_factory.mktemp("secure")) as node:
        yield node


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Settings]:
    broker = EinmalBroker(tmp_path / "broker")
    broker.start()
    yield {"bootstrap.servers": broker.bootstrap}
    broker.stop()


def declare(directory: Path, source: Settings, target: Settings) -> None:
    lines = ['clusters = ["A", "B"]', '"A->B".topics = "orders"']
    for alias, settings in (("A", source), ("B", target)):
        lines += [f"{alias}.{name} = {json.dumps(value)}" for name, value in settings.items()]
    (directory / "mirror.toml").write_text("\n".join(lines))


def mirror(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "einmal", "mirror", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=100,
    )


def transaction(settings: Settings, values: list[str], *, committed: bool = True) -> None:
    with Producer({**settings, "transactional.id": "orders"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for index, value in enumerate(values):
            producer.send("orders", value, partition=index % 2)
        if committed:
            producer.commit_transaction()
        else:
            producer.abort_transaction()


def read(settings: Settings, topic: str, group_id: str) -> list[bytes | None]:
    """What a member of the group has not read yet; it commits."""
    found: list[bytes | None] = []
    config = {**settings, "group.id": group_id, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    with Consumer(config) as consumer:
        consumer.subscribe([topic])
        while polled := consumer.poll(5_000):
            found += [record.value for record in polled]
        consumer.commit()
    return sorted(found, key=str)


@pytest.mark.parametrize("direction", ["to einmal", "to Apache Kafka"])
def test_records_and_group_offsets_are_copied_over_sasl_ssl(
    direction: str, apache: SecureKafka, ours: Settings, tmp_path: Path
) -> None:
    secured = apache.settings("SCRAM-SHA-512")
    source, target = (secured, ours) if direction == "to einmal" else (ours, secured)
    with Admin(source) as admin:
        admin.create_topics([NewTopic("orders", num_partitions=2)])
    transaction(source, ["a", "b", "c"])
    assert read(source, "orders", "billing") == [b"a", b"b", b"c"]
    transaction(source, ["x", "y"], committed=False)
    transaction(source, ["d", "e"])
    declare(tmp_path, source, target)
    done = [mirror(tmp_path, "A->B", "--available-now")]
    done += [mirror(tmp_path, verb, "A->B", "--format", "json") for verb in ("status", "explain", "failover")]
    assert [each.returncode for each in done] == [0] * 4, [each.stderr for each in done]
    assert not [each for each in done if CANARY in each.stdout + each.stderr]
    _, status, explained, failed_over = (each.stdout for each in done)
    assert json.loads(status) == json.loads(failed_over)
    assert {row["lag"] for row in json.loads(status)["partitions"]} == {0}
    assert {(row["group"], row["state"]) for row in json.loads(status)["groups"]} == {("billing", "ready")}
    verdicts = {row["subject"]: row["verdict"] for row in json.loads(explained)}
    assert (verdicts["records"], verdicts["transactions"], verdicts["groups"]) == ("holds", "if", "holds")
    assert read(target, "A.orders", "billing") == [b"d", b"e"]
    assert read(target, "A.orders", "another") == [b"a", b"b", b"c", b"d", b"e"]
