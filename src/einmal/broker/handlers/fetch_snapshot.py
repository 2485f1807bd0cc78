"""FetchSnapshot: a part of the metadata log's latest snapshot.

API: 59. Versions: 0-1.
Behaviour: the leader gives bytes of the file from a position on; they need not end at a batch (KIP-630). A snapshot
that a later one has replaced is SNAPSHOT_NOT_FOUND: the replica's next Fetch names the later one. All that is asked for
in one request shares its max_bytes.
Version notes: v1 directory ids and end points (KIP-853).
"""

from __future__ import annotations

import logging
from typing import Any, Final

from einmal.broker.cluster_metadata import METADATA_PARTITION
from einmal.broker.context import RequestContext, Versions
from einmal.broker.quorum_messages import endpoint_fields, has_other_cluster_id, on_the_wire
from einmal.quorum.messages import OffsetAndEpoch, SnapshotRequested
from einmal.types import ErrorCode, TopicPartition

log = logging.getLogger(__name__)

API_KEY: Final = 59
VERSIONS: Final = Versions(0, 1, flexible=0)
_BYTES_MAX: Final = 8 * 1024 * 1024


def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    if has_other_cluster_id(context, request):
        return {"error_code": ErrorCode.inconsistent_cluster_id}
    quorum = context.node.quorum
    room = max(0, min(request.max_bytes, _BYTES_MAX))
    topics = []
    for topic in request.topics:
        partitions = []
        for asked in topic.partitions:
            if TopicPartition(topic.name, asked.partition) == METADATA_PARTITION:
                partitions.append(_partition(context, request, asked, room))
                room -= len(partitions[-1].get("unaligned_records", b""))
            else:
                partitions.append({"index": asked.partition, "error_code": ErrorCode.unknown_topic_or_partition})
        topics.append({"name": topic.name, "partitions": partitions})
    endpoints = endpoint_fields(quorum.leader_id, quorum.endpoint_of(quorum.leader_id))
    return {"error_code": ErrorCode.none, "topics": topics, "node_endpoints": endpoints}


def _partition(context: RequestContext, request: Any, asked: Any, room: int) -> dict[str, Any]:
    quorum = context.node.quorum
    reply = quorum.ask(SnapshotRequested(request.replica_id, asked.current_leader_epoch))
    fields = {
        "index": asked.partition,
        "error_code": reply.error,
        "snapshot_id": {"end_offset": asked.snapshot_id.end_offset, "epoch": asked.snapshot_id.epoch},
        "current_leader": {"leader_id": on_the_wire(reply.leader_id), "leader_epoch": reply.leader_epoch},
        "position": asked.position,
    }
    if reply.error is not ErrorCode.none:
        return fields
    snapshot_id = OffsetAndEpoch(asked.snapshot_id.end_offset, asked.snapshot_id.epoch)
    try:
        found = quorum.snapshots.read(snapshot_id, asked.position, room)
    except OSError as error:
        log.error("the snapshot of the metadata log cannot be read: %s", error)
        found = ErrorCode.kafka_storage_error
    if isinstance(found, ErrorCode):
        return {**fields, "error_code": found}
    data, size = found
    return {**fields, "size": size, "unaligned_records": data}
