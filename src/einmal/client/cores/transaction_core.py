"""A transactional producer's own state: what may be called when, and what an error means for the transaction.

The coordinator owns the truth; this machine keeps the client from asking for what cannot be, and knows which requests
a transaction needs. Under TV_2 (KIP-890) partitions and groups add themselves and every EndTxn brings a new epoch.
Before that they are added by request, and after an abort a new epoch is asked for (KIP-360), so that a request of the
aborted transaction that is still on its way is refused. The version is fixed when a transaction begins. The first of
TV_2 needs an epoch that no committed transaction before it has used: the markers of that one may be on their way, and
its records would join it, since no request asks whether they may (KAFKA-18227).

A prepared transaction (KIP-939) has all its records at the brokers and only waits for a decision, which a database has
committed by then or not. Whatever fails from there on leaves it open: only a new producer, which asks the coordinator
to keep it, can find out what to do.

Values in, values out; knows no connection and no retry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Final, NoReturn

from einmal.client.apis import SPOKEN, ApiKey
from einmal.client.errors import (
    AbortableError,
    FatalError,
    InvalidState,
    KafkaError,
    NotAuthorized,
    ProducerFenced,
    ProducerNotAuthorized,
    RetriableError,
    TransactionAborted,
    UnknownOutcome,
    error_for,
)
from einmal.client.prepared_txn_state import PreparedTxnState, commits
from einmal.types import NO_PRODUCER, ErrorCode, ProducerIdAndEpoch, TopicPartition, TransactionVersion


class TxnPhase(Enum):
    UNINITIALIZED = auto()
    INITIALIZING = auto()
    READY = auto()
    IN_TRANSACTION = auto()
    PREPARING = auto()
    PREPARED = auto()
    COMMITTING = auto()
    ABORTING = auto()
    ABORTABLE_ERROR = auto()
    FATAL_ERROR = auto()


VALID_MOVES: Final[Mapping[TxnPhase, frozenset[TxnPhase]]] = {
    TxnPhase.UNINITIALIZED: frozenset({TxnPhase.INITIALIZING, TxnPhase.FATAL_ERROR}),
    # An attempt that ran out of time may be made again.
    TxnPhase.INITIALIZING: frozenset({TxnPhase.READY, TxnPhase.PREPARED, TxnPhase.UNINITIALIZED, TxnPhase.FATAL_ERROR}),
    TxnPhase.READY: frozenset({TxnPhase.IN_TRANSACTION, TxnPhase.FATAL_ERROR}),
    TxnPhase.IN_TRANSACTION: frozenset(
        {
            TxnPhase.PREPARING,
            TxnPhase.COMMITTING,
            TxnPhase.ABORTING,
            TxnPhase.ABORTABLE_ERROR,
            TxnPhase.FATAL_ERROR,
        }
    ),
    TxnPhase.PREPARING: frozenset({TxnPhase.PREPARED, TxnPhase.ABORTABLE_ERROR, TxnPhase.FATAL_ERROR}),
    TxnPhase.PREPARED: frozenset({TxnPhase.COMMITTING, TxnPhase.ABORTING, TxnPhase.FATAL_ERROR}),
    TxnPhase.COMMITTING: frozenset({TxnPhase.READY, TxnPhase.ABORTABLE_ERROR, TxnPhase.FATAL_ERROR}),
    TxnPhase.ABORTING: frozenset({TxnPhase.READY, TxnPhase.ABORTABLE_ERROR, TxnPhase.FATAL_ERROR}),
    TxnPhase.ABORTABLE_ERROR: frozenset({TxnPhase.ABORTING, TxnPhase.FATAL_ERROR}),
    TxnPhase.FATAL_ERROR: frozenset(),
}

_WHAT_FIRST: Final[Mapping[TxnPhase, str]] = {
    TxnPhase.UNINITIALIZED: "call init_transactions() first",
    TxnPhase.INITIALIZING: "wait until init_transactions() has returned",
    TxnPhase.READY: "call begin_transaction() first",
    TxnPhase.IN_TRANSACTION: "commit or abort the open transaction first",
    TxnPhase.PREPARING: "wait until prepare_transaction() has returned",
    TxnPhase.PREPARED: "commit, abort or complete the prepared transaction first",
    TxnPhase.COMMITTING: "wait until commit_transaction() has returned",
    TxnPhase.ABORTING: "wait until abort_transaction() has returned",
    TxnPhase.ABORTABLE_ERROR: "call abort_transaction()",
    TxnPhase.FATAL_ERROR: "close this producer and create a new one",
}

_CANCELLED: Final[Mapping[TxnPhase, str]] = {
    TxnPhase.INITIALIZING: "init_transactions() was cancelled",
    TxnPhase.PREPARING: "prepare_transaction() was cancelled",
    TxnPhase.COMMITTING: "commit_transaction() was cancelled",
    TxnPhase.ABORTING: "abort_transaction() was cancelled",
}

_FATAL: Final = frozenset(
    {
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.unsupported_version,
        ErrorCode.invalid_transaction_timeout,
        ErrorCode.transaction_coordinator_fenced,
    }
)
RECOVER: Final = (
    "close this producer; create a new one, and call init_transactions(keep_prepared_txn=True) and "
    "complete_transaction() with the state that the database has committed"
)
_FENCED: Final = frozenset({ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch})

_PRODUCE_TV_2: Final = 12
"""This version of Produce and later ones mean TV_2 to a broker: partitions add themselves to the transaction."""


def version_for(finalized: int) -> TransactionVersion:
    """Return the version that a transaction that begins now uses, by the cluster's finalized level of
    ``transaction.version``."""
    return TransactionVersion.TV_2 if finalized >= TransactionVersion.TV_2 else TransactionVersion.TV_1


def produce_versions(version: TransactionVersion | None) -> tuple[int, int]:
    """The lowest and the highest version of Produce in a transaction of this version; None: in no transaction."""
    lowest, highest = SPOKEN[ApiKey.PRODUCE]
    if version is None:
        return lowest, highest
    return (_PRODUCE_TV_2, highest) if version >= TransactionVersion.TV_2 else (lowest, _PRODUCE_TV_2 - 1)


def end_txn_error(code: ErrorCode, committed: bool, was_repeated: bool, transactional_id: str) -> KafkaError:
    """Return the error that EndTxn's refusal means. ``was_repeated``: an earlier EndTxn of the same transaction had no
    answer.

    A commit that is refused after an answer was lost may have been carried out the first time: that is unknown.
    """
    detail = f"EndTxn({'commit' if committed else 'abort'}) of {transactional_id!r}"
    if committed and was_repeated:
        return UnknownOutcome(
            code,
            detail,
            meaning="the commit was sent, its answer was lost, and the retry was refused: it may be committed or not",
            what_to_do="close this producer; read what the transaction wrote with read_committed before repeating it",
        )
    return coordinator_error(code, detail)


def no_two_phase_commit(detail: str) -> KafkaError:
    """The coordinator's broker does not offer InitProducerId 6."""
    return FatalError(
        ErrorCode.unsupported_version,
        detail,
        meaning="the cluster does not take part in two-phase commits (KIP-939)",
        what_to_do="set transaction.two.phase.commit.enable=true on every broker of einmal; Apache Kafka up to 4.4 "
        "does not offer it",
    )


