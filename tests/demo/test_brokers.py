"""Claims about the demo's brokers: who is killed has the part, somebody else takes it over, and all come back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest

from einmal.client import Producer
from einmal.client.cores.metadata_cache import PartitionMetadata, TopicMetadata
from einmal.demo.brokers import Brokers, coordinator, is_whole

Told = list[tuple[str, int]]


@contextmanager
def running(folder: Path) -> Iterator[tuple[Brokers, Told]]:
    told: Told = []
    brokers = Brokers(folder / "cluster", lambda kind, _text, broker: told.append((kind, broker)))
    try:
        brokers.start()
        brokers.create_topics(("t",), 4)
        yield brokers, told
    finally:
        brokers.end()


def topic(name: str, *in_sync: tuple[int, ...]) -> TopicMetadata:
    """Of these partitions, each with three replicas."""
    partitions = {at: PartitionMetadata(at, 1, 1, (1, 2, 3), isr) for at, isr in enumerate(in_sync)}
    return TopicMetadata(name, UUID(int=1), partitions)


def test_a_cluster_is_whole_only_if_all_topics_that_must_be_there_are() -> None:
    whole = topic("t", (3, 2, 1), (1, 2, 3))
    assert is_whole({"t": 2}, {"t": whole, "__x": topic("__x", (1, 2, 3))})
    assert not is_whole({"t": 2}, {})
    assert not is_whole({}, {})
    assert not is_whole({"t": 2}, {"__x": whole})
    assert not is_whole({"t": 2}, {"t": topic("t")})
    assert not is_whole({"t": 2}, {"t": topic("t", (1, 2, 3))})
    assert not is_whole({"t": 2}, {"t": topic("t", (1, 2, 3), (1, 2))})
    assert not is_whole({"t": 2}, {"t": whole, "__x": topic("__x", (1, 2))})


@pytest.mark.system
def test_the_leader_is_killed_and_what_is_sent_meanwhile_arrives(tmp_path: Path) -> None:
    with running(tmp_path) as (brokers, told):
        before = brokers.leaders("t")
        with Producer(bootstrap_servers=brokers.bootstrap_servers) as producer:
            futures = [producer.send("t", b"%d" % number) for number in range(100)]
            brokers.kill_leader("t", "now")
            assert all(future.result(60).offset >= 0 for future in futures)
        (kill, victim), (failover, heir), (back, again) = told
        assert (kill, failover, back) == ("kill", "failover", "back")
        assert before[victim] == max(before.values())
        assert victim == again != heir
        assert victim not in brokers.leaders("t")


@pytest.mark.system
def test_the_coordinator_is_killed_and_the_transaction_that_it_had_open_commits(tmp_path: Path) -> None:
    with running(tmp_path) as (brokers, told), brokers.admin() as admin:
        with Producer(bootstrap_servers=brokers.bootstrap_servers, transactional_id="name") as producer:
            producer.init_transactions()
            victim = coordinator(admin, "name")
            producer.begin_transaction()
            producer.send("t", b"x").result(60)
            brokers.kill_coordinator("name", "now", producer.commit_transaction)
        assert told[0] == ("kill", victim)
        assert told[1] == ("failover", coordinator(admin, "name"))
        assert told[2] == ("back", victim)
