"""The transactions of a source cluster that are prepared, read from its ``__transaction_state``.

The topic is compacted, so that its records are the last state of every transactional id. It is read from its beginning
once, and then from where the last read has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from einmal.client import OffsetRange, RangeReader
from einmal.client.errors import NotAuthorized, error_for
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.transactions.records import decode
from einmal.transactions.states import TransactionState
from einmal.types import ErrorCode, ProducerEpoch, ProducerId, TopicPartition

TRANSACTION_STATE: Final = "__transaction_state"


class _Prepared(NamedTuple):
    producer_id: ProducerId
    producer_epoch: ProducerEpoch


class TransactionStates:
    def __init__(self, cluster: KafkaCluster, reader: RangeReader) -> None:
        """``reader``: of the source's uncommitted records."""
        self._cluster = cluster
        self._reader = reader
        self._positions: dict[TopicPartition, int] = {}
        self._prepared: dict[str, _Prepared] = {}
        """By transactional id: those that are PrepareCommit."""

    def prepared(self) -> dict[ProducerId, ProducerEpoch] | None:
        """Up to the high watermarks of now; None without the right to read. Raises KafkaError, WireError."""
        # One that was there is waited for: a broker that does not show it may not know of it now.
        settled = () if self._positions else (TRANSACTION_STATE,)
        try:
            topic = self._cluster.look([TRANSACTION_STATE], settled).topics.get(TRANSACTION_STATE)
        except NotAuthorized:
            return None
        if topic is None:
            # Nobody has used a transaction yet.
            return {}
        if topic.leaderless:
            # Others would have to wait for the same time-out at each look.
            raise error_for(ErrorCode.leader_not_available, f"partition {min(topic.leaderless)} of the source")
        partitions = topic.partitions
        ends = self._cluster.latest(partitions, committed=False)
        starts = self._cluster.earliest(partitions)
        ranges = {
            partition: OffsetRange(max(starts[partition], self._positions.get(partition, 0)), ends[partition])
            for partition in partitions
        }
        unread = {partition: bounds for partition, bounds in ranges.items() if bounds.start < bounds.end}
        try:
            if unread:
                self._read(unread)
        except NotAuthorized:
            return None
        self._positions |= {partition: bounds.end for partition, bounds in unread.items()}
        return {transaction.producer_id: transaction.producer_epoch for transaction in self._prepared.values()}

    def _read(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        for batch in self._reader.read(ranges):
            if batch.header.is_control:
                continue
            for record in batch.records(ranges[batch.topic_partition]):
                decoded = decode(record.key, record.value)
                if decoded is None:
                    continue
                state = decoded.transaction
                if state is not None and state.state is TransactionState.PREPARE_COMMIT:
                    self._prepared[decoded.transactional_id] = _Prepared(state.producer_id, state.producer_epoch)
                else:
                    self._prepared.pop(decoded.transactional_id, None)
