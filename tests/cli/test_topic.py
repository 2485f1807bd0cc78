"""Claims about ``einmal topic``."""

from __future__ import annotations

import json

import pytest

from einmal.client import Producer
from tests.cli.running import Cli

pytestmark = pytest.mark.system


def test_topics_are_made_listed_described_and_deleted(cli: Cli) -> None:
    cli("topic", "create", "made", "-p", "3", "-c", "cleanup.policy=compact")
    assert {"name": "made", "partitions": 3, "replicas": 1} in cli("topic", "list", "--format", "json").document
    head, *rows = cli("topic", "list").lines
    assert head.split() == ["NAME", "PARTITIONS", "REPLICAS"]
    assert ["made", "3", "1"] in [row.split() for row in rows]
    described = cli("topic", "describe", "made", "--format", "json").document
    assert described["configs"] == [{"key": "cleanup.policy", "value": "compact"}]
    assert [each["partition"] for each in described["partitions"]] == [0, 1, 2]
    assert {each["high_watermark"] for each in described["partitions"]} == {0}
    cli("topic", "delete", "made")
    assert "made" not in "\n".join(cli("topic", "list").lines)


def test_partitions_are_described_in_their_order_each_with_its_own_offsets(cli: Cli, cluster: str) -> None:
    # More than ten: 10 is neither before 2 nor beside it.
    counts = [(index * 5) % 12 for index in range(12)]
    cli("topic", "create", "in-order", "-p", str(len(counts)))
    with Producer(bootstrap_servers=cluster) as producer:
        for partition, count in enumerate(counts):
            for _ in range(count):
                producer.send("in-order", "record", partition=partition)
    described = cli("topic", "describe", "in-order", "--format", "json").document["partitions"]
    assert [(each["partition"], each["high_watermark"]) for each in described] == list(enumerate(counts))
    assert [each["last_stable_offset"] for each in described] == counts
    lines = [line.split() for line in cli("topic", "describe", "in-order").lines]
    (head,) = (number for number, line in enumerate(lines) if line[:1] == ["PARTITION"])
    assert [(int(row[0]), int(row[-1])) for row in lines[head + 1 :] if row] == list(enumerate(counts))


def test_a_failure_is_an_error_and_a_hint_without_a_traceback(cli: Cli) -> None:
    cli("topic", "create", "twice")
    failed = cli("topic", "create", "twice", status=1)
    assert failed.lines[1:] == ["twice  failed"]
    error, hint = failed.errors
    assert error.startswith("error: TOPIC_ALREADY_EXISTS (36): a topic of this name exists")
    assert hint == "hint: use it, or choose another name"
    cli("topic", "create", "twice", "--if-not-exists")


def test_lines_become_records_and_come_back(cli: Cli) -> None:
    cli("topic", "create", "lines")
    written = cli("topic", "produce", "lines", "-K", ":", "-H", "h=x", stdin="a:1\nb:2\nno delimiter\n")
    assert [line.split()[:4] for line in written.lines] == [
        ["partition", "0", "offset", str(offset)] for offset in range(3)
    ]
    assert cli("topic", "consume", "lines", "-o", "start:end").lines == ["1", "2", "no delimiter"]
    assert cli("topic", "consume", "lines", "-o", "1:2", "-f", r"%t %p %o %k=%v %h\n").lines == ["lines 0 1 b=2 h=x"]
    first = json.loads(cli("topic", "consume", "lines", "-n", "1", "--format", "json").lines[0])
    timestamp = first.pop("timestamp")
    assert first == {
        "topic": "lines",
        "partition": 0,
        "offset": 0,
        "key": "a",
        "value": "1",
        "headers": [{"key": "h", "value": "x"}],
    }
    assert cli("topic", "consume", "lines", "-o", f"@{timestamp}:end").lines == ["1", "2", "no delimiter"]


def test_binary_records_are_shown_as_such(cli: Cli) -> None:
    cli("topic", "create", "binary")
    cli("topic", "produce", "binary", stdin=b"\xff\xfe\n")
    (record,) = map(json.loads, cli("topic", "consume", "binary", "-o", "start:end", "--format", "json").lines)
    assert record["value"] == {"hex": "fffe"}


