"""The transaction coordinator of one partition of ``__transaction_state``, as a value machine.

Theory of operation
-------------------
Every method decides one request of the same name from the state as replayed so far and returns a Decision; only
``replay`` changes the logged state of a transaction. The runtime appends and replays a decision before it decides the
next, and holds back answers and actions until the high watermark passes: so no answer depends on a record that could
still be lost, and no marker is written before its outcome is committed.

Where Apache Kafka keeps a "pending state" during an append, here the state has moved already. Only the time between the
outcome (``Prepare*``) and its completion is pending: until every marker is written each request of that transactional
id gets CONCURRENT_TRANSACTIONS, before its epoch is checked.

The end of a transaction: ``end_txn`` (or a timeout, or an InitProducerId over an open transaction) decides
``Prepare*`` with the action WriteMarkers; the marker sender reports ``markers_written``, which decides ``Complete*``. A
transaction that reached no partition needs no markers: both records are written at once.

Ages are on the monotonic clock. A load resets them: an open transaction gets its whole timeout again, an idle id its
whole time to expiry.

A transaction of a two-phase commit (KIP-939) has no timeout. The coordinator does not know whether it is prepared: its
client has written everything and keeps that promise. After a crash the next instance asks to keep it, gets a pair of
its own, and ends it under that pair as its database decides; nothing else is possible meanwhile (``is_kept``). An
InitProducerId that does not ask for it aborts it as any other open transaction: so operators end it by force.

KIP-98, KIP-360 (recovery with producer id and epoch), KIP-664 (describe, list), KIP-890 (verification; version 2),
KIP-939 (two-phase commit).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, TypeVar

from einmal.shard.decision import Decision
from einmal.shard.timers import Timers
from einmal.transactions.fencing import (
    Relation,
    Verdict,
    end_txn_outcome,
    end_txn_outcome_before_tv_2,
    producer_error,
    relation,
)
from einmal.transactions.markers import EndCause, WriteMarkers
from einmal.transactions.records import TransactionRecord
from einmal.transactions.states import AT_REST, TransactionState
from einmal.transactions.transaction import NO_TIMEOUT_MS, Transaction
from einmal.types import (
    EPOCH_MAX,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ErrorCode,
    Instant,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)

R = TypeVar("R")
TransactionDecision: TypeAlias = Decision[TransactionRecord, WriteMarkers, R]

ProducerIdSource = Callable[[], ProducerId | None]
"""Hands out a new producer id, or None while none is available."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 604_800_000
    id_expiration_interval_ms: int = 3_600_000
    version: TransactionVersion = TransactionVersion.TV_2
    """The cluster's finalized ``transaction.version``."""


@dataclass(frozen=True, slots=True)
class InitProducerIdResult:
    """``ongoing_*``: the pair of the transaction that was kept, as its client prepared it."""

    error: ErrorCode
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    ongoing_producer_id: ProducerId = NO_PRODUCER_ID
    ongoing_producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True)
class EndTxnResult:
    """Under version 2 the client continues with this identity."""

    error: ErrorCode
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True)
class TwoPhase:
    """Two-phase commit that InitProducerId 6 asks for (KIP-939).

    ``is_enabled``: its transactions never time out. ``keeps_prepared``: an open transaction stays open for it; this
    needs no permission of its own, and the transaction keeps its timeout, or its having none; the later ones have the
    client's.
    """

    is_enabled: bool = False
    keeps_prepared: bool = False


ONE_PHASE: Final = TwoPhase()

PartitionErrors = Mapping[TopicPartition, ErrorCode]


