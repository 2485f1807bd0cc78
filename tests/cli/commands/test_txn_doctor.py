"""Claims about ``einmal txn doctor`` and ``einmal txn show``, on our broker and on Apache Kafka."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from einmal.cli.commands.txn import _same_cluster
from einmal.cli.profiles import choose
from einmal.client import Producer
from einmal.client.blocking.admin import AdminCalls
from einmal.client.errors import error_for
from einmal.inspection.diagnosis import QUIET
from einmal.inspection.document import schema
from einmal.types import ErrorCode
from tests.cli.running import Cli
from tests.inspection.brokers import Node, leave_hanging, running
from tests.interop.topics import Broker, at_last, create_topic
from tests.interop.transaction_driver import TV1, TransactionDriver
from tests.suite.shared import shared, unique

pytestmark = [pytest.mark.system, pytest.mark.interop]


@pytest.fixture(scope="module", params=["einmal", "apache"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(request.param, tmp_path_factory.mktemp("doctor")) as node:
        yield node


@pytest.fixture
def cli(node: Node) -> Cli:
    return Cli(node.bootstrap)


@pytest.fixture
def topic(node: Node, cli: Cli) -> str:
    name = unique("held")
    create_topic(Broker(node.host, node.port), name, 1)
    cli("topic", "produce", name, stdin="before\n")
    return name


def dead_producer(node: Node, topic: str, timeout_ms: int = 60_000, name: str | None = None) -> str:
    """A producer that has written two records in a transaction, and ends without a word to its coordinator."""
    name = name or f"id-of-{topic}"
    broker = Broker(node.host, node.port)
    with TransactionDriver(broker, name, topic, TV1, timeout_ms=timeout_ms) as driver, driver.writer() as writer:
        identity = driver.init_at_last()
        driver.open(0)
        assert writer.write_at_last(identity, 0, 0, ["x", "y"]).error == 0
    return name


def readable(cli: Cli, topic: str) -> list[str]:
    return cli("topic", "consume", topic, "-o", "start:end").lines


def follow(cli: Cli, command: str) -> None:
    """Run a command as it was printed."""
    program, *arguments = shlex.split(command)
    assert program == "einmal"
    cli(*arguments, *(["--yes"] if "abort" in arguments else []))


def test_a_quiet_topic_has_a_verdict_and_status_0(cli: Cli, topic: str) -> None:
    assert cli("txn", "doctor", "--topic", topic).lines == [QUIET]


def test_a_group_that_cannot_be_asked_hides_no_other(
    node: Node, cli: Cli, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{number}-of-{topic}" for number in range(6)]
    for name in names:
        cli("topic", "consume", topic, "-g", name, "-n", "1")
    dead_producer(node, topic)
    asked, silent = AdminCalls.list_group_offsets, set(names[:1])

    def ask(self: AdminCalls, group_id: str, *arguments: Any, **more: Any) -> Any:
        if group_id in silent:
            raise error_for(ErrorCode.coordinator_not_available, f"group {group_id!r}")
        return asked(self, group_id, *arguments, **more)

    monkeypatch.setattr(AdminCalls, "list_group_offsets", ask)
    (held,) = cli("txn", "doctor", "--topic", topic, "--format", "json", status=1).document["held"]
    assert [each["group_id"] for each in held["waiting_groups"]] == names[1:]
    assert f"group '{names[0]}' could not be asked" in held["unknown"]["waiting_groups"]
    silent.update(names)
    text = "\n".join(cli("txn", "doctor", "--topic", topic, status=1).lines)
    assert text.count("could not be asked") == 3
    assert "more were not asked" in text


def test_a_dead_producer_is_named_with_who_waits_and_readers_proceed_after_the_way_out(
    node: Node, cli: Cli, topic: str
) -> None:
    cli("topic", "consume", topic, "-g", f"group-of-{topic}", "-n", "1")
    name = dead_producer(node, topic)
    cli("topic", "produce", topic, stdin="after\n")
    assert readable(cli, topic) == ["before"]
    found = cli("txn", "doctor", "--topic", topic, "--format", "json", status=1).document
    jsonschema_rs.validate(schema("Diagnosis"), found)
    (held,) = found["held"]
    assert (held["cause"], held["is_first"], held["last_stable_offset"]) == ("open", True, 1)
    holder = held["holder"]
    assert (holder["transactional_id"], holder["state"], holder["start_offset"]) == (name, "Ongoing", 1)
    assert holder["since"] <= found["time"]
    assert holder["client_id"] is None and holder["unknown"]["client_id"] == "not reported by this broker"
    assert (held["records_waiting"], held["is_upper_bound"]) == (3, False)
    assert held["waiting_groups"] == [{"group_id": f"group-of-{topic}", "offset": 1, "is_at_the_end": True}]
    assert 0 < held["way_out"]["wait_ms"] <= 60_000
    text = cli("txn", "doctor", "--topic", topic, status=1)
    assert text.lines[0] == "Readers of committed records cannot read to the end: 1 partition is held back (1 open)."
    assert f"           einmal txn abort {name}" in text.lines
    follow(cli, held["way_out"]["command"])
    at_last(lambda: readable(cli, topic), lambda lines: lines == ["before", "after"])
    assert cli("txn", "doctor", "--topic", topic).lines == [QUIET]


@pytest.mark.parametrize("node", ["apache"], indirect=True, scope="module")
def test_a_transaction_past_its_time_out_is_overdue(node: Node, cli: Cli, topic: str) -> None:
    """Our coordinator has a timer for each transaction: there is no sweep that could be late."""
    name = dead_producer(node, topic, timeout_ms=1)
    found = at_last(
        lambda: cli("txn", "doctor", "--topic", topic, "--format", "json", status=1).document,
        lambda found: found["overdue"] != [],
    )
    (held,) = found["held"]
    assert (held["cause"], name in found["overdue"]) == ("overdue", True)
    follow(cli, held["way_out"]["command"])
    at_last(lambda: cli("topic", "describe", topic, "--format", "json").document["partitions"][0], is_read_to_the_end)


def is_read_to_the_end(partition: dict[str, int]) -> bool:
    return partition["last_stable_offset"] == partition["high_watermark"]


def test_a_hanging_transaction_is_found_and_readers_proceed_after_the_way_out(node: Node, cli: Cli) -> None:
    topic = unique("hanging")
    producer_id = leave_hanging(node, topic, ["x"])
    cli("topic", "produce", topic, stdin="after\n")
    assert readable(cli, topic) == []
    found = cli("txn", "doctor", "--topic", topic, "--format", "json", status=1).document
    jsonschema_rs.validate(schema("Diagnosis"), found)
    (held,) = found["held"]
    assert (held["cause"], held["holder"]["producer_id"]) == ("hanging", producer_id)
    # The coordinator knows who has the producer id, and no transaction of it.
    assert (held["holder"]["transactional_id"], held["holder"]["state"]) == (f"lost-{topic}", "Empty")
    assert held["way_out"]["command"] == f"einmal txn abort --topic {topic} --partition 0 --start-offset 0"
    assert any("permission DESCRIBE" in each for each in cli("txn", "doctor", "--topic", topic, status=1).errors)
    follow(cli, held["way_out"]["command"])
    assert at_last(lambda: readable(cli, topic), lambda lines: lines != []) == ["after"]
    cli("txn", "doctor", "--topic", topic)


def test_several_open_transactions_of_a_partition_are_all_named_in_their_order(node: Node, cli: Cli) -> None:
    topic = unique("several")
    leave_hanging(node, topic, ["x"])
    name = dead_producer(node, topic)
    found = cli("txn", "doctor", "--topic", topic, "--format", "json", status=1).document
    assert [(each["cause"], each["is_first"]) for each in found["held"]] == [("hanging", True), ("open", False)]
    for held in found["held"]:
        follow(cli, held["way_out"]["command"])
    at_last(lambda: cli("topic", "describe", topic, "--format", "json").document["partitions"][0], is_read_to_the_end)
    assert name not in str(cli("txn", "doctor", "--topic", topic).lines)


def test_a_printed_command_finds_the_same_cluster_and_a_name_that_looks_like_an_option(node: Node) -> None:
    """Without -X and --profile it would abort what has the same name in another cluster."""
    nowhere, topic = Cli("127.0.0.1:1"), unique("-held")
    create_topic(Broker(node.host, node.port), topic, 1)
    name = dead_producer(node, topic, name=topic)
    where = ["-X", f"bootstrap.servers={node.bootstrap}"]
    lines = nowhere("txn", "doctor", "--topic", topic, *where, status=1).lines
    (command,) = (line.strip() for line in lines if "einmal txn abort" in line)
    assert command == f"einmal txn abort -X bootstrap.servers={node.bootstrap} -- {name}"
    document = nowhere("txn", "doctor", "--topic", topic, *where, "--format", "json", status=1).document
    assert document["held"][0]["way_out"]["command"] == command
    program, *arguments = shlex.split(command)
    assert nowhere(*arguments[:2], "--yes", *arguments[2:]).lines[1].split() == [name, "aborted"]


def test_the_options_of_a_printed_command_have_no_secrets() -> None:
    choose("production")
    try:
        options = _same_cluster("a:1", ["bootstrap.servers=a:2", "sasl.password=canary"], Path("c d"))
    finally:
        choose(None)
    assert options == " --brokers a:1 --command-config 'c d' --profile production -X bootstrap.servers=a:2"


def test_one_transaction_is_shown_with_its_records(node: Node, cli: Cli, topic: str) -> None:
    name = dead_producer(node, topic)
    found = cli("txn", "show", name, "--format", "json").document
    jsonschema_rs.validate(schema("ShownTransaction"), found)
    (part,) = found["parts"]
    assert (part["topic"], part["first_offset"], part["last_offset"], part["records"]) == (topic, 1, 2, 2)
    assert found["transaction"]["state"] == "Ongoing"
    cli("txn", "abort", name, "--yes")
    ended = at_last(lambda: cli("txn", "show", name), lambda shown: shown.errors != [])
    assert ended.errors == ["note: no transaction is open; coordinators forget the partitions of one that is ended"]


def test_find_hanging_reports_what_it_cannot_see(cli: Cli, topic: str) -> None:
    (note,) = cli("txn", "find-hanging", "--topic", topic).errors
    assert note.startswith("note: not looked for: ") and "einmal txn doctor" in note


def test_a_two_phase_commit_gets_no_command_that_could_tear_it() -> None:
    broker = shared("einmal-two-phase")
    cli, topic = Cli(broker.bootstrap), unique("two-phase")
    create_topic(Broker(broker.host, broker.port), topic, 1)
    settings = {"transactional.id": topic, "transaction.two.phase.commit.enable": "true"}
    with Producer({"bootstrap.servers": broker.bootstrap, **settings}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, "x")
        producer.prepare_transaction()
    (held,) = cli("txn", "doctor", "--topic", topic, "--format", "json", status=1).document["held"]
    assert (held["cause"], held["way_out"]["command"]) == ("two-phase", None)
    assert "start its program" in held["way_out"]["advice"]
    cli("txn", "abort", topic, "--yes")


def test_an_unknown_topic_is_an_error(cli: Cli) -> None:
    assert cli("txn", "doctor", "--topic", "nowhere", status=1).errors[0].startswith("error: UNKNOWN_TOPIC")
