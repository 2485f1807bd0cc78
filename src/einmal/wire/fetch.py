"""Fetch, versions 4 to 18, both directions. Records are never unpacked, and never copied when read or written.

Version differences end here: from 13 on a topic is its id, before that its name; fields that a version does not have
are left out in writing and get their default in reading. Of the replicas' fields only id, epoch and last fetched epoch
are carried.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from einmal.wire.errors import UnknownVersion
from einmal.wire.messages import Api, Versions
from einmal.wire.primitives import (
    ELEMENTS_MAX,
    INT32,
    INT64,
    NO_TAGS,
    Frame,
    Topic,
    encode_length,
    encode_string,
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
    refuse_broken_input,
    skip_tags,
)
from einmal.wire.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    Records,
    encode_leader,
    encode_node_endpoints,
    read_leader,
    read_node_endpoints,
)

VERSIONS: Final = range(4, 19)
_LOG_START: Final = 5
_SESSIONS: Final = 7
_LEADER_EPOCH: Final = 9
_RACK: Final = 11
_FLEXIBLE: Final = 12
_TOPIC_IDS: Final = 13
_REPLICA_STATE: Final = 15
_NODE_ENDPOINTS: Final = 16
_DIRECTORY_ID: Final = 17
_HIGH_WATERMARK: Final = 18

_REQUEST_SETTINGS: Final = struct.Struct(">iiib")
_SESSION: Final = struct.Struct(">ii")
_REPLICA: Final = struct.Struct(">iq")
_ABORTED: Final = struct.Struct(">qq")
_EPOCH_END: Final = struct.Struct(">iq")
_SNAPSHOT_ID: Final = struct.Struct(">qi")
_RESPONSE_HEAD: Final = struct.Struct(">ihi")
_UUID: Final = struct.Struct("16s")
_FIELDS_MAX: Final = 1_000
"""Encoded between two parts of a response."""
_V4: Final = struct.Struct(">ihqq")
_V5: Final = struct.Struct(">ihqqq")


NO_MATTER: Final = 2**63 - 1
"""A high watermark above all others."""


NO_DIRECTORY: Final = UUID(int=0)


class FetchPartition(NamedTuple):
    """One partition asked for; -1 where the version does not have the field."""

    partition: int
    fetch_offset: int
    partition_max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    high_watermark: int = NO_MATTER
    """High watermark of a replica that wants an answer as soon as it rises (v18, KIP-1166)."""
    directory_id: UUID = NO_DIRECTORY
    """Id of a replica's data folder (v17, KIP-853)."""


class FetchRequest(NamedTuple):
    """``replica_id`` -1: a consumer. ``session_id`` 0 and ``session_epoch`` -1: without a session."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    topics: Sequence[tuple[Topic, Sequence[FetchPartition]]]
    forgotten: Sequence[tuple[Topic, Sequence[int]]] = ()
    session_id: int = 0
    session_epoch: int = -1
    rack_id: str = ""
    replica_id: int = -1
    replica_epoch: int = -1
    cluster_id: str | None = None
    """Id of the cluster of a replica of the metadata log; None: not checked."""


class AbortedTransaction(NamedTuple):
    """Skip this producer's transactional records from ``first_offset`` to its abort marker."""

    producer_id: int
    first_offset: int


class EpochEndOffset(NamedTuple):
    epoch: int
    end_offset: int


class SnapshotId(NamedTuple):
    end_offset: int
    epoch: int


class FetchedPartition(NamedTuple):
    """One partition's answer; ``aborted_transactions`` is None for ``read_uncommitted``."""

    partition: int
    error_code: ErrorCode = ErrorCode.none
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted_transactions: Sequence[tuple[int, int]] | None = None
    records: Records = b""
    preferred_read_replica: int = -1
    diverging_epoch: EpochEndOffset | None = None
    current_leader: LeaderIdAndEpoch | None = None
    snapshot_id: SnapshotId | None = None
    """Id of a snapshot of the metadata log (KIP-630): fetch this snapshot, the requested records are gone."""


class FetchResponse(NamedTuple):
    topics: Sequence[tuple[Topic, Sequence[FetchedPartition]]]
    error_code: ErrorCode = ErrorCode.none
    session_id: int = 0
    throttle_time_ms: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()


class _PartitionLayout(NamedTuple):
    """A requested partition's fields in one version: as a struct, and each field's index in it (-1: absent)."""

    fields: struct.Struct
    leader_epoch: int
    offset: int
    fetched_epoch: int
    log_start: int
    max_bytes: int