class TransactionCoordinator:
    def __init__(self, config: TransactionConfig, producer_ids: ProducerIdSource) -> None:
        self._config = config
        self._producer_ids = producer_ids
        self._transactions: dict[str, Transaction] = {}
        self._timeouts: Timers[str] = Timers()
        """Timeouts of open transactions, by transactional id."""
        self._next_expiry_sweep: int | None = None

    @property
    def transactions(self) -> Mapping[str, Transaction]:
        return self._transactions

    # --- InitProducerId ------------------------------------------------------------------------------------------

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        producer: ProducerIdAndEpoch | None,
        now: Instant,
        two_phase: TwoPhase = ONE_PHASE,
    ) -> TransactionDecision[InitProducerIdResult]:
        """Assign an identity to a new instance and fence the previous one; with ``producer``: bump its epoch
        (KIP-360)."""
        error = self._init_error(transactional_id, timeout_ms, producer, two_phase)
        if error is not ErrorCode.none:
            return _refuse_init(error)
        if two_phase.is_enabled:
            timeout_ms = NO_TIMEOUT_MS
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            return self._init_unknown(transactional_id, timeout_ms, now)
        if transaction.state.is_prepared:
            return _refuse_init(ErrorCode.concurrent_transactions)
        if transaction.state is TransactionState.ONGOING:
            if two_phase.keeps_prepared:
                return self._keep(transaction, timeout_ms, now)
            return self._init_over_open(transaction, producer, now)
        if producer is None:
            return self._init_at_rest(transaction, NO_PRODUCER_EPOCH, timeout_ms, now)
        if relation(transaction, producer) is Relation.CURRENT:
            return self._init_at_rest(transaction, producer.producer_epoch, timeout_ms, now)
        if not _is_retry_of_init(transaction, producer):
            return _refuse_init(ErrorCode.producer_fenced)
        return Decision(response=InitProducerIdResult(ErrorCode.none, *transaction.producer))

    def _init_error(
        self, transactional_id: str, timeout_ms: int, producer: ProducerIdAndEpoch | None, two_phase: TwoPhase
    ) -> ErrorCode:
        # The instance that made the transaction needs no help to end it: only a successor keeps it.
        if not transactional_id or (two_phase.keeps_prepared and producer is not None):
            return ErrorCode.invalid_request
        if two_phase != ONE_PHASE and self._config.version < TransactionVersion.TV_2:
            return ErrorCode.unsupported_version
        if not two_phase.is_enabled and not 0 < timeout_ms <= self._config.max_timeout_ms:
            return ErrorCode.invalid_transaction_timeout
        return ErrorCode.none

    def _keep(
        self, transaction: Transaction, timeout_ms: int, now: Instant
    ) -> TransactionDecision[InitProducerIdResult]:
        """Fence the predecessor, whose transaction stays open. A retry moves the epoch again: no answer repeats one.

        ``timeout_ms``: the client's. A kept transaction loses its timeout by it, but gets none: it may be prepared.
        The client's later transactions have the client's: to have none is a permission of its own.
        """
        next_producer_id = self._producer_id_after(transaction, TransactionVersion.TV_2)
        if next_producer_id is None:
            return _refuse_init(ErrorCode.coordinator_load_in_progress)
        kept = transaction.keeping(
            next_producer_id,
            timeout_ms=NO_TIMEOUT_MS if timeout_ms == NO_TIMEOUT_MS else transaction.timeout_ms,
            next_timeout_ms=timeout_ms,
            now=now,
        )
        answer = InitProducerIdResult(ErrorCode.none, *kept.client, *kept.producer)
        return Decision(records=(_record(kept),), response=answer)

    def _init_unknown(
        self, transactional_id: str, timeout_ms: int, now: Instant
    ) -> TransactionDecision[InitProducerIdResult]:
        producer_id = self._producer_ids()
        if producer_id is None:
            return _refuse_init(ErrorCode.coordinator_load_in_progress)
        return _initialised(
            Transaction(
                transactional_id=transactional_id,
                producer_id=producer_id,
                producer_epoch=ProducerEpoch(0),
                timeout_ms=timeout_ms,
                state=TransactionState.EMPTY,
                last_update_ms=now.wall_ms,
                updated_at=now.monotonic_ms,
            )
        )

    def _init_over_open(
        self, transaction: Transaction, producer: ProducerIdAndEpoch | None, now: Instant
    ) -> TransactionDecision[InitProducerIdResult]:
        # Apache Kafka checks only the producer id, so that a late retry of the predecessor aborts its successor's open
        # transaction. Here only the current epoch may do this.
        if producer is not None and relation(transaction, producer) is not Relation.CURRENT:
            return _refuse_init(ErrorCode.producer_fenced)
        fenced = self._fence(transaction, now)
        if fenced is None:
            return _refuse_init(ErrorCode.coordinator_load_in_progress)
        # The client retries, and then finds the transaction ended.
        records, actions = self._ending(fenced, EndCause.FENCED, now)
        answer = InitProducerIdResult(ErrorCode.concurrent_transactions)
        return Decision(records=records, response=answer, actions=actions)

    def _init_at_rest(
        self, transaction: Transaction, last_epoch: ProducerEpoch, timeout_ms: int, now: Instant
    ) -> TransactionDecision[InitProducerIdResult]:
        if not transaction.is_epoch_exhausted:
            epoch = ProducerEpoch(transaction.producer_epoch + 1)
            return _initialised(transaction.with_epoch(epoch, last_epoch, timeout_ms, now))
        producer_id = self._producer_ids()
        if producer_id is None:
            return _refuse_init(ErrorCode.coordinator_load_in_progress)
        return _initialised(transaction.with_producer_id(producer_id, last_epoch, timeout_ms, now))

    # --- partitions ----------------------------------------------------------------------------------------------

    def add_partitions_to_txn(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        version: TransactionVersion,
        now: Instant,
    ) -> TransactionDecision[ErrorCode]:
        """Add partitions to the transaction, opening it where none is open.

        ``version`` is TV_2 when a partition's leader asks for its client (AddPartitionsToTxn 4 and later), TV_0 when
        the client itself does. AddOffsetsToTxn is this with the group's partition of ``__consumer_offsets``.
        """
        if not transactional_id:
            return Decision(response=ErrorCode.invalid_request)
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            return Decision(response=ErrorCode.invalid_producer_id_mapping)
        if transaction.state.is_prepared:
            return Decision(response=ErrorCode.concurrent_transactions)
        error = producer_error(transaction, producer)
        if error is not ErrorCode.none:
            return Decision(response=error)
        if transaction.is_kept:
            return Decision(response=ErrorCode.invalid_txn_state)
        wanted = frozenset(partitions)
        if transaction.state is TransactionState.ONGOING and transaction.has(wanted):
            return Decision(response=ErrorCode.none)
        return Decision(
            records=(_record(transaction.adding(wanted, version, now)),), response=ErrorCode.none, is_pure=True
        )

    def verify_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Collection[TopicPartition]
    ) -> TransactionDecision[PartitionErrors]:
        """Whether this producer's open transaction has these partitions (KIP-890, part 1); changes nothing.

        A missing partition: TRANSACTION_ABORTABLE.
        """
        error = self._verification_error(transactional_id, producer)
        if error is not ErrorCode.none:
            return Decision(response=dict.fromkeys(partitions, error))
        known = frozenset(self._transactions[transactional_id].partitions)
        return Decision(
            response={
                partition: ErrorCode.none if partition in known else ErrorCode.transaction_abortable
                for partition in partitions
            }
        )

    def _verification_error(self, transactional_id: str, producer: ProducerIdAndEpoch) -> ErrorCode:
        if not transactional_id:
            return ErrorCode.invalid_request
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            return ErrorCode.invalid_producer_id_mapping
        error = producer_error(transaction, producer)
        if error is ErrorCode.none and transaction.state.is_prepared:
            return ErrorCode.concurrent_transactions
        if error is ErrorCode.none and transaction.is_kept:
            return ErrorCode.invalid_txn_state
        return error

    # --- the end ---------------------------------------------------------------------------------------------------

    def end_txn(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        *,
        committed: bool,
        version: TransactionVersion,
        now: Instant,
    ) -> TransactionDecision[EndTxnResult]:
        """Decide the outcome. ``version``: TV_2 for EndTxn 5 and later, else TV_0."""
        if not transactional_id:
            return _refuse_end(ErrorCode.invalid_request)
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            return _refuse_end(ErrorCode.invalid_producer_id_mapping)
        judge = end_txn_outcome if version >= TransactionVersion.TV_2 else end_txn_outcome_before_tv_2
        outcome = judge(transaction, producer, committed=committed)
        if outcome is Verdict.END:
            return self._end(transaction, committed=committed, version=version, now=now)
        if outcome is Verdict.REPEAT:
            return Decision(response=EndTxnResult(ErrorCode.none, *transaction.producer))
        assert isinstance(outcome, ErrorCode)
        return _refuse_end(outcome)

    def _end(
        self, transaction: Transaction, *, committed: bool, version: TransactionVersion, now: Instant
    ) -> TransactionDecision[EndTxnResult]:
        next_producer_id = self._producer_id_after(transaction, version)
        if next_producer_id is None:
            return _refuse_end(ErrorCode.coordinator_load_in_progress)
        prepared = transaction.preparing(
            committed=committed, version=version, next_producer_id=next_producer_id, now=now
        )
        cause = EndCause.COMMIT if committed else EndCause.ABORT
        records, actions = self._ending(prepared, cause, now)
        # The client continues with the identity after completion, although that record is not written yet.
        answer = EndTxnResult(ErrorCode.none, *prepared.completing(now).producer)
        return Decision(records=records, response=answer, actions=actions)

    def _fence(self, transaction: Transaction, now: Instant) -> Transaction | None:
        """The coordinator's own abort of an open transaction; None while it needs a producer id and has none."""
        # Only version 2 keeps transactions; the cluster's level may have been lowered since.
        version = TransactionVersion.TV_2 if transaction.is_kept else self._config.version
        next_producer_id = self._producer_id_after(transaction, version)
        if next_producer_id is None:
            return None
        return transaction.fencing(version=version, next_producer_id=next_producer_id, now=now)

    def _producer_id_after(self, transaction: Transaction, version: TransactionVersion) -> ProducerId | None:
        """The next producer id, if the epochs are exhausted; NO_PRODUCER_ID: they are not; None: none is available."""
        if version >= TransactionVersion.TV_2 and transaction.is_epoch_exhausted:
            return self._producer_ids()
        return NO_PRODUCER_ID

    def _ending(
        self, prepared: Transaction, cause: EndCause, now: Instant
    ) -> tuple[tuple[TransactionRecord, ...], tuple[WriteMarkers, ...]]:
        if prepared.partitions:
            return (_record(prepared),), (_markers(prepared, cause),)
        return (_record(prepared), _record(prepared.completing(now))), ()

    def markers_written(
        self, transactional_id: str, producer: ProducerIdAndEpoch, now: Instant
    ) -> TransactionDecision[ErrorCode]:
        """Every marker of this outcome is in its partition. A repeated report changes nothing."""
        transaction = self._transactions.get(transactional_id)
        if transaction is None or not transaction.state.is_prepared or transaction.producer != producer:
            return Decision(response=ErrorCode.none)
        return Decision(records=(_record(transaction.completing(now)),), response=ErrorCode.none, is_pure=True)

    # --- looking -----------------------------------------------------------------------------------------------------

    def describe_transactions(self, transactional_id: str) -> TransactionDecision[Transaction | ErrorCode]:
        if not transactional_id:
            return Decision(response=ErrorCode.invalid_request)
        return Decision(response=self._transactions.get(transactional_id, ErrorCode.transactional_id_not_found))

    def list_transactions(
        self,
        *,
        states: Collection[TransactionState] = (),
        producer_ids: Collection[ProducerId] = (),
        longer_than_ms: int = -1,
        now: Instant,
    ) -> TransactionDecision[tuple[Transaction, ...]]:
        """The transactions that match all filters; an empty filter matches all. Durations are those of the log."""
        states, producer_ids = frozenset(states), frozenset(producer_ids)

        def passes(transaction: Transaction) -> bool:
            return (
                (not states or transaction.state in states)
                and (not producer_ids or transaction.producer_id in producer_ids)
                and (longer_than_ms < 0 or now.wall_ms - transaction.start_ms > longer_than_ms)
            )

        return Decision(
            response=tuple(transaction for transaction in self._transactions.values() if passes(transaction))
        )

    # --- the log -----------------------------------------------------------------------------------------------------

    def replay(self, record: TransactionRecord) -> None:
        transaction = record.transaction
        if transaction is None:
            self._transactions.pop(record.transactional_id, None)
            self._timeouts.drop(record.transactional_id)
            return
        self._transactions[record.transactional_id] = transaction
        has_timeout = transaction.state is TransactionState.ONGOING and not transaction.is_two_phase
        if has_timeout and transaction.started_at is not None:
            self._timeouts.set(record.transactional_id, transaction.started_at + transaction.timeout_ms)
        else:
            self._timeouts.drop(record.transactional_id)

    def replay_marker(self, producer: ProducerIdAndEpoch, committed: bool) -> None:
        raise AssertionError("no transaction contains partitions of the transaction log")

    def loaded(self, now: Instant) -> tuple[TransactionDecision[None], ...]:
        """Once after the log was replayed: ages start, and outcomes without completion get their markers again."""
        resumed: list[TransactionDecision[None]] = []
        for transaction in list(self._transactions.values()):
            is_open = transaction.state is TransactionState.ONGOING
            self.replay(
                _record(
                    replace(transaction, started_at=now.monotonic_ms if is_open else None, updated_at=now.monotonic_ms)
                )
            )
            if transaction.state.is_prepared:
                resumed.append(self._resume(transaction, now))
        self._next_expiry_sweep = now.monotonic_ms + self._config.id_expiration_interval_ms
        return tuple(resumed)

    def _resume(self, prepared: Transaction, now: Instant) -> TransactionDecision[None]:
        if prepared.partitions:
            return Decision(response=None, actions=(_markers(prepared),))
        return Decision(response=None, records=(_record(prepared.completing(now)),))

    # --- time --------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        timeout = self._timeouts.next_deadline()
        sweep = self._next_expiry_sweep if self._transactions else None
        return min((deadline for deadline in (timeout, sweep) if deadline is not None), default=None)

    def tick(self, now: Instant) -> tuple[TransactionDecision[None], ...]:
        return (*self._abort_overdue(now), *self._forget_idle(now))

    def _abort_overdue(self, now: Instant) -> Iterator[TransactionDecision[None]]:
        overdue = self._timeouts.pop_due(now.monotonic_ms)
        for number, transactional_id in enumerate(overdue):
            fenced = self._fence(self._transactions[transactional_id], now)
            if fenced is None:
                # No producer id is available for an exhausted epoch: this transaction and those behind it are due at
                # the next tick.
                for waiting in overdue[number:]:
                    self._timeouts.set(waiting, now.monotonic_ms)
                return
            records, actions = self._ending(fenced, EndCause.TIMEOUT, now)
            yield Decision(records=records, response=None, actions=actions)

    def _forget_idle(self, now: Instant) -> Iterator[TransactionDecision[None]]:
        if self._next_expiry_sweep is None or now.monotonic_ms < self._next_expiry_sweep:
            return
        self._next_expiry_sweep = now.monotonic_ms + self._config.id_expiration_interval_ms
        oldest = now.monotonic_ms - self._config.id_expiration_ms
        idle = [
            TransactionRecord(transaction.transactional_id, None)
            for transaction in self._transactions.values()
            if transaction.state in AT_REST and transaction.updated_at is not None and transaction.updated_at <= oldest
        ]
        if idle:
            yield Decision(records=tuple(idle), response=None, is_atomic=False)


