import pytest

from einmal.metadata.reassignment import Reassignment
from einmal.metadata.records import NO_LEADER
from einmal.types import BrokerId, ErrorCode, TopicPartition
from tests.metadata.cluster import Cluster, ids

T0 = TopicPartition("t", 0)


def moving(*replicas: int, brokers: int = 5) -> Cluster:
    cluster = Cluster(brokers)
    cluster.create("t", replicas)
    return cluster


def reassign(cluster: Cluster, *replicas: int, may_change_factor: bool = True) -> ErrorCode:
    return _asked(cluster, Reassignment(T0, ids(*replicas)), may_change_factor)


def take_back(cluster: Cluster) -> ErrorCode:
    return _asked(cluster, Reassignment(T0, None), True)


def _asked(cluster: Cluster, item: Reassignment, may_change_factor: bool) -> ErrorCode:
    controller = cluster.controller
    decision = controller.reassign_partitions([item], allow_replication_factor_change=may_change_factor)
    return cluster.done(decision)[0].error


def test_new_replicas_are_added_and_old_ones_go_once_the_new_are_in_sync() -> None:
    cluster = moving(1, 2, 3)
    assert reassign(cluster, 4, 5, 2) is ErrorCode.none
    partition = cluster.partition()
    assert (partition.replicas, partition.adding, partition.removing) == (ids(4, 5, 2, 1, 3), ids(4, 5), ids(1, 3))
    assert (partition.leader, partition.isr, partition.leader_epoch) == (BrokerId(1), ids(1, 2, 3), 0)
    assert [(topic.name, number) for topic, number, _ in cluster.controller.reassignments()] == [T0]
    cluster.ask_isr(1, 2, 3, 4)
    assert cluster.partition().is_reassigning
    result = cluster.ask_isr(1, 2, 3, 4, 5)
    assert result.error is ErrorCode.new_leader_elected, "its leader is one of those that go"
    partition = cluster.partition()
    assert (partition.replicas, partition.isr, partition.adding, partition.removing) == (
        ids(4, 5, 2),
        ids(2, 4, 5),
        (),
        (),
    )
    assert (partition.leader, partition.leader_epoch) == (BrokerId(4), 1)
    assert cluster.controller.reassignments() == []


def test_a_leader_that_stays_keeps_its_epoch() -> None:
    cluster = moving(1, 2)
    reassign(cluster, 1, 3)
    assert cluster.ask_isr(1, 2, 3).error is ErrorCode.none
    partition = cluster.partition()
    assert (partition.replicas, partition.isr, partition.leader, partition.leader_epoch) == (
        ids(1, 3),
        ids(1, 3),
        BrokerId(1),
        0,
    )


def test_another_order_and_fewer_replicas_hold_at_once() -> None:
    cluster = moving(1, 2, 3)
    reassign(cluster, 3, 1, 2)
    assert (cluster.partition().replicas, cluster.partition().is_reassigning) == (ids(3, 1, 2), False)
    reassign(cluster, 2)
    assert (cluster.partition().replicas, cluster.partition().isr, cluster.partition().leader) == (
        ids(2),
        ids(2),
        BrokerId(2),
    )


def test_a_reassignment_that_is_taken_back_leaves_the_old_replicas() -> None:
    cluster = moving(1, 2)
    assert take_back(cluster) is ErrorCode.no_reassignment_in_progress
    reassign(cluster, 3, 4)
    cluster.ask_isr(1, 2, 3)
    assert take_back(cluster) is ErrorCode.none
    partition = cluster.partition()
    assert (partition.replicas, partition.isr, partition.is_reassigning) == (ids(1, 2), ids(1, 2), False)


def test_a_reassignment_can_be_changed_on_its_way_and_is_still_taken_back_whole() -> None:
    cluster = moving(1, 2)
    reassign(cluster, 3, 4)
    cluster.ask_isr(1, 2, 3)
    assert reassign(cluster, 4, 5) is ErrorCode.none
    partition = cluster.partition()
    assert (partition.replicas, partition.adding, partition.removing) == (ids(4, 5, 1, 2), ids(4, 5), ids(1, 2))
    assert partition.isr == ids(1, 2), "a replica that is not wanted any more goes at once"
    take_back(cluster)
    assert (cluster.partition().replicas, cluster.partition().isr) == (ids(1, 2), ids(1, 2))


def test_a_cancelled_reassignment_that_leaves_no_complete_replica_is_refused() -> None:
    cluster = moving(1, 2)
    reassign(cluster, 3, 4)
    cluster.ask_isr(1, 3)
    cluster.lose(1)
    assert (cluster.partition().isr, cluster.partition().elr) == (ids(3), ids(1))
    cluster.join(1)
    assert (cluster.partition().isr, cluster.partition().elr) == (ids(3), ())
    assert take_back(cluster) is ErrorCode.invalid_replica_assignment
    cluster.lose(3)
    assert take_back(cluster) is ErrorCode.invalid_replica_assignment, "the last that led would go"
    assert cluster.partition().leader == NO_LEADER


@pytest.mark.parametrize(
    ("replicas", "error"),
    [
        ((), ErrorCode.invalid_replica_assignment),
        ((1, 1), ErrorCode.invalid_replica_assignment),
        ((1, 9), ErrorCode.invalid_replica_assignment),
        ((1, 2), ErrorCode.invalid_replication_factor),
        ((3, 2, 1), ErrorCode.none),
    ],
)
def test_replicas_that_cannot_be_are_refused(replicas: tuple[int, ...], error: ErrorCode) -> None:
    cluster = moving(1, 2, 3)
    before = cluster.partition()
    assert reassign(cluster, *replicas, may_change_factor=False) is error
    assert (cluster.partition() == before) == (error is not ErrorCode.none)


def test_an_unknown_partition_gets_an_error_and_does_not_stop_the_others() -> None:
    cluster = moving(1, 2)
    missing = Reassignment(TopicPartition("t", 1), None)
    results = cluster.done(cluster.controller.reassign_partitions([missing, Reassignment(T0, ids(2, 1))]))
    assert [result.error for result in results] == [ErrorCode.unknown_topic_or_partition, ErrorCode.none]
    assert cluster.partition().replicas == ids(2, 1)


def test_a_reassignment_under_way_survives_its_controller_and_its_leader() -> None:
    cluster = moving(1, 2)
    reassign(cluster, 3, 2)
    cluster.take_over()
    cluster.lose(1)
    assert cluster.partition().leader == BrokerId(2)
    cluster.ask_isr(2, 3)
    assert (cluster.partition().replicas, cluster.partition().is_reassigning) == (ids(3, 2), False)