def coordinator_error(code: ErrorCode, detail: str) -> KafkaError:
    """Return the error that a coordinator's refusal means. Its INVALID_PRODUCER_EPOCH is an older word for
    PRODUCER_FENCED."""
    if code in _FENCED:
        return ProducerFenced(code, detail)
    error = error_for(code, detail)
    if code in _FATAL and not isinstance(error, FatalError):
        kind = ProducerNotAuthorized if isinstance(error, NotAuthorized) else FatalError
        return kind(code, detail, meaning=error.meaning, what_to_do=error.what_to_do)
    return error


class TransactionCore:
    def __init__(self, transactional_id: str, *, has_two_phase_commit: bool = False) -> None:
        self.transactional_id = transactional_id
        self.has_two_phase_commit = has_two_phase_commit
        self.state = TxnPhase.UNINITIALIZED
        self.identity: ProducerIdAndEpoch = NO_PRODUCER
        self.version = TransactionVersion.TV_0
        self.error: KafkaError | None = None
        self.prepared = PreparedTxnState()
        """State of the transaction that was prepared last."""
        self._is_prepared = False
        self._is_flushed = False
        """Every record has its outcome, and the transaction waits for its end."""
        self._may_complete_nothing = False
        self._added: dict[TopicPartition, None] = {}
        self._to_add: dict[TopicPartition, None] = {}
        self._groups: dict[str, None] = {}
        self._has_written = False
        self._is_epoch_used = False
        """A transaction below TV_2 has been committed under this epoch."""

    def _move(self, state: TxnPhase) -> None:
        assert state in VALID_MOVES[self.state], f"{self.state.name} -> {state.name}"
        self.state = state

    def _require(self, what: str, *allowed: TxnPhase) -> None:
        if self.state in allowed:
            return
        if self.error is not None and self.state in (TxnPhase.ABORTABLE_ERROR, TxnPhase.FATAL_ERROR):
            raise self.error
        self._refuse(what)

    def _refuse(self, what: str) -> NoReturn:
        raise InvalidState(
            meaning=f"{what} is not possible in state {self.state.name}", what_to_do=_WHAT_FIRST[self.state]
        )

    # --- init -----------------------------------------------------------------------------------------------------

    def begin_initialization(self) -> None:
        """Raises InvalidState, or the error that has ended this producer."""
        self._require("init_transactions()", TxnPhase.UNINITIALIZED)
        self._move(TxnPhase.INITIALIZING)

    def initialized(self, identity: ProducerIdAndEpoch, kept: PreparedTxnState | None = None) -> None:
        """``kept``: what was asked to be kept of the predecessor (KIP-939); empty: nothing was open."""
        self.identity = identity
        self._is_epoch_used = False
        self._may_complete_nothing = kept is not None
        if kept is None or not kept.has_transaction:
            self._move(TxnPhase.READY)
            return
        self._move(TxnPhase.PREPARED)
        self.prepared = kept
        self._is_prepared = self._is_flushed = True
        self.version = TransactionVersion.TV_2
        self._has_written = True

    # --- in a transaction -----------------------------------------------------------------------------------------

    def begin(self, version: TransactionVersion) -> None:
        """Open a transaction. Nothing is sent: the first partition opens it at the coordinator.

        One that can be prepared is of version 2, which InitProducerId 6 has confirmed: a broker that has just started
        may know less. Below, two transactions would have the same epoch, and so the same state in a database.

        A producer whose cluster moves to version 2 moves with its next epoch: of its next abort, or of its successor.
        """
        self._require("begin_transaction()", TxnPhase.READY)
        self._move(TxnPhase.IN_TRANSACTION)
        if self.has_two_phase_commit:
            version = TransactionVersion.TV_2
        elif self._is_epoch_used:
            version = min(version, TransactionVersion.TV_1)
        self.version = version
        self._added.clear()
        self._to_add.clear()
        self._groups.clear()
        self._has_written = False
        self._is_flushed = False
        self._may_complete_nothing = False

    def check_send(self) -> None:
        """Raises InvalidState outside of a transaction, or the error after which it can only be aborted."""
        if self.state is not TxnPhase.IN_TRANSACTION:
            self._require("send()", TxnPhase.IN_TRANSACTION)

    def may_write(self, topic_partition: TopicPartition) -> bool:
        """Whether a batch may go to this partition now; if not, it must be added to the transaction first."""
        if self.version >= TransactionVersion.TV_2:
            self._has_written = True
            return True
        if topic_partition in self._added:
            return True
        self._to_add[topic_partition] = None
        return False

    def partitions_to_add(self) -> list[TopicPartition]:
        return list(self._to_add)

    def added(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._to_add.pop(partition, None)
            self._added[partition] = None

    def must_add_group(self, group_id: str) -> bool:
        """Whether AddOffsetsToTxn comes before TxnOffsetCommit."""
        self.check_send()
        if self.version >= TransactionVersion.TV_2:
            self._has_written = True
            return False
        return group_id not in self._groups

    def group_added(self, group_id: str) -> None:
        self._groups[group_id] = None

    # --- its end --------------------------------------------------------------------------------------------------

    @property
    def has_begun(self) -> bool:
        """Whether the coordinator may know the transaction: an empty one needs no EndTxn."""
        return self._has_written or bool(self._added or self._to_add or self._groups)

    @property
    def needs_new_epoch(self) -> bool:
        """Whether an abort is followed by InitProducerId (KIP-360): EndTxn itself brings an epoch from TV_2 on."""
        return self.version < TransactionVersion.TV_2

    def begin_prepare(self) -> None:
        self._require("prepare_transaction()", TxnPhase.IN_TRANSACTION)
        if not self.has_two_phase_commit:
            raise InvalidState(
                meaning="prepare_transaction() needs two-phase commit: without it a prepared transaction times out",
                what_to_do="set transaction.two.phase.commit.enable=true",
            )
        self._move(TxnPhase.PREPARING)

    def prepare(self) -> PreparedTxnState:
        """Every record is at the brokers. The state is empty for an empty transaction.

        That one has no EndTxn, so its pair will be the next transaction's as well: a database that had committed the
        pair would commit that one, too.
        """
        self._move(TxnPhase.PREPARED)
        self._is_prepared = True
        self.prepared = PreparedTxnState(self.identity) if self.has_begun else PreparedTxnState()
        return self.prepared

    def decision(self, committed: PreparedTxnState) -> bool | None:
        """Whether a database that has committed this state wants the prepared transaction committed.

        None: there is nothing to end, because the predecessor's transaction was ended before it was to be kept. Raises
        what ``commits`` raises.
        """
        keeps_nothing = self.state is TxnPhase.READY and self._may_complete_nothing
        if not keeps_nothing:
            self._require("complete_transaction()", TxnPhase.PREPARED)
        try:
            decision = commits(PreparedTxnState() if keeps_nothing else self.prepared, committed, self.identity)
        except FatalError as error:
            self.failed(error)
            raise
        return None if keeps_nothing else decision

    def begin_commit(self) -> None:
        self._require("commit_transaction()", TxnPhase.IN_TRANSACTION, TxnPhase.PREPARED)
        self._move(TxnPhase.COMMITTING)

    def check_flushed(self) -> None:
        """Every record has its outcome. Raises the error after which the transaction can only be aborted."""
        if self.state in (TxnPhase.ABORTABLE_ERROR, TxnPhase.FATAL_ERROR):
            assert self.error is not None
            raise self.error
        self._is_flushed = True

    def is_unknown_abort(self, error: KafkaError) -> bool:
        """Whether EndTxn was refused because the coordinator never heard of this transaction: it is aborted then.

        Only below TV_2: there a coordinator refuses to abort what was never added to it.
        """
        return self.needs_new_epoch and error.code is ErrorCode.invalid_txn_state

    @property
    def may_abort(self) -> bool:
        """Whether there is a transaction to abort, and a producer that may do so."""
        return self.state in (TxnPhase.IN_TRANSACTION, TxnPhase.PREPARED, TxnPhase.ABORTABLE_ERROR)

    def begin_abort(self) -> None:
        if self.state is TxnPhase.FATAL_ERROR and self.error is not None:
            raise self.error
        if not self.may_abort:
            self._refuse("abort_transaction()")
        self._move(TxnPhase.ABORTING)
        self.error = None

    def ended(self, next_identity: ProducerIdAndEpoch | None) -> None:
        """The coordinator has decided. ``next_identity``: what it gave for the next transaction."""
        self._move(TxnPhase.READY)
        self._is_prepared = self._is_flushed = False
        if next_identity is not None:
            self.identity = next_identity
            self._is_epoch_used = False
        elif self.has_begun:
            self._is_epoch_used = True

    # --- errors ---------------------------------------------------------------------------------------------------

    def failed(self, error: KafkaError) -> None:
        """Something of the transaction failed. Fatal errors, and an unknown outcome of EndTxn, end the producer.

        Whatever else keeps it from committing: it must be aborted. A first error is kept; a fatal one replaces it.
        """
        if self.state is TxnPhase.FATAL_ERROR:
            return
        if self._is_fatal(error):
            self._move(TxnPhase.FATAL_ERROR)
            self.error = error
        elif self.state is TxnPhase.INITIALIZING:
            self._move(TxnPhase.UNINITIALIZED)
        elif self.state in (TxnPhase.IN_TRANSACTION, TxnPhase.PREPARING, TxnPhase.COMMITTING, TxnPhase.ABORTING):
            self._move(TxnPhase.ABORTABLE_ERROR)
            self.error = error

    def request_failed(self, error: KafkaError) -> KafkaError:
        """A request of the transaction failed: what to raise. It is what the transaction keeps.

        So its type names the next step.
        """
        failure = left_prepared(error) if self._is_prepared else as_abortable(error)
        self.failed(failure)
        return failure

    def commit_failed(self, error: KafkaError) -> KafkaError:
        """As ``request_failed``, of EndTxn that commits: where its outcome is unknown, nothing can be aborted."""
        if self._is_prepared:
            failure = left_prepared(error)
        else:
            failure = error if isinstance(error, UnknownOutcome) else as_abortable(error)
        self.failed(failure)
        return failure

    def cancelled(self) -> None:
        """The caller has cancelled init, commit or abort: nobody knows whether the coordinator has carried it out."""
        what = _CANCELLED.get(self.state)
        if what is not None and self._is_prepared:
            self.failed(left_prepared(UnknownOutcome(detail=what)))
        elif what is not None:
            is_abort = self.state in (TxnPhase.PREPARING, TxnPhase.ABORTING)
            self.failed(TransactionAborted(detail=what) if is_abort else UnknownOutcome(detail=what))

    def record_failed(self, error: KafkaError) -> None:
        """A record of it was not written. While it is being aborted, that is what is wanted.

        Once every record has its outcome, a later one does not belong to it: only its sender learns of that.
        """
        if self.state is not TxnPhase.ABORTING and not self._is_flushed:
            self.failed(as_abortable(error))

    def _is_fatal(self, error: KafkaError) -> bool:
        if isinstance(error, FatalError):
            return True
        if self.state is TxnPhase.INITIALIZING:
            # An error that may pass is handled by calling init_transactions() again.
            return not isinstance(error, RetriableError | UnknownOutcome)
        # A lost batch only spoils the transaction; a lost commit leaves nobody who knows what holds.
        return self.state is TxnPhase.COMMITTING and isinstance(error, UnknownOutcome)


def as_abortable(error: KafkaError) -> KafkaError:
    """How a failed batch or offset commit looks from the transaction: abort, unless it is fatal."""
    if isinstance(error, FatalError | AbortableError):
        return error
    return AbortableError(
        error.code,
        f"{error.name}: {error.detail}",
        meaning="a record or offset of the transaction could not be written, so it cannot be committed",
    )


def left_prepared(error: KafkaError) -> KafkaError:
    """How a failed end of a prepared transaction looks: it must not be aborted for that."""
    if isinstance(error, FatalError):
        return error
    return FatalError(
        error.code,
        f"{error.name}: {error.detail}",
        meaning="the prepared transaction may be ended or still open",
        what_to_do=RECOVER,
    )
