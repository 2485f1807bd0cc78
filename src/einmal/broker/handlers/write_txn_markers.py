"""WriteTxnMarkers: end transactions in the partitions that this broker leads.

API: 27. Versions: 1-2.
Behaviour: appends a commit or abort marker to each partition and answers when they are committed; those that are not
within some seconds are answered REQUEST_TIMED_OUT. Sent by transaction coordinators, and by the tools that abort a
hanging transaction (KIP-664), which is all that a client may do. What a broker sent on a connection before the one it
uses now is late, and refused. A group coordinator that is loading is NOT_LEADER_OR_FOLLOWER, as in Kafka.
Version notes: v2 tells the version of the transaction: a marker of TV2 has a later epoch than the data (KIP-1228).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from einmal.broker.context import HandlerResult, RequestContext, Versions
from einmal.broker.hanging_transactions import abort_hanging
from einmal.broker.marker_writer import Markers, TransactionEnd
from einmal.types import (
    ErrorCode,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)
from einmal.wire.errors import Malformed

API_KEY: Final = 27
VERSIONS: Final = Versions(1, 2, flexible=1)


def handle(context: RequestContext, request: Any) -> HandlerResult:
    """Raises Malformed, so that the connection is closed: a broker that still uses it asks again on a new one."""
    _check_current(context)
    return _write(context, request)


def _check_current(context: RequestContext) -> None:
    markers = context.node.transactions.markers
    origin = context.origin if context.may_be_from_broker else None
    if origin is not None and markers.is_late(context.client_id, origin.number):
        raise Malformed("markers that their sender has given up")


async def _write(context: RequestContext, request: Any) -> dict[str, Any]:
    asked = [_markers(marker) async for marker in context.paced(request.markers)]
    if context.may_be_from_broker:
        # While others had their turns the sender may have begun anew.
        results = await context.node.transactions.markers.write_markers(asked, lambda: _check_current(context))
    else:
        results = await abort_hanging(context, asked)
    return {
        "markers": [
            {"producer_id": end.producer.producer_id, "topics": _topics(errors)}
            for (end, _partitions), errors in zip(asked, results, strict=True)
        ]
    }


def _markers(marker: Any) -> Markers:
    version = getattr(marker, "transaction_version", 0)
    end = TransactionEnd(
        producer=ProducerIdAndEpoch(ProducerId(marker.producer_id), ProducerEpoch(marker.producer_epoch)),
        committed=marker.transaction_result,
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=TransactionVersion.TV_2 if version >= TransactionVersion.TV_2 else TransactionVersion.TV_0,
    )
    partitions = (TopicPartition(topic.name, index) for topic in marker.topics for index in topic.partition_indexes)
    return Markers(end, tuple(partitions))


def _topics(errors: Mapping[TopicPartition, ErrorCode]) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), error in errors.items():
        topics.setdefault(topic, []).append({"partition_index": partition, "error_code": error})
    return [{"name": name, "partitions": results} for name, results in topics.items()]