def test_only_committed_records_are_shown_by_default(cli: Cli, cluster: str) -> None:
    cli("topic", "create", "open")
    cli("topic", "produce", "open", "--transactional-id", "one", stdin="committed\n")
    with Producer(bootstrap_servers=cluster, transactional_id="two") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("open", "open").result()
        assert cli("topic", "consume", "open", "-o", "start:end").lines == ["committed"]
        everything = cli("topic", "consume", "open", "-o", "start:end", "--read-uncommitted").lines
        assert everything == ["committed", "open"]
        producer.abort_transaction()


def test_a_group_s_position_is_behind_what_was_printed_and_no_further(cli: Cli) -> None:
    cli("topic", "create", "grouped")
    cli("topic", "produce", "grouped", stdin="0\n1\n2\n3\n")
    assert cli("topic", "consume", "grouped", "-g", "readers", "-n", "2").lines == ["0", "1"]
    assert cli("topic", "consume", "grouped", "-g", "readers", "-n", "2").lines == ["2", "3"]


def test_of_several_topics_each_is_reported_and_the_rest_is_done(cli: Cli) -> None:
    cli("topic", "create", "several-b")
    made = cli("topic", "create", "several-a", "several-b", "no good", "several-c", "--format", "json", status=1)
    assert made.document == [
        {"topic": "several-a", "status": "created", "error": None},
        {"topic": "several-b", "status": "failed", "error": "TOPIC_ALREADY_EXISTS"},
        {"topic": "no good", "status": "failed", "error": "INVALID_TOPIC_EXCEPTION"},
        {"topic": "several-c", "status": "created", "error": None},
    ]
    assert [line for line in made.errors if line.startswith("error:")] == [
        line for line in made.errors if "'several-b'" in line or "'no good'" in line
    ]
    gone = cli("topic", "delete", "several-a", "several-x", "several-c", status=1)
    assert [line.split() for line in gone.lines[1:]] == [
        ["several-a", "deleted"],
        ["several-x", "failed"],
        ["several-c", "deleted"],
    ]
    assert "several-a" not in "\n".join(cli("topic", "list").lines)


def test_of_several_topics_those_after_a_lost_cluster_are_not_tried() -> None:
    tried = Cli("127.0.0.1:1")("topic", "create", "a", "b", "--format", "json", status=1)
    assert [(each["topic"], each["status"], each["error"]) for each in tried.document] == [
        ("a", "failed", "NoBrokerReachable"),
        ("b", "not tried", None),
    ]
    assert any("einmal start" in line for line in tried.errors)


@pytest.mark.parametrize("offset", ["soon", "-3", "1:2:3"])
def test_a_wrong_offset_is_wrong_usage(cli: Cli, offset: str) -> None:
    assert "is not start, end, an offset or @ms" in " ".join(
        cli("topic", "consume", "t", f"--offset={offset}", status=2).errors
    )


def test_what_was_done_is_json_too(cli: Cli) -> None:
    assert cli("topic", "create", "told", "--format", "json").document == [
        {"topic": "told", "status": "created", "error": None}
    ]
    again = cli("topic", "create", "told", "told-too", "--if-not-exists", "--format", "json").document
    assert [each["status"] for each in again] == ["exists", "created"]
    deleted = cli("topic", "delete", "told", "told-too", "--format", "json").document
    assert [each["status"] for each in deleted] == ["deleted", "deleted"]


def test_a_missing_partition_is_reported(cli: Cli) -> None:
    cli("topic", "create", "narrow", "-p", "2")
    failed = cli("topic", "consume", "narrow", "-p", "7", "-o", "start:end", status=1)
    assert "topic 'narrow' has 2 partition(s), counted from 0" in failed.errors[0]
    failed = cli("topic", "produce", "narrow", "-p", "7", "-X", "max.block.ms=2000", stdin="x\n", status=1)
    assert failed.errors[0].startswith("error: UNKNOWN_TOPIC_OR_PARTITION (3)")


@pytest.mark.parametrize("options", [("-o", "5"), ("-o", "start:end"), ("-p", "0")])
def test_a_group_takes_no_position_but_its_own(cli: Cli, options: tuple[str, str]) -> None:
    assert cli("topic", "consume", "any", "-g", "group", *options, status=2).lines == []


def test_what_should_be_key_and_value_is_wrong_usage_without_the_sign(cli: Cli) -> None:
    cli("topic", "create", "unsigned", "-c", "cleanup.policy", status=2)
    cli("topic", "produce", "unsigned", "-H", "header", stdin="x\n", status=2)
