from uuid import UUID

import pytest

from einmal.metadata.configs import APPEND, DELETE, SET, ConfigChange
from einmal.metadata.image import CONSUMER_OFFSETS
from einmal.metadata.plan import ControllerDefaults
from einmal.metadata.topics import PARTITIONS_PER_REQUEST_MAX, NewPartitions, NewTopic
from einmal.types import ErrorCode
from tests.metadata.cluster import Cluster


def with_brokers(count: int, *, partitions: int = 1, replication_factor: int = 1) -> Cluster:
    return Cluster(count, ControllerDefaults(partitions=partitions, replication_factor=replication_factor))


def new(name: str, **fields: object) -> NewTopic:
    return NewTopic(name=name, topic_id=UUID(int=len(name) + 1), **fields)  # type: ignore[arg-type]


def error_of(cluster: Cluster, topic: NewTopic) -> ErrorCode:
    decision = cluster.controller.create_topics([topic])
    assert bool(decision.records) == (decision.response[0].error is ErrorCode.none)
    return decision.response[0].error


def test_a_topic_gets_the_defaults_where_it_names_no_counts() -> None:
    cluster = with_brokers(3, partitions=4, replication_factor=2)
    decision = cluster.controller.create_topics([new("t")])
    result = cluster.done(decision)[0]
    assert (result.partitions, result.replication_factor) == (4, 2)
    topic = cluster.image.topics["t"]
    assert [partition.leader for partition in topic.partitions] == [1, 2, 3, 1]
    assert all(partition.isr == partition.replicas for partition in topic.partitions)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "x" * 250, "a/b", "a\n"])
def test_a_name_that_is_no_folder_is_refused(name: str) -> None:
    assert error_of(with_brokers(1), new(name)) is ErrorCode.invalid_topic_exception


def test_names_that_differ_only_in_dots_and_underscores_collide() -> None:
    cluster = with_brokers(1)
    cluster.done(cluster.controller.create_topics([new("a.b")]))
    assert error_of(cluster, new("a_b")) is ErrorCode.invalid_topic_exception
    assert error_of(cluster, new("a.b")) is ErrorCode.topic_already_exists
    assert error_of(cluster, new("a-b")) is ErrorCode.none


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("__cluster_metadata", ErrorCode.invalid_request),
        ("__cluster.metadata", ErrorCode.invalid_topic_exception),
        ("__consumer.offsets", ErrorCode.invalid_topic_exception),
        ("..transaction_state", ErrorCode.invalid_topic_exception),
    ],
)
def test_the_names_of_internal_topics_are_reserved_before_they_exist(name: str, error: ErrorCode) -> None:
    assert error_of(with_brokers(1), new(name)) is error


@pytest.mark.parametrize("policy", [None, "delete", "compact,delete"])
def test_an_internal_topic_that_would_forget_by_age_is_not_created(policy: str | None) -> None:
    configs = {} if policy is None else {"cleanup.policy": policy}
    assert error_of(with_brokers(1), new(CONSUMER_OFFSETS, configs=configs)) is ErrorCode.invalid_config


