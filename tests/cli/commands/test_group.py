"""Claims about ``einmal group``. Lag is tried on Apache Kafka, too."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import jsonschema_rs
import pytest

from einmal.client import Consumer, Producer, TopicPartition
from einmal.inspection.document import schema
from tests.cli.running import Cli
from tests.suite.shared import shared, unique

pytestmark = pytest.mark.system


def test_a_group_shows_its_lag_and_what_an_open_transaction_holds_back(cli: Cli, cluster: str) -> None:
    cli("topic", "create", "lagging")
    cli("topic", "produce", "lagging", stdin="0\n1\n2\n")
    cli("topic", "consume", "lagging", "-g", "behind", "-n", "1")
    with Producer(bootstrap_servers=cluster, transactional_id="holder") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("lagging", "open").result()
        described = cli("group", "describe", "behind", "--format", "json").document
        producer.abort_transaction()
    (summary,), (partition,) = described["summary"], described["partitions"]
    assert (summary["group"], summary["state"], summary["members"]) == ("behind", "Empty", 0)
    assert (partition["current_offset"], partition["lag"], partition["held_back"]) == (1, 2, 1)


def test_members_are_shown_with_their_partitions(cli: Cli, cluster: str) -> None:
    cli("topic", "create", "owned")
    with Consumer(bootstrap_servers=cluster, group_id="owners", client_id="somebody") as consumer:
        consumer.subscribe(["owned"])
        while not consumer.assignment():
            consumer.poll(100)
        (partition,) = cli("group", "describe", "owners", "--format", "json").document["partitions"]
        assert (partition["topic"], partition["client_id"]) == ("owned", "somebody")
        assert cli("group", "delete", "owners", status=1).errors[0].startswith("error: NON_EMPTY_GROUP (68)")
    assert "owners" in [each["group"] for each in cli("group", "list", "--format", "json").document]
    cli("group", "delete", "owners")
    assert "owners" not in [each["group"] for each in cli("group", "list", "--format", "json").document]


def test_a_missing_group_is_reported(cli: Cli) -> None:
    assert cli("group", "describe", "nobody", status=1).errors[0].startswith("error: GROUP_ID_NOT_FOUND (69)")


def test_a_deleted_topic_and_an_undecided_offset_hide_nothing_else_of_a_group(cli: Cli, cluster: str) -> None:
    for topic in ("kept", "gone"):
        cli("topic", "create", topic)
        cli("topic", "produce", topic, stdin="0\n1\n")
    kept, gone = TopicPartition("kept", 0), TopicPartition("gone", 0)
    settings: dict[str, Any] = {"enable_auto_commit": False, "allow_auto_create_topics": False}
    with (
        Consumer(bootstrap_servers=cluster, group_id="wide", **settings) as consumer,
        Producer(bootstrap_servers=cluster, transactional_id="undecided") as producer,
    ):
        consumer.subscribe(["kept", "gone"])
        while len(consumer.assignment()) < 2:
            consumer.poll(100)
        consumer.commit({kept: 1, gone: 1})
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({kept: 2}, consumer.group_metadata())
        cli("topic", "delete", "gone", "--yes")
        done = cli("group", "describe", "wide", "--format", "json")
        producer.abort_transaction()
    rows = {each["topic"]: each for each in done.document["partitions"]}
    assert (rows["kept"]["current_offset"], rows["kept"]["log_end_offset"], rows["kept"]["lag"]) == (1, 2, 1)
    assert (rows["gone"]["log_end_offset"], rows["gone"]["lag"]) == (None, None)
    assert [each for each in done.errors if each.startswith("warning: gone-0 has no offsets now")]


@pytest.fixture(params=["einmal-commands", pytest.param("apache", marks=pytest.mark.interop)])
def both(request: pytest.FixtureRequest) -> Cli:
    return Cli(shared(request.param).bootstrap)


def lag(cli: Cli, group: str) -> dict[str, Any]:
    found: dict[str, Any] = cli("group", "lag", group, "--format", "json").document
    jsonschema_rs.validate(schema("GroupLag"), found)
    return found


def test_lag_counts_records_that_readers_will_get_and_reaches_0(both: Cli) -> None:
    topic, group = unique("lag"), unique("lag-group")
    both("topic", "create", topic, "-p", "1")
    both("topic", "produce", topic, "--transactional-id", topic, stdin="0\n1\n")
    both("topic", "consume", topic, "-g", group, "-n", "1")
    found = lag(both, group)
    (partition,) = found["partitions"]
    assert (found["unread"], partition["markers"], partition["aborted"], partition["behind"]) == (1, 1, 0, 0)
    with Consumer(bootstrap_servers=both.bootstrap, group_id=group) as consumer:
        # The position that any client commits: after its last record, before the marker.
        consumer.assign([TopicPartition(topic, 0)])
        consumer.commit({TopicPartition(topic, 0): 2})
    found = lag(both, group)
    assert (found["unread"], found["is_upper_bound"]) == (0, False)
    (described,) = both("group", "describe", group, "--format", "json").document["partitions"]
    assert (described["current_offset"], described["log_end_offset"]) == (2, 3)


def test_lag_counts_aborted_records_and_those_behind_an_open_transaction_apart(both: Cli) -> None:
    topic, group = unique("lag"), unique("lag-group")
    both("topic", "create", topic, "-p", "1")
    both("topic", "produce", topic, stdin="0\n")
    both("topic", "consume", topic, "-g", group, "-n", "1")
    with Producer(bootstrap_servers=both.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for _ in range(3):
            producer.send(topic, "aborted").result()
        producer.abort_transaction()
        both("topic", "produce", topic, stdin="1\n2\n")
        producer.begin_transaction()
        producer.send(topic, "open").result()
        both("topic", "produce", topic, stdin="behind\n")
        (partition,) = lag(both, group)["partitions"]
        producer.abort_transaction()
    counts = {name: partition[name] for name in ("unread", "aborted", "markers", "behind")}
    assert counts == {"unread": 2, "aborted": 3, "markers": 1, "behind": 2}


def test_lag_of_a_missing_group_is_an_error(cli: Cli) -> None:
    assert cli("group", "lag", "nobody", status=1).errors[0].startswith("error: GROUP_ID_NOT_FOUND (69)")


def test_lag_is_not_known_where_a_member_reads_and_nothing_is_committed(both: Cli) -> None:
    topic, group = unique("lag"), unique("lag-group")
    both("topic", "create", topic, "-p", "2")
    both("topic", "produce", topic, "-p", "0", stdin="0\n1\n")
    with Consumer(bootstrap_servers=both.bootstrap, group_id=group, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])
        while len(consumer.assignment()) < 2:
            consumer.poll(100)
        found = lag(both, group)
        rows = {each["partition"]: each for each in found["partitions"]}
        assert (rows[0]["current_offset"], rows[0]["unread"], rows[0]["high_watermark"]) == (None, None, 2)
        assert "committed no offset" in rows[0]["unknown"]["unread"]
        # Whatever the member's position is, there is nothing to read.
        assert (rows[1]["current_offset"], rows[1]["unread"]) == (None, 0)
        assert (found["unread"], found["behind"]) == (None, None)
        consumer.commit({TopicPartition(topic, 0): 1})
        assert lag(both, group)["unread"] == 1


def test_a_position_after_the_end_is_no_lag_of_0(both: Cli) -> None:
    topic, group = unique("lag"), unique("lag-group")
    both("topic", "create", topic, "-p", "1")
    both("topic", "produce", topic, stdin="0\n")
    with Consumer(bootstrap_servers=both.bootstrap, group_id=group) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.commit({TopicPartition(topic, 0): 7})
    found = lag(both, group)
    assert found["unread"] is None
    assert "after the end, 1" in found["partitions"][0]["unknown"]["unread"]
    described = both("group", "describe", group, "--format", "json")
    assert described.document["partitions"][0]["lag"] is None
    assert [line for line in described.errors if "the position 7 is after the end, 1" in line]


@pytest.mark.interop
def test_a_group_of_the_consumer_protocol_is_described_as_any_other() -> None:
    apache = Cli(shared("apache").bootstrap)
    topic, group = unique("next-generation"), unique("next-generation-group")
    apache("topic", "create", topic, "-p", "2")
    apache("topic", "produce", topic, "-p", "0", stdin="0\n1\n")
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": apache.bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([topic])
        while len(consumer.assignment()) < 2:
            consumer.poll(0.1)
        consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 1)], asynchronous=False)
        described = apache("group", "describe", group, "--format", "json").document
        assert (described["summary"][0]["state"], described["summary"][0]["members"]) == ("Stable", 1)
        assert {each["partition"] for each in described["partitions"] if each["member_id"]} == {0, 1}
        assert lag(apache, group)["unread"] == 1
        refused = apache("group", "seek", group, "--to", "earliest", "--yes", status=1)
        assert refused.errors[0].startswith("error: NON_EMPTY_GROUP (68)")
    finally:
        consumer.close()


@pytest.mark.parametrize(
    ("words", "status", "expected"),
    [
        (["no-such-group", "--to", "latest"], 1, "GROUP_ID_NOT_FOUND"),
        (["{group}", "--to", "latest", "-p", "7"], 1, "UNKNOWN_TOPIC_OR_PARTITION"),
        (["{group}", "--to", "latest", "-p", "0", "-p", "7"], 1, "UNKNOWN_TOPIC_OR_PARTITION"),
        (["{group}", "--to", "latest", "--topic", "{topic}", "-p", "0", "-p", "7"], 1, "UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
def test_what_does_not_exist_is_not_moved_in_silence(cli: Cli, words: list[str], status: int, expected: str) -> None:
    topic, group = unique("moved"), unique("moved-group")
    cli("topic", "create", topic)
    cli("topic", "produce", topic, stdin="0\n")
    cli("topic", "consume", topic, "-g", group, "-n", "1")
    done = cli("group", "seek", *(word.format(topic=topic, group=group) for word in words), "--yes", status=status)
    assert expected in " ".join(done.errors)


def test_a_group_is_moved_only_on_request(both: Cli) -> None:
    topic, group = unique("moved"), unique("moved-group")
    both("topic", "create", topic, "-p", "1")
    both("topic", "produce", topic, stdin="0\n1\n2\n")
    both("topic", "consume", topic, "-g", group, "-n", "3")
    words = ("group", "seek", group, "--format", "json")
    (row,) = both(*words, "--to", "earliest").document
    assert (row["current_offset"], row["new_offset"], row["status"]) == (3, 0, "not moved")
    assert lag(both, group)["unread"] == 0
    for to, expected in (("1", 1), ("latest", 3), ("99", 3), ("@0", 0), ("start", 0)):
        (row,) = both(*words, "--to", to, "--yes").document
        assert (row["new_offset"], row["status"]) == (expected, "moved")
        assert lag(both, group)["unread"] == 3 - expected
    assert both("group", "seek", group, "--to", "end").errors == [
        "note: nothing is changed; repeat the command with --yes"
    ]


def test_an_undecided_offset_keeps_no_other_position_of_a_group_from_being_moved(cli: Cli, cluster: str) -> None:
    topic, group = unique("undecided"), unique("undecided-group")
    cli("topic", "create", topic, "-p", "2")
    kept, open_ = TopicPartition(topic, 0), TopicPartition(topic, 1)
    for index in (0, 1):
        cli("topic", "produce", topic, "-p", str(index), stdin="0\n1\n")
    with (
        Consumer(bootstrap_servers=cluster, group_id=group) as consumer,
        Producer(bootstrap_servers=cluster, transactional_id=topic) as producer,
    ):
        consumer.assign([kept, open_])
        consumer.commit({kept: 1, open_: 1})
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({open_: 2}, consumer.group_metadata())
        words = ("group", "seek", group, "--to", "earliest", "--yes", "-X", "default.api.timeout.ms=1000")
        done = cli(*words, "--format", "json", status=1)
        producer.commit_transaction()
    found = {each["partition"]: (each["status"], each["error"]) for each in done.document}
    assert found == {0: ("moved", None), 1: ("failed", "UNSTABLE_OFFSET_COMMIT")}


def test_a_new_group_can_be_placed_and_one_with_members_is_not_moved(cli: Cli, cluster: str) -> None:
    topic, group = unique("placed"), unique("placed-group")
    cli("topic", "create", topic, "-p", "2")
    words = ("group", "seek", group, "--topic", topic, "-p", "1", "--to", "end", "--yes")
    (row,) = cli(*words, "--format", "json").document
    assert (row["partition"], row["current_offset"], row["new_offset"]) == (1, None, 0)
    with Consumer(bootstrap_servers=cluster, group_id=group) as consumer:
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.poll(100)
        assert cli(*words, status=1).errors[0].startswith("error: NON_EMPTY_GROUP (68)")
