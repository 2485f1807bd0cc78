"""Metadata responses, versions 0 to 13: they can be large, and every client asks for them again and again.

Writing only; requests, and reading as a client, go through ``api/metadata.py``. Fields that a version does not have are
left out.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from einmal.wire.api.metadata import MetadataResponse, MetadataResponseBroker, MetadataResponseTopic
from einmal.wire.errors import UnknownVersion
from einmal.wire.primitives import (
    INT16,
    INT32,
    NO_TAGS,
    encode_length,
    encode_nullable_string,
    encode_string,
)

VERSIONS: Final = range(14)
NO_AUTHORIZED_OPERATIONS: Final = -(1 << 31)
_NO_TOPIC_ID: Final = UUID(int=0).bytes

_RACK: Final = 1
_CLUSTER_ID: Final = 2
_THROTTLE: Final = 3
_OFFLINE: Final = 5
_LEADER_EPOCH: Final = 7
_OPERATIONS: Final = 8
_FLEXIBLE: Final = 9
_TOPIC_ID: Final = 10
_NO_CLUSTER_OPERATIONS: Final = 11
_ERROR: Final = 13

_PARTITION: Final = struct.Struct(">hii")
_PARTITION_EPOCH: Final = struct.Struct(">hiii")


def encode_metadata_response(version: int, response: MetadataResponse) -> bytes:
    """The body. Raises UnknownVersion."""
    if version not in VERSIONS:
        raise UnknownVersion(f"Metadata version {version}")
    flexible = version >= _FLEXIBLE
    parts = [INT32.pack(response.throttle_time)] if version >= _THROTTLE else []
    parts.append(encode_length(len(response.brokers), flexible))
    parts += [_encode_broker(version, broker) for broker in response.brokers]
    if version >= _CLUSTER_ID:
        parts.append(encode_nullable_string(response.cluster_id, flexible))
    if version >= _RACK:
        parts.append(INT32.pack(response.controller_id))
    parts.append(encode_length(len(response.topics), flexible))
    for topic in response.topics:
        _append_topic(parts, version, topic)
    if _OPERATIONS <= version < _NO_CLUSTER_OPERATIONS:
        parts.append(INT32.pack(response.cluster_authorized_operations))
    if version >= _ERROR:
        parts.append(INT16.pack(response.error_code))
    if flexible:
        parts.append(NO_TAGS)
    return b"".join(parts)


def _encode_broker(version: int, broker: MetadataResponseBroker) -> bytes:
    flexible = version >= _FLEXIBLE
    encoded = INT32.pack(broker.node_id) + encode_string(broker.host, flexible) + INT32.pack(broker.port)
    if version >= _RACK:
        encoded += encode_nullable_string(broker.rack, flexible)
    return encoded + NO_TAGS if flexible else encoded


def _append_topic(parts: list[bytes], version: int, topic: MetadataResponseTopic) -> None:
    flexible = version >= _FLEXIBLE
    parts += (INT16.pack(topic.error_code), encode_nullable_string(topic.name, flexible))
    if version >= _TOPIC_ID:
        parts.append(_NO_TOPIC_ID if topic.topic_id is None else topic.topic_id.bytes)
    if version >= _RACK:
        parts.append(b"\x01" if topic.is_internal else b"\x00")
    parts.append(encode_length(len(topic.partitions), flexible))
    # Replicas are the same few lists over and over.
    encoded: dict[tuple[int, ...], bytes] = {}
    for partition in topic.partitions:
        if version >= _LEADER_EPOCH:
            head = _PARTITION_EPOCH.pack(
                partition.error_code, partition.partition_index, partition.leader_id, partition.leader_epoch
            )
        else:
            head = _PARTITION.pack(partition.error_code, partition.partition_index, partition.leader_id)
        parts += (
            head,
            _encode_nodes(encoded, partition.replica_nodes, flexible),
            _encode_nodes(encoded, partition.isr_nodes, flexible),
        )
        if version >= _OFFLINE:
            parts.append(_encode_nodes(encoded, partition.offline_replicas, flexible))
        if flexible:
            parts.append(NO_TAGS)
    if version >= _OPERATIONS:
        parts.append(INT32.pack(topic.topic_authorized_operations))
    if flexible:
        parts.append(NO_TAGS)


def _encode_nodes(encoded: dict[tuple[int, ...], bytes], nodes: Sequence[int], flexible: bool) -> bytes:
    key = tuple(nodes)
    known = encoded.get(key)
    if known is None:
        known = encoded[key] = encode_length(len(key), flexible) + struct.pack(f">{len(key)}i", *key)
    return known
