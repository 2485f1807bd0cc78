"""The requests of the ACL matrix: each API about a resource of each type that it asks for access to.

Allowed or denied, no request changes what another one finds: it validates only, or names something that does not exist,
or has a resource of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from einmal.wire.record_batch import NewRecord, encode_batch

Fields: TypeAlias = Mapping[str, Any]

OPEN: Final = "open"
"""A topic, a group and a transactional id with which everything is allowed."""
NOBODYS: Final = "nobodys"
"""Names that no ACL is about."""
NO_ID: Final = UUID(int=0x123456789)
"""Of a topic that does not exist."""
OTHER_CLUSTER: Final = "another-cluster-000000"
_TOPIC, _BROKER, _LOGGER, _GROUP = 2, 4, 8, 32
"""Types of resources with settings."""
_QUOTA: Final = {
    "entity": [{"entity_type": "user", "entity_name": NOBODYS}],
    "ops": [{"key": "request_percentage", "value": 1.0, "remove": False}],
}
_NO_FEATURE: Final = {"feature": "no.such.feature", "max_version_level": 1, "upgrade_type": 1}
_NEW: Final = {"producer_id": -1, "producer_epoch": -1}
_BOGUS: Final = {"producer_id": 4_000_000, "producer_epoch": 0}


class Request(NamedTuple):
    """``fields``: from the name of the resource and the id of the topic of this name."""

    api_key: int
    version: int
    fields: Callable[[str, UUID], Fields]
    about: str = ""


def _settings(kind: int, name: str) -> Fields:
    return {"resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": None}]}


def _replaced(kind: int, name: str) -> Fields:
    return {"resources": [{"resource_type": kind, "resource_name": name, "configs": []}], "validate_only": True}


def _changed(kind: int, name: str, key: str) -> Fields:
    configs = [{"name": key, "config_operation": 1, "value": None}]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    return {"resources": [resource], "validate_only": True}


def _produced(topic: Fields, transactional_id: str | None = None) -> Fields:
    # An old record would be deleted by retention.
    record = NewRecord(None, b"x", int(time.time() * 1000))
    if transactional_id is None:
        records = encode_batch([record])
    else:
        records = encode_batch(
            [record], producer_id=_BOGUS["producer_id"], producer_epoch=0, base_sequence=0, transactional=True
        )
    partition = {"index": 0, "records": records}
    topics = [{**topic, "partition_data": [partition]}]
    return {"transactional_id": transactional_id, "acks": 1, "timeout": 5_000, "topic_data": topics}


def _fetched(topic: Fields, **more: Any) -> Fields:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000}
    limits = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1_000, "session_epoch": -1}
    return {**limits, "topics": [{**topic, "partitions": [partition]}], **more}


def _metadata(topic: Fields, *, creates: bool = False) -> Fields:
    operations = {"include_topic_authorized_operations": True}
    return {"topics": [topic], "allow_auto_topic_creation": creates, **operations}


def _committed(group: str, topic: Fields) -> Fields:
    partition = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
    member = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
    return {**member, "topics": [{**topic, "partitions": [partition]}]}


def _committed_in_transaction(transactional_id: str, group: str, topic: str) -> Fields:
    partition = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
    topics = [{"name": topic, "partitions": [partition]}]
    return {"transactional_id": transactional_id, "group_id": group, **_BOGUS, "topics": topics}


def _fetched_offsets(group: str, topic: Fields) -> Fields:
    topics = [{**topic, "partition_indexes": [0]}]
    return {"groups": [{"group_id": group, "topics": topics}]}


def _deleted_offsets(group: str, topic: str) -> Fields:
    return {"group_id": group, "topics": [{"name": topic, "partitions": [{"partition_index": 0}]}]}


def _created(topic: str, *, validate_only: bool = True) -> Fields:
    wanted = {"name": topic, "num_partitions": 1, "replication_factor": 1}
    return {"topics": [wanted], "timeout": 5_000, "validate_only": validate_only}


def _deleted(topic: str | None, topic_id: UUID | None) -> Fields:
    return {"topics": [{"name": topic, "topic_id": topic_id}], "timeout": 5_000}


def _added(transactional_id: str, topic: str) -> Fields:
    return {
        "v3_and_below_transactional_id": transactional_id,
        "v3_and_below_producer_id": _BOGUS["producer_id"],
        "v3_and_below_producer_epoch": 0,
        "v3_and_below_topics": [{"name": topic, "partitions": [0]}],
    }


def _ended_epoch(topic: str) -> Fields:
    partition = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    return {"replica_id": -1, "topics": [{"topic": topic, "partitions": [partition]}]}


TOPIC_REQUESTS: Final = (
    Request(0, 9, lambda topic, _: _produced({"name": topic})),
    Request(0, 13, lambda _, topic_id: _produced({"topic_id": topic_id}), "by id"),
    Request(0, 9, lambda topic, _: _produced({"name": topic}, OPEN), "in a transaction"),
    Request(1, 12, lambda topic, _: _fetched({"topic": topic}, replica_id=-1)),
    Request(1, 16, lambda _, topic_id: _fetched({"topic_id": topic_id}), "by id"),
    Request(
        2,
        7,
        lambda topic, _: {
            "replica_id": -1,
            "topics": [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}],
        },
    ),
    Request(3, 12, lambda topic, _: _metadata({"name": topic})),
    Request(3, 12, lambda _, topic_id: _metadata({"name": None, "topic_id": topic_id}), "by id"),
    Request(8, 8, lambda topic, _: _committed(OPEN, {"name": topic})),
    Request(8, 10, lambda _, topic_id: _committed(OPEN, {"topic_id": topic_id}), "by id"),
    Request(9, 8, lambda topic, _: _fetched_offsets(OPEN, {"name": topic})),
    Request(9, 10, lambda _, topic_id: _fetched_offsets(OPEN, {"topic_id": topic_id}), "by id"),
    Request(19, 7, lambda topic, _: _created(topic)),
    Request(
        21,
        2,
        lambda topic, _: {
            "topics": [{"name": topic, "partitions": [{"partition_index": 0, "offset": 0}]}],
            "timeout": 1_000,
        },
    ),
    Request(23, 4, lambda topic, _: _ended_epoch(topic)),
    Request(24, 3, lambda topic, _: _added(OPEN, topic)),
    Request(28, 3, lambda topic, _: _committed_in_transaction(OPEN, OPEN, topic)),
    Request(32, 4, lambda topic, _: _settings(_TOPIC, topic)),
    Request(33, 2, lambda topic, _: _replaced(_TOPIC, topic)),
    Request(37, 3, lambda topic, _: {"topics": [{"name": topic, "count": 3}], "timeout": 5_000, "validate_only": True}),
    Request(44, 1, lambda topic, _: _changed(_TOPIC, topic, "retention.ms")),
    Request(47, 0, lambda topic, _: _deleted_offsets(OPEN, topic)),
    Request(61, 0, lambda topic, _: {"topics": [{"name": topic, "partition_indexes": [0]}]}),
    Request(75, 0, lambda topic, _: {"topics": [{"name": topic}], "response_partition_limit": 10}),
)
TOPIC_DELETIONS: Final = (
    Request(20, 6, lambda topic, _: _deleted(topic, None)),
    Request(20, 6, lambda _, topic_id: _deleted(None, topic_id), "by id"),
    Request(20, 5, lambda topic, _: {"topic_names": [topic], "timeout": 5_000}),
)
"""Each about a topic of its own."""
TOPIC_CREATION: Final = Request(3, 12, lambda topic, _: _metadata({"name": topic}, creates=True), "creating")


def _joined(group: str) -> Fields:
    return {
        "group_id": group,
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }


def _of_member(group: str) -> Fields:
    return {"group_id": group, "generation_id": 1, "member_id": "nobody"}


GROUP_REQUESTS: Final = (
    Request(8, 8, lambda group, _: _committed(group, {"name": OPEN})),
    Request(9, 7, lambda group, _: {"group_id": group, "topics": [{"name": OPEN, "partition_indexes": [0]}]}),
    Request(9, 8, lambda group, _: _fetched_offsets(group, {"name": OPEN})),
    Request(10, 3, lambda group, _: {"key": group, "key_type": 0}),
    Request(10, 4, lambda group, _: {"coordinator_keys": [group], "key_type": 0}),
    Request(11, 9, lambda group, _: _joined(group)),
    Request(12, 4, lambda group, _: _of_member(group)),
    Request(13, 2, lambda group, _: {"group_id": group, "member_id": "nobody"}),
    Request(13, 5, lambda group, _: {"group_id": group, "members": [{"member_id": "nobody"}]}),
    Request(14, 5, lambda group, _: {**_of_member(group), "protocol_type": "consumer", "protocol_name": "range"}),
    Request(15, 6, lambda group, _: {"groups": [group], "include_authorized_operations": True}),
    Request(25, 3, lambda group, _: {"transactional_id": OPEN, "group_id": group, **_BOGUS}),
    Request(28, 3, lambda group, _: _committed_in_transaction(OPEN, group, OPEN)),
    Request(32, 4, lambda group, _: _settings(_GROUP, group), "of a group"),
    Request(33, 2, lambda group, _: _replaced(_GROUP, group), "of a group"),
    Request(44, 1, lambda group, _: _changed(_GROUP, group, "consumer.session.timeout.ms"), "of a group"),
    Request(42, 2, lambda group, _: {"groups_names": [group]}),
    Request(47, 0, lambda group, _: _deleted_offsets(group, OPEN)),
)

TRANSACTION_REQUESTS: Final = (
    Request(0, 9, lambda name, _: _produced({"name": OPEN}, name)),
    Request(10, 3, lambda name, _: {"key": name, "key_type": 1}),
    Request(10, 4, lambda name, _: {"coordinator_keys": [name], "key_type": 1}),
    Request(22, 4, lambda name, _: {"transactional_id": name, "transaction_timeout": 10_000, **_NEW}),
    Request(24, 3, lambda name, _: _added(name, OPEN)),
    Request(25, 3, lambda name, _: {"transactional_id": name, "group_id": OPEN, **_BOGUS}),
    Request(26, 3, lambda name, _: {"transactional_id": name, **_BOGUS, "committed": True}),
    Request(26, 5, lambda name, _: {"transactional_id": name, **_BOGUS, "committed": True}),
    Request(28, 3, lambda name, _: _committed_in_transaction(name, OPEN, OPEN)),
    Request(65, 0, lambda name, _: {"transactional_ids": [name]}),
)

_MARKER: Final = {**_BOGUS, "transaction_result": False, "coordinator_epoch": 0}
_VERIFIED: Final = {
    "transactional_id": NOBODYS,
    **_BOGUS,
    "verify_only": True,
    "topics": [{"name": NOBODYS, "partitions": [0]}],
}
_PREFERRED: Final = {"topic_partitions": [{"topic": NOBODYS, "partitions": [0]}], "timeout": 5_000}
_ANY_ACL: Final = {
    "resource_name_filter": NOBODYS,
    "pattern_type_filter": 3,
    "operation": 1,
    "permission_type": 1,
}
_UNKNOWN_ACL: Final = {
    "resource_type": 2,
    "resource_name": "",
    "resource_pattern_type": 3,
    "principal": "User:nobody",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
"""Has no name, so that it is never created."""
CLUSTER_REQUESTS: Final = (
    Request(1, 12, lambda _n, _: _fetched({"topic": OPEN}, replica_id=7), "of a replica"),
    Request(3, 8, lambda _n, _: {"topics": [], "include_cluster_authorized_operations": True}),
    Request(16, 4, lambda _n, _: {}),
    Request(19, 7, lambda _n, _: _created(NOBODYS)),
    Request(20, 6, lambda _n, _: _deleted(NOBODYS, None)),
    Request(22, 4, lambda _n, _: {"transactional_id": None, "transaction_timeout": 10_000, **_NEW}),
    Request(23, 4, lambda _n, _: _ended_epoch(NOBODYS)),
    Request(24, 4, lambda _n, _: {"transactions": [_VERIFIED]}, "of a leader"),
    Request(27, 1, lambda _n, _: {"markers": [{**_MARKER, "topics": [{"name": NOBODYS, "partition_indexes": [0]}]}]}),
    Request(29, 2, lambda _n, _: {"resource_type_filter": 5, **_ANY_ACL}),
    Request(30, 2, lambda _n, _: {"creations": [_UNKNOWN_ACL]}),
    Request(31, 2, lambda _n, _: {"filters": [{"resource_type_filter": 5, **_ANY_ACL}]}),
    Request(32, 4, lambda _n, _: _settings(_BROKER, "1")),
    Request(32, 4, lambda _n, _: _settings(_BROKER, ""), "of all brokers"),
    Request(32, 4, lambda _n, _: _settings(_LOGGER, "1"), "of a logger"),
    Request(33, 2, lambda _n, _: _replaced(_BROKER, ""), "of all brokers"),
    Request(34, 2, lambda _n, _: {"dirs": [{"path": "/none", "topics": [{"name": NOBODYS, "partitions": [0]}]}]}),
    Request(35, 4, lambda _n, _: {"topics": []}),
    Request(43, 2, lambda _n, _: {"election_type": 0, **_PREFERRED}),
    Request(44, 1, lambda _n, _: _changed(_BROKER, "", "log.retention.ms")),
    Request(44, 1, lambda _n, _: _changed(_LOGGER, "1", "root"), "of a logger"),
    Request(45, 0, lambda _n, _: {"timeout": 5_000, "topics": [_reassigned()]}),
    Request(46, 0, lambda _n, _: {"timeout": 5_000, "topics": [{"name": NOBODYS, "partition_indexes": [0]}]}),
    Request(48, 1, lambda _n, _: {"components": [], "strict": False}),
    Request(49, 1, lambda _n, _: {"entries": [_QUOTA], "validate_only": True}),
    # Apache Kafka 4.4 has no answer to null from those who may not ask.
    Request(50, 0, lambda _n, _: {"users": []}),
    Request(51, 0, lambda _n, _: {"deletions": [{"name": NOBODYS, "mechanism": 1}], "upsertions": []}),
    Request(55, 2, lambda _n, _: {"topics": [_metadata_partition()]}),
    Request(57, 1, lambda _n, _: {"timeout": 5_000, "feature_updates": [_NO_FEATURE], "validate_only": True}),
    Request(60, 1, lambda _n, _: {"include_cluster_authorized_operations": True, "endpoint_type": 1}),
    Request(64, 0, lambda _n, _: {"broker_id": 99}),
)


def _reassigned() -> Fields:
    return {"name": NOBODYS, "partitions": [{"partition_index": 0, "replicas": [1]}]}


def _metadata_partition(**partition: Any) -> Fields:
    return {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0, **partition}]}


def _of_other_cluster(**fields: Any) -> Fields:
    return {"cluster_id": OTHER_CLUSTER, "voter_id": 1, "topics": [_metadata_partition(**fields)]}


_SNAPSHOT: Final = {
    "cluster_id": OTHER_CLUSTER,
    "replica_id": 7,
    "max_bytes": 100,
    "topics": [
        {
            "name": "__cluster_metadata",
            "partitions": [{"partition": 0, "current_leader_epoch": 1, "snapshot_id": {"end_offset": 1, "epoch": 1}}],
        }
    ],
}
CONTROLLER_REQUESTS: Final = (
    Request(1, 16, lambda _n, _: {**_fetched({"topic_id": UUID(int=1)}), "cluster_id": OTHER_CLUSTER}),
    Request(52, 1, lambda _n, _: _of_other_cluster(replica_id=7, replica_epoch=1, last_offset_epoch=0, last_offset=0)),
    Request(53, 1, lambda _n, _: _of_other_cluster(leader_id=7, leader_epoch=1)),
    Request(54, 1, lambda _n, _: _of_other_cluster(leader_id=7, leader_epoch=1)),
    Request(56, 3, lambda _n, _: {"broker_id": 99, "broker_epoch": 1, "topics": []}),
    Request(
        58,
        0,
        lambda _n, _: {
            "request_data": b"\0\0",
            "request_principal": None,
            "client_host_address": bytes([127, 0, 0, 1]),
        },
    ),
    Request(59, 0, lambda _n, _: _SNAPSHOT),
    Request(60, 1, lambda _n, _: {"endpoint_type": 2}, "of controllers"),
    Request(
        62,
        4,
        lambda _n, _: {"broker_id": 99, "cluster_id": OTHER_CLUSTER, "incarnation_id": NO_ID, "log_dirs": [NO_ID]},
    ),
    Request(63, 1, lambda _n, _: {"broker_id": 99, "broker_epoch": 1, "current_metadata_offset": 0}),
    Request(67, 0, lambda _n, _: {"broker_id": 99, "broker_epoch": 1}),
)
"""To the listener of controllers."""
EVERYTHING: Final = (
    Request(3, 12, lambda _n, _: {"topics": None, "include_topic_authorized_operations": True}),
    Request(9, 8, lambda _n, _: {"groups": [{"group_id": OPEN, "topics": None}]}),
    Request(16, 4, lambda _n, _: {}),
    Request(65, 0, lambda _n, _: {"transactional_ids": [OPEN]}),
    Request(66, 1, lambda _n, _: {"duration_filter": -1}),
    Request(75, 0, lambda _n, _: {"topics": [], "response_partition_limit": 2_000}),
)
"""About all that the sender may see."""
