"""Claims about transactions as other people's clients live through them, on both brokers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from einmal.types import ErrorCode, IsolationLevel
from tests.interop import raw
from tests.interop.conftest import Node
from tests.interop.einmal_broker import EinmalBroker
from tests.interop.topics import Broker, at_last, create_topic
from tests.interop.transaction_driver import OVERDUE_MS
from tests.interop.transactional_clients import (
    AiokafkaWriter,
    ConfluentWriter,
    KafkaPythonWriter,
    Refused,
    Writer,
)
from tests.suite.shared import unique

pytestmark = pytest.mark.interop

CLIENTS: list[type[Writer]] = [ConfluentWriter, KafkaPythonWriter, AiokafkaWriter]


@pytest.fixture(params=CLIENTS, ids=lambda client: client.__name__)
def client(request: pytest.FixtureRequest) -> type[Writer]:
    writer: type[Writer] = request.param
    return writer


def address(node: Node) -> Broker:
    return Broker(node.host, node.port)


def new_topic(node: Node, partitions: int = 2) -> str:
    name = unique("transactions")
    create_topic(address(node), name, partitions)
    return name


def end_offset(node: Node, topic: str, partition: int, isolation: IsolationLevel) -> int:
    with address(node).connect() as connection:
        answer = connection.call(
            raw.LIST_OFFSETS,
            7,
            replica_id=-1,
            isolation_level=isolation,
            topics=[{"name": topic, "partitions": [{"partition_index": partition, "timestamp": -1}]}],
        )
    return int(answer.topics[0].partitions[0].offset)


def committed_offset(node: Node, group: str, topic: str, partition: int) -> int:
    """-1: none. Waits until no transaction has offsets pending there."""

    def ask() -> tuple[ErrorCode, int]:
        with address(node).connect() as connection:
            answer = connection.call(
                raw.OFFSET_FETCH,
                7,
                group_id=group,
                topics=[{"name": topic, "partition_indexes": [partition]}],
                require_stable=True,
            )
        found = answer.topics[0].partitions[0]
        return found.error_code, found.committed_offset

    error, offset = at_last(
        ask, lambda found: found[0] not in (ErrorCode.unstable_offset_commit, ErrorCode.coordinator_load_in_progress)
    )
    assert error == ErrorCode.none
    return offset


def settled(node: Node, topic: str, partition: int) -> None:
    """Wait until no transaction is open in the partition."""
    at_last(
        lambda: (
            end_offset(node, topic, partition, IsolationLevel.READ_COMMITTED),
            end_offset(node, topic, partition, IsolationLevel.READ_UNCOMMITTED),
        ),
        lambda ends: ends[0] == ends[1],
    )


def values(client: type[Writer], node: Node, topic: str, partition: int) -> list[str]:
    settled(node, topic, partition)
    return [each.value for each in client.read_committed(node.bootstrap, topic, partition)]


def test_what_is_committed_is_read_and_what_is_aborted_is_not(broker: Node, client: type[Writer]) -> None:
    topic = new_topic(broker)
    with client(broker.bootstrap, f"id-of-{topic}") as writer:
        for turn in range(6):
            writer.begin()
            writer.send(topic, 0, f"{turn}/a", f"{turn}/b")
            writer.send(topic, 1, f"{turn}/c")
            writer.abort() if turn % 3 == 1 else writer.commit()
    kept = (0, 2, 3, 5)
    assert values(client, broker, topic, 0) == [f"{turn}/{part}" for turn in kept for part in "ab"]
    assert values(client, broker, topic, 1) == [f"{turn}/c" for turn in kept]


PAIRS: Final = [
    pytest.param(
        writer,
        reader,
        marks=[] if ConfluentWriter in (writer, reader) else pytest.mark.long,
        id=f"{writer.__name__}-read-by-{reader.__name__}",
    )
    for writer in CLIENTS
    for reader in CLIENTS
]


@pytest.mark.parametrize(("client", "reader"), PAIRS)
def test_interleaved_transactions_are_separated(broker: Node, client: type[Writer], reader: type[Writer]) -> None:
    topic = new_topic(broker)
    with client(broker.bootstrap, f"one-of-{topic}") as one, client(broker.bootstrap, f"other-of-{topic}") as other:
        one.begin()
        other.begin()
        one.send(topic, 0, "one/0")
        other.send(topic, 0, "other/0")
        one.send(topic, 0, "one/1")
        other.abort()
        other.begin()
        other.send(topic, 0, "other/1")
        one.commit()
        other.commit()
    assert values(reader, broker, topic, 0) == ["one/0", "one/1", "other/1"]


def test_a_new_instance_fences_the_one_before(broker: Node, client: type[Writer]) -> None:
    topic = new_topic(broker)
    with client(broker.bootstrap, f"id-of-{topic}") as zombie:
        zombie.begin()
        zombie.send(topic, 0, "unfinished")
        with client(broker.bootstrap, f"id-of-{topic}") as successor:
            successor.begin()
            successor.send(topic, 0, "finished")
            successor.commit()
            with pytest.raises(Refused):
                zombie.send(topic, 0, "late")
                zombie.commit()
    assert values(client, broker, topic, 0) == ["finished"]


def test_offsets_are_committed_with_the_transaction_or_not_at_all(broker: Node, client: type[Writer]) -> None:
    source, target = new_topic(broker), new_topic(broker)
    group = f"group-of-{source}"
    with client(broker.bootstrap, f"id-of-{target}") as writer:
        writer.begin()
        writer.send(target, 0, "first")
        writer.send_offset(group, source, 0, 5)
        writer.commit()
        assert committed_offset(broker, group, source, 0) == 5
        writer.begin()
        writer.send(target, 0, "second")
        writer.send_offset(group, source, 0, 9)
        writer.abort()
        assert committed_offset(broker, group, source, 0) == 5
        writer.begin()
        writer.send_offset(group, source, 0, 7)
        writer.commit()
        assert committed_offset(broker, group, source, 0) == 7
    assert values(client, broker, target, 0) == ["first"]


@pytest.mark.representatives(1)
def test_empty_transactions_are_no_trouble(broker: Node, client: type[Writer]) -> None:
    topic = new_topic(broker)
    with client(broker.bootstrap, f"id-of-{topic}") as writer:
        for end in (writer.commit, writer.abort, writer.abort, writer.commit):
            writer.begin()
            end()
        writer.begin()
        writer.send(topic, 0, "at last")
        writer.commit()
    assert values(client, broker, topic, 0) == ["at last"]


@pytest.mark.representatives(1)
def test_a_transaction_that_takes_too_long_is_aborted_and_cannot_be_committed(
    broker: Node, client: type[Writer]
) -> None:
    topic = new_topic(broker)
    with client(broker.bootstrap, f"id-of-{topic}", timeout_ms=OVERDUE_MS) as writer:
        writer.begin()
        writer.send(topic, 0, "slow")
        since = time.monotonic()
        settled(broker, topic, 0)
        # Its own time, and not the default of a minute.
        assert time.monotonic() - since < OVERDUE_MS / 1_000 + 43
        with pytest.raises(Refused):
            writer.commit()
    assert values(client, broker, topic, 0) == []


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[EinmalBroker]:
    """One to be killed."""
    broker = EinmalBroker(tmp_path)
    broker.start()
    yield broker
    broker.stop()


def test_an_open_transaction_continues_across_a_kill_and_a_restart(
    own_broker: EinmalBroker, client_at_kill: type[Writer]
) -> None:
    topic = new_topic(own_broker)
    with client_at_kill(own_broker.bootstrap, f"id-of-{topic}") as writer:
        writer.begin()
        writer.send(topic, 0, "committed before")
        writer.commit()
        writer.begin()
        writer.send(topic, 0, "aborted before")
        writer.abort()
        writer.begin()
        writer.send(topic, 0, "open at the kill")
        own_broker.kill()
        own_broker.start()
        assert [each.value for each in client_at_kill.read_committed(own_broker.bootstrap, topic, 0)] == [
            "committed before"
        ]
        writer.send(topic, 0, "sent after")
        writer.commit()
    assert values(client_at_kill, own_broker, topic, 0) == [
        "committed before",
        "open at the kill",
        "sent after",
    ]


def test_what_was_answered_before_a_kill_holds_after_it(own_broker: EinmalBroker, client_at_kill: type[Writer]) -> None:
    topic = new_topic(own_broker)
    group = f"group-of-{topic}"
    expected: list[str] = []
    for life in range(3):
        with client_at_kill(own_broker.bootstrap, f"id-of-{topic}") as writer:
            for turn in range(3):
                writer.begin()
                writer.send(topic, 0, f"{life}/{turn}")
                writer.send_offset(group, topic, 1, len(expected) + 1)
                if turn == 1:
                    writer.abort()
                else:
                    writer.commit()
                    expected.append(f"{life}/{turn}")
            # At once: the markers of the last one may not be written yet.
            own_broker.kill()
            own_broker.start()
            assert values(client_at_kill, own_broker, topic, 0) == expected
            assert committed_offset(own_broker, group, topic, 1) == len(expected)


def test_a_hung_transaction_is_cleared_soon_after_a_restart(own_broker: EinmalBroker) -> None:
    topic = new_topic(own_broker)
    with ConfluentWriter(own_broker.bootstrap, f"id-of-{topic}", timeout_ms=OVERDUE_MS) as writer:
        writer.begin()
        writer.send(topic, 0, "hung")
        own_broker.kill()
        own_broker.start()
        since = time.monotonic()
        settled(own_broker, topic, 0)
        # Its own time, and not the default of a minute.
        assert time.monotonic() - since < OVERDUE_MS / 1_000 + 43
    assert values(ConfluentWriter, own_broker, topic, 0) == []


Ending = Callable[[Writer], None]


@pytest.mark.parametrize("end", [Writer.commit, Writer.abort], ids=["commit", "abort"])
def test_a_wide_transaction_ends_as_one(broker: Node, end: Ending) -> None:
    topic = new_topic(broker, partitions=40)
    with ConfluentWriter(broker.bootstrap, f"id-of-{topic}") as writer:
        writer.begin()
        for partition in range(40):
            writer.send(topic, partition, "x")
        end(writer)
    for partition in range(40):
        settled(broker, topic, partition)
    seen = [len(ConfluentWriter.read_committed(broker.bootstrap, topic, partition)) for partition in (0, 17, 39)]
    assert seen == ([1, 1, 1] if end is Writer.commit else [0, 0, 0])
