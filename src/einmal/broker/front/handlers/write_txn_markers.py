"""WriteTxnMarkers: end transactions in the partitions that this broker leads.

API: 27. Versions: 1-2.
Access: ALTER on Cluster, or CLUSTER_ACTION on Cluster. Only nodes of the cluster may commit.
Behaviour: appends a commit or abort marker to each partition and answers when they are committed; those that take more
than some seconds are answered REQUEST_TIMED_OUT. Sent by transaction coordinators, and by the tools that abort a
hanging transaction (KIP-664), which is all that a client may do. Requests on a broker's former connections are late,
and refused. A loading group coordinator is answered NOT_LEADER_OR_FOLLOWER, as in Kafka.
Version notes: v2 has the transaction's version: a marker of TV2 has a later epoch than the data (KIP-1228).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

from einmal.broker.coordinators.marker_writer import Markers, MarkerWriter, PartitionErrors, TransactionEnd
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import HandlerResult, RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.front.hanging_transactions import HangingTransactions
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import (
    ErrorCode,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)
from einmal.wire.api.write_txn_markers import (
    API,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from einmal.wire.errors import Malformed


@handler
class WriteTxnMarkersHandler:
    api: ClassVar = API
    access: Access
    markers: MarkerWriter
    hanging: HangingTransactions

    def handle(self, context: RequestContext, request: WriteTxnMarkersRequest) -> HandlerResult:
        """Raises Malformed, so that the connection is closed: a broker that still uses it retries on a new one."""
        self._check_current(context)
        return self._write(context, request)

    def _check_current(self, context: RequestContext, _partition: TopicPartition | None = None) -> ErrorCode:
        origin = context.origin if context.may_be_from_broker else None
        if origin is not None and self.markers.is_late(context.client_id, origin.number):
            raise Malformed("markers that their sender has given up")
        return ErrorCode.none

    async def _write(self, context: RequestContext, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        asked = [_markers(marker) async for marker in context.paced(request.markers)]
        may_act = self.access.allows(context, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, is_filter=True)
        refused = None if may_act else self.access.refusal(context, AclOperation.ALTER, ResourceType.CLUSTER)
        results: list[PartitionErrors]
        if refused:
            results = [dict.fromkeys(partitions, refused) async for _end, partitions in context.paced(asked)]
        elif may_act and context.may_be_from_broker:
            # The sender may have reconnected while others had their turns.
            results = await self.markers.write_markers(asked, partial(self._check_current, context))
        else:
            results = await self.hanging.abort(asked, context)
        return WriteTxnMarkersResponse(
            [
                WritableTxnMarkerResult(end.producer.producer_id, _topics(errors))
                for (end, _partitions), errors in zip(asked, results, strict=True)
            ]
        )


def _markers(marker: WritableTxnMarker) -> Markers:
    is_tv2 = marker.transaction_version >= TransactionVersion.TV_2
    end = TransactionEnd(
        producer=ProducerIdAndEpoch(ProducerId(marker.producer_id), ProducerEpoch(marker.producer_epoch)),
        committed=marker.transaction_result,
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=TransactionVersion.TV_2 if is_tv2 else TransactionVersion.TV_0,
    )
    partitions = (TopicPartition(topic.name, index) for topic in marker.topics for index in topic.partition_indexes)
    return Markers(end, tuple(partitions))


def _topics(errors: Mapping[TopicPartition, ErrorCode]) -> list[WritableTxnMarkerTopicResult]:
    topics: dict[str, list[WritableTxnMarkerPartitionResult]] = {}
    for (topic, partition), error in errors.items():
        topics.setdefault(topic, []).append(WritableTxnMarkerPartitionResult(partition, error))
    return [WritableTxnMarkerTopicResult(name, results) for name, results in topics.items()]