def test_the_cleanup_policy_of_an_internal_topic_stays_compact() -> None:
    cluster = with_brokers(1)
    cluster.done(cluster.controller.create_topics([new(CONSUMER_OFFSETS, configs={"cleanup.policy": "compact"})]))

    def changed(operation: int, value: str | None, name: str = "cleanup.policy") -> ErrorCode:
        change = ConfigChange(name=name, operation=operation, value=value)
        return cluster.controller.alter_topic_configs([(CONSUMER_OFFSETS, [change])]).response[0].error

    assert changed(SET, "delete") is changed(APPEND, "delete") is changed(DELETE, None) is ErrorCode.invalid_config
    assert changed(SET, "compact") is changed(SET, "2000000", "segment.bytes") is ErrorCode.none
    replaced = cluster.controller.replace_topic_configs([(CONSUMER_OFFSETS, {"segment.bytes": "2000000"})])
    assert replaced.response[0].error is ErrorCode.invalid_config


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"partitions": 0}, ErrorCode.invalid_partitions),
        ({"partitions": -2}, ErrorCode.invalid_partitions),
        ({"partitions": PARTITIONS_PER_REQUEST_MAX + 1}, ErrorCode.invalid_partitions),
        ({"replication_factor": 0}, ErrorCode.invalid_replication_factor),
        ({"replication_factor": 3}, ErrorCode.invalid_replication_factor),
        ({"assignments": [(0, (1, 1))]}, ErrorCode.invalid_replica_assignment),
        ({"assignments": [(0, (1,)), (1, (2, 1))]}, ErrorCode.invalid_replica_assignment),
        ({"assignments": [(0, ())]}, ErrorCode.invalid_replica_assignment),
        ({"assignments": [(1, (1,))]}, ErrorCode.invalid_replica_assignment),
        ({"assignments": [(0, (9,))]}, ErrorCode.invalid_replica_assignment),
        ({"assignments": [(0, (1,)), (0, (2,))]}, ErrorCode.invalid_replica_assignment),
        ({"assignments": [(0, (1,)), (0, (1,))]}, ErrorCode.invalid_replica_assignment),
        ({"assignments": [(0, (1,))], "partitions": 1}, ErrorCode.invalid_request),
        ({"assignments": [(0, (1,))], "replication_factor": 1}, ErrorCode.invalid_request),
        ({"configs": {"no.such": "1"}}, ErrorCode.invalid_config),
        ({"configs": {"retention.ms": "soon"}}, ErrorCode.invalid_config),
        ({"configs": {"retention.ms": None}}, ErrorCode.invalid_config),
        ({"configs": {"retention.ms": "5"}, "assignments": [(0, (2, 1)), (1, (1, 2))]}, ErrorCode.none),
    ],
)
def test_each_thing_that_is_wrong_with_a_topic_has_its_error(fields: dict[str, object], error: ErrorCode) -> None:
    assert error_of(with_brokers(2), new("t", **fields)) is error


def test_one_topic_that_cannot_be_made_does_not_stop_the_others() -> None:
    cluster = with_brokers(1)
    results = cluster.done(cluster.controller.create_topics([new("good"), new("b ad"), new("twice"), new("twice")]))
    assert [result.error for result in results] == [
        ErrorCode.none,
        ErrorCode.invalid_topic_exception,
        ErrorCode.invalid_request,
        ErrorCode.invalid_request,
    ]
    assert list(cluster.image.topics) == ["good"]


@pytest.mark.parametrize("is_by_hand", [False, True])
def test_the_partitions_of_one_request_are_counted_together(is_by_hand: bool) -> None:
    half = PARTITIONS_PER_REQUEST_MAX // 2 + 1
    wanted = {"assignments": [(number, (1,)) for number in range(half)]} if is_by_hand else {"partitions": half}
    decision = with_brokers(1).controller.create_topics([new("a", **wanted), new("bb", **wanted)])
    assert [result.error for result in decision.response] == [ErrorCode.none, ErrorCode.invalid_partitions]


def test_validate_only_writes_nothing() -> None:
    cluster = with_brokers(1)
    decision = cluster.controller.create_topics([new("t")], validate_only=True)
    assert (decision.records, decision.actions) == ((), ())
    assert decision.response[0].error is ErrorCode.none


def test_topics_are_deleted_by_name_or_by_id_and_take_their_settings_along() -> None:
    cluster = with_brokers(1)
    cluster.done(cluster.controller.create_topics([new("a", configs={"retention.ms": "5"}), new("bb")]))
    ids = {name: topic.topic_id for name, topic in cluster.image.topics.items()}
    decision = cluster.controller.delete_topics(
        [("a", UUID(int=0)), (None, ids["bb"]), (None, UUID(int=77)), ("no", UUID(int=0))]
    )
    assert [result.error for result in cluster.done(decision)] == [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
    ]
    cluster.done(cluster.controller.create_topics([new("a")]))
    assert cluster.image.topic_configs("a") == {}


def test_a_topic_that_is_named_twice_is_not_deleted() -> None:
    cluster = with_brokers(1)
    cluster.done(cluster.controller.create_topics([new("a"), new("bb"), new("ccc"), new("dddd")]))
    ids = {name: topic.topic_id for name, topic in cluster.image.topics.items()}
    none = UUID(int=0)
    asked = [("a", none), ("a", none), (None, ids["bb"]), (None, ids["bb"]), ("ccc", none), (None, ids["ccc"])]
    asked += [("no", none), ("no", none), ("dddd", none)]
    results = cluster.done(cluster.controller.delete_topics(asked))
    assert [result.error for result in results] == [ErrorCode.invalid_request] * 8 + [ErrorCode.none]
    assert list(cluster.image.topics) == ["a", "bb", "ccc"]


