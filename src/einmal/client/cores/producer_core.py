"""The producer without I/O: records become batches, batches get sequences, are sent, retried and settled.

Theory of operation. Each partition has one queue. Its tail is open and accepts records until it is drained; a drained
batch is *sealed*: encoded once, under the producer id, epoch and sequence of that moment. A retry sends the identical
bytes, so the broker recognizes a duplicate.

Invariants
1. A batch is sent only while every earlier batch of its partition is in flight. So the order on one connection is the
   order of sequences, and a broker that refuses one batch refuses those behind it (OUT_OF_ORDER_SEQUENCE_NUMBER),
   which then wait for the first to be sent again. While an earlier one is in flight at a former leader, it waits.
2. With idempotence a batch is sent only while it is less than five batches after the oldest unsettled one of its
   partition: the broker remembers five. Before it has acknowledged the first batch of this producer id there, one only:
   a broker without state of a producer accepts any sequence, so a second batch could slip in before a refused first.
3. A sealed batch that fails leaves a hole in the sequences. Nothing more is sealed or sent; once nothing is in flight,
   an idempotent producer continues under a new epoch (KIP-360), and a transactional one has to abort.
4. Under a new epoch a batch is sealed again only if the broker is known not to have it. Where that is not known it
   fails as UnknownOutcome: sending it again could write it twice.

Values in, values out: ``now`` is in ms of the monotonic clock. Knows no connection, no metadata, no future: a ticket
returns the driver's own data with an outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, NamedTuple

from einmal.client.cores.pacing import first_pause_ms
from einmal.client.cores.producer_batch import BatchState, PartitionQueue, ProducerBatch
from einmal.client.errors import KafkaError, RetriableError, UnknownOutcome
from einmal.types import (
    EPOCH_MAX,
    NO_PRODUCER,
    ErrorCode,
    ProducerEpoch,
    ProducerIdAndEpoch,
    Sequence,
    TopicPartition,
    next_sequence,
)
from einmal.wire.compression import Compression
from einmal.wire.record_batch import HEADER_SIZE, NewRecord, encode_batch

_SHORT_PAUSE_MS: Final = 5
"""Pause while the coordinator writes the last markers of the previous transaction: a matter of milliseconds."""

MAYBE_WRITTEN: Final = frozenset(
    {
        ErrorCode.request_timed_out,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.not_leader_or_follower,
        ErrorCode.kafka_storage_error,
    }
)
"""Errors after which the batch may be in the log: a broker answers NOT_LEADER_OR_FOLLOWER also when it has appended the
batch and has lost its leadership before the batch was replicated."""


class Appended(IntEnum):
    """The driver's next step after adding a record: nothing, wait for linger.ms, or drain."""

    TO_A_BATCH = 0
    TO_A_NEW_BATCH = 1
    AND_FILLED_ONE = 2


class BatchOutcome(NamedTuple):
    """A settled batch. ``error``: None if the broker has it; ``base_offset``: of its first record, -1: unknown."""

    batch: ProducerBatch
    base_offset: int = -1
    log_append_time: int = -1
    error: KafkaError | None = None


class ProduceLimits(NamedTuple):
    """The configuration of ``ProducerCore``. Without idempotence there is no window and no sequence."""

    is_idempotent: bool = True
    transactional_id: str | None = None
    linger_ms: int = 5
    batch_size: int = 16_384
    max_request_size: int = 1_048_576
    max_in_flight: int = 5
    delivery_timeout_ms: int = 120_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    compression: Compression = Compression.NONE
    sends_once: bool = False
    """At most once, without idempotence: a batch that the broker may have is not retried, but fails as
    UnknownOutcome."""