_LAYOUTS: Final = (
    (_FLEXIBLE, _PartitionLayout(struct.Struct(">iiqiqi"), 1, 2, 3, 4, 5)),
    (_LEADER_EPOCH, _PartitionLayout(struct.Struct(">iiqqi"), 1, 2, -1, 3, 4)),
    (_LOG_START, _PartitionLayout(struct.Struct(">iqqi"), -1, 1, -1, 2, 3)),
    (4, _PartitionLayout(struct.Struct(">iqi"), -1, 1, -1, -1, 2)),
)


def _layout(version: int) -> _PartitionLayout:
    return next(layout for since, layout in _LAYOUTS if version >= since)


_LAYOUT_OF: Final = {version: _layout(version) for version in VERSIONS}


def _check_version(version: int) -> None:
    if version not in VERSIONS:
        raise UnknownVersion(f"Fetch version {version}")


# --- requests --------------------------------------------------------------------------------------------------


@refuse_broken_input
def decode_fetch_request(version: int, frame: Frame, position: int) -> FetchRequest:
    """The body at ``position``. Raises Truncated, Malformed or UnknownVersion."""
    _check_version(version)
    flexible = version >= _FLEXIBLE
    replica_id = replica_epoch = session_epoch = -1
    session_id = 0
    forgotten: list[tuple[Topic, list[int]]] = []
    rack_id = ""
    cluster_id: str | None = None
    if version < _REPLICA_STATE:
        (replica_id,) = INT32.unpack_from(frame, position)
        position += 4
    max_wait_ms, min_bytes, max_bytes, isolation_level = _REQUEST_SETTINGS.unpack_from(frame, position)
    position += _REQUEST_SETTINGS.size
    if version >= _SESSIONS:
        session_id, session_epoch = _SESSION.unpack_from(frame, position)
        position += _SESSION.size
    topics, position = _read_topics(version, frame, position)
    if version >= _SESSIONS:
        forgotten, position = _read_forgotten(version, frame, position)
    if version >= _RACK:
        rack_id, position = read_string(frame, position, flexible)
    if flexible:
        tags, _end = read_tags(frame, position)
        for tag, start in tags:
            if tag == 0:
                cluster_id, _end = read_nullable_string(frame, start, flexible)
            elif tag == 1 and version >= _REPLICA_STATE:
                replica_id, replica_epoch = _REPLICA.unpack_from(frame, start)
    return FetchRequest(
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        topics,
        forgotten,
        session_id,
        session_epoch,
        rack_id,
        replica_id,
        replica_epoch,
        cluster_id,
    )


def _read_topics(version: int, frame: Frame, position: int) -> tuple[list[tuple[Topic, list[FetchPartition]]], int]:
    flexible = version >= _FLEXIBLE
    fields, leader_epoch_at, offset_at, fetched_epoch_at, log_start_at, max_bytes_at = _LAYOUT_OF[version]
    unpack_from, size = fields.unpack_from, fields.size
    topic_count, position, room = read_count(frame, position, flexible, ELEMENTS_MAX)
    topics = []
    for _ in range(topic_count):
        topic, position = read_topic(frame, position, flexible, version >= _TOPIC_IDS)
        partition_count, position, room = read_count(frame, position, flexible, room)
        partitions = []
        for _ in range(partition_count):
            values = unpack_from(frame, position)
            position += size
            high_watermark, directory_id = NO_MATTER, NO_DIRECTORY
            if flexible:
                if frame[position] and version >= _DIRECTORY_ID:
                    high_watermark, directory_id = _read_of_replica(frame, position)
                position = skip_tags(frame, position)
            partitions.append(
                FetchPartition(
                    values[0],
                    values[offset_at],
                    values[max_bytes_at],
                    values[leader_epoch_at] if leader_epoch_at > 0 else -1,
                    values[fetched_epoch_at] if fetched_epoch_at > 0 else -1,
                    values[log_start_at] if log_start_at > 0 else -1,
                    high_watermark,
                    directory_id,
                )
            )
        topics.append((topic, partitions))
        if flexible:
            position = skip_tags(frame, position)
    return topics, position


def _read_of_replica(frame: Frame, position: int) -> tuple[int, UUID]:
    """High watermark and directory id."""
    tags, _end = read_tags(frame, position)
    starts = dict(tags)
    high_watermark = int(INT64.unpack_from(frame, starts[1])[0]) if 1 in starts else NO_MATTER
    directory_id = UUID(bytes=_UUID.unpack_from(frame, starts[0])[0]) if 0 in starts else NO_DIRECTORY
    return high_watermark, directory_id


def _encode_of_replica(version: int, partition: FetchPartition) -> bytes:
    tags = []
    if version >= _DIRECTORY_ID and partition.directory_id != NO_DIRECTORY:
        tags.append((0, partition.directory_id.bytes))
    if version >= _HIGH_WATERMARK and partition.high_watermark != NO_MATTER:
        tags.append((1, INT64.pack(partition.high_watermark)))
    return encode_tags(tags)


