"""Claims about ``einmal txn``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from einmal.cli.commands.txn import _question
from einmal.client import Producer
from einmal.client.descriptions import TransactionDescription
from einmal.client.errors import KafkaError, ProducerFenced
from tests.cli.running import Cli
from tests.interop.einmal_broker import EinmalBroker
from tests.interop.topics import Broker, create_topic
from tests.interop.transaction_driver import TV1, TransactionDriver
from tests.suite.cases import each_case

pytestmark = pytest.mark.system


@pytest.fixture
def open_transaction(cli: Cli, cluster: str) -> Iterator[tuple[Producer, str]]:
    """A producer with an open transaction, and the topic it has written one record to."""
    topic = f"open-{time.monotonic_ns()}"
    cli("topic", "create", topic)
    with Producer(bootstrap_servers=cluster, transactional_id=f"id-of-{topic}") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, "x").result()
        yield producer, topic


def test_an_open_transaction_is_listed_and_described(cli: Cli, open_transaction: tuple[Producer, str]) -> None:
    _producer, topic = open_transaction
    listed = cli("txn", "list", "--state", "Ongoing", "--format", "json").document
    assert f"id-of-{topic}" in [each["transactional_id"] for each in listed]
    (described,) = cli("txn", "describe", f"id-of-{topic}", "--format", "json").document
    assert (described["state"], described["topic_partitions"]) == ("Ongoing", [f"{topic}-0"])
    assert described["duration_ms"] >= 0
    (producer,) = cli("txn", "describe-producers", "--topic", topic, "--format", "json").document
    assert (producer["producer_id"], producer["current_transaction_start_offset"]) == (described["producer_id"], 0)
    head = cli("txn", "list").lines[0]
    assert head.split() == ["COORDINATOR", "TRANSACTIONAL-ID", "PRODUCER-ID", "STATE"]


def test_an_abort_by_id_fences_the_producer(cli: Cli, open_transaction: tuple[Producer, str]) -> None:
    producer, topic = open_transaction
    cli("txn", "abort", f"id-of-{topic}", "--yes")
    with pytest.raises(KafkaError):
        producer.commit_transaction()
    with pytest.raises(ProducerFenced):
        producer.abort_transaction()
    assert cli("topic", "consume", topic, "-o", "start:end").lines == []


def test_an_abort_after_the_commit_does_not_report_that_the_transaction_was_aborted(
    cli: Cli, open_transaction: tuple[Producer, str]
) -> None:
    producer, topic = open_transaction
    producer.commit_transaction()
    reported = cli("txn", "abort", f"id-of-{topic}", "--yes", "--format", "json").document
    assert reported == [{"transactional_id": f"id-of-{topic}", "status": "fenced"}]
    assert len(cli("topic", "consume", topic, "-o", "start:end").lines) == 1


def test_an_abort_asks_first(cli: Cli, open_transaction: tuple[Producer, str]) -> None:
    producer, topic = open_transaction
    asked = cli("txn", "abort", f"id-of-{topic}", stdin="n\n", status=1)
    assert "Fence the producer" in asked.errors[0]
    unanswered = cli("txn", "abort", f"id-of-{topic}", status=1)
    assert unanswered.errors[1:] == ["error: nobody has answered: nothing was changed", "hint: --yes does not ask"]
    producer.commit_transaction()


def test_an_abort_that_was_agreed_to_ends_no_later_transaction(
    cli: Cli, open_transaction: tuple[Producer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user answers late: the producer has come back meanwhile, and has another transaction open."""
    producer, topic = open_transaction
    questions = []

    def answer(question: str, _yes: bool) -> None:
        questions.append(question)
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send(topic, "y").result()

    monkeypatch.setattr("einmal.cli.commands.txn.confirm", answer)
    refused = cli("txn", "abort", f"id-of-{topic}", status=1)
    assert "abort its transaction, open for " in questions[0]
    assert "has changed since you were asked: Ongoing" in refused.errors[0]
    producer.commit_transaction()
    assert len(cli("topic", "consume", topic, "-o", "start:end").lines) == 2


@each_case(
    "state, question",
    [
        ("Ongoing", "Fence the producer of 'id' and abort its transaction, open for "),
        ("PrepareCommit", "Its coordinator is ending the transaction (PrepareCommit), which cannot change. Fence"),
        ("CompleteCommit", "No transaction is open (CompleteCommit). Fence"),
    ],
)
def test_no_abort_is_asked_for_that_cannot_be(state: str, question: str) -> None:
    start_time = -1 if state == "CompleteCommit" else 1
    described = TransactionDescription("id", state, 1, 0, 60_000, start_time, (), 1)
    assert _question(described).startswith(question)


