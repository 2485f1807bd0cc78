"""``einmal trace`` in front of both brokers: a transaction of its own, of confluent-kafka, and of the Java client."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.cli.running import Cli
from tests.interop.apache_kafka import KafkaUnavailable, java_program
from tests.interop.conftest import Node
from tests.interop.topics import Broker, create_topic
from tests.suite.shared import unique
from tests.trace.program import PARTITIONS

pytestmark = [pytest.mark.interop, pytest.mark.system]

PROGRAM = [sys.executable, "-m", "tests.trace.program"]


@pytest.fixture
def cli(broker: Node) -> Cli:
    return Cli(broker.bootstrap)


@pytest.fixture
def topic(broker: Node) -> str:
    name = unique("traced")
    create_topic(Broker(broker.host, broker.port), name, PARTITIONS)
    return name


def rows(diagram: Any) -> list[str]:
    return [each["label"].partition(" ·")[0] for each in diagram["rows"]]


def traced(cli: Cli, kind: str, topic: str, *options: str) -> Any:
    program = [*PROGRAM, kind, "{bootstrap}", topic, f"id-of-{topic}"]
    return cli("trace", "--format", "json", *options, "--", *program).document


def ensure_order(diagram: Any) -> None:
    """The decision was asked for, then the producer knew; a reader never saw the records before it was asked for."""
    coordinator, producer, reader = diagram["moments"]
    assert [each["side"] for each in (coordinator, producer, reader)] == ["coordinator", "producer", "reader"]
    assert coordinator["earliest"] < coordinator["latest"] == producer["latest"]
    assert coordinator["earliest"] <= reader["earliest"] < reader["latest"]


def test_without_a_command_it_runs_a_transaction_of_its_own(cli: Cli, tmp_path: Path) -> None:
    picture = tmp_path / "trace.svg"
    lines = cli("trace", "--svg", str(picture)).lines
    assert "committed. Its producer knew after" in lines[0]
    labels = [line.split("  ")[-1] for line in lines if "│" in line]
    assert labels[0] in ("InitProducerId", "Fetch")
    (produced,) = {label.split()[1] for label in labels if label.startswith("Produce einmal-trace-")}
    assert any(label.startswith("readable: einmal-trace-") for label in labels)
    tree = ElementTree.parse(picture)
    assert "Who knows when" in "".join(tree.getroot().itertext())
    assert produced.rpartition("-")[0] not in [line.split()[0] for line in cli("topic", "list").lines]


def test_a_commit_of_confluent_kafka(cli: Cli, topic: str) -> None:
    diagram = traced(cli, "confluent", topic)
    assert (diagram["transactional_id"], diagram["outcome"]) == (f"id-of-{topic}", "committed")
    found = rows(diagram)
    for label in ("InitProducerId", f"AddPartitionsToTxn {topic}-0, {topic}-1", "EndTxn, commit", "committed"):
        assert label in found
    assert diagram["lanes"][0]["subtitle"].startswith("producer, confluent-kafka-python")
    assert diagram["lanes"][-1]["title"] == "ledger"
    assert all(bar["is_released"] for bar in diagram["bars"])
    ensure_order(diagram)


def test_an_abort_and_a_transaction_that_nobody_ends(cli: Cli, topic: str) -> None:
    aborted = traced(cli, "abort", topic)
    assert (aborted["outcome"], aborted["moments"][1]["what"]) == ("aborted", "knows that it is aborted")
    left = traced(cli, "open", topic)
    assert left["outcome"] == "not_ended"
    assert "no EndTxn" in rows(left)


def test_a_commit_of_the_java_client(cli: Cli, topic: str) -> None:
    try:
        java_program("Transactions")
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    diagram = traced(cli, "java", topic, "--topic", topic)
    assert diagram["outcome"] == "committed"
    assert diagram["lanes"][0]["subtitle"].startswith("producer, apache-kafka-java")
    # Its leaders add the partitions themselves: no request of the client's does.
    assert not any(label.startswith("AddPartitionsToTxn") for label in rows(diagram))
    ensure_order(diagram)


def test_a_command_finds_the_proxy_in_the_environment(cli: Cli, topic: str) -> None:
    code = "import os, sys; sys.exit(os.environ['KAFKA_BROKERS'] == sys.argv[1])"
    result = cli("trace", "--", sys.executable, "-c", code, "{bootstrap}", status=1)
    assert result.errors[0] == "error: no transaction was seen"
    assert "KAFKA_BROKERS" in result.errors[1]


def test_what_cannot_be_traced_ends_with_a_reason(cli: Cli, topic: str) -> None:
    missing = cli("trace", "--", os.path.join("no", "program"), status=1)
    assert missing.errors == ["error: 'no/program' cannot be started: No such file or directory"]
    other = cli("trace", "--transactional-id", "other", "--", *PROGRAM, "abort", "{bootstrap}", topic, "x", status=1)
    assert other.errors == ["error: no transaction fits; those seen have the transactional ids x"]
    assert cli("trace", "--topic", topic, status=2).errors[-1].startswith("Error: ")
