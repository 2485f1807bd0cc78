from typing import TypeVar
from uuid import UUID

import pytest

from einmal.metadata.brokers import Heartbeat, Registration
from einmal.metadata.configs import APPEND, DELETE, SET, SUBTRACT, ConfigChange
from einmal.metadata.controller import Controller
from einmal.metadata.image import CONSUMER_OFFSETS
from einmal.metadata.plan import ControllerDefaults
from einmal.metadata.topics import PARTITIONS_PER_REQUEST_MAX, NewPartitions, NewTopic
from einmal.shard.decision import Decision
from einmal.types import BrokerId, ErrorCode, Instant, Offset

R = TypeVar("R")
NOW = Instant(0, 0)


def done(controller: Controller, decision: Decision[R]) -> R:
    for record in decision.records:
        controller.replay(record)
    return decision.response


def with_brokers(count: int, *, partitions: int = 1, replication_factor: int = 1) -> Controller:
    controller = Controller(ControllerDefaults(partitions=partitions, replication_factor=replication_factor))
    for number in range(1, count + 1):
        registration = Registration(broker_id=BrokerId(number), incarnation_id=UUID(int=number))
        done(controller, controller.register_broker(registration, Offset(number), NOW))
        beat = Heartbeat(broker_id=BrokerId(number), broker_epoch=number, metadata_offset=number)
        done(controller, controller.heartbeat(beat, Offset(number + 1), NOW))
    return controller


def new(name: str, **fields: object) -> NewTopic:
    return NewTopic(name=name, topic_id=UUID(int=len(name) + 1), **fields)  # type: ignore[arg-type]


def error_of(controller: Controller, topic: NewTopic) -> ErrorCode:
    decision = controller.create_topics([topic])
    assert bool(decision.records) == (decision.response[0].error is ErrorCode.none)
    return decision.response[0].error


def test_a_topic_gets_the_defaults_where_it_names_no_counts() -> None:
    controller = with_brokers(3, partitions=4, replication_factor=2)
    decision = controller.create_topics([new("t")])
    result = done(controller, decision)[0]
    assert (result.partitions, result.replication_factor) == (4, 2)
    topic = controller.image.topics["t"]
    assert [partition.leader for partition in topic.partitions] == [1, 2, 3, 1]
    assert all(partition.isr == partition.replicas for partition in topic.partitions)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "x" * 250, "a/b", "a\n"])
def test_a_name_that_is_no_folder_is_refused(name: str) -> None:
    assert error_of(with_brokers(1), new(name)) is ErrorCode.invalid_topic_exception


def test_names_that_differ_only_in_dots_and_underscores_collide() -> None:
    controller = with_brokers(1)
    done(controller, controller.create_topics([new("a.b")]))
    assert error_of(controller, new("a_b")) is ErrorCode.invalid_topic_exception
    assert error_of(controller, new("a.b")) is ErrorCode.topic_already_exists
    assert error_of(controller, new("a-b")) is ErrorCode.none


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"partitions": 0}, ErrorCode.invalid_partitions),
        ({"partitions": -2}, ErrorCode.invalid_partitions),
        ({"partitions": PARTITIONS_PER_REQUEST_MAX + 1}, ErrorCode.invalid_partitions),
        ({"replication_factor": 0}, ErrorCode.invalid_replication_factor),
        ({"replication_factor": 3}, ErrorCode.invalid_replication_factor),
        ({"assignments": {0: (1, 1)}}, ErrorCode.invalid_replica_assignment),
        ({"assignments": {0: (1,), 1: (2, 1)}}, ErrorCode.invalid_replica_assignment),
        ({"assignments": {1: (1,)}}, ErrorCode.invalid_replica_assignment),
        ({"assignments": {0: (9,)}}, ErrorCode.invalid_replica_assignment),
        ({"assignments": {0: (1,)}, "partitions": 1}, ErrorCode.invalid_request),
        ({"configs": {"no.such": "1"}}, ErrorCode.invalid_config),
        ({"configs": {"retention.ms": "soon"}}, ErrorCode.invalid_config),
        ({"configs": {"retention.ms": "5"}, "assignments": {0: (2, 1), 1: (1, 2)}}, ErrorCode.none),
    ],
)
def test_each_thing_that_is_wrong_with_a_topic_has_its_error(fields: dict[str, object], error: ErrorCode) -> None:
    assert error_of(with_brokers(2), new("t", **fields)) is error


