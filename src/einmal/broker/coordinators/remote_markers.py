"""Markers for the partitions that another broker leads: WriteTxnMarkers, by the coordinator.

One request for all of them. Without an answer the outcome is unknown, and the markers are written again, which is
safe. Knows nothing of retries.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from einmal.broker.coordinators.marker_writer import Markers, PartitionErrors
from einmal.broker.rpc.peers import Asker
from einmal.event_log import EventLog
from einmal.rpc.connection import NoAnswer
from einmal.types import BrokerId, ErrorCode, TopicPartition
from einmal.wire.api.write_txn_markers import API as WRITE_TXN_MARKERS
from einmal.wire.api.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from einmal.wire.errors import WireError

log = EventLog(__name__)

_VERSION: Final = 2
_TIMEOUT_MS: Final = 5_000
"""Longer than the other side waits for a commit."""
_LANE: Final = "markers"


class RemoteMarkers:
    def __init__(self, peers: Asker, broker_id: BrokerId) -> None:
        self._peers = peers
        self._broker_id = broker_id

    async def write_markers(self, asked: Sequence[Markers]) -> list[PartitionErrors]:
        """The other broker's answer; partitions without an answer get NETWORK_EXCEPTION."""
        try:
            answer = await self._peers.ask(
                self._broker_id, WRITE_TXN_MARKERS, _VERSION, request_of(asked), timeout_ms=_TIMEOUT_MS, lane=_LANE
            )
        except (NoAnswer, WireError) as error:
            log.debug(
                "markers_unanswered",
                "no markers written by broker %(broker)d: %(error)s",
                broker=self._broker_id,
                error=error,
            )
            return [dict.fromkeys(markers.partitions, ErrorCode.network_exception) for markers in asked]
        return errors_of(asked, answer)


def request_of(asked: Sequence[Markers]) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(
        tuple(
            WritableTxnMarker(
                *end.producer,
                transaction_result=end.committed,
                topics=tuple(
                    WritableTxnMarkerTopic(topic, tuple(topic_partition.partition for topic_partition in group))
                    for topic, group in groupby(partitions, key=lambda topic_partition: topic_partition.topic)
                ),
                coordinator_epoch=end.coordinator_epoch,
                transaction_version=end.transaction_version,
            )
            for end, partitions in asked
        )
    )


def errors_of(asked: Sequence[Markers], answer: WriteTxnMarkersResponse) -> list[PartitionErrors]:
    """The errors of each marker. A producer has one transaction at a time, so its id identifies the marker."""
    by_producer: dict[int, PartitionErrors] = {}
    for marker in answer.markers:
        errors = by_producer.setdefault(marker.producer_id, {})
        for topic in marker.topics:
            for partition in topic.partitions:
                errors[TopicPartition(topic.name, partition.partition_index)] = partition.error_code
    return [
        {
            partition: by_producer.get(end.producer.producer_id, {}).get(partition, ErrorCode.network_exception)
            for partition in partitions
        }
        for end, partitions in asked
    ]
