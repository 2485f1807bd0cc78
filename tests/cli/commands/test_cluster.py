"""Claims about ``einmal cluster``, on our broker and on Apache Kafka."""

from __future__ import annotations

from uuid import UUID

import jsonschema_rs
import pytest

from einmal.client import Consumer, Producer
from einmal.client.cores.metadata_cache import BrokerAddress, PartitionMetadata, TopicMetadata
from einmal.client.descriptions import ClusterDescription
from einmal.inspection.document import schema
from einmal.inspection.health import health_of
from tests.cli.running import Cli
from tests.suite.shared import shared, unique

pytestmark = pytest.mark.system


@pytest.fixture(params=["einmal-commands", pytest.param("apache", marks=pytest.mark.interop)])
def cli(request: pytest.FixtureRequest) -> Cli:
    return Cli(shared(request.param).bootstrap)


def test_the_whole_read_model_is_one_document_and_as_its_schema_has_it(cli: Cli) -> None:
    name = unique("looked-at")
    cli("topic", "create", name, "-p", "1")
    cli("topic", "produce", name, stdin="x\n")
    with (
        Producer(bootstrap_servers=cli.bootstrap, transactional_id=name) as producer,
        Consumer(bootstrap_servers=cli.bootstrap, group_id=name, auto_offset_reset="earliest") as consumer,
    ):
        consumer.subscribe([name])
        while not consumer.poll(100):
            pass
        consumer.commit()
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, "open").result()
        found = cli("cluster", "info", "--format", "json").document
        producer.abort_transaction()
    jsonschema_rs.validate(schema("ClusterView"), found)
    (partition,) = [each for each in found["partitions"] if each["topic"] == name]
    assert (partition["log_start_offset"], partition["last_stable_offset"], partition["high_watermark"]) == (0, 1, 2)
    assert [each["transaction_start_offset"] for each in partition["producers"]].count(1) == 1
    assert (partition["log_end_offset"], partition["unknown"]) == (2, {})
    (transaction,) = [each for each in found["transactions"] if each["transactional_id"] == name]
    assert (transaction["state"], transaction["partitions"]) == ("Ongoing", [f"{name}-0"])
    (group,) = [each for each in found["groups"] if each["group_id"] == name]
    assert [(each["offset"], each["unread_offsets"], each["held_back"]) for each in group["offsets"]] == [(1, 0, 1)]
    assert len(group["members"]) == 1


def test_brokers_are_listed(cli: Cli) -> None:
    lines = cli("cluster", "info").lines
    assert lines[0] == "CLUSTER"
    host, port = cli.bootstrap.split(":")
    assert any(line.split()[1:3] == [host, port] for line in lines)


def test_a_healthy_cluster_has_status_0(cli: Cli) -> None:
    found = cli("cluster", "health", "--format", "json").document
    jsonschema_rs.validate(schema("ClusterHealth"), found)
    assert found["is_healthy"] is True
    assert "have a leader and all their replicas in sync" in cli("cluster", "health").lines[0]


def test_a_broker_s_own_settings_are_shown_and_on_request_all(cli: Cli) -> None:
    own = {each["key"] for each in cli("cluster", "config", "--format", "json").document}
    every = {each["key"]: each for each in cli("cluster", "config", "--all", "--format", "json").document}
    assert own < every.keys()
    assert "log.dirs" in every or "log.dir" in every
    assert cli("cluster", "config", "--broker", "77", status=1).errors[0].startswith("error: BROKER_ID_NOT_REGISTERED")


def test_what_is_missing_is_named() -> None:
    cluster = ClusterDescription("id", -1, (BrokerAddress(1, "h", 1),), 2)
    partitions = {0: PartitionMetadata(0, -1, 0, (1, 2), (1,)), 1: PartitionMetadata(1, 1, 0, (1,), (1,))}
    found = health_of(cluster, [TopicMetadata("t", UUID(int=1), partitions)])
    assert (found.is_healthy, found.leaderless, found.under_replicated) == (False, ("t-0",), ("t-0",))
    assert (found.missing_brokers, found.controller) == ((2,), None)
    assert found.verdict.startswith("1 partitions have no leader, 1 lack replicas in sync, 1 brokers are missing")
