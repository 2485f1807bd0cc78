"""A mirror between our broker and Apache Kafka, in both directions; Apache Kafka's listener has SASL_SSL."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from einmal.client import Admin, Consumer, NewTopic, Producer
from tests.interop.einmal_broker import EinmalBroker
from tests.security.secure_kafka import CANARY, SecureKafka
from tests.suite import warm
from tests.suite.shared import shared, unique

pytestmark = [pytest.mark.interop, pytest.mark.slow]

Settings = Mapping[str, str]


@pytest.fixture(scope="session")
def apache() -> SecureKafka:
    node: SecureKafka = shared("secure-apache")
    return node


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Settings]:
    broker = EinmalBroker(tmp_path / "broker")
    broker.start()
    yield {"bootstrap.servers": broker.bootstrap}
    broker.stop()


def declare(directory: Path, source: Settings, target: Settings, topic: str) -> None:
    lines = ['clusters = ["A", "B"]', f'"A->B".topics = "{topic}"']
    for alias, settings in (("A", source), ("B", target)):
        lines += [f"{alias}.{name} = {json.dumps(value)}" for name, value in settings.items()]
    (directory / "mirror.toml").write_text("\n".join(lines))


def mirror(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return warm.run(["einmal", "mirror", *arguments], cwd=directory, timeout=300)


def transaction(settings: Settings, topic: str, values: list[str], *, committed: bool = True) -> None:
    with Producer({**settings, "transactional.id": topic}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for index, value in enumerate(values):
            producer.send(topic, value, partition=index % 2)
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
        while not consumer.assignment():
            found += [record.value for record in consumer.poll(100)]
        places = consumer.assignment()
        ends = consumer.end_offsets(*places)
        while any(consumer.position(each) < ends[each] for each in places):
            found += [record.value for record in consumer.poll(100)]
        consumer.commit()
    return sorted(found, key=str)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("direction", ["to einmal", "to Apache Kafka"])
def test_records_and_group_offsets_are_copied_over_sasl_ssl(
    direction: str, apache: SecureKafka, ours: Settings, tmp_path: Path
) -> None:
    secured = apache.settings("SCRAM-SHA-512")
    source, target = (secured, ours) if direction == "to einmal" else (ours, secured)
    topic, group = unique("orders"), unique("billing")
    with Admin(source) as admin:
        admin.create_topics([NewTopic(topic, num_partitions=2)])
    transaction(source, topic, ["a", "b", "c"])
    assert read(source, topic, group) == [b"a", b"b", b"c"]
    transaction(source, topic, ["x", "y"], committed=False)
    transaction(source, topic, ["d", "e"])
    declare(tmp_path, source, target, topic)
    done = [mirror(tmp_path, "A->B", "--available-now")]
    done += [mirror(tmp_path, verb, "A->B", "--format", "json") for verb in ("status", "explain", "failover")]
    assert [each.returncode for each in done] == [0] * 4, [each.stderr for each in done]
    assert not [each for each in done if CANARY in each.stdout + each.stderr]
    _, status, explained, failed_over = (each.stdout for each in done)
    assert json.loads(status) == json.loads(failed_over)
    assert {row["lag"] for row in json.loads(status)["partitions"]} == {0}
    assert {(row["group"], row["state"]) for row in json.loads(status)["groups"]} == {(group, "ready")}
    verdicts = {row["subject"]: row["verdict"] for row in json.loads(explained)}
    assert (verdicts["records"], verdicts["transactions"], verdicts["groups"]) == ("holds", "if", "holds")
    assert read(target, f"A.{topic}", group) == [b"d", b"e"]
    assert read(target, f"A.{topic}", unique("another")) == [b"a", b"b", b"c", b"d", b"e"]