def _read_forgotten(version: int, frame: Frame, position: int) -> tuple[list[tuple[Topic, list[int]]], int]:
    flexible = version >= _FLEXIBLE
    topic_count, position, room = read_count(frame, position, flexible, ELEMENTS_MAX)
    forgotten = []
    for _ in range(topic_count):
        topic, position = read_topic(frame, position, flexible, version >= _TOPIC_IDS)
        partition_count, position, room = read_count(frame, position, flexible, room)
        partitions = []
        for _ in range(partition_count):
            (partition,) = INT32.unpack_from(frame, position)
            position += 4
            partitions.append(partition)
        forgotten.append((topic, partitions))
        if flexible:
            position = skip_tags(frame, position)
    return forgotten, position


def encode_fetch_request(version: int, request: FetchRequest) -> bytes:
    """The body. Raises UnknownVersion."""
    _check_version(version)
    flexible = version >= _FLEXIBLE
    tags = NO_TAGS if flexible else b""
    parts = [INT32.pack(request.replica_id)] if version < _REPLICA_STATE else []
    parts.append(
        _REQUEST_SETTINGS.pack(request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level)
    )
    if version >= _SESSIONS:
        parts.append(_SESSION.pack(request.session_id, request.session_epoch))
    parts.append(encode_length(len(request.topics), flexible))
    for topic, partitions in request.topics:
        parts += (encode_topic(topic, flexible), encode_length(len(partitions), flexible))
        for partition in partitions:
            own = _encode_of_replica(version, partition) if version >= _DIRECTORY_ID else tags
            parts += (_encode_requested(version, partition), own)
        parts.append(tags)
    if version >= _SESSIONS:
        parts.append(encode_length(len(request.forgotten), flexible))
        for topic, indexes in request.forgotten:
            parts += (encode_topic(topic, flexible), encode_length(len(indexes), flexible))
            parts += (*map(INT32.pack, indexes), tags)
    if version >= _RACK:
        parts.append(encode_string(request.rack_id, flexible))
    if flexible:
        of_request = []
        if request.cluster_id is not None:
            of_request.append((0, encode_string(request.cluster_id, flexible)))
        if version >= _REPLICA_STATE and request.replica_id >= 0:
            of_request.append((1, _REPLICA.pack(request.replica_id, request.replica_epoch) + NO_TAGS))
        parts.append(encode_tags(of_request))
    return b"".join(parts)


def _encode_requested(version: int, partition: FetchPartition) -> bytes:
    index, offset, max_bytes, leader_epoch, fetched_epoch, log_start = partition[:6]
    fields = _LAYOUT_OF[version].fields
    if version >= _FLEXIBLE:
        return fields.pack(index, leader_epoch, offset, fetched_epoch, log_start, max_bytes)
    if version >= _LEADER_EPOCH:
        return fields.pack(index, leader_epoch, offset, log_start, max_bytes)
    if version >= _LOG_START:
        return fields.pack(index, offset, log_start, max_bytes)
    return fields.pack(index, offset, max_bytes)


# --- responses -------------------------------------------------------------------------------------------------


def encode_fetch_response(version: int, response: FetchResponse) -> list[Records]:
    """The body in parts, for ``frame``: records are not copied. Raises UnknownVersion."""
    return list(fetch_response_parts(version, response))


def fetch_response_parts(version: int, response: FetchResponse) -> Iterator[Records]:
    """The same, part by part, for a response of so many partitions that encoding it takes long."""
    _check_version(version)
    flexible = version >= _FLEXIBLE
    if version >= _SESSIONS:
        head = _RESPONSE_HEAD.pack(response.throttle_time_ms, response.error_code, response.session_id)
    else:
        head = INT32.pack(response.throttle_time_ms)
    fields = [head + encode_length(len(response.topics), flexible)]
    for topic, partitions in response.topics:
        fields.append(encode_topic(topic, flexible) + encode_length(len(partitions), flexible))
        for partition in partitions:
            fields.append(_encode_fetched(version, partition))
            if len(partition.records) or len(fields) >= _FIELDS_MAX:
                yield b"".join(fields)
                yield partition.records
                fields.clear()
            if flexible:
                fields.append(_encode_divergence(partition))
        if flexible:
            fields.append(NO_TAGS)
    if flexible:
        endpoints = response.node_endpoints if version >= _NODE_ENDPOINTS else ()
        fields.append(encode_tags([(0, encode_node_endpoints(endpoints))]) if endpoints else NO_TAGS)
    yield b"".join(fields)


