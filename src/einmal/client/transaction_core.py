"""A transactional producer's own state: what may be called when, and what an error means for the transaction.

The coordinator owns the truth; this machine keeps the client from asking for what cannot be, and knows which requests
a transaction needs. Under TV_2 (KIP-890) partitions and groups add themselves and every EndTxn brings a new epoch.
Before that they are added by request, and after an abort a new epoch is asked for (KIP-360), so that a request of the
aborted transaction that is still on its way is refused. The version is fixed when a transaction begins.

Values in, values out; knows no connection and no retry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Final, NoReturn

from einmal.client.errors import (
    AbortableError,
    FatalError,
    InvalidState,
    KafkaError,
    ProducerFenced,
    RetriableError,
    UnknownOutcome,
    error_for,
)
from einmal.client.producer_core import NOBODY
from einmal.types import ErrorCode, ProducerIdAndEpoch, TopicPartition, TransactionVersion


class State(Enum):
    UNINITIALIZED = auto()
    INITIALIZING = auto()
    READY = auto()
    IN_TRANSACTION = auto()
    COMMITTING = auto()
    ABORTING = auto()
    ABORTABLE_ERROR = auto()
    FATAL_ERROR = auto()


VALID_MOVES: Final[Mapping[State, frozenset[State]]] = {
    State.UNINITIALIZED: frozenset({State.INITIALIZING, State.FATAL_ERROR}),
    # An attempt that ran out of time may be made again.
    State.INITIALIZING: frozenset({State.READY, State.UNINITIALIZED, State.FATAL_ERROR}),
    State.READY: frozenset({State.IN_TRANSACTION, State.FATAL_ERROR}),
    State.IN_TRANSACTION: frozenset({State.COMMITTING, State.ABORTING, State.ABORTABLE_ERROR, State.FATAL_ERROR}),
    State.COMMITTING: frozenset({State.READY, State.ABORTABLE_ERROR, State.FATAL_ERROR}),
    State.ABORTING: frozenset({State.READY, State.ABORTABLE_ERROR, State.FATAL_ERROR}),
    State.ABORTABLE_ERROR: frozenset({State.ABORTING, State.FATAL_ERROR}),
    State.FATAL_ERROR: frozenset(),
}

_WHAT_FIRST: Final[Mapping[State, str]] = {
    State.UNINITIALIZED: "call init_transactions() first",
    State.INITIALIZING: "wait until init_transactions() has returned",
    State.READY: "call begin_transaction() first",
    State.IN_TRANSACTION: "commit or abort the open transaction first",
    State.COMMITTING: "wait until commit_transaction() has returned",
    State.ABORTING: "wait until abort_transaction() has returned",
    State.ABORTABLE_ERROR: "call abort_transaction()",
    State.FATAL_ERROR: "close this producer and create a new one",
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
_FENCED: Final = frozenset({ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch})


def end_txn_error(code: ErrorCode, committed: bool, was_repeated: bool, transactional_id: str) -> KafkaError:
    """What EndTxn's refusal means. ``was_repeated``: an earlier EndTxn of the same transaction had no answer.

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


def coordinator_error(code: ErrorCode, detail: str) -> KafkaError:
    """What a coordinator's refusal means. Its INVALID_PRODUCER_EPOCH is an older word for PRODUCER_FENCED."""
    if code in _FENCED:
        return ProducerFenced(code, detail)
    error = error_for(code, detail)
    if code in _FATAL and not isinstance(error, FatalError):
        return FatalError(code, detail, meaning=error.meaning, what_to_do=error.what_to_do)
    return error


