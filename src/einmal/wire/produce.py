"""Produce, versions 3 to 13, both directions. Records are never unpacked, and never copied when read.

Version differences end here: from 13 on a topic is its id, before that its name; fields that a version does not have
are left out in writing and get their default in reading.

Nearly every request and answer has one partition of one topic without tagged fields. These have a fast path in the
flexible versions, which takes a third of the time of the general code.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from einmal.wire.errors import Malformed, UnknownVersion, WireError
from einmal.wire.messages import Api, Versions
from einmal.wire.primitives import (
    ELEMENTS_MAX,
    INT32,
    NO_TAGS,
    Frame,
    Topic,
    encode_length,
    encode_nullable_string,
    encode_tags,
    encode_topic,
    error_of,
    read_count,
    read_length,
    read_nullable_string,
    read_records,
    read_string,
    read_tags,
    read_topic,
    read_topic_id,
    read_uvarint,
    refuse_broken_input,
    skip_tags,
)

VERSIONS: Final = range(3, 14)
_FLEXIBLE: Final = 9
_FLEXIBLE_VERSIONS: Final = range(_FLEXIBLE, 14)
_TOPIC_IDS: Final = 13
_LOG_START: Final = 5
_RECORD_ERRORS: Final = 8
_CURRENT_LEADER: Final = 10

_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_PARTITION: Final = struct.Struct(">ihqq")
_PARTITION_LOG_START: Final = struct.Struct(">ihqqq")
_LEADER: Final = struct.Struct(">ii")

_ONE: Final = 2
"""A compact array's length when it has one element."""
_TO_TOPIC: Final = struct.Struct(">hiBB")
"""acks, timeout, topic count, and the first byte of the topic."""
_TO_RECORDS: Final = struct.Struct(">Bi")
"""Partition count, partition."""
_SINGLE_END: Final = b"\x00\x00\x00"
"""No tagged fields: of the partition, of the topic, of the request."""
_FROM_PARTITIONS: Final = struct.Struct(">BihqqqIiB")
"""Fields of an answer: partition count, partition, no errors of it or of its topic, throttle time, no tagged fields."""
_NO_REFUSAL: Final = 0x01000000
"""No record errors, no message, no tagged fields of the partition and of the topic."""

Records = bytes | bytearray | memoryview


