"""Writes markers into the partitions that this broker leads: what WriteTxnMarkers does, whoever asks.

A marker in a partition of ``__consumer_offsets`` goes through that partition's shard, which settles the pending
offsets of the transaction with it. None is written to the transaction log, whose coordinator could not load it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from einmal.metadata.image import CONSUMER_OFFSETS, TRANSACTION_STATE
from einmal.types import ErrorCode, ProducerIdAndEpoch, TopicPartition, TransactionVersion

if TYPE_CHECKING:
    from einmal.broker.node import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEnd:
    """What a marker says. ``coordinator_epoch``: the leader epoch of the coordinator's partition."""

    producer: ProducerIdAndEpoch
    committed: bool
    coordinator_epoch: int
    transaction_version: TransactionVersion


class MarkerWriter:
    def __init__(self, node: Node) -> None:
        self._node = node

    async def write_markers(
        self, end: TransactionEnd, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Append the marker to each partition. Returns when those that were appended are committed."""
        # All are appended before the first wait, so that one flush may serve them all.
        appended = [(partition, self._append(end, partition)) for partition in partitions]
        return {
            partition: outcome if isinstance(outcome, ErrorCode) else await outcome for partition, outcome in appended
        }

    def _append(self, end: TransactionEnd, topic_partition: TopicPartition) -> ErrorCode | asyncio.Future[ErrorCode]:
        if topic_partition.topic == CONSUMER_OFFSETS:
            runtime = self._node.groups.runtime(topic_partition.partition)
            if runtime is None:
                return ErrorCode.not_leader_or_follower
            return runtime.append_marker(
                end.producer,
                committed=end.committed,
                coordinator_epoch=end.coordinator_epoch,
                transaction_version=end.transaction_version,
            )
        if topic_partition.topic == TRANSACTION_STATE:
            return ErrorCode.topic_authorization_failed
        partition = self._node.partitions.get(topic_partition)
        if partition is None:
            return ErrorCode.unknown_topic_or_partition
        result = partition.append_marker(
            end.producer,
            self._node.clock.now(),
            committed=end.committed,
            coordinator_epoch=end.coordinator_epoch,
            transaction_version=end.transaction_version,
        )
        if result.error is not ErrorCode.none:
            return result.error
        return partition.when_committed(result.last_offset)