def test_a_transaction_of_a_two_phase_commit_is_shown_and_aborted_only_with_a_warning(tmp_path: Path, cli: Cli) -> None:
    broker = EinmalBroker(tmp_path, {"transaction.two.phase.commit.enable": "true"})
    broker.start()
    try:
        at = ("--brokers", broker.bootstrap)
        cli("topic", "create", "t", *at)
        settings = {"transactional.id": "two-phase", "transaction.two.phase.commit.enable": "true"}
        with Producer({"bootstrap.servers": broker.bootstrap, **settings}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", "x")
            state = producer.prepare_transaction()
        (described,) = cli("txn", "describe", "two-phase", *at, "--format", "json").document
        assert (described["state"], described["two_phase_commit"], described["timeout_ms"]) == ("Ongoing", True, None)
        assert described["duration_ms"] >= 0
        for longer_than, listed in (("0", ["two-phase"]), ("3600000", [])):
            found = cli("txn", "list", "--state", "Ongoing", "--duration-filter", longer_than, *at, "--format", "json")
            assert [each["transactional_id"] for each in found.document] == listed
        assert cli("txn", "find-hanging", "--max-timeout-ms", "0", *at, "--format", "json").document == []
        errors = cli("txn", "abort", "two-phase", "--yes", *at).errors
        assert "takes part in a two-phase commit" in errors[0]
        assert f"if its database has committed {state}, this tears it" in errors[1]
        (described,) = cli("txn", "describe", "two-phase", *at, "--format", "json").document
        assert (described["state"], described["two_phase_commit"]) == ("Empty", False)
    finally:
        broker.stop()


def test_aborting_an_unknown_transactional_id_does_not_create_it(cli: Cli) -> None:
    failed = cli("txn", "abort", "nobody's", "--yes", status=1)
    assert "TRANSACTIONAL_ID_NOT_FOUND" in failed.errors[0]


def test_a_hanging_transaction_is_aborted_by_the_offset_at_which_it_begins(tmp_path: Path) -> None:
    unverified = EinmalBroker(tmp_path, {"transaction.partition.verification.enable": "false"})
    unverified.start()
    cli, topic = Cli(unverified.bootstrap), "hanging"
    try:
        broker = Broker(unverified.host, unverified.port)
        create_topic(broker, topic, 1)
        with TransactionDriver(broker, "lost", topic, TV1) as driver, driver.writer() as writer:
            driver.init_at_last()
            # Its coordinator has never heard of this partition.
            writer.write_at_last(driver.identity, 0, 0, ["x"])
        wrong = cli("txn", "abort", "--topic", topic, "--start-offset", "7", "--yes", status=1)
        assert wrong.errors == [
            f"error: no open transaction of {topic}-0 begins at 7",
            "hint: open ones begin at: 0",
        ]
        cli("txn", "abort", "--topic", topic, "--start-offset", "0", "--yes")
        (partition,) = cli("topic", "describe", topic, "--format", "json").document["partitions"]
        assert (partition["last_stable_offset"], partition["high_watermark"]) == (2, 2)
    finally:
        unverified.stop()


def test_a_transaction_that_its_coordinator_manages_is_not_torn_by_a_marker(
    cli: Cli, open_transaction: tuple[Producer, str]
) -> None:
    producer, topic = open_transaction
    refused = cli("txn", "abort", "--topic", topic, "--start-offset", "0", "--yes", status=1)
    assert f"'id-of-{topic}'" in refused.errors[0]
    assert f"einmal txn doctor --topic {topic}" in refused.errors[1]
    producer.commit_transaction()


def test_a_transaction_that_its_coordinator_will_end_is_not_hanging(
    cli: Cli, open_transaction: tuple[Producer, str]
) -> None:
    _producer, topic = open_transaction
    young = cli("txn", "find-hanging", "--topic", topic, "--format", "json").document
    old = cli("txn", "find-hanging", "--topic", topic, "--max-timeout-ms", "-60000", "--format", "json").document
    assert (young, old) == ([], [])


def test_an_abort_needs_a_transactional_id_or_an_offset(cli: Cli) -> None:
    cli("txn", "abort", status=2)
    cli("txn", "abort", "id", "--topic", "t", status=2)
    cli("txn", "abort", "--topic", "t", status=2)


def test_an_unknown_transaction_state_is_reported(cli: Cli) -> None:
    assert cli("txn", "list", "--state", "Open", status=1).errors[0].endswith("[Open]")


def test_producers_of_all_partitions_are_shown_and_no_marker_goes_to_one_that_was_not_named(
    cli: Cli, cluster: str
) -> None:
    cli("topic", "create", "spread", "-p", "3")
    with Producer(bootstrap_servers=cluster) as producer:
        for partition in (0, 2):
            producer.send("spread", "x", partition=partition)
    found = cli("txn", "describe-producers", "--topic", "spread", "--format", "json").document
    assert [each["partition"] for each in found] == [0, 2]
    found = cli("txn", "describe-producers", "--topic", "spread", "--partition", "2", "--format", "json").document
    assert [each["partition"] for each in found] == [2]
    failed = cli("txn", "abort", "--topic", "spread", "--start-offset", "0", "--yes", status=2)
    assert any("name one with --partition" in each for each in failed.errors)
