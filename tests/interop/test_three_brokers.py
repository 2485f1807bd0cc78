"""Other people's transactional clients on three brokers of ours, of which one is stopped or killed and comes back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest

from tests.interop.cluster import TRANSACTION, Cluster
from tests.interop.topics import at_last
from tests.interop.transactional_clients import AiokafkaWriter, ConfluentWriter, Refused, Writer
from tests.suite.shared import unique

pytestmark = pytest.mark.interop

CLIENTS: list[type[Writer]] = [ConfluentWriter, AiokafkaWriter]
"""Not kafka-python: 3.0.12 drops the transactional request that it was about to send when its coordinator refuses the
connection, and then waits for its answer until its caller gives up."""


@pytest.fixture(params=CLIENTS, ids=lambda client: client.__name__)
def client(request: pytest.FixtureRequest) -> type[Writer]:
    writer: type[Writer] = request.param
    return writer


@dataclass
class Turns:
    """Transactions of one writer over both partitions of a topic, and what became of them."""

    client: type[Writer]
    cluster: Cluster
    topic: str
    committed: list[int] = field(default_factory=list)
    uncertain: list[int] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)

    def open(self) -> Writer:
        return self.client(self.cluster.bootstrap, f"id-of-{self.topic}")

    def commit(self, writer: Writer) -> None:
        number = self._begin(writer)
        self.uncertain.append(number)
        writer.commit()
        self.uncertain.remove(number)
        self.committed.append(number)

    def abort(self, writer: Writer) -> None:
        self._begin(writer)
        writer.abort()

    def _begin(self, writer: Writer) -> int:
        number = next(self._numbers)
        writer.begin()
        for partition in range(2):
            writer.send(self.topic, partition, *(f"{number}/{each}" for each in range(3)))
        return number

    def check(self) -> None:
        """What was committed is there, once, whole and in order; besides it only records of unknown outcome."""

        def read() -> list[list[str]]:
            told = (self.client.read_committed(self.cluster.bootstrap, self.topic, each) for each in range(2))
            return [[each.value for each in partition] for partition in told]

        wanted = {f"{number}/{each}" for number in self.committed for each in range(3)}
        one, other = at_last(read, lambda found: found[0] == found[1] and wanted <= set(found[0]))
        assert one == other
        found = list(dict.fromkeys(int(value.partition("/")[0]) for value in one))
        assert one == [f"{number}/{each}" for number in found for each in range(3)]
        assert found == sorted(found)
        assert set(self.committed) <= set(found) <= {*self.committed, *self.uncertain}


@pytest.fixture
def turns(client: type[Writer], three_brokers: Cluster) -> Turns:
    topic = unique("three")
    three_brokers.create_topic(topic, 2)
    return Turns(client, three_brokers, topic)


def test_transactions_continue_without_an_error_while_a_broker_restarts(turns: Turns) -> None:
    cluster = turns.cluster
    with turns.open() as writer:
        parts: tuple[Callable[[], int], ...] = (
            lambda: cluster.leader(turns.topic),
            lambda: cluster.coordinator(TRANSACTION, f"id-of-{turns.topic}"),
        )
        for part in parts:
            victim = part()
            turns.commit(writer)
            turns.abort(writer)
            cluster.stop_node(victim)
            turns.commit(writer)
            turns.abort(writer)
            cluster.start_node(victim)
            cluster.wait_until_in_sync(turns.topic, range(2))
            turns.commit(writer)
    turns.check()
    assert len(turns.committed) == 6


@pytest.mark.parametrize("part", ["leader", "coordinator"])
def test_what_was_committed_outlives_a_killed_broker(turns: Turns, part: str) -> None:
    cluster = turns.cluster
    parts: dict[str, Callable[[], int]] = {
        "leader": lambda: cluster.leader(turns.topic),
        "coordinator": lambda: cluster.coordinator(TRANSACTION, f"id-of-{turns.topic}"),
    }
    with turns.open() as writer:
        turns.commit(writer)
        turns.abort(writer)
        victim = parts[part]()
        cluster.kill(victim)
        # A client may give up what was under way; its next life continues.
        with contextlib.suppress(Refused):
            turns.commit(writer)
    with turns.open() as writer:
        turns.commit(writer)
        cluster.start_node(victim)
        turns.commit(writer)
        turns.abort(writer)
        turns.commit(writer)
    turns.check()
    assert len(turns.committed) >= 4
