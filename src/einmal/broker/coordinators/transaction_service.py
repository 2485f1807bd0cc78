"""The transaction coordinators of this broker: a shard for each partition of ``__transaction_state`` that it leads.

Composes the pure coordinator, its runtime, the marker sender and the producer ids; decides nothing. A shard begins with
the leadership of its partition, not with the first request: open transactions must time out, decided ones must get
their markers. For the partitions that this broker leads it asks the coordinators, its own and others', to verify or add
them (KIP-890). A request that begins a transaction waits for the end of the previous one of its transactional id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.config import BrokerConfig
from einmal.broker.coordinators.awaited_ends import AwaitedEnds, WaitLimit
from einmal.broker.coordinators.marker_sender import Coordinator, MarkerSender, MarkerTarget
from einmal.broker.coordinators.marker_writer import MarkerWriter
from einmal.broker.coordinators.producer_ids import ProducerIds
from einmal.broker.coordinators.remote_markers import RemoteMarkers
from einmal.broker.coordinators.shard_runtime import ShardRuntime
from einmal.broker.coordinators.shards import Shards
from einmal.broker.coordinators.transaction_verification import (
    Operation,
    offset_commit_error,
    offset_commit_operation,
    produce_error,
    produce_operation,
)
from einmal.broker.coordinators.verification_requests import VerificationRequests
from einmal.broker.replicas.partition import Partition
from einmal.broker.replicas.partitions import Partitions
from einmal.broker.resources.counts import TransactionCounts
from einmal.broker.rpc.peers import Asker
from einmal.log.producer_state import CONTINUES, VerificationGuard
from einmal.metadata.features import TRANSACTION_VERSION
from einmal.metadata.image import TRANSACTION_STATE, ImageDelta
from einmal.metadata.records import NO_LEADER
from einmal.seams import Clock
from einmal.transactions import records
from einmal.transactions.coordinator import (
    EndTxnResult,
    InitProducerIdResult,
    PartitionErrors,
    TransactionConfig,
    TransactionCoordinator,
    TransactionDecision,
)
from einmal.transactions.markers import WriteMarkers
from einmal.transactions.records import TransactionRecord
from einmal.types import (
    NO_SEQUENCE,
    BrokerId,
    ErrorCode,
    Instant,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)

R = TypeVar("R")
Begun = TypeVar("Begun", ErrorCode, InitProducerIdResult)
"""An answer to a request that begins a transaction, or prepares for one."""
_FENCED: Final = (ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch)
TransactionRuntime: TypeAlias = ShardRuntime[TransactionCoordinator, TransactionRecord, WriteMarkers]


class TransactionService:
    def __init__(
        self,
        config: BrokerConfig,
        metadata: ClusterMetadata,
        partitions: Partitions,
        markers: MarkerWriter,
        producer_ids: ProducerIds,
        peers: Asker,
        clock: Clock,
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._peers = peers
        self._clock = clock
        self.markers = markers
        """The implementation of WriteTxnMarkers on this broker."""
        self.producer_ids = producer_ids
        self.counts = TransactionCounts()
        self._shards: Shards[TransactionCoordinator, TransactionRecord, WriteMarkers] = Shards(
            TRANSACTION_STATE,
            metadata,
            partitions,
            self._new_runtime,
            elected=ShardRuntime.start,
            resigned=self._resigned,
        )
        self._version = TransactionVersion.TV_0
        self._sender = MarkerSender(self._leader_of, self._target)
        self._verifications = VerificationRequests(peers)
        self.ends = AwaitedEnds(config, self._ending_at)

    async def start(self) -> None:
        self._shards.refresh()

    async def stop(self) -> None:
        self._shards.stop()
        self._sender.stop()
        self._verifications.stop()
        self.producer_ids.stop()

    def apply(self, delta: ImageDelta) -> None:
        """Apply changes of the cluster and of this broker's replicas."""
        if self._version != self._agreed_version():
            # Shards know the version that the cluster had agreed on when they were made.
            self._version = self._agreed_version()
            for runtime in self._shards.all():
                runtime.start()
        self._shards.apply(delta)
        if delta.topics or delta.deleted or delta.brokers:
            self._sender.leaders_changed()

    def refresh(self) -> None:
        """Some replicas may have been opened."""
        self._shards.refresh()

    # --- shards ----------------------------------------------------------------------------------------------------

    def runtimes(self) -> list[TransactionRuntime]:
        """Return the runtimes of all partitions that are led here."""
        return self._shards.all()

    async def submit(
        self,
        transactional_id: str,
        decide: Callable[[TransactionCoordinator, Instant], TransactionDecision[R]],
        *,
        reads_only: bool = False,
    ) -> R | ErrorCode:
        """Ask the coordinator of a transactional id, if it is here. ``reads_only``: see ``ShardRuntime.submit``."""
        runtime = self._shards.find(transactional_id)
        if runtime is None:
            return ErrorCode.not_coordinator
        answer = await runtime.submit(decide, reads_only=reads_only)
        self.counts.fenced += _is_fenced(answer)
        return answer

    async def submit_next(
        self,
        transactional_id: str,
        decide: Callable[[TransactionCoordinator, Instant], TransactionDecision[Begun]],
        limit: WaitLimit,
    ) -> Begun | ErrorCode:
        """As ``submit``, for a request that begins a transaction: it waits while the previous one lacks markers.

        An InitProducerId that itself ends the previous one is answered at once, as by Apache Kafka.
        """
        has_ended = False

        def decide_next(shard: TransactionCoordinator, now: Instant) -> TransactionDecision[Begun]:
            nonlocal has_ended
            decision = decide(shard, now)
            has_ended = bool(decision.records)
            return decision

        def is_concurrent(answer: Begun | ErrorCode) -> bool:
            error = answer if isinstance(answer, ErrorCode) else answer.error
            return error is ErrorCode.concurrent_transactions and not has_ended

        return await self.ends.ask(
            transactional_id, lambda: self.submit(transactional_id, decide_next), is_concurrent, limit
        )

    def _ending_at(self, transactional_id: str) -> Coordinator | None:
        runtime = self._shards.find(transactional_id)
        if runtime is None or runtime.shard is None:
            return None
        transaction = runtime.shard.transactions.get(transactional_id)
        is_ending = transaction is not None and transaction.state.is_prepared
        return _coordinator(runtime) if is_ending else None

    def _new_runtime(self, partition: Partition) -> TransactionRuntime:
        def perform(action: WriteMarkers) -> None:
            self._sender.send(action, _coordinator(runtime), self._ended(runtime, action))

        runtime: TransactionRuntime = ShardRuntime(
            partition,
            self._new_shard,
            records,
            clock=self._clock,
            perform=perform,
        )
        return runtime

    def _ended(self, runtime: TransactionRuntime, action: WriteMarkers) -> Callable[[], Awaitable[None]]:
        """Count an outcome, which is committed; return the report that all markers are written."""
        phases, decided_ms = self.counts.phases, self._clock.now().monotonic_ms
        transaction = None if runtime.shard is None else runtime.shard.transactions.get(action.transactional_id)
        if action.cause is not None:
            self.counts.results[action.cause.value] += 1
            if transaction is not None and transaction.updated_at is not None:
                phases["prepare"].observe((decided_ms - transaction.updated_at) / 1000)
        report = _report(runtime, action, self.ends)

        async def completed() -> None:
            written_ms = self._clock.now().monotonic_ms
            phases["markers"].observe((written_ms - decided_ms) / 1000)
            await report()
            phases["complete"].observe((self._clock.now().monotonic_ms - written_ms) / 1000)

        return completed

    def _resigned(self, runtime: TransactionRuntime) -> None:
        self._sender.forget(_coordinator(runtime))
        self.ends.forget(_coordinator(runtime))

    def _new_shard(self) -> TransactionCoordinator:
        config = self._config
        return TransactionCoordinator(
            TransactionConfig(
                max_timeout_ms=config.transaction_max_timeout_ms,
                id_expiration_ms=config.transactional_id_expiration_ms,
                id_expiration_interval_ms=config.transaction_remove_expired_transaction_cleanup_interval_ms,
                version=self._version,
            ),
            self.producer_ids.take,
        )

    def _agreed_version(self) -> TransactionVersion:
        return TransactionVersion(self._metadata.image.features.get(TRANSACTION_VERSION, 0))

    # --- markers ---------------------------------------------------------------------------------------------------

    def _leader_of(self, topic_partition: TopicPartition) -> BrokerId | None:
        """None: its topic was certainly deleted.

        A leader has applied all metadata from before its leadership, including the creation of every topic that an
        earlier coordinator can have added.
        """
        topic = self._metadata.image.topics.get(topic_partition.topic)
        if topic is None or topic_partition.partition >= len(topic.partitions):
            return None
        return topic.partitions[topic_partition.partition].leader

    def _target(self, broker_id: BrokerId) -> MarkerTarget:
        return self.markers if broker_id == self._config.node_id else RemoteMarkers(self._peers, broker_id)

    # --- verification (KIP-890) --------------------------------------------------------------------------------------

    async def verify_produce(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        version: int,
        limit: WaitLimit,
    ) -> dict[TopicPartition, ErrorCode]:
        """Before the first batch of a transaction in these partitions. ``version``: of the Produce request."""
        operation = produce_operation(version)
        errors = await self._ask_coordinator(transactional_id, producer, partitions, operation, limit)
        return {partition: produce_error(errors[partition], operation) for partition in partitions}

    async def verify_offset_commit(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partition: Partition,
        version: int,
        limit: WaitLimit,
    ) -> VerificationGuard | ErrorCode:
        """Before a TxnOffsetCommit in that partition of ``__consumer_offsets``. The guard is for the append of it."""
        operation = offset_commit_operation(version)
        protocol = TransactionVersion.TV_2 if operation is Operation.ADD else TransactionVersion.TV_1
        guard = partition.producers.begin_verification(producer, NO_SEQUENCE, protocol)
        if guard is None:
            return CONTINUES
        offsets = partition.topic_partition
        errors = await self._ask_coordinator(transactional_id, producer, [offsets], operation, limit)
        error = offset_commit_error(errors[offsets], operation)
        return guard if error is ErrorCode.none else error

    async def _ask_coordinator(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        operation: Operation,
        limit: WaitLimit,
    ) -> PartitionErrors:
        """Ask for the client, wherever the coordinator is, and wait as ``submit_next``."""
        adds = operation is Operation.ADD
        if not adds and not self._config.transaction_partition_verification_enable:
            return dict.fromkeys(partitions, ErrorCode.none)

        async def ask() -> PartitionErrors:
            coordinator = self._coordinator_of(transactional_id)
            if coordinator == self._config.node_id:
                return await self.verify_or_add(transactional_id, producer, partitions, adds=adds)
            if coordinator == NO_LEADER:
                return dict.fromkeys(partitions, ErrorCode.coordinator_not_available)
            return await self._verifications.ask(coordinator, transactional_id, producer, partitions, adds=adds)

        def is_concurrent(errors: PartitionErrors) -> bool:
            # What is only verified belongs to a transaction that was open: its end is no reason to wait.
            return adds and ErrorCode.concurrent_transactions in errors.values()

        return await self.ends.ask(transactional_id, ask, is_concurrent, limit)

    def _coordinator_of(self, transactional_id: str) -> BrokerId:
        index = self._shards.partition_of(transactional_id)
        if index is None:
            return NO_LEADER
        leader = self._leader_of(TopicPartition(TRANSACTION_STATE, index))
        return NO_LEADER if leader is None else leader

    async def verify_or_add(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        *,
        adds: bool,
    ) -> PartitionErrors:
        """A partition leader's request to the coordinator here."""
        outcome: Mapping[TopicPartition, ErrorCode] | ErrorCode
        if adds:
            outcome = await self.submit(
                transactional_id,
                lambda shard, now: shard.add_partitions_to_txn(
                    transactional_id, producer, partitions, TransactionVersion.TV_2, now
                ),
            )
        else:
            outcome = await self.submit(
                transactional_id,
                lambda shard, _: shard.verify_partitions(transactional_id, producer, partitions),
                reads_only=True,
            )
        return dict.fromkeys(partitions, outcome) if isinstance(outcome, ErrorCode) else outcome


def _is_fenced(answer: object) -> bool:
    """Whether a coordinator has refused an earlier instance or epoch."""
    if isinstance(answer, InitProducerIdResult | EndTxnResult):
        answer = answer.error
    if isinstance(answer, Mapping):
        return any(error in _FENCED for error in answer.values())
    return answer in _FENCED


def _coordinator(runtime: TransactionRuntime) -> Coordinator:
    return Coordinator(runtime.partition.topic_partition.partition, runtime.leader_epoch)


def _report(runtime: TransactionRuntime, action: WriteMarkers, ends: AwaitedEnds) -> Callable[[], Awaitable[None]]:
    """Report to the leadership that decided the outcome, and to no later one, that all markers are written."""

    def decide(shard: TransactionCoordinator, now: Instant) -> TransactionDecision[ErrorCode]:
        # Those that wait are awake in the loop's next turn, when this is replayed; as every answer, theirs is held back
        # until it is committed.
        ends.come(_coordinator(runtime), action.transactional_id)
        return shard.markers_written(action.transactional_id, action.producer, now)

    # Refused, it is repeated as long as the shard stays loaded. One that is loaded again, here or elsewhere, without
    # the report in its log lets the markers be written once more.
    return lambda: runtime.insist(decide)