def _is_retry_of_init(transaction: Transaction, producer: ProducerIdAndEpoch) -> bool:
    """Whether the answer to this producer's latest move (InitProducerId, EndTxn or our own abort) may have been lost.

    After exhausted epochs the producer still has the previous producer id.
    """
    is_same_id = producer.producer_id == transaction.producer_id or (
        producer.producer_id == transaction.previous_producer_id and producer.producer_epoch >= EPOCH_MAX
    )
    return is_same_id and producer.producer_epoch == transaction.last_producer_epoch


def _record(transaction: Transaction) -> TransactionRecord:
    return TransactionRecord(transaction.transactional_id, transaction)


def _markers(prepared: Transaction, cause: EndCause | None = None) -> WriteMarkers:
    return WriteMarkers(
        transactional_id=prepared.transactional_id,
        producer=prepared.producer,
        committed=prepared.is_committed,
        partitions=prepared.partitions,
        transaction_version=prepared.client_version,
        cause=cause,
    )


def _initialised(transaction: Transaction) -> TransactionDecision[InitProducerIdResult]:
    answer = InitProducerIdResult(ErrorCode.none, *transaction.producer)
    return Decision(records=(_record(transaction),), response=answer)


def _refuse_init(error: ErrorCode) -> TransactionDecision[InitProducerIdResult]:
    return Decision(response=InitProducerIdResult(error))


def _refuse_end(error: ErrorCode) -> TransactionDecision[EndTxnResult]:
    return Decision(response=EndTxnResult(error))