class ProducerCore:
    def __init__(self, limits: ProduceLimits) -> None:
        self.limits = limits
        self.identity = NO_PRODUCER
        self.buffered_bytes = 0
        self.in_flight = 0
        self.error: KafkaError | None = None
        """Why sealed sequences have a hole, or why the transaction cannot commit; nothing is sent while it is set."""
        self._partitions: dict[TopicPartition, PartitionQueue] = {}
        self._busy: dict[TopicPartition, None] = {}
        self._unencodable: list[BatchOutcome] = []

    # --- records in -----------------------------------------------------------------------------------------------

    def append(self, topic_partition: TopicPartition, record: NewRecord, size: int, ticket: Any, now: int) -> Appended:
        """Add one record of ``size`` bytes."""
        partition = self._partitions.get(topic_partition) or self._partition(topic_partition)
        batch = partition.batches[-1] if partition.batches else None
        appended = Appended.TO_A_BATCH
        if batch is not None and batch.state is BatchState.OPEN and batch.size + size > self.limits.batch_size:
            batch.is_full = True
            appended = Appended.AND_FILLED_ONE
        if batch is None or batch.state is not BatchState.OPEN or batch.is_full:
            batch = ProducerBatch(topic_partition, now, now + self.limits.delivery_timeout_ms)
            partition.batches.append(batch)
            self._busy[topic_partition] = None
            appended = max(appended, Appended.TO_A_NEW_BATCH)
        batch.records.append(record)
        batch.tickets.append(ticket)
        batch.size += size
        self.buffered_bytes += size
        if batch.size >= self.limits.batch_size:
            batch.is_full = True
            appended = Appended.AND_FILLED_ONE
        return appended

    def append_sealed(self, topic_partition: TopicPartition, data: bytes, ticket: Any, now: int) -> None:
        """Add a batch that the caller has encoded, including identity and sequence."""
        partition = self._partition(topic_partition)
        batch = ProducerBatch(topic_partition, now, now + self.limits.delivery_timeout_ms, tickets=[ticket])
        batch.data, batch.size, batch.is_full, batch.state = data, len(data), True, BatchState.WAITING
        batch.ordinal = partition.next_ordinal
        partition.next_ordinal += 1
        partition.batches.append(batch)
        self._busy[topic_partition] = None
        self.buffered_bytes += len(data)

    def flush(self) -> None:
        """Everything appended so far is ready at once."""
        for topic_partition in self._busy:
            tail = self._partitions[topic_partition].batches[-1]
            if tail.state is BatchState.OPEN:
                tail.is_full = True

    @property
    def is_empty(self) -> bool:
        """Nothing waits and nothing is in flight."""
        return not self._busy and not self.in_flight

    def unsettled(self) -> list[ProducerBatch]:
        """Every batch that has no outcome yet."""
        return [batch for topic_partition in self._busy for batch in self._partitions[topic_partition].batches]

    def left_at_close(self) -> list[BatchOutcome]:
        """Settle every batch: the producer is closed now."""
        outcomes = []
        for batch in self.unsettled():
            outcomes.append(BatchOutcome(batch, error=batch.closing_error()))
            self._remove(batch)
        return outcomes

    def flying(self) -> list[ProducerBatch]:
        """Every batch that is in flight."""
        return [batch for batch in self.unsettled() if batch.state is BatchState.IN_FLIGHT]

    def _partition(self, topic_partition: TopicPartition) -> PartitionQueue:
        partition = self._partitions.get(topic_partition)
        if partition is None:
            partition = self._partitions[topic_partition] = PartitionQueue()
        return partition

    # --- batches out ----------------------------------------------------------------------------------------------

    def drain(
        self, now: int, target: Callable[[TopicPartition], int | None], in_flight: Callable[[int], int]
    ) -> dict[int, list[ProducerBatch]]:
        """At most one request per node: batches that may be sent now, one per partition, all marked as in flight.

        ``target``: the node to send a partition's batches to, None when it cannot be sent to yet. ``in_flight``:
        requests without an answer at a node. Call again until nothing comes: a partition may have more.
        """
        requests: dict[int, list[ProducerBatch]] = {}
        if self.error is not None:
            return requests
        limits = self.limits
        sizes: dict[int, int] = {}
        is_busy: dict[int, bool] = {}
        may_seal = not limits.is_idempotent or self.identity.producer_id >= 0
        for topic_partition in list(self._busy):
            partition = self._partitions[topic_partition]
            batch = partition.sendable(now, limits.linger_ms, has_window=limits.is_idempotent)
            if batch is None or (not batch.is_sealed and not may_seal):
                continue
            node = target(topic_partition)
            if node is None:
                continue
            if node not in is_busy:
                is_busy[node] = in_flight(node) >= limits.max_in_flight
            if is_busy[node]:
                continue
            if partition.is_behind_another_node(batch, node):
                continue
            size = sizes.get(node, 0)
            if size and size + batch.size > limits.max_request_size:
                continue
            if not batch.is_sealed and not self._seal(partition, batch):
                continue
            sizes[node] = size + batch.size
            batch.state = BatchState.IN_FLIGHT
            batch.node = node
            batch.attempts += 1
            self.in_flight += 1
            requests.setdefault(node, []).append(batch)
        self._rotate(requests)
        return requests

    def _rotate(self, requests: dict[int, list[ProducerBatch]]) -> None:
        # Served partitions go to the end: none starves behind a busy one.
        for batches in requests.values():
            for batch in batches:
                del self._busy[batch.topic_partition]
                self._busy[batch.topic_partition] = None

    def _seal(self, partition: PartitionQueue, batch: ProducerBatch) -> bool:
        """Encode a batch. False: it cannot be encoded, and fails without a hole in the sequences."""
        try:
            data = encode_batch(
                batch.records,
                producer_id=self.identity.producer_id,
                producer_epoch=self.identity.producer_epoch,
                base_sequence=partition.next_sequence if self.limits.is_idempotent else -1,
                transactional=self.limits.transactional_id is not None,
                compression=self.limits.compression,
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not hold back the other batches
            self._unencodable += self._fail(batch, batch.encoding_error(error))
            return False
        batch.data = data
        if self.limits.is_idempotent:
            partition.next_sequence = next_sequence(partition.next_sequence, len(batch.records))
        if batch.ordinal < 0:
            batch.ordinal = partition.next_ordinal
            partition.next_ordinal += 1
        return True

    def take_unencodable(self) -> list[BatchOutcome]:
        """The outcomes of batches that ``drain`` could not encode. Then drain again: others may wait behind them."""
        outcomes, self._unencodable = self._unencodable, []
        return outcomes

    # --- answers in -----------------------------------------------------------------------------------------------

    def accepted(self, batch: ProducerBatch, base_offset: int, log_append_time: int) -> list[BatchOutcome]:
        """The broker has the batch."""
        self.in_flight -= 1
        self._partitions[batch.topic_partition].is_known = True
        if batch.state is BatchState.SETTLED:
            return []
        self._remove(batch)
        return [BatchOutcome(batch, base_offset, log_append_time)]

    def refused(self, batch: ProducerBatch, code: ErrorCode, message: str | None, now: int) -> list[BatchOutcome]:
        """The broker answered with an error: the batch waits for a retry, or fails."""
        self.in_flight -= 1
        if batch.state is BatchState.SETTLED:
            return []
        if code is ErrorCode.duplicate_sequence_number:
            self._remove(batch)
            return [BatchOutcome(batch)]
        if code in MAYBE_WRITTEN:
            batch.is_outcome_unknown = True
        is_first = self._partitions[batch.topic_partition].batches[0] is batch
        # Behind a hole every batch is out of order; the batch itself is not the cause.
        is_behind_a_refused_one = (
            code is ErrorCode.out_of_order_sequence_number
            and self.limits.is_idempotent
            and (not is_first or self.error is not None)
        )
        may_retry = not (self.limits.sends_once and batch.is_outcome_unknown)
        if (code.retriable and may_retry) or is_behind_a_refused_one:
            is_short = code is ErrorCode.concurrent_transactions
            first = _SHORT_PAUSE_MS if is_short else first_pause_ms(self.limits.retry_backoff_ms)
            batch.retry_later(now, first, self.limits.retry_backoff_max_ms)
            return []
        error = batch.refused_error(code, message)
        if batch.is_outcome_unknown:
            error = UnknownOutcome(code, f"{batch.topic_partition}, {len(batch.tickets)} record(s)")
        return self._fail(batch, error)

    def lost(self, batch: ProducerBatch, *, was_sent: bool, now: int) -> list[BatchOutcome]:
        """No answer: the connection is lost. ``was_sent``: the broker may have the batch."""
        self.in_flight -= 1
        if batch.state is BatchState.SETTLED:
            return []
        batch.is_outcome_unknown |= was_sent
        if self.limits.sends_once and batch.is_outcome_unknown:
            return self._fail(batch, UnknownOutcome(detail=f"{batch.topic_partition}: the connection was lost"))
        batch.retry_later(now, first_pause_ms(self.limits.retry_backoff_ms), self.limits.retry_backoff_max_ms)
        return []

    def retry_now(self, topic_partition: TopicPartition) -> None:
        """The partition has another leader: batches that wait for their next attempt go there at once."""
        partition = self._partitions.get(topic_partition)
        for batch in () if partition is None else partition.batches:
            batch.retry_at_ms = 0

    def unanswered(self, batch: ProducerBatch) -> list[BatchOutcome]:
        """acks=0: written to the connection; nothing more will be known."""
        return self.accepted(batch, -1, -1)

    def _fail(self, batch: ProducerBatch, error: KafkaError) -> list[BatchOutcome]:
        """Settle with an error; a sealed one leaves a hole behind."""
        if self.limits.transactional_id is not None or (self.limits.is_idempotent and batch.is_sealed):
            self.error = self.error or error
        self._remove(batch)
        return [BatchOutcome(batch, error=error)]

    def _remove(self, batch: ProducerBatch) -> None:
        partition = self._partitions[batch.topic_partition]
        partition.batches.remove(batch)
        batch.state = BatchState.SETTLED
        self.buffered_bytes -= batch.size - (HEADER_SIZE if batch.records else 0)
        if not partition.batches:
            del self._busy[batch.topic_partition]

    # --- time -----------------------------------------------------------------------------------------------------

    def expire(self, now: int) -> list[BatchOutcome]:
        """Settle batches older than delivery.timeout.ms. A late answer changes nothing any more."""
        outcomes: list[BatchOutcome] = []
        for topic_partition in list(self._busy):
            batches = self._partitions[topic_partition].batches
            while batches and batches[0].deadline_ms <= now:
                outcomes += self._fail(batches[0], batches[0].expiry_error())
        return outcomes

    def next_deadline(self, now: int) -> int | None:
        """The latest time of the next ``drain`` or ``expire``. None: only an answer changes anything.

        A batch that could be drained now has no deadline of its own: it waits for its node, not for time.
        """
        earliest: int | None = None
        for topic_partition in self._busy:
            head, *_ = batches = self._partitions[topic_partition].batches
            times = [head.deadline_ms]
            waiting = next((batch for batch in batches if batch.state is not BatchState.IN_FLIGHT), None)
            if waiting is not None and waiting.state is BatchState.OPEN and not waiting.is_full:
                times.append(waiting.created_ms + self.limits.linger_ms)
            elif waiting is not None:
                times.append(waiting.retry_at_ms)
            due = min((time for time in times if time > now), default=None)
            if due is not None and (earliest is None or due < earliest):
                earliest = due
        return earliest

    # --- identity -------------------------------------------------------------------------------------------------

    def begin_identity(self, identity: ProducerIdAndEpoch) -> list[BatchOutcome]:
        """Continue under this producer id and epoch: sequences start at 0. Nothing may be in flight.

        Batches of the old identity that the broker may have fail as UnknownOutcome; the others are sealed again.
        """
        assert self.in_flight == 0, "a batch in flight belongs to the old identity"
        if identity == self.identity:
            return []
        is_same_producer = identity.producer_id == self.identity.producer_id
        self.identity = identity
        self.error = None
        outcomes = []
        for topic_partition, partition in self._partitions.items():
            for batch in list(partition.batches):
                if not batch.is_sealed:
                    continue
                if batch.is_outcome_unknown:
                    self._remove(batch)
                    detail = f"{topic_partition}, {len(batch.tickets)} record(s)"
                    outcomes.append(BatchOutcome(batch, error=UnknownOutcome(ErrorCode.network_exception, detail)))
                else:
                    batch.data, batch.state, batch.is_full = b"", BatchState.OPEN, True
                    batch.ordinal, batch.retry_at_ms = -1, 0
            partition.next_sequence = Sequence(0)
            partition.next_ordinal = 0
            partition.is_known = partition.is_known and is_same_producer
        return outcomes

    @property
    def lacks_identity(self) -> bool:
        """Whether an idempotent producer has no producer id yet. A transactional one gets it from its coordinator."""
        limits = self.limits
        return limits.is_idempotent and limits.transactional_id is None and self.identity.producer_id < 0

    @property
    def must_renew_identity(self) -> bool:
        """Whether an idempotent producer has a hole in its sequences, and nothing is in flight any more."""
        return self.error is not None and not self.in_flight and self.limits.transactional_id is None

    def next_identity(self) -> ProducerIdAndEpoch | None:
        """The identity after a hole in the sequences: the next epoch (KIP-360). None: ask a broker for a new id."""
        assert self.limits.transactional_id is None, "a transactional identity belongs to the coordinator"
        if self.identity.producer_id < 0 or self.identity.producer_epoch >= EPOCH_MAX:
            return None
        return ProducerIdAndEpoch(self.identity.producer_id, ProducerEpoch(self.identity.producer_epoch + 1))

    def identity_granted(self, identity: ProducerIdAndEpoch) -> list[BatchOutcome]:
        """Use a new identity, unless something is in flight under the old one; then it is renewed later."""
        return [] if self.in_flight else self.begin_identity(identity)

    def identity_refused(self, error: KafkaError) -> list[BatchOutcome] | None:
        """InitProducerId failed: the outcomes; None: retry after a pause.

        Records expire by delivery.timeout.ms while there is no identity, so the retries end. A broker without
        InitProducerId refuses before anything is sent: these retries would never end.
        """
        return None if isinstance(error, RetriableError | UnknownOutcome) else self.fail_waiting(error)

    def fail_waiting(self, error: KafkaError) -> list[BatchOutcome]:
        """Settle everything that is not in flight, and send nothing more. This is an abort's first step."""
        self.error = self.error or error
        outcomes = []
        for topic_partition in list(self._busy):
            for batch in list(self._partitions[topic_partition].batches):
                if batch.state is not BatchState.IN_FLIGHT:
                    outcomes += self._fail(batch, error)
        return outcomes

    def fail_rest(self, error: KafkaError) -> list[BatchOutcome]:
        """Once a transaction cannot commit, settle waiting batches: a flush must not wait for them."""
        if self.error is None or self.limits.transactional_id is None:
            return []
        return self.fail_waiting(error)

    def forget_error(self) -> None:
        """The transaction that had the error is over; its sequences end with it."""
        assert not self._busy
        self.error = None