def test_a_topic_to_delete_is_named_in_one_way() -> None:
    """With its name and the id of another topic, whichever was meant would be a guess."""
    cluster = with_brokers(1)
    cluster.done(cluster.controller.create_topics([new("a"), new("bb")]))
    other = cluster.image.topics["bb"].topic_id
    results = cluster.done(cluster.controller.delete_topics([("a", other), (None, UUID(int=0))]))
    assert [result.error for result in results] == [ErrorCode.invalid_request] * 2
    assert list(cluster.image.topics) == ["a", "bb"]


def test_a_coordinators_topic_is_neither_deleted_nor_resized() -> None:
    cluster = with_brokers(1)
    cluster.done(
        cluster.controller.create_topics([new(CONSUMER_OFFSETS, partitions=3, configs={"cleanup.policy": "compact"})])
    )
    assert cluster.controller.delete_topics([(CONSUMER_OFFSETS, UUID(int=0))]).response[0].error is not ErrorCode.none
    assert cluster.controller.create_partitions([NewPartitions(name=CONSUMER_OFFSETS, count=5)]).response[0].error is (
        ErrorCode.invalid_request
    )


def test_partitions_are_added_after_those_that_exist() -> None:
    cluster = with_brokers(3, partitions=2, replication_factor=2)
    cluster.done(cluster.controller.create_topics([new("t")]))
    before = cluster.image.topics["t"].partitions
    cluster.done(cluster.controller.create_partitions([NewPartitions(name="t", count=4)]))
    after = cluster.image.topics["t"].partitions
    assert after[:2] == before
    assert [partition.leader for partition in after] == [1, 2, 3, 1]
    assert all(len(partition.replicas) == 2 for partition in after)


def test_one_request_adds_a_bounded_number_of_partitions_to_all_topics_together() -> None:
    """A request of some kilobytes could ask for millions, and for a batch that the metadata log refuses."""
    cluster = with_brokers(1)
    cluster.done(cluster.controller.create_topics([new("a"), new("bb"), new("ccc")]))
    count = PARTITIONS_PER_REQUEST_MAX * 2 // 3
    wanted = [NewPartitions(name=name, count=count) for name in ("a", "bb", "ccc")]
    decision = cluster.controller.create_partitions(wanted)
    assert len(decision.records) <= PARTITIONS_PER_REQUEST_MAX
    assert [result.error for result in decision.response] == [
        ErrorCode.none,
        ErrorCode.invalid_partitions,
        ErrorCode.invalid_partitions,
    ]


@pytest.mark.parametrize(
    ("assignments", "error"),
    [
        (((2, 1),), ErrorCode.none),
        (((2,),), ErrorCode.invalid_replica_assignment),
        (((2, 1, 3),), ErrorCode.invalid_replica_assignment),
        (((2, 2),), ErrorCode.invalid_replica_assignment),
        (((2, 1), (1, 2)), ErrorCode.invalid_replica_assignment),
        ((), ErrorCode.invalid_replica_assignment),
    ],
)
def test_partitions_that_are_added_by_hand_have_as_many_replicas_as_the_others(
    assignments: tuple[tuple[int, ...], ...], error: ErrorCode
) -> None:
    cluster = with_brokers(3, replication_factor=2)
    cluster.done(cluster.controller.create_topics([new("t")]))
    wanted = NewPartitions(name="t", count=2, assignments=assignments)
    assert cluster.controller.create_partitions([wanted]).response[0].error is error


def test_partitions_that_are_added_by_hand_are_bounded_like_others() -> None:
    cluster = with_brokers(1)
    cluster.done(cluster.controller.create_topics([new("t")]))
    count = PARTITIONS_PER_REQUEST_MAX + 1
    wanted = NewPartitions(name="t", count=1 + count, assignments=((1,),) * count)
    decision = cluster.controller.create_partitions([wanted])
    assert (decision.response[0].error, decision.records) == (ErrorCode.invalid_partitions, ())
