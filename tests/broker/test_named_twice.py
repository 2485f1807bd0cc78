"""Requests of administration that name something twice: never is one of the two carried out and the other refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from einmal.broker.node import Node
from einmal.types import ErrorCode
from tests.broker.nodes import Client, batch, running_node

CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, CREATE_PARTITIONS = 19, 20, 21, 37
DESCRIBE_CONFIGS, ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS = 32, 33, 44
ELECT_LEADERS, REASSIGN, QUOTAS, FEATURES, DESCRIBE_TOPIC_PARTITIONS = 43, 45, 49, 57, 75
TOPIC, BROKER = 2, 4
TWICE: Final = [ErrorCode.invalid_request] * 2
SET, DELETE = 0, 1


class Broker:
    def __init__(self, node: Node, client: Client) -> None:
        self.node = node
        self.client = client

    async def alter(self, api_key: int, *resources: tuple[int, str, list[dict[str, Any]]]) -> list[ErrorCode]:
        fields = [{"resource_type": kind, "resource_name": name, "configs": items} for kind, name, items in resources]
        answer = await self.client.call(api_key, {ALTER_CONFIGS: 2}.get(api_key, 1), {"resources": fields})
        assert [(each.resource_type, each.resource_name) for each in answer.responses] == [
            each[:2] for each in resources
        ]
        return [each.error_code for each in answer.responses]

    def settings(self, topic: str) -> Mapping[str, str]:
        return dict(self.node.metadata.image.topic_configs(topic))


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t", retention_ms="1")
        await client.create_topic("u")
        yield Broker(node, client)


def setting(name: str, value: str | None, operation: int = SET) -> dict[str, Any]:
    return {"name": name, "value": value, "config_operation": operation}


def plain(name: str, value: str | None) -> dict[str, Any]:
    return {"name": name, "value": value}


async def test_a_topic_that_is_named_twice_keeps_its_settings(broker: Broker) -> None:
    more = (TOPIC, "u", [plain("segment.ms", "9")])
    first, second = (TOPIC, "t", [plain("segment.ms", "7")]), (TOPIC, "t", [plain("retention.ms", "9")])
    assert await broker.alter(ALTER_CONFIGS, first, more, second) == [TWICE[0], ErrorCode.none, TWICE[1]]
    assert broker.settings("t") == {"retention.ms": "1"}
    assert broker.settings("u") == {"segment.ms": "9"}
    first, second = (TOPIC, "t", [setting("retention.ms", None, DELETE)]), (TOPIC, "t", [setting("segment.ms", "8")])
    assert await broker.alter(INCREMENTAL_ALTER_CONFIGS, first, second) == TWICE
    assert broker.settings("t") == {"retention.ms": "1"}


@pytest.mark.parametrize("api_key", [ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS])
async def test_a_refused_change_of_all_brokers_is_not_reported_as_made(broker: Broker, api_key: int) -> None:
    """Each of the two was reported with the result of the last one."""
    make = plain if api_key == ALTER_CONFIGS else setting
    bad, good = (BROKER, "", [make("no.such", "1")]), (BROKER, "", [make("log.retention.ms", "1000")])
    before = dict(broker.node.metadata.image.cluster_configs)
    assert await broker.alter(api_key, bad, good) == TWICE
    assert await broker.alter(api_key, good, bad) == TWICE
    assert dict(broker.node.metadata.image.cluster_configs) == before
    assert await broker.alter(api_key, good) == [ErrorCode.none]


@pytest.mark.parametrize("kind", [TOPIC, BROKER])
@pytest.mark.parametrize("api_key", [ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS])
async def test_a_setting_that_is_named_twice_is_refused_and_so_is_one_without_a_value(
    broker: Broker, api_key: int, kind: int
) -> None:
    make = plain if api_key == ALTER_CONFIGS else setting
    resource, name = ("t", "retention.ms") if kind == TOPIC else ("", "log.retention.ms")
    for configs in ([make(name, "2"), make(name, "3")], [make(name, None)]):
        assert await broker.alter(api_key, (kind, resource, configs)) == [ErrorCode.invalid_request]
    assert broker.settings("t") == {"retention.ms": "1"}


async def test_an_operation_that_there_is_not_is_refused(broker: Broker) -> None:
    """It was taken for SET."""
    changes = (TOPIC, "t", [setting("retention.ms", "2", operation=9)])
    assert await broker.alter(INCREMENTAL_ALTER_CONFIGS, changes) == [ErrorCode.invalid_request]
    assert broker.settings("t") == {"retention.ms": "1"}


@pytest.mark.parametrize("api_key", [ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS])
async def test_a_topic_without_a_name_has_no_settings(broker: Broker, api_key: int) -> None:
    make = plain if api_key == ALTER_CONFIGS else setting
    resources = [(TOPIC, name, [make("retention.ms", "2")]) for name in ("", "a b", "absent")]
    assert await broker.alter(api_key, *resources) == [
        ErrorCode.invalid_request,
        ErrorCode.invalid_topic_exception,
        ErrorCode.unknown_topic_or_partition,
    ]


async def test_topics_that_are_named_twice_are_neither_created_nor_grown_nor_deleted(broker: Broker) -> None:
    new = {"name": "new", "num_partitions": 1, "replication_factor": 1}
    created = await broker.client.call(CREATE_TOPICS, 7, {"topics": [new, new], "timeout": 9_000})
    assert [each.error_code for each in created.topics] == TWICE
    grown = [{"name": "t", "count": count, "assignments": None} for count in (2, 3)]
    answer = await broker.client.call(CREATE_PARTITIONS, 3, {"topics": grown, "timeout": 9_000})
    assert [each.error_code for each in answer.results] == TWICE
    topic_id = broker.node.metadata.image.topics["t"].topic_id
    by_name, by_id = {"name": "t"}, {"name": None, "topic_id": topic_id}
    for asked in ([by_name, by_name], [by_id, by_id], [by_name, by_id]):
        answer = await broker.client.call(DELETE_TOPICS, 6, {"topics": asked, "timeout": 9_000})
        assert [each.error_code for each in answer.responses] == TWICE
    answer = await broker.client.call(DELETE_TOPICS, 5, {"topic_names": ["t", "t"], "timeout": 9_000})
    assert [each.error_code for each in answer.responses] == TWICE
    both = {"name": "t", "topic_id": UUID(int=5)}
    answer = await broker.client.call(DELETE_TOPICS, 6, {"topics": [both], "timeout": 9_000})
    assert answer.responses[0].error_code is ErrorCode.invalid_request
    topics = broker.node.metadata.image.topics
    assert {name: len(topic.partitions) for name, topic in topics.items()} == {"t": 1, "u": 1}


async def test_a_partition_that_is_assigned_twice_by_hand_makes_no_topic(broker: Broker) -> None:
    assignments = [{"partition_index": 0, "broker_ids": [1]}] * 2
    topic = {"name": "new", "num_partitions": -1, "replication_factor": -1, "assignments": assignments}
    answer = await broker.client.call(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 9_000})
    assert answer.topics[0].error_code is ErrorCode.invalid_replica_assignment
    assert "new" not in broker.node.metadata.image.topics


async def test_an_entity_or_a_quota_that_is_named_twice_is_not_changed(broker: Broker) -> None:
    def entry(user: str, *values: float, key: str = "producer_byte_rate", client: bool = False) -> dict[str, Any]:
        entity: list[dict[str, str | None]] = [{"entity_type": "user", "entity_name": user}]
        if client:
            entity.append({"entity_type": "client-id", "entity_name": None})
        ops = [{"key": key, "value": value, "remove": False} for value in values]
        return {"entity": entity, "ops": ops}

    turned = entry("bob", 2.0, client=True)
    turned["entity"].reverse()
    entries = [
        entry("alice", 1.0),
        entry("bob", 1.0, client=True),
        entry("bob", 1.0),
        entry("alice", 1.0, key="consumer_byte_rate"),
        turned,
        entry("carol", 1.0, 2.0),
    ]
    answer = await broker.client.call(QUOTAS, 1, {"entries": entries, "validate_only": False})
    errors = [each.error_code for each in answer.entries]
    assert errors == [*TWICE, ErrorCode.none, *TWICE, ErrorCode.invalid_request]
    assert list(broker.node.metadata.image.client_quotas.entities) == [(("user", "bob"),)]


async def test_features_that_are_named_twice_keep_their_level(broker: Broker) -> None:
    updates = [{"feature": "transaction.version", "max_version_level": level, "upgrade_type": 2} for level in (1, 0)]
    before = dict(broker.node.metadata.image.features)
    answer = await broker.client.call(FEATURES, 1, {"timeout": 9_000, "feature_updates": updates})
    assert [answer.error_code, *(each.error_code for each in answer.results)] == [ErrorCode.invalid_request, *TWICE]
    assert dict(broker.node.metadata.image.features) == before


async def test_what_can_be_done_twice_is_answered_twice(broker: Broker) -> None:
    """Elections, reassignments and deletions of records are made one after the other, as by Apache Kafka."""
    await broker.client.produce("t", batch(b"a", b"b"))
    topics = [{"topic": "t", "partitions": [0, 0]}]
    answer = await broker.client.call(ELECT_LEADERS, 2, {"election_type": 0, "topic_partitions": topics})
    errors = [each.error_code for each in answer.replica_election_results[0].partition_result]
    assert errors == [ErrorCode.election_not_needed] * 2
    moves = [{"partition_index": 0, "replicas": replicas} for replicas in ([9], [1])]
    answer = await broker.client.call(REASSIGN, 0, {"topics": [{"name": "t", "partitions": moves}]})
    errors = [each.error_code for each in answer.responses[0].partitions]
    assert errors == [ErrorCode.invalid_replica_assignment, ErrorCode.none]
    partitions = [{"partition_index": 0, "offset": offset} for offset in (1, 2)]
    fields = {"topics": [{"name": "t", "partitions": partitions}], "timeout": 9_000}
    answer = await broker.client.call(DELETE_RECORDS, 2, fields)
    assert [each.error_code for each in answer.topics[0].partitions] == [ErrorCode.none] * 2
    assert answer.topics[0].partitions[-1].low_watermark == 2


async def test_a_description_that_is_asked_for_twice_is_made_once(broker: Broker) -> None:
    resource = {"resource_type": TOPIC, "resource_name": "t", "configuration_keys": None}
    answer = await broker.client.call(DESCRIBE_CONFIGS, 4, {"resources": [resource, resource]})
    assert [each.resource_name for each in answer.results] == ["t"]
    fields = {"topics": [{"name": "t"}, {"name": "t"}], "response_partition_limit": 10}
    answer = await broker.client.call(DESCRIBE_TOPIC_PARTITIONS, 0, fields)
    assert [each.name for each in answer.topics] == ["t"]
