"""Who may still speak for a transactional id, and what EndTxn makes of it.

Tables, so that they can be read and tested cell by cell. Under version 2 a prepared transaction is looked at first: its
epoch has moved already, and comparing it would make a producer fence itself (KAFKA-18464).
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
    """How a request's producer stands to the stored one."""

    CURRENT = auto()
    RETRY = auto()
    """One epoch behind (over the end of the epochs too): what a lost answer to an EndTxn looks like."""
    FENCED = auto()
    STRANGER = auto()
    """Another producer id."""


def relation(transaction: Transaction, producer: ProducerIdAndEpoch) -> Relation:
    """The last epoch, 32,767, is never a client's: it counts as fenced even where it is the stored one."""
    if producer.producer_id != transaction.producer_id:
        is_retry_over_the_end = (
            producer.producer_id == transaction.previous_producer_id
            and producer.producer_epoch == EPOCH_MAX
            and transaction.producer_epoch == 0
        )
        return Relation.RETRY if is_retry_over_the_end else Relation.STRANGER
    if producer.producer_epoch > EPOCH_MAX:
        return Relation.FENCED
    if producer.producer_epoch == transaction.producer_epoch:
        return Relation.CURRENT
    if producer.producer_epoch == transaction.producer_epoch - 1:
        return Relation.RETRY
    return Relation.FENCED


def producer_error(transaction: Transaction, producer: ProducerIdAndEpoch) -> ErrorCode:
    """``none`` for the current producer only."""
    if producer.producer_id != transaction.producer_id:
        return ErrorCode.invalid_producer_id_mapping
    return ErrorCode.none if relation(transaction, producer) is Relation.CURRENT else ErrorCode.producer_fenced


class Verdict(Enum):
    """What an EndTxn does. Anything that is not here is an ErrorCode."""

    END = auto()
    """Decide the outcome now."""
    REPEAT = auto()
    """It is already decided so: answer as before."""


Outcome = Verdict | ErrorCode

_COMMIT: Final = True
_ABORT: Final = False

_TV_2: Final[Mapping[tuple[TransactionState, Relation, bool], Outcome]] = MappingProxyType(
    {
        (TransactionState.ONGOING, Relation.CURRENT, _COMMIT): Verdict.END,
        (TransactionState.ONGOING, Relation.CURRENT, _ABORT): Verdict.END,
        # A client that reached no partition may still abort; the epoch moves as ever.
        (TransactionState.EMPTY, Relation.CURRENT, _ABORT): Verdict.END,
        (TransactionState.EMPTY, Relation.CURRENT, _COMMIT): ErrorCode.invalid_txn_state,
        (TransactionState.COMPLETE_COMMIT, Relation.CURRENT, _ABORT): Verdict.END,
        (TransactionState.COMPLETE_COMMIT, Relation.CURRENT, _COMMIT): ErrorCode.invalid_txn_state,
        (TransactionState.COMPLETE_COMMIT, Relation.RETRY, _COMMIT): Verdict.REPEAT,
        (TransactionState.COMPLETE_COMMIT, Relation.RETRY, _ABORT): ErrorCode.invalid_txn_state,
        (TransactionState.COMPLETE_ABORT, Relation.CURRENT, _ABORT): Verdict.END,
        (TransactionState.COMPLETE_ABORT, Relation.CURRENT, _COMMIT): ErrorCode.invalid_txn_state,
        (TransactionState.COMPLETE_ABORT, Relation.RETRY, _ABORT): Verdict.REPEAT,
        (TransactionState.COMPLETE_ABORT, Relation.RETRY, _COMMIT): ErrorCode.invalid_txn_state,
    }
)

# Before version 2 the epoch says nothing about which transaction is meant, so the last outcome counts as this one's.
_TV_0: Final[Mapping[tuple[TransactionState, bool], Outcome]] = MappingProxyType(
    {
        (TransactionState.ONGOING, _COMMIT): Verdict.END,
        (TransactionState.ONGOING, _ABORT): Verdict.END,
        (TransactionState.COMPLETE_COMMIT, _COMMIT): Verdict.REPEAT,
        (TransactionState.COMPLETE_ABORT, _ABORT): Verdict.REPEAT,
    }
)


def end_txn_outcome(transaction: Transaction, producer: ProducerIdAndEpoch, *, committed: bool) -> Outcome:
    """What a client of version 2 (EndTxn 5) is to get."""
    if transaction.state.is_prepared:
        return ErrorCode.concurrent_transactions
    how = relation(transaction, producer)
    if how is Relation.STRANGER:
        return ErrorCode.invalid_producer_id_mapping
    return _TV_2.get((transaction.state, how, committed), ErrorCode.producer_fenced)


def end_txn_outcome_before_tv_2(transaction: Transaction, producer: ProducerIdAndEpoch, *, committed: bool) -> Outcome:
    """What a client of versions 0 and 1 (EndTxn 0 to 4) is to get."""
    if (error := producer_error(transaction, producer)) is not ErrorCode.none:
        return error
    if transaction.state.is_prepared:
        return ErrorCode.concurrent_transactions
    return _TV_0.get((transaction.state, committed), ErrorCode.invalid_txn_state)
