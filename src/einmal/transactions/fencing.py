"""Fencing: which producers may still use a transactional id, and the outcome of EndTxn.

Tables, so that they can be read and tested cell by cell. Under version 2 a prepared transaction is checked first: its
epoch was bumped already, and comparing it would make a producer fence itself (KAFKA-18464).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from einmal.transactions.states import TransactionState
from einmal.transactions.transaction import Transaction
from einmal.types import EPOCH_MAX, ErrorCode, ProducerIdAndEpoch


class Relation(Enum):
    """The relation of a request's producer to the stored one."""

    CURRENT = auto()
    RETRY = auto()
    """One epoch behind (also across producer ids): the sign of a lost answer to an EndTxn."""
    FENCED = auto()
    STRANGER = auto()
    """Another producer id."""


def relation(transaction: Transaction, producer: ProducerIdAndEpoch) -> Relation:
    """The last epoch, 32,767, is never a client's: it counts as fenced even if it is the stored one.

    The producer that opened a kept transaction is fenced, although the transaction still has its pair (KIP-939).
    """
    client = transaction.client
    if producer.producer_id != client.producer_id:
        if producer.producer_id == transaction.producer_id:
            return Relation.FENCED
        is_retry_over_the_end = (
            producer.producer_id == transaction.previous_producer_id
            and producer.producer_epoch == EPOCH_MAX
            and client.producer_epoch == 0
        )
        return Relation.RETRY if is_retry_over_the_end else Relation.STRANGER
    if producer.producer_epoch > EPOCH_MAX:
        return Relation.FENCED
    if producer.producer_epoch == client.producer_epoch:
        return Relation.CURRENT
    if producer.producer_epoch == client.producer_epoch - 1:
        return Relation.RETRY
    return Relation.FENCED


def producer_error(transaction: Transaction, producer: ProducerIdAndEpoch) -> ErrorCode:
    """``none`` for the current producer only."""
    if producer.producer_id not in (transaction.client.producer_id, transaction.producer_id):
        return ErrorCode.invalid_producer_id_mapping
    return ErrorCode.none if relation(transaction, producer) is Relation.CURRENT else ErrorCode.producer_fenced


class Verdict(Enum):
    """Effect of an EndTxn. All other outcomes are ErrorCodes."""

    END = auto()
    """Decide the outcome now."""
    REPEAT = auto()
    """The same outcome is decided already: answer as before."""


Outcome = Verdict | ErrorCode

_COMMIT: Final = True
_ABORT: Final = False

_TV_2: Final[Mapping[tuple[TransactionState, Relation, bool], Outcome]] = MappingProxyType(
    {
        (TransactionState.ONGOING, Relation.CURRENT, _COMMIT): Verdict.END,
        (TransactionState.ONGOING, Relation.CURRENT, _ABORT): Verdict.END,
        # A client that reached no partition may still abort; the epoch is bumped as usual.
        (TransactionState.EMPTY, Relation.CURRENT, _ABORT): Verdict.END,
        (TransactionState.EMPTY, Relation.CURRENT, _COMMIT): ErrorCode.invalid_txn_state,
        (TransactionState.COMPLETE_COMMIT, Relation.CURRENT, _ABORT): Verdict.END,
        (TransactionState.COMPLETE_COMMIT, Relation.CURRENT, _COMMIT): ErrorCode.invalid_txn_state,
        (TransactionState.COMPLETE_COMMIT, Relation.RETRY, _COMMIT): Verdict.REPEAT,
        (TransactionState.COMPLETE_COMMIT, Relation.RETRY, _ABORT): ErrorCode.invalid_txn_state,
        (TransactionState.COMPLETE_ABORT, Relation.CURRENT, _ABORT): Verdict.END,
        (TransactionState.COMPLETE_ABORT, Relation.CURRENT, _COMMIT): ErrorCode.invalid_txn_state,
        (TransactionState.COMPLETE_ABORT, Relation.RETRY, _ABORT): Verdict.REPEAT,
        # The transaction timed out before this EndTxn. The coordinator takes it for a retry with the opposite result:
        # not an error of fencing, but the transaction is certainly aborted.
        (TransactionState.COMPLETE_ABORT, Relation.RETRY, _COMMIT): ErrorCode.invalid_txn_state,
    }
)

# Before version 2 the epoch does not identify the transaction, so the last outcome counts as this one's.
_TV_0: Final[Mapping[tuple[TransactionState, bool], Outcome]] = MappingProxyType(
    {
        (TransactionState.ONGOING, _COMMIT): Verdict.END,
        (TransactionState.ONGOING, _ABORT): Verdict.END,
        (TransactionState.COMPLETE_COMMIT, _COMMIT): Verdict.REPEAT,
        (TransactionState.COMPLETE_ABORT, _ABORT): Verdict.REPEAT,
    }
)


def end_txn_outcome(transaction: Transaction, producer: ProducerIdAndEpoch, *, committed: bool) -> Outcome:
    """The outcome for a client of version 2 (EndTxn 5)."""
    if transaction.state.is_prepared:
        return ErrorCode.concurrent_transactions
    how = relation(transaction, producer)
    if how is Relation.STRANGER:
        return ErrorCode.invalid_producer_id_mapping
    return _TV_2.get((transaction.state, how, committed), ErrorCode.producer_fenced)


def end_txn_outcome_before_tv_2(transaction: Transaction, producer: ProducerIdAndEpoch, *, committed: bool) -> Outcome:
    """The outcome for a client of versions 0 and 1 (EndTxn 0 to 4)."""
    if (error := producer_error(transaction, producer)) is not ErrorCode.none:
        return error
    if transaction.state.is_prepared:
        return ErrorCode.concurrent_transactions
    if transaction.is_kept:
        # Its end moves the epoch, which only EndTxn 5 answers with.
        return ErrorCode.unsupported_version
    return _TV_0.get((transaction.state, committed), ErrorCode.invalid_txn_state)