def test_one_topic_that_cannot_be_made_does_not_stop_the_others() -> None:
    controller = with_brokers(1)
    results = done(controller, controller.create_topics([new("good"), new("b ad"), new("twice"), new("twice")]))
    assert [result.error for result in results] == [
        ErrorCode.none,
        ErrorCode.invalid_topic_exception,
        ErrorCode.invalid_request,
        ErrorCode.invalid_request,
    ]
    assert list(controller.image.topics) == ["good"]


def test_the_partitions_of_one_request_are_counted_together() -> None:
    half = PARTITIONS_PER_REQUEST_MAX // 2 + 1
    decision = with_brokers(1).create_topics([new("a", partitions=half), new("bb", partitions=half)])
    assert [result.error for result in decision.response] == [ErrorCode.none, ErrorCode.invalid_partitions]


def test_validate_only_writes_nothing() -> None:
    controller = with_brokers(1)
    decision = controller.create_topics([new("t")], validate_only=True)
    assert (decision.records, decision.actions) == ((), ())
    assert decision.response[0].error is ErrorCode.none


def test_topics_are_deleted_by_name_or_by_id_and_take_their_settings_along() -> None:
    controller = with_brokers(1)
    done(controller, controller.create_topics([new("a", configs={"retention.ms": "5"}), new("bb")]))
    ids = {name: topic.topic_id for name, topic in controller.image.topics.items()}
    decision = controller.delete_topics(
        [("a", UUID(int=0)), (None, ids["bb"]), (None, UUID(int=77)), ("no", UUID(int=0))]
    )
    assert [result.error for result in done(controller, decision)] == [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
    ]
    done(controller, controller.create_topics([new("a")]))
    assert controller.image.topic_configs("a") == {}


def test_a_coordinators_topic_is_neither_deleted_nor_resized() -> None:
    controller = with_brokers(1)
    done(controller, controller.create_topics([new(CONSUMER_OFFSETS, partitions=3)]))
    assert controller.delete_topics([(CONSUMER_OFFSETS, UUID(int=0))]).response[0].error is not ErrorCode.none
    assert controller.create_partitions([NewPartitions(name=CONSUMER_OFFSETS, count=5)]).response[0].error is (
        ErrorCode.invalid_request
    )


def test_partitions_are_added_after_those_that_exist() -> None:
    controller = with_brokers(3, partitions=2, replication_factor=2)
    done(controller, controller.create_topics([new("t")]))
    before = controller.image.topics["t"].partitions
    done(controller, controller.create_partitions([NewPartitions(name="t", count=4)]))
    after = controller.image.topics["t"].partitions
    assert after[:2] == before
    assert [partition.leader for partition in after] == [1, 2, 3, 1]
    assert all(len(partition.replicas) == 2 for partition in after)


def test_settings_change_one_by_one() -> None:
    controller = with_brokers(1)
    done(controller, controller.create_topics([new("t", configs={"cleanup.policy": "delete"})]))

    def change(operation: int, name: str, value: str | None) -> ErrorCode:
        changes = [ConfigChange(name=name, operation=operation, value=value)]
        decision = controller.alter_topic_configs([("t", changes)])
        return done(controller, decision)[0].error

    assert change(APPEND, "cleanup.policy", "compact") is ErrorCode.none
    assert controller.image.topic_configs("t") == {"cleanup.policy": "delete,compact"}
    assert change(SUBTRACT, "cleanup.policy", "delete") is ErrorCode.none
    assert controller.image.topic_configs("t") == {"cleanup.policy": "compact"}
    assert change(APPEND, "retention.ms", "5") is ErrorCode.invalid_config
    assert change(SET, "retention.ms", None) is ErrorCode.invalid_config
    assert change(SET, "retention.ms", "5") is ErrorCode.none
    assert change(DELETE, "cleanup.policy", None) is ErrorCode.none
    assert controller.image.topic_configs("t") == {"retention.ms": "5"}
    done(controller, controller.replace_topic_configs([("t", {"segment.bytes": "1000"})]))
    assert controller.image.topic_configs("t") == {"segment.bytes": "1000"}
    assert controller.alter_topic_configs([("no", [])]).response[0].error is ErrorCode.unknown_topic_or_partition


def test_blocks_of_producer_ids_never_overlap() -> None:
    controller = with_brokers(2)
    first = done(controller, controller.allocate_producer_ids(BrokerId(1), 1))
    second = done(controller, controller.allocate_producer_ids(BrokerId(2), 2))
    assert isinstance(first, range) and isinstance(second, range)
    assert first.stop == second.start


def test_what_is_decided_changes_nothing_before_it_is_replayed() -> None:
    controller = with_brokers(1)
    before = controller.image.copy()
    controller.create_topics([new("t")])
    controller.allocate_producer_ids(BrokerId(1), 1)
    assert controller.image == before