def _encode_fetched(version: int, partition: FetchedPartition) -> bytes:
    flexible = version >= _FLEXIBLE
    offsets = _V5.pack(*partition[:5]) if version >= _LOG_START else _V4.pack(*partition[:4])
    aborted = partition.aborted_transactions
    if aborted is None:
        offsets += b"\x00" if flexible else b"\xff\xff\xff\xff"
    elif not aborted:
        offsets += b"\x01" if flexible else b"\x00\x00\x00\x00"
    else:
        after = NO_TAGS if flexible else b""
        entries = b"".join([_ABORTED.pack(*entry) + after for entry in aborted])
        offsets += encode_length(len(aborted), flexible) + entries
    if version >= _RACK:
        offsets += INT32.pack(partition.preferred_read_replica)
    return offsets + encode_length(len(partition.records), flexible)


def _encode_divergence(partition: FetchedPartition) -> bytes:
    if partition.diverging_epoch is None and partition.current_leader is None and partition.snapshot_id is None:
        return NO_TAGS
    tags = []
    if partition.diverging_epoch is not None:
        tags.append((0, _EPOCH_END.pack(*partition.diverging_epoch) + NO_TAGS))
    if partition.current_leader is not None:
        tags.append((1, encode_leader(partition.current_leader)))
    if partition.snapshot_id is not None:
        tags.append((2, _SNAPSHOT_ID.pack(*partition.snapshot_id) + NO_TAGS))
    return encode_tags(tags)


@refuse_broken_input
def decode_fetch_response(version: int, frame: Frame, position: int) -> FetchResponse:
    """The body at ``position``; records are slices of the frame. Raises Truncated, Malformed or UnknownVersion."""
    _check_version(version)
    flexible = version >= _FLEXIBLE
    view = memoryview(frame)
    code = session_id = 0
    endpoints: list[NodeEndpoint] = []
    if version >= _SESSIONS:
        throttle_time_ms, code, session_id = _RESPONSE_HEAD.unpack_from(frame, position)
        position += _RESPONSE_HEAD.size
    else:
        (throttle_time_ms,) = INT32.unpack_from(frame, position)
        position += 4
    topic_count, position = read_length(frame, position, flexible)
    topics = []
    for _ in range(topic_count):
        topic, position = read_topic(frame, position, flexible, version >= _TOPIC_IDS)
        partition_count, position = read_length(frame, position, flexible)
        partitions = []
        for _ in range(partition_count):
            partition, position = _read_fetched(version, view, frame, position)
            partitions.append(partition)
        topics.append((topic, partitions))
        if flexible:
            position = skip_tags(frame, position)
    if flexible:
        tags, _end = read_tags(frame, position)
        for tag, start in tags:
            if tag == 0:
                endpoints = read_node_endpoints(frame, start)
    return FetchResponse(topics, error_of(code), session_id, throttle_time_ms, endpoints)


def _read_fetched(version: int, view: memoryview, frame: Frame, position: int) -> tuple[FetchedPartition, int]:
    flexible = version >= _FLEXIBLE
    log_start = preferred = -1
    if version >= _LOG_START:
        index, code, high_watermark, last_stable, log_start = _V5.unpack_from(frame, position)
        position += _V5.size
    else:
        index, code, high_watermark, last_stable = _V4.unpack_from(frame, position)
        position += _V4.size
    aborted, position = _read_aborted(frame, position, flexible)
    if version >= _RACK:
        (preferred,) = INT32.unpack_from(frame, position)
        position += 4
    records, position = read_records(view, frame, position, flexible)
    diverging: EpochEndOffset | None = None
    leader: LeaderIdAndEpoch | None = None
    snapshot_id: SnapshotId | None = None
    if flexible:
        tags, position = read_tags(frame, position)
        for tag, start in tags:
            if tag == 0:
                diverging = EpochEndOffset._make(_EPOCH_END.unpack_from(frame, start))
            elif tag == 1:
                leader = read_leader(frame, start)
            elif tag == 2:
                snapshot_id = SnapshotId._make(_SNAPSHOT_ID.unpack_from(frame, start))
    return (
        FetchedPartition(
            index,
            error_of(code),
            high_watermark,
            last_stable,
            log_start,
            aborted,
            b"" if records is None else records,
            preferred,
            diverging,
            leader,
            snapshot_id,
        ),
        position,
    )


def _read_aborted(frame: Frame, position: int, flexible: bool) -> tuple[list[AbortedTransaction] | None, int]:
    count, position = read_length(frame, position, flexible)
    if count < 0:
        return None, position
    aborted = []
    for _ in range(count):
        aborted.append(AbortedTransaction._make(_ABORTED.unpack_from(frame, position)))
        position += _ABORTED.size
        if flexible:
            position = skip_tags(frame, position)
    return aborted, position


API: Final = Api(1, Versions(4, 18, flexible=_FLEXIBLE), FetchRequest, FetchResponse, decode_fetch_request)
