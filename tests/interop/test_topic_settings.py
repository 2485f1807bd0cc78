"""What settings of topics mean, on our broker and on Apache Kafka: by confluent-kafka."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import OFFSET_END, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from tests.interop.admin import PATIENCE_S, answered
from tests.interop.conftest import Node
from tests.interop.topics import at_last
from tests.suite.shared import unique

pytestmark = pytest.mark.interop


@pytest.fixture
def admin(broker: Node) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def topic() -> str:
    return unique("settings")


def alter(admin: AdminClient, kind: Any, name: str, key: str, value: str | None, operation: Any) -> None:
    entry = ConfigEntry(key, value, incremental_operation=operation)
    resource = ConfigResource(kind, name, incremental_configs=[entry])
    answered(lambda: admin.incremental_alter_configs([resource]))


def described(admin: AdminClient, kind: Any, name: str) -> dict[str, Any]:
    return answered(lambda: admin.describe_configs([ConfigResource(kind, name)]))


def test_a_topic_with_fewer_replicas_than_the_minimum_takes_writes(
    broker: Node, admin: AdminClient, topic: str
) -> None:
    wanted = NewTopic(topic, 1, 1, config={"min.insync.replicas": "2"})
    admin.create_topics([wanted])[topic].result(PATIENCE_S)
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", "message.timeout.ms": 100_000})
    producer.produce(topic, b"x", on_delivery=lambda error, _message: errors.append(error))
    producer.flush(PATIENCE_S)
    assert errors == [None]


def test_a_cleanup_policy_is_appended_to_and_emptied(admin: AdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE_S)
    of_topic = ConfigResource.Type.TOPIC

    def policy() -> str:
        value: str = described(admin, of_topic, topic)["cleanup.policy"].value
        return value

    alter(admin, of_topic, topic, "cleanup.policy", "compact", AlterConfigOpType.APPEND)
    at_last(policy, lambda told: sorted(told.split(",")) == ["compact", "delete"])
    alter(admin, of_topic, topic, "cleanup.policy", "compact", AlterConfigOpType.SUBTRACT)
    alter(admin, of_topic, topic, "cleanup.policy", "delete", AlterConfigOpType.SUBTRACT)
    at_last(policy, lambda told: told == "")


def test_records_of_a_topic_that_is_only_compacted_are_not_deleted(
    broker: Node, admin: AdminClient, topic: str
) -> None:
    admin.create_topics([NewTopic(topic, 1, 1, config={"cleanup.policy": "compact"})])[topic].result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"x", key=b"k")
    producer.flush(PATIENCE_S)
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, OFFSET_END)]).values()
    with pytest.raises(KafkaException) as refused:
        deleted.result(PATIENCE_S)
    assert refused.value.args[0].code() == KafkaError.POLICY_VIOLATION


def test_a_topic_has_the_same_settings_on_both_brokers(admin: AdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE_S)
    entries = at_last(lambda: described(admin, ConfigResource.Type.TOPIC, topic), lambda told: len(told) >= 37)
    assert len(entries) == 37
    assert entries["remote.storage.enable"].value == "false"
    assert entries["compression.lz4.level"].value == "9"


@pytest.mark.parametrize("name, value, bound", [("segment.bytes", "1048575", "1048576"), ("segment.ms", "0", "1")])
def test_a_value_out_of_bounds_is_refused_with_its_name_and_the_bound(
    admin: AdminClient, topic: str, name: str, value: str, bound: str
) -> None:
    refusals = []
    with pytest.raises(KafkaException) as creating:
        admin.create_topics([NewTopic(topic, 1, 1, config={name: value})])[topic].result(PATIENCE_S)
    refusals.append(creating.value.args[0])
    admin.create_topics([NewTopic(topic, 1, 1, config={name: "2000000"})])[topic].result(PATIENCE_S)
    with pytest.raises(KafkaException) as altering:
        alter(admin, ConfigResource.Type.TOPIC, topic, name, value, AlterConfigOpType.SET)
    refusals.append(altering.value.args[0])
    for refusal in refusals:
        assert refusal.code() == KafkaError.INVALID_CONFIG
        assert all(word in refusal.str() for word in (name, value, bound)), refusal.str()
    told = described(admin, ConfigResource.Type.TOPIC, topic)
    assert told[name].value == "2000000"


def test_small_segments_are_an_internal_setting(admin: AdminClient, topic: str) -> None:
    """They are described where they are set, and only there."""
    admin.create_topics([NewTopic(topic, 1, 1, config={"internal.segment.bytes": "100"})])[topic].result(PATIENCE_S)
    entries = at_last(lambda: described(admin, ConfigResource.Type.TOPIC, topic), lambda told: len(told) >= 38)
    assert len(entries) == 38 and entries["internal.segment.bytes"].value == "100"
