"""The transaction coordinators of this broker: a shard for each partition of ``__transaction_state`` that it leads.

Composes the pure coordinator, its runtime, the marker sender and the producer ids; decides nothing. A shard begins with
the node where its partition exists already (open transactions must time out, decided ones must get their markers), else
with the first request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from einmal.broker.marker_sender import MarkerSender, MarkerTarget
from einmal.broker.marker_writer import MarkerWriter
from einmal.broker.producer_ids import ProducerIds
from einmal.broker.shard_runtime import ShardRuntime
from einmal.broker.transaction_verification import (
    Operation,
    offset_commit_error,
    offset_commit_operation,
    produce_error,
    produce_operation,
)
from einmal.log.producer_state import CONTINUES, VerificationGuard
from einmal.metadata.image import CONSUMER_OFFSETS, TRANSACTION_STATE
from einmal.shard.decision import Decision
from einmal.transactions import records
from einmal.transactions.coordinator import PartitionErrors, TransactionConfig, TransactionCoordinator
from einmal.transactions.markers import WriteMarkers
from einmal.types import (
    NO_SEQUENCE,
    ErrorCode,
    Instant,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)
from einmal.wire.java_hash import partition_for_id

if TYPE_CHECKING:
    from einmal.broker.node import Node

R = TypeVar("R")
Runtime = ShardRuntime[TransactionCoordinator]


class TransactionService:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._runtimes: dict[int, Runtime] = {}
        self._sender = MarkerSender(self._leader_of)
        self.markers = MarkerWriter(node)
        """What WriteTxnMarkers does on this broker."""
        self.producer_ids = ProducerIds(node.metadata.allocate_producer_ids)

    async def start(self) -> None:
        self.runtimes()

    async def stop(self) -> None:
        for runtime in self._runtimes.values():
            runtime.stop()
        self._sender.stop()
        self.producer_ids.stop()

    # --- shards ----------------------------------------------------------------------------------------------------

    def runtimes(self) -> list[Runtime]:
        """Of every partition that is led here."""
        topic = self._node.metadata.image.topics.get(TRANSACTION_STATE)
        count = 0 if topic is None else len(topic.partitions)
        return [runtime for runtime in map(self._runtime, range(count)) if runtime is not None]

    async def submit(
        self, transactional_id: str, decide: Callable[[TransactionCoordinator, Instant], Decision[R]]
    ) -> R | ErrorCode:
        """Ask the coordinator of a transactional id."""
        topic = self._node.metadata.image.topics.get(TRANSACTION_STATE)
        if topic is None:
            return ErrorCode.not_coordinator
        runtime = self._runtime(partition_for_id(transactional_id, len(topic.partitions)))
        return ErrorCode.not_coordinator if runtime is None else await runtime.submit(decide)

    def _runtime(self, index: int) -> Runtime | None:
        runtime = self._runtimes.get(index)
        if runtime is None:
            partition = self._node.partitions.get(TopicPartition(TRANSACTION_STATE, index))
            if partition is None:
                return None

            def perform(action: Any) -> None:
                self._perform(index, action)

            runtime = ShardRuntime(partition, self._new_shard, records, clock=self._node.clock, perform=perform)
            self._runtimes[index] = runtime
            runtime.start()
        return runtime

    def _new_shard(self) -> TransactionCoordinator:
        config = self._node.config
        return TransactionCoordinator(
            TransactionConfig(
                max_timeout_ms=config.transaction_max_timeout_ms,
                id_expiration_ms=config.transactional_id_expiration_ms,
                id_expiration_interval_ms=config.transaction_remove_expired_transaction_cleanup_interval_ms,
                version=TransactionVersion(self._node.metadata.image.features.get("transaction.version", 0)),
            ),
            self.producer_ids.take,
        )

    # --- markers ---------------------------------------------------------------------------------------------------

    def _perform(self, index: int, action: Any) -> None:
        assert isinstance(action, WriteMarkers)
        runtime = self._runtimes[index]

        async def written() -> None:
            # An error needs no care: whatever keeps the report out of the log has the shard loaded again, and then
            # the markers are written once more.
            await runtime.submit(
                lambda shard, now: shard.markers_written(action.transactional_id, action.producer, now)
            )

        self._sender.send(action, runtime.partition.leader_epoch, written)

    def _leader_of(self, topic_partition: TopicPartition) -> MarkerTarget | None:
        topic = self._node.metadata.image.topics.get(topic_partition.topic)
        if topic is None or topic_partition.partition >= len(topic.partitions):
            return None
        return self.markers

    # --- verification (KIP-890) --------------------------------------------------------------------------------------

    async def verify_produce(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        version: int,
    ) -> dict[TopicPartition, ErrorCode]:
        """Before the first batch of a transaction in these partitions. ``version``: of the Produce request."""
        operation = produce_operation(version)
        errors = await self.verify_or_add(transactional_id, producer, partitions, operation)
        return {partition: produce_error(errors[partition], operation) for partition in partitions}

    async def verify_offset_commit(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partition: int, version: int
    ) -> VerificationGuard | ErrorCode:
        """Before a TxnOffsetCommit in that partition of ``__consumer_offsets``. The guard is for the append of it."""
        topic_partition = TopicPartition(CONSUMER_OFFSETS, partition)
        replica = self._node.partitions.get(topic_partition)
        if replica is None:
            return ErrorCode.not_coordinator
        operation = offset_commit_operation(version)
        protocol = TransactionVersion.TV_2 if operation is Operation.ADD else TransactionVersion.TV_1
        guard = replica.log.producers.begin_verification(producer, NO_SEQUENCE, protocol)
        if guard is None:
            return CONTINUES
        errors = await self.verify_or_add(transactional_id, producer, [topic_partition], operation)
        error = offset_commit_error(errors[topic_partition], operation)
        return guard if error is ErrorCode.none else error

    async def verify_or_add(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        operation: Operation,
    ) -> PartitionErrors:
        """Ask the coordinator, in the client's name."""
        outcome: Mapping[TopicPartition, ErrorCode] | ErrorCode
        if operation is Operation.ADD:
            outcome = await self.submit(
                transactional_id,
                lambda shard, now: shard.add_partitions_to_txn(
                    transactional_id, producer, partitions, TransactionVersion.TV_2, now
                ),
            )
        elif not self._node.config.transaction_partition_verification_enable:
            outcome = ErrorCode.none
        else:
            outcome = await self.submit(
                transactional_id, lambda shard, _: shard.verify_partitions(transactional_id, producer, partitions)
            )
        return dict.fromkeys(partitions, outcome) if isinstance(outcome, ErrorCode) else outcome