class TransactionCore:
    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.state = State.UNINITIALIZED
        self.identity: ProducerIdAndEpoch = NOBODY
        self.version = TransactionVersion.TV_0
        self.error: KafkaError | None = None
        self._added: dict[TopicPartition, None] = {}
        self._to_add: dict[TopicPartition, None] = {}
        self._groups: dict[str, None] = {}
        self._has_written = False

    def _move(self, state: State) -> None:
        assert state in VALID_MOVES[self.state], f"{self.state.name} -> {state.name}"
        self.state = state

    def _require(self, what: str, *allowed: State) -> None:
        if self.state in allowed:
            return
        if self.error is not None and self.state in (State.ABORTABLE_ERROR, State.FATAL_ERROR):
            raise self.error
        self._refuse(what)

    def _refuse(self, what: str) -> NoReturn:
        raise InvalidState(
            meaning=f"{what} is not possible in state {self.state.name}", what_to_do=_WHAT_FIRST[self.state]
        )

    # --- init -----------------------------------------------------------------------------------------------------

    def begin_initialization(self) -> None:
        """Raises InvalidState, or the error that has ended this producer."""
        self._require("init_transactions()", State.UNINITIALIZED)
        self._move(State.INITIALIZING)

    def initialized(self, identity: ProducerIdAndEpoch) -> None:
        self._move(State.READY)
        self.identity = identity

    # --- in a transaction -----------------------------------------------------------------------------------------

    def begin(self, version: TransactionVersion) -> None:
        """Open a transaction. Nothing is sent: the first partition opens it at the coordinator."""
        self._require("begin_transaction()", State.READY)
        self._move(State.IN_TRANSACTION)
        self.version = version
        self._added.clear()
        self._to_add.clear()
        self._groups.clear()
        self._has_written = False

    def check_send(self) -> None:
        """Raises InvalidState outside of a transaction, or the error after which it can only be aborted."""
        if self.state is not State.IN_TRANSACTION:
            self._require("send()", State.IN_TRANSACTION)

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
        for each in partitions:
            self._to_add.pop(each, None)
            self._added[each] = None

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

    def begin_commit(self) -> None:
        self._require("commit_transaction()", State.IN_TRANSACTION)
        self._move(State.COMMITTING)

    def begin_abort(self) -> None:
        if self.state is State.FATAL_ERROR and self.error is not None:
            raise self.error
        if self.state not in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
            self._refuse("abort_transaction()")
        self._move(State.ABORTING)
        self.error = None

    def ended(self, next_identity: ProducerIdAndEpoch | None) -> None:
        """The coordinator has decided. ``next_identity``: what it gave for the next transaction."""
        self._move(State.READY)
        if next_identity is not None:
            self.identity = next_identity

    # --- errors ---------------------------------------------------------------------------------------------------

    def failed(self, error: KafkaError) -> None:
        """Something of the transaction failed. Fatal errors, and an unknown outcome of EndTxn, end the producer.

        Whatever else keeps it from committing: it must be aborted. A first error is kept; a fatal one replaces it.
        """
        if self.state is State.FATAL_ERROR:
            return
        if self._is_fatal(error):
            self._move(State.FATAL_ERROR)
            self.error = error
        elif self.state is State.INITIALIZING:
            self._move(State.UNINITIALIZED)
        elif self.state in (State.IN_TRANSACTION, State.COMMITTING, State.ABORTING):
            self._move(State.ABORTABLE_ERROR)
            self.error = error

    def record_failed(self, error: KafkaError) -> None:
        """A record of it was not written. While it is being aborted, that is what is wanted."""
        if self.state is not State.ABORTING:
            self.failed(as_abortable(error))

    def _is_fatal(self, error: KafkaError) -> bool:
        if isinstance(error, FatalError):
            return True
        if self.state is State.INITIALIZING:
            # What may pass is tried again by calling init_transactions() again.
            return not isinstance(error, RetriableError | UnknownOutcome)
        # A lost batch only spoils the transaction; a lost commit leaves nobody who knows what holds.
        return self.state is State.COMMITTING and isinstance(error, UnknownOutcome)

    @property
    def is_spoiled(self) -> bool:
        return self.state in (State.ABORTABLE_ERROR, State.FATAL_ERROR)


def as_abortable(error: KafkaError) -> KafkaError:
    """How a failed batch or offset commit looks from the transaction: abort, unless it is fatal."""
    if isinstance(error, FatalError | AbortableError):
        return error
    return AbortableError(
        error.code,
        f"{error.name}: {error.detail}",
        meaning="a record or offset of the transaction could not be written, so it cannot be committed",
    )