class ProduceRequest(NamedTuple):
    """``topics``: (topic, [(partition, records)]); records are batches as on the wire, None for null."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: Sequence[tuple[Topic, Sequence[tuple[int, Records | None]]]]


class LeaderIdAndEpoch(NamedTuple):
    leader_id: int
    leader_epoch: int


class NodeEndpoint(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


class ProducedPartition(NamedTuple):
    """``log_append_time`` in ms, -1 if the records keep their own times; ``record_errors``: (index in batch, text)."""

    partition: int
    error_code: ErrorCode = ErrorCode.none
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[tuple[int, str | None]] = ()
    error_message: str | None = None
    current_leader: LeaderIdAndEpoch | None = None


class ProduceResponse(NamedTuple):
    topics: Sequence[tuple[Topic, Sequence[ProducedPartition]]]
    throttle_time_ms: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()


def _check_version(version: int) -> None:
    if version not in VERSIONS:
        raise UnknownVersion(f"Produce version {version}")


# --- requests --------------------------------------------------------------------------------------------------


def decode_produce_request(version: int, frame: Frame, position: int) -> ProduceRequest:
    """The body at ``position``; records are slices of the frame. Raises Truncated, Malformed or UnknownVersion."""
    if version in _FLEXIBLE_VERSIONS:
        try:
            single = _decode_single(frame, position, version >= _TOPIC_IDS)
        except (struct.error, IndexError, UnicodeDecodeError, WireError):
            # Perhaps another, shorter shape. If it is broken, the general decoder raises the error.
            single = None
        if single is not None:
            return single
    return _decode_any(version, frame, position)


def partition_count(version: int, frame: Frame, position: int) -> int:
    """How many partitions the request names. Raises as ``decode_produce_request``."""
    return sum(len(partitions) for _topic, partitions in decode_produce_request(version, frame, position).topics)


def _decode_single(frame: Frame, position: int, has_ids: bool) -> ProduceRequest | None:
    """A flexible request for one partition, without tagged fields; None: it has another shape."""
    transactional_id = None
    if frame[position]:
        transactional_id, position = read_nullable_string(frame, position, True)
    else:
        position += 1
    acks, timeout_ms, topic_count, name_length = _TO_TOPIC.unpack_from(frame, position)
    position += _TO_TOPIC.size
    if topic_count != _ONE or not (has_ids or 0 < name_length < 0x80):
        return None
    end = position + 15 if has_ids else position + name_length - 1
    partition_count, partition = _TO_RECORDS.unpack_from(frame, end)
    if partition_count != _ONE:
        return None
    topic = read_topic_id(frame, position - 1)[0] if has_ids else frame[position:end].decode()
    size, start = read_uvarint(frame, end + _TO_RECORDS.size)
    end = start + size - 1
    if end < start or frame[end:] != _SINGLE_END:
        return None
    return ProduceRequest(transactional_id, acks, timeout_ms, [(topic, [(partition, memoryview(frame)[start:end])])])


@refuse_broken_input
def _decode_any(version: int, frame: Frame, position: int) -> ProduceRequest:
    _check_version(version)
    flexible = version >= _FLEXIBLE
    has_ids = version >= _TOPIC_IDS
    view = memoryview(frame)
    transactional_id, position = read_nullable_string(frame, position, flexible)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, position)
    topic_count, position, room = read_count(frame, position + _ACKS_TIMEOUT.size, flexible, ELEMENTS_MAX)
    topics = []
    for _ in range(topic_count):
        topic, position = read_topic(frame, position, flexible, has_ids)
        partition_count, position, room = read_count(frame, position, flexible, room)
        partitions = []
        for _ in range(partition_count):
            (partition,) = INT32.unpack_from(frame, position)
            records, position = read_records(view, frame, position + 4, flexible)
            partitions.append((partition, records))
            if flexible:
                position = skip_tags(frame, position)
        topics.append((topic, partitions))
        if flexible:
            position = skip_tags(frame, position)
    if flexible:
        skip_tags(frame, position)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def encode_produce_request(version: int, request: ProduceRequest) -> list[Records]:
    """The body in parts, for ``frame``: records are not copied. Raises UnknownVersion."""
    _check_version(version)
    flexible = version >= _FLEXIBLE
    tags = NO_TAGS if flexible else b""
    parts: list[Records] = [
        encode_nullable_string(request.transactional_id, flexible),
        _ACKS_TIMEOUT.pack(request.acks, request.timeout_ms),
        encode_length(len(request.topics), flexible),
    ]
    for topic, partitions in request.topics:
        parts.append(encode_topic(topic, flexible) + encode_length(len(partitions), flexible))
        for partition, records in partitions:
            size = -1 if records is None else len(records)
            parts += (INT32.pack(partition) + encode_length(size, flexible), records or b"", tags)
        parts.append(tags)
    parts.append(tags)
    return parts


# --- responses -------------------------------------------------------------------------------------------------


def encode_produce_response(version: int, response: ProduceResponse) -> bytes:
    """The body. Raises UnknownVersion."""
    single = _encode_single(response) if version in _FLEXIBLE_VERSIONS else None
    return _encode_any(version, response) if single is None else single


def _encode_single(response: ProduceResponse) -> bytes | None:
    """The answer of a flexible version for one partition without a refusal; else None."""
    topics, throttle_time_ms, node_endpoints = response
    if len(topics) != 1 or node_endpoints:
        return None
    topic, partitions = topics[0]
    if len(partitions) != 1:
        return None
    index, code, base_offset, append_time, log_start, record_errors, message, leader = partitions[0]
    if record_errors or message is not None or leader is not None:
        return None
    return (
        b"\x02"
        + encode_topic(topic, True)
        + _FROM_PARTITIONS.pack(
            _ONE, index, code, base_offset, append_time, log_start, _NO_REFUSAL, throttle_time_ms, 0
        )
    )


def _encode_any(version: int, response: ProduceResponse) -> bytes:
    _check_version(version)
    flexible = version >= _FLEXIBLE
    tags = NO_TAGS if flexible else b""
    parts = [encode_length(len(response.topics), flexible)]
    for topic, partitions in response.topics:
        parts += (encode_topic(topic, flexible), encode_length(len(partitions), flexible))
        for partition in partitions:
            if version < _LOG_START:
                parts.append(_PARTITION.pack(*partition[:4]))
                continue
            parts.append(_PARTITION_LOG_START.pack(*partition[:5]))
            if version >= _RECORD_ERRORS:
                parts.append(_encode_refusal(version, partition))
        parts.append(tags)
    parts.append(INT32.pack(response.throttle_time_ms))
    if flexible:
        endpoints = response.node_endpoints if version >= _CURRENT_LEADER else ()
        parts.append(encode_tags([(0, encode_node_endpoints(endpoints))] if endpoints else []))
    return b"".join(parts)


def _encode_refusal(version: int, partition: ProducedPartition) -> bytes:
    """The fields after the offsets: empty unless the partition refused."""
    flexible = version >= _FLEXIBLE
    if not partition.record_errors and partition.error_message is None and partition.current_leader is None:
        return b"\x01\x00\x00" if flexible else b"\x00\x00\x00\x00\xff\xff"
    parts = [encode_length(len(partition.record_errors), flexible)]
    for index, message in partition.record_errors:
        parts += (INT32.pack(index), encode_nullable_string(message, flexible), NO_TAGS if flexible else b"")
    parts.append(encode_nullable_string(partition.error_message, flexible))
    if flexible:
        leader = partition.current_leader if version >= _CURRENT_LEADER else None
        parts.append(encode_tags([(0, encode_leader(leader))] if leader else []))
    return b"".join(parts)


def encode_leader(leader: LeaderIdAndEpoch) -> bytes:
    """The value of a CurrentLeader field."""
    return _LEADER.pack(*leader) + NO_TAGS


def read_leader(frame: Frame, position: int) -> LeaderIdAndEpoch:
    """The value of a CurrentLeader field."""
    return LeaderIdAndEpoch._make(_LEADER.unpack_from(frame, position))


def encode_node_endpoints(endpoints: Sequence[NodeEndpoint]) -> bytes:
    """The value of a NodeEndpoints field."""
    parts = [encode_length(len(endpoints), True)]
    for node_id, host, port, rack in endpoints:
        parts += (INT32.pack(node_id), encode_topic(host, True), INT32.pack(port), encode_nullable_string(rack, True))
        parts.append(NO_TAGS)
    return b"".join(parts)


def read_node_endpoints(frame: Frame, position: int) -> list[NodeEndpoint]:
    """The value of a NodeEndpoints field."""
    count, position = read_length(frame, position, True)
    endpoints = []
    for _ in range(count):
        (node_id,) = INT32.unpack_from(frame, position)
        host, position = read_string(frame, position + 4, True)
        (port,) = INT32.unpack_from(frame, position)
        rack, position = read_nullable_string(frame, position + 4, True)
        position = skip_tags(frame, position)
        endpoints.append(NodeEndpoint(node_id, host, port, rack))
    return endpoints


@refuse_broken_input
def decode_produce_response(version: int, frame: Frame, position: int) -> ProduceResponse:
    """The body at ``position``. Raises Truncated, Malformed or UnknownVersion."""
    _check_version(version)
    flexible = version >= _FLEXIBLE
    endpoints: list[NodeEndpoint] = []
    topic_count, position = read_length(frame, position, flexible)
    topics = []
    for _ in range(topic_count):
        topic, position = read_topic(frame, position, flexible, version >= _TOPIC_IDS)
        partition_count, position = read_length(frame, position, flexible)
        partitions = []
        for _ in range(partition_count):
            partition, position = _read_partition(version, frame, position)
            partitions.append(partition)
        topics.append((topic, partitions))
        if flexible:
            position = skip_tags(frame, position)
    (throttle_time_ms,) = INT32.unpack_from(frame, position)
    if flexible:
        tags, _end = read_tags(frame, position + 4)
        for tag, start in tags:
            if tag == 0:
                endpoints = read_node_endpoints(frame, start)
    return ProduceResponse(topics, throttle_time_ms, endpoints)


def _read_partition(version: int, frame: Frame, position: int) -> tuple[ProducedPartition, int]:
    flexible = version >= _FLEXIBLE
    if version < _LOG_START:
        index, code, base_offset, append_time = _PARTITION.unpack_from(frame, position)
        return ProducedPartition(index, error_of(code), base_offset, append_time), position + _PARTITION.size
    index, code, base_offset, append_time, log_start = _PARTITION_LOG_START.unpack_from(frame, position)
    position += _PARTITION_LOG_START.size
    partition = ProducedPartition(index, error_of(code), base_offset, append_time, log_start)
    if version < _RECORD_ERRORS:
        return partition, position
    error_count, position = read_length(frame, position, flexible)
    if error_count < 0:
        raise Malformed("null record errors")
    record_errors = []
    for _ in range(error_count):
        (batch_index,) = INT32.unpack_from(frame, position)
        message, position = read_nullable_string(frame, position + 4, flexible)
        if flexible:
            position = skip_tags(frame, position)
        record_errors.append((batch_index, message))
    error_message, position = read_nullable_string(frame, position, flexible)
    leader = None
    if flexible:
        tags, position = read_tags(frame, position)
        for tag, start in tags:
            if tag == 0:
                leader = read_leader(frame, start)
    return partition._replace(record_errors=record_errors, error_message=error_message, current_leader=leader), position


API: Final = Api(0, Versions(3, 13, flexible=_FLEXIBLE), ProduceRequest, ProduceResponse, decode_produce_request)
