"""What the fields of a request may be: mostly what gets past the first check of a handler, and some of what must not.

A pool is a tuple from which values are drawn, as often as they are in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

TOPICS: Final = tuple(f"fuzz-{number}" for number in range(12))
WIDE_TOPIC, WIDE_PARTITIONS = "fuzz-wide", 2_000
_TOPIC_NAMES: Final = (
    *TOPICS * 8,
    *(WIDE_TOPIC,) * 6,
    "",
    ".",
    "..",
    "../fuzz",
    "fuzz.0",
    "fuzz_0",
    "x" * 249,
    "x" * 250,
    "y" * 5000,
    "näme",
    "__consumer_offsets",
    "__transaction_state",
    "__cluster_metadata",
    "__einmal_commits",
    "a/b",
    "\x00",
)
_GROUPS: Final = (*(f"group-{number}" for number in range(4)), "", "g" * 3000)
_TRANSACTIONAL_IDS: Final = (*(f"txn-{number}" for number in range(4)), "", "t" * 3000)
_OTHER_STRINGS: Final = ("", "range", "consumer", "1", "0", "member", "compact", "-1", "é" * 9)
_CONFIG_KEYS: Final = (
    "cleanup.policy",
    "compression.type",
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "index.interval.bytes",
    "internal.segment.bytes",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "retention.bytes",
    "retention.ms",
    "preallocate",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
    "no.such.setting",
    "",
)
_CONFIG_VALUES: Final = (
    *("-1", "0", "1", "100", "4000000", "4000000", "1048576", "2147483647", "9223372036854775807"),
    *("9223372036854775808", "1e9", "0.5", "1.0", "nan", "true", "false", "", "é"),
    *("compact", "delete", "compact,delete", "CreateTime", "LogAppendTime", "producer", "gzip", "zstd"),
)
_PROTOCOLS: Final = ("range", "range", "range", "roundrobin", "", "p" * 3000)
_FEATURES: Final = ("transaction.version", "group.version", "kraft.version", "metadata.version", "", "no.version")

_NUMBERS: Final = (0, 0, 0, 1, 1, 1, 2, 3, 5, -1, -1, -2, -3, 10, 100, 2**15 - 1, -(2**15), 2**31 - 1, -(2**31))
_LARGE_NUMBERS: Final = (*_NUMBERS, 2**63 - 1, -(2**63), 2**40)
_PARTITIONS: Final = (*(0,) * 16, *(1,) * 4, *(2,) * 2, 3, -1, 2**31 - 1, -(2**31))
_EPOCHS: Final = (*(-1,) * 8, 0, 0, 1, 5, 2**31 - 1, -(2**31))
_GENERATIONS: Final = (-1, -1, -1, 0, 1, 1, 2, 3, 2**31 - 1)
_WAITS: Final = (0, 0, 0, 1, 5, 20, -1)
"""Mostly short, or the attackers would only wait."""
_SIZES: Final = (2**20, 2**20, 2**20, 1000, 1, 0, -1, 2**31 - 1)
_OFFSETS: Final = (0, 0, 0, 1, 3, 10, 100, 1000, -1, -2, 2**40, 2**63 - 1, -(2**63))
_PRODUCER_IDS: Final = (*range(12), -1, 1000, 10**9, 2**63 - 1, -(2**63))
_PRODUCER_EPOCHS: Final = (0, 0, 0, 1, 1, 2, 3, -1, 2**15 - 1, -(2**15))
_BROKERS: Final = (1, 1, 1, 1, 1, 0, 2, -1, 2**31 - 1)
_RESOURCES: Final = (2, 2, 2, 2, 4, 4, 8, 16, 32, 0, -1, 127)
_ACL_RESOURCES: Final = (2, 2, 2, 3, 3, 4, 5, 6, 7, 1, 0, -1, 127)
_PATTERNS: Final = (3, 3, 3, 4, 4, 1, 2, 0, -1, 127)
_HOSTS: Final = ("*", "*", "127.0.0.1", "10.0.0.1", "::1", "", "h" * 3000)
USER, SLOW_USER, PASSWORD = "fuzz", "slow", "password"
OBSERVER: Final = "observer"
"""Who authenticate on the listener for users. Only quotas of the second are changed, as others must not wait. Nobody
attacks as the third."""
_USERS: Final = (USER, SLOW_USER, "bob", "", "u" * 3000, "ü")
_PRINCIPALS: Final = (
    *(f"User:{USER}", f"User:{USER}", f"User:{SLOW_USER}", "User:*", "User:bob"),
    *("User:", "Group:x", "fuzz", "", "User:" + "p" * 3000),
)
_ENTITIES: Final = (SLOW_USER, SLOW_USER, "bob", "10.0.0.1", "::1", "", "e" * 3000)
_SUBSCRIPTION: Final = b"\x00\x01\x00\x00\x00\x01\x00\x06fuzz-0\xff\xff\xff\xff"
_BYTES: Final = (_SUBSCRIPTION, _SUBSCRIPTION, b"", b"x", b"\x00\x01" * 20, _SUBSCRIPTION[:9], b"\xff" * 60)
_AUTH_BYTES: Final = (
    b"n,,n=fuzz,r=fuzzfuzzfuzz",
    b"n,,n=fuzz,r=fuzzfuzzfuzz",
    b"c=biws,r=fuzzfuzzfuzz,p=AAAA",
    b"n,,",
    b"",
    b"\xff" * 60,
    b"n,,n=" + b"a" * 60_000 + b",r=",
    b"," * 5000,
    b"\0fuzz\0a guess",
    b"fuzz\0fuzz\0a guess",
    b"\0" * 3000,
    b"n,,\x01auth=Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJmdXp6In0.\x01\x01",
    b"n,a=fuzz,\x01auth=Bearer " + b"e" * 60_000 + b"\x01\x01",
    b"n,,\x01host=x\x01auth=Bearer a.b.c\x01\x01",
    b"\x01",
)
"""Of all mechanisms; none authenticates."""

POOLS: Final[Mapping[str, Sequence[Any]]] = {
    "acks": (*(-1,) * 12, *(1,) * 12, 0, 2, -2, 2**15 - 1),
    "allow_auto_topic_creation": (False,) * 5 + (True,),
    "assignment": _BYTES,
    "auth_bytes": _AUTH_BYTES,
    "broker_epoch": (5, 5, 5, -1, 0, 6, 2**40),
    "broker_id": _BROKERS,
    "broker_ids": _BROKERS,
    "candidate_epoch": _EPOCHS,
    "committed_leader_epoch": _EPOCHS,
    "config_operation": (0, 0, 0, 1, 2, 3, 4, -1),
    "coordinator_keys": (*_GROUPS, *_TRANSACTIONAL_IDS),
    "count": (1, 1, 2, 3, 4, -1, 0, 2**31 - 1),
    "current_leader_epoch": _EPOCHS,
    "election_type": (0, 0, 1, 2, -1),
    "endpoint_type": (1, 1, 1, 2, 0, 127),
    "entity_name": _ENTITIES,
    "entity_type": (*("user",) * 4, *("client-id",) * 3, "ip", "ip", "", "no-type"),
    "feature": _FEATURES,
    "fetch_offset": _OFFSETS,
    "generation_id": _GENERATIONS,
    "generation_id_or_member_epoch": _GENERATIONS,
    "group_instance_id": ("member", "member-2", ""),
    "groups": _GROUPS,
    "groups_names": _GROUPS,
    "host": _HOSTS,
    "host_filter": _HOSTS,
    "index": _PARTITIONS,
    "isolation_level": (0, 0, 1, 1, 2, -1),
    "iterations": (4096, 4096, 8192, 16_384, 16_385, 4095, 0, -1, 2**31 - 1),
    "key": (*_GROUPS, *_TRANSACTIONAL_IDS),
    "key_type": (0, 0, 1, 1, 2, -1, 127),
    "last_fetched_epoch": _EPOCHS,
    "leader_id": _BROKERS,
    "leader_epoch": (0, 0, 1, 2, -1, 2**31 - 1),
    "match": _ENTITIES,
    "match_type": (0, 0, 1, 2, 3, -1, 127),
    "max_bytes": _SIZES,
    "max_version_level": (0, 1, 2, 2, 1, 29, -1, 2**15 - 1),
    "max_wait": _WAITS,
    "mechanism": (
        *("SCRAM-SHA-256",) * 5,
        *("SCRAM-SHA-512", "SCRAM-SHA-512", "OAUTHBEARER", "OAUTHBEARER", "PLAIN", "PLAIN", "GSSAPI", "", "m" * 3000),
    ),
    "member_epoch": _GENERATIONS,
    "member_id": ("", "", "", "member", "m" * 3000),
    "metadata": _BYTES,
    "min_bytes": (0, 1, 1, 1, 100, -1, 2**31 - 1),
    "num_partitions": (1, 1, 2, 3, -1, 0, 2**31 - 1),
    "offset": _OFFSETS,
    "operation": (*range(13), 3, 4, 8, -1, 127),
    "partition": _PARTITIONS,
    "partition_index": _PARTITIONS,
    "partition_indexes": _PARTITIONS,
    "partition_max_bytes": _SIZES,
    "partitions": _PARTITIONS,
    "pattern_type_filter": _PATTERNS,
    "permission_type": (2, 3, 2, 3, 1, 0, -1, 127),
    "principal": _PRINCIPALS,
    "principal_filter": _PRINCIPALS,
    "producer_epoch": _PRODUCER_EPOCHS,
    "producer_id": _PRODUCER_IDS,
    "producer_id_filters": _PRODUCER_IDS,
    "protocol_name": _PROTOCOLS,
    "protocol_type": ("consumer",) * 5 + ("", "connect"),
    "rebalance_timeout": (1, 5, 20, 100, 0, -1, 2**31 - 1),
    "replica_id": (*(-1,) * 12, 0, 1, -2, 2**31 - 1),
    "replicas": _BROKERS,
    "replication_factor": (*(1,) * 6, -1, 0, 2, 2**15 - 1),
    "resource_name": (*TOPICS, *TOPICS, *("1",) * 6, "", "2", "y" * 5000, "INFO"),
    "resource_name_filter": (*TOPICS, "*", "", "y" * 5000),
    "resource_pattern_type": _PATTERNS,
    "resource_type": _RESOURCES,
    "resource_type_filter": _ACL_RESOURCES,
    "session_epoch": (0, 0, -1, -1, 1, 2, 2**31 - 1, -(2**31)),
    "session_id": (0, 0, 0, 0, 1, 2, -1, 2**31 - 1),
    "session_timeout": (1, 20, 1000, 6000, 0, -1, 2**31 - 1),
    "state_filters": ("Ongoing", "Empty", "CompleteCommit", "Dead", "", "s" * 3000),
    "states_filter": ("Stable", "Empty", "Dead", "PreparingRebalance", "", "s" * 3000),
    "timeout": _WAITS,
    "timestamp": (-1, -2, -3, -4, -5, -6, 0, 1, 2**40, 2**63 - 1, -(2**63)),
    "topic_names": _TOPIC_NAMES,
    "transaction_timeout": (1, 100, 1000, 10_000, 60_000, 0, -1, 2**31 - 1),
    "transaction_version": (0, 1, 2, 2, 3, -1),
    "transactional_id_pattern": (
        "",
        ".*",
        "txn-[0-9]",
        "(t+)+$",
        "(t|t)*x",
        "(((",
        "t{1,1000}",
        "(t?){500}" + "t" * 99,
    ),
    "types_filter": ("consumer", "classic", "share", "", "s" * 3000),
    "upgrade_type": (1, 1, 2, 3, 0, 127),
    "v3_and_below_producer_epoch": _PRODUCER_EPOCHS,
    "v3_and_below_producer_id": _PRODUCER_IDS,
}
"""By a field's name."""

