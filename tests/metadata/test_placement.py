from collections import Counter
from uuid import UUID

import pytest

from einmal.metadata.placement import Placement
from einmal.metadata.topics import NewPartitions, NewTopic
from einmal.types import BrokerId, ErrorCode
from tests.metadata.cluster import Cluster, ids


def create(cluster: Cluster, name: str, **fields: object) -> ErrorCode:

    topic = NewTopic(name=name, topic_id=UUID(int=7_000 + cluster.end), **fields)  # type: ignore[arg-type]
    return cluster.done(cluster.controller.create_topics([topic]))[0].error


@pytest.mark.parametrize("factor", [1, 2, 3, 5])
def test_leads_and_replicas_are_spread_evenly(factor: int) -> None:
    placed = Placement(Cluster(5).image).assign((), 25, factor)
    assert set(Counter(replicas[0] for replicas in placed).values()) == {5}
    held = Counter(broker for replicas in placed for broker in replicas).values()
    assert max(held) - min(held) <= 2
    assert all(len(dict.fromkeys(replicas)) == factor for replicas in placed)


def test_small_topics_are_spread_too() -> None:
    cluster = Cluster(3)
    for number in range(9):
        create(cluster, f"t{number}", partitions=1, replication_factor=3)
    leads = Counter(topic.partitions[0].leader for topic in cluster.image.topics.values())
    assert set(leads.values()) == {3}


def test_successors_of_leaders_are_spread_too() -> None:
    placed = Placement(Cluster(3).image).assign((), 3, 3)
    assert placed == [ids(1, 2, 3), ids(2, 3, 1), ids(3, 1, 2)]


def test_replicas_of_a_partition_stand_in_different_racks_while_there_are_any() -> None:
    cluster = Cluster()
    for number in range(1, 7):
        cluster.join(number, rack="abc"[number % 3])
    racks = {number: "abc"[number % 3] for number in range(1, 7)}
    for replicas in Placement(cluster.image).assign((), 12, 3):
        assert len({racks[broker] for broker in replicas}) == 3
    assert len(Placement(cluster.image).assign((), 1, 5)[0]) == 5


def test_a_fenced_broker_gets_a_replica_only_where_there_is_no_other_and_is_not_in_sync() -> None:
    cluster = Cluster(3)
    cluster.lose(2)
    assert create(cluster, "two", partitions=6, replication_factor=2) is ErrorCode.none
    assert all(BrokerId(2) not in partition.replicas for partition in cluster.image.topics["two"].partitions)
    assert create(cluster, "three", partitions=6, replication_factor=3) is ErrorCode.none
    for partition in cluster.image.topics["three"].partitions:
        assert partition.replicas[-1] == BrokerId(2)
        assert partition.isr == partition.replicas[:-1]
        assert partition.leader == partition.replicas[0]
    assert create(cluster, "four", replication_factor=4) is ErrorCode.invalid_replication_factor


def test_no_replica_is_assigned_if_no_broker_could_lead() -> None:
    cluster = Cluster(2)
    cluster.create("t", (1, 2))
    cluster.beat(1, wants_shutdown=True)
    assert Placement(cluster.image).usable == 1
    cluster.lose(2)
    assert create(cluster, "u", replication_factor=1) is ErrorCode.invalid_replication_factor
    assert create(cluster, "u", assignments=[(0, (1, 2))]) is ErrorCode.invalid_replica_assignment
    grown = cluster.controller.create_partitions([NewPartitions(name="t", count=2)])
    assert grown.response[0].error is ErrorCode.invalid_replication_factor


def test_a_topic_that_is_named_twice_gets_no_partitions() -> None:
    cluster = Cluster(1)
    cluster.create("t", (1,))
    twice = cluster.controller.create_partitions([NewPartitions(name="t", count=2), NewPartitions(name="t", count=3)])
    assert [result.error for result in twice.response] == [ErrorCode.invalid_request] * 2
    assert twice.records == ()
