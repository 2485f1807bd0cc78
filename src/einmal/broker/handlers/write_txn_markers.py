"""WriteTxnMarkers: end transactions in the partitions that this broker leads.

API: 27. Versions: 1-2.
Behaviour: appends a commit or abort marker to each partition and answers when they are committed. Sent by transaction
coordinators, and by the tools that abort a hanging transaction (KIP-664).
Version notes: v2 tells the version of the transaction: a marker of TV2 has a later epoch than the data (KIP-1228).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.broker.marker_writer import TransactionEnd
from einmal.types import (
    ErrorCode,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)

API_KEY: Final = 27
VERSIONS: Final = Versions(1, 2, flexible=1)


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    return {"markers": [await _write(context, marker) for marker in request.markers]}


async def _write(context: RequestContext, marker: Any) -> dict[str, Any]:
    partitions = [TopicPartition(topic.name, index) for topic in marker.topics for index in topic.partition_indexes]
    version = getattr(marker, "transaction_version", 0)
    end = TransactionEnd(
        producer=ProducerIdAndEpoch(ProducerId(marker.producer_id), ProducerEpoch(marker.producer_epoch)),
        committed=marker.transaction_result,
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=TransactionVersion.TV_2 if version >= TransactionVersion.TV_2 else TransactionVersion.TV_0,
    )
    errors = await context.node.transactions.markers.write_markers(end, partitions)
    return {"producer_id": marker.producer_id, "topics": _topics(errors)}


def _topics(errors: Mapping[TopicPartition, ErrorCode]) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), error in errors.items():
        topics.setdefault(topic, []).append({"partition_index": partition, "error_code": error})
    return [{"name": name, "partitions": results} for name, results in topics.items()]
