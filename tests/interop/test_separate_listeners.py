"""``einmal start --brokers 3``: clients find what they need on their listener, and no way to act as a broker.

Who knows the cluster's secret is let in on the brokers' listeners, Apache Kafka's own tools among them (SCRAM-SHA-256).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.error import KafkaException

from einmal.local.layout import BrokerPlan, plan_cluster, write_properties
from einmal.local.processes import LocalCluster
from einmal.types import ErrorCode
from tests.broker.nodes import Client
from tests.interop.admin import PATIENCE_S, answered
from tests.interop.apache_kafka import KafkaUnavailable
from tests.interop.apache_tools import ApacheTools
from tests.interop.topics import at_last

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    plans = plan_cluster(tmp_path_factory.mktemp("cluster"), 3, host="127.0.0.1", first_port=0)
    write_properties(plans, {})
    cluster = LocalCluster(plans)
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def plan(cluster: LocalCluster) -> BrokerPlan:
    return next(iter(cluster.brokers.values())).plan


def admin_of(cluster: LocalCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers})


def create(cluster: LocalCluster, topic: NewTopic) -> None:
    admin = admin_of(cluster)
    admin.create_topics([topic])[topic.topic].result(PATIENCE_S)


def acknowledged(cluster: LocalCluster, topic: str, value: bytes) -> None:
    """Write with acks=all. Raises KafkaException."""
    told: list[Any] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "message.timeout.ms": 120_000})
    producer.produce(topic, value, on_delivery=lambda error, _message: told.append(error))
    producer.flush(PATIENCE_S)
    assert told == [None]


def test_a_topic_with_one_replica_takes_writes_with_acks_all(cluster: LocalCluster) -> None:
    """Every tutorial makes one, and three brokers have min.insync.replicas=2."""
    create(cluster, NewTopic("tutorial", 3, 1))
    for number in range(30):
        acknowledged(cluster, "tutorial", b"%d" % number)


async def test_votes_of_a_client_change_nothing(cluster: LocalCluster, plan: BrokerPlan) -> None:
    for broker in cluster.brokers.values():
        assert broker.plan.controller_port is not None
        for port in (broker.plan.controller_port, broker.plan.port, broker.plan.internal_port):
            for candidate in (1, 2, 3):
                asked = {
                    "partition_index": 0,
                    "replica_epoch": 2**31 - 1,
                    "replica_id": candidate,
                    "last_offset_epoch": 2**31 - 1,
                    "last_offset": 2**60,
                }
                topics = [{"topic_name": "__cluster_metadata", "partitions": [asked]}]
                async with Client.connect_to(port) as client:
                    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                        await client.call(52, 0, {"cluster_id": None, "topics": topics})
    create(cluster, NewTopic("after-votes", 1, 3))
    acknowledged(cluster, "after-votes", b"x")


@pytest.mark.parametrize(("api_key", "version"), [(1, 17), (24, 5), (27, 1)])
async def test_the_clients_listener_refuses_what_only_brokers_may_ask(
    plan: BrokerPlan, api_key: int, version: int
) -> None:
    answer: Any
    async with Client.connect_to(plan.port) as client:
        if api_key == 1:
            answer = await client.fetch_all([], version=17, replica_id=2, replica_epoch=7, session_epoch=0)
        else:
            marker = {
                "producer_id": 0,
                "producer_epoch": 0,
                "transaction_result": True,
                "topics": [{"name": "no", "partition_indexes": [0]}],
                "coordinator_epoch": 0,
            }
            answer = await client.call(api_key, version, {"transactions": [], "markers": [marker]})
    error = answer.markers[0].topics[0].partitions[0].error_code if api_key == 27 else answer.error_code
    assert error is ErrorCode.cluster_authorization_failed


def test_librdkafkas_admin_client_alters_and_describes(cluster: LocalCluster) -> None:
    admin = admin_of(cluster)
    admin.create_topics([NewTopic("settings", 1, 3)])["settings"].result(PATIENCE_S)

    def alter(kind: Any, name: str, key: str, value: str, operation: Any = AlterConfigOpType.SET) -> None:
        entry = ConfigEntry(key, value, incremental_operation=operation)
        resource = ConfigResource(kind, name, incremental_configs=[entry])
        answered(lambda: admin.incremental_alter_configs([resource]))

    def described() -> dict[str, ConfigEntry]:
        resource = ConfigResource(ConfigResource.Type.TOPIC, "settings")
        return answered(lambda: admin.describe_configs([resource]))

    topic = ConfigResource.Type.TOPIC
    alter(topic, "settings", "compression.zstd.level", "5")
    alter(topic, "settings", "cleanup.policy", "delete", AlterConfigOpType.SUBTRACT)
    entries = at_last(described, lambda found: found["compression.zstd.level"].value == "5")
    assert len(entries) == 37
    assert entries["cleanup.policy"].value == ""
    with pytest.raises(KafkaException, match="tiered storage"):
        alter(topic, "settings", "remote.storage.enable", "true")
    with pytest.raises(KafkaException, match="single broker"):
        alter(ConfigResource.Type.BROKER, "1", "log.retention.ms", "5")
    binding = AclBinding(
        ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "User:a", "*", AclOperation.READ, AclPermissionType.ALLOW
    )
    (created,) = admin.create_acls([binding]).values()
    with pytest.raises(KafkaException, match="SECURITY_DISABLED"):
        created.result(PATIENCE_S)


def test_apache_kafkas_tools_authenticate_with_the_secret(plan: BrokerPlan, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"

    def settings(secret: str) -> str:
        file.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nrequest.timeout.ms=60000\n"
            "default.api.timeout.ms=90000\n"
            "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="operator" password="{secret}";\n'
        )
        return str(file)

    try:
        tools = ApacheTools(plan.internal_address)
    except KafkaUnavailable as reason:
        pytest.skip(str(reason))
    try:
        command = ("--command-config", settings(plan.secret.read_text().strip()))
        told = tools("TopicCommand", "--list", *command)
        assert isinstance(told, str)
        code, told = tools.run("TransactionsCommand", "--bootstrap-server", tools.bootstrap, *command, "list")
        assert code == 0, told
        command = ("--command-config", settings("another secret"))
        assert "authentication failed" in tools.refused("TopicCommand", "--list", *command)
    finally:
        tools.close()