_OF_STRUCTURES: Final[Mapping[tuple[str, str], Sequence[Any]]] = {
    ("AclCreation", "resource_name"): (*TOPICS, *_GROUPS, "kafka-cluster", "kafka-cluster", "*", "x" * 5000),
    ("AclCreation", "resource_type"): _ACL_RESOURCES,
    ("OpData", "key"): (
        *("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"),
        *("connection_creation_rate", "no.such.quota", ""),
    ),
    ("ScramCredentialDeletion", "name"): _USERS,
    ("ScramCredentialUpsertion", "name"): _USERS,
    ("UserName", "name"): _USERS,
}
"""By the structure too, where a field's name has several meanings."""

NULLS: Final[Mapping[str, float]] = {
    "cluster_id": 0.8,
    # The default's quotas are those of the client that must not wait, too.
    "entity_name": 0.0,
    "group_instance_id": 0.8,
    "transactional_id": 0.5,
}
"""How often a nullable field is null, where that is not NULL."""
FLOATS: Final = (0.0, 0.5, 1.0, 1.0, 100.0, 1e6, 1e6, 1e18, 1e308, -1.0, float("inf"), float("-inf"), float("nan"))
NULL: Final = 0.15
LENGTHS: Final[Mapping[str, Sequence[int]]] = {"assignments": (0, 0, 0, 0, 1, 2)}
"""Of arrays, where they are not LENGTH."""
LENGTH: Final = (0, 1, 1, 1, 1, 2, 3)
_RANGES: Final = {
    "int8": (-128, 127),
    "int16": (-(2**15), 2**15 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint8": (0, 255),
    "uint16": (0, 2**16 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**63),
    "timedelta_i64": (-(2**63), 2**63 - 1),
    "datetime_i64": (-(2**63), 2**63 - 1),
}


def pool(structure: str, name: str, kind: str) -> Sequence[Any]:
    """What a field may be. ``structure``: the name of what it is a field of."""
    if found := _OF_STRUCTURES.get((structure, name)):
        return found
    if kind == "string":
        return _strings(structure, name)
    if kind == "bytes":
        return POOLS.get(name, _BYTES)
    low, high = _RANGES.get(kind, (-(2**31), 2**31 - 1))
    # One name may be a text in one API and a number in another.
    numbers = [each for each in POOLS.get(name, ()) if not isinstance(each, str)] or _LARGE_NUMBERS
    return tuple(number for number in numbers if low <= number <= high)


def _strings(structure: str, name: str) -> Sequence[str]:
    if name in POOLS:
        return POOLS[name]
    if "transactional_id" in name:
        return _TRANSACTIONAL_IDS
    if "group" in name:
        return _GROUPS
    if "Config" in structure and name in ("name", "value"):
        return _CONFIG_KEYS if name == "name" else _CONFIG_VALUES
    if name == "name" and "Protocol" in structure:
        return _PROTOCOLS
    if name in ("name", "topic", "topic_name"):
        return _TOPIC_NAMES
    return _OTHER_STRINGS
