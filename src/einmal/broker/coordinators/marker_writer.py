"""Writes markers into the partitions that this broker leads, for WriteTxnMarkers of any sender.

A marker may be late: the coordinator has lost its connection, has written the marker once more, and the next
transaction has begun. Under TV2 that transaction has a later epoch. Under TV1 the marker looks like its own, so a copy
is recognized by its connection: a broker that uses a later one has given up its earlier requests. (Apache Kafka accepts
the copy.)

A marker in a partition of ``__consumer_offsets`` goes through that partition's shard, which settles the pending
offsets of the transaction with it. None is written to the transaction log, whose coordinator could not load it.
While too few replicas are in sync none is written either: each try would leave another copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.coordinators.group_service import GroupService
from einmal.broker.replicas.partitions import Partitions
from einmal.broker.resources.turns import Turns
from einmal.broker.rpc.authentication import client_id
from einmal.event_log import EventLog
from einmal.metadata.image import CONSUMER_OFFSETS, TRANSACTION_STATE
from einmal.seams import Clock
from einmal.types import BrokerId, ErrorCode, ProducerIdAndEpoch, TopicPartition, TransactionVersion

log = EventLog(__name__)

_COMMIT_SECONDS: Final = 2.0
"""How long markers may take to be committed. Slower ones must not delay the markers behind them."""

_COORDINATOR_AWAY: Final = (
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEnd:
    """The content of a marker. ``coordinator_epoch``: the leader epoch of the coordinator's partition."""

    producer: ProducerIdAndEpoch
    committed: bool
    coordinator_epoch: int
    transaction_version: TransactionVersion


class Markers(NamedTuple):
    """Markers that are to be written: one in each partition."""

    end: TransactionEnd
    partitions: tuple[TopicPartition, ...]


PartitionErrors = dict[TopicPartition, ErrorCode]


class MarkerWriter:
    def __init__(
        self, metadata: ClusterMetadata, partitions: Partitions, groups: GroupService, turns: Turns, clock: Clock
    ) -> None:
        self._metadata = metadata
        self._partitions = partitions
        self._groups = groups
        self._turns = turns
        self._clock = clock
        self._connections: dict[BrokerId, int] = {}
        """The latest that each coordinator has used."""

    def is_late(self, sender: str, connection: int) -> bool:
        """Whether the broker of that client id has used a later connection since."""
        broker_id = next((node_id for node_id in self._metadata.image.brokers if client_id(node_id) == sender), None)
        if broker_id is None:
            return False
        latest = self._connections[broker_id] = max(connection, self._connections.get(broker_id, connection))
        return connection < latest

    async def write_markers(
        self, asked: Sequence[Markers], check: Callable[[TopicPartition], ErrorCode] = lambda _partition: ErrorCode.none
    ) -> list[PartitionErrors]:
        """Append all markers. Returns when the appended ones are committed, or have taken too long.

        ``check`` is asked just before each marker whether it may still be written, since others have their turns in
        between; it raises if the rest must not be written any more.
        """
        # All are appended before the first wait, so that one flush and one fetch of the followers may serve them all.
        errors: list[PartitionErrors] = []
        waiting: list[_Waiting] = []
        latest_epoch = self._latest_coordinator_epoch()
        async for end, partitions in self._turns.paced(asked):
            errors.append({})
            if end.coordinator_epoch > latest_epoch:
                # It would fence every coordinator. One that was elected after the metadata known here retries.
                message = "refused a marker of coordinator epoch %(epoch)d: the latest is %(latest)d"
                log.warning("marker_refused", message, epoch=end.coordinator_epoch, latest=latest_epoch)
                errors[-1] = dict.fromkeys(partitions, ErrorCode.coordinator_not_available)
                continue
            async for partition in self._turns.paced(partitions):
                error = check(partition)
                outcome = self._append(end, partition) if error is ErrorCode.none else error
                if isinstance(outcome, ErrorCode):
                    errors[-1][partition] = outcome
                else:
                    errors[-1][partition] = ErrorCode.request_timed_out
                    waiting.append(_Waiting(errors[-1], partition, outcome))
        if waiting:
            await _committed(waiting)
        return errors

    def _append(self, end: TransactionEnd, topic_partition: TopicPartition) -> ErrorCode | asyncio.Future[ErrorCode]:
        if topic_partition.topic == CONSUMER_OFFSETS:
            return self._append_to_offsets(end, topic_partition.partition)
        if topic_partition.topic == TRANSACTION_STATE:
            return ErrorCode.topic_authorization_failed
        partition = self._partitions.get(topic_partition)
        if partition is None:
            return self._partitions.error_of_missing(topic_partition)
        if not partition.has_enough_replicas:
            return ErrorCode.not_enough_replicas
        result = partition.append_marker(
            end.producer,
            self._clock.now(),
            committed=end.committed,
            coordinator_epoch=end.coordinator_epoch,
            transaction_version=end.transaction_version,
        )
        if result.error is not ErrorCode.none:
            return result.error
        return partition.when_committed(result.last_offset)

    def _latest_coordinator_epoch(self) -> int:
        topic = self._metadata.image.topics.get(TRANSACTION_STATE)
        return max((partition.leader_epoch for partition in topic.partitions), default=0) if topic is not None else 0

    def _append_to_offsets(self, end: TransactionEnd, index: int) -> ErrorCode | asyncio.Future[ErrorCode]:
        runtime = self._groups.runtime(index)
        if runtime is None:
            return ErrorCode.not_leader_or_follower
        outcome = runtime.append_marker(
            end.producer,
            committed=end.committed,
            coordinator_epoch=end.coordinator_epoch,
            transaction_version=end.transaction_version,
        )
        # COORDINATOR_LOAD_IN_PROGRESS means nothing to a transaction coordinator: this code makes it retry.
        return ErrorCode.not_leader_or_follower if outcome in _COORDINATOR_AWAY else outcome


class _Waiting(NamedTuple):
    """A marker that is appended and not committed yet."""

    of: PartitionErrors
    """The answer that it belongs to."""
    partition: TopicPartition
    committed: asyncio.Future[ErrorCode]


async def _committed(waiting: list[_Waiting]) -> None:
    """Wait for them, but not too long; the result of each is put into its answer."""
    loop = asyncio.get_running_loop()
    all_done: asyncio.Future[None] = loop.create_future()
    remaining = len(waiting)

    def finish() -> None:
        if not all_done.done():
            all_done.set_result(None)

    def committed(marker: _Waiting, outcome: asyncio.Future[ErrorCode]) -> None:
        nonlocal remaining
        marker.of[marker.partition] = outcome.result()
        remaining -= 1
        if remaining == 0:
            finish()

    timer = loop.call_later(_COMMIT_SECONDS, finish)
    for marker in waiting:
        marker.committed.add_done_callback(partial(committed, marker))
    try:
        await all_done
    finally:
        timer.cancel()
