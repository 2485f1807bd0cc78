"""The states of a transaction and the moves between them, as data.

Ids and names are those of Apache Kafka's transaction log and of DescribeTransactions. Kafka's in-memory states ``Dead``
and ``PrepareEpochFence`` exist to block others during an append; here deciding and replaying are one step, so an
expired transaction is simply removed (a tombstone), and fencing goes straight to ``PREPARE_ABORT``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final


class TransactionState(IntEnum):
    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def kafka_name(self) -> str:
        """The name in DescribeTransactions and ListTransactions: ``PrepareCommit``."""
        return self.name.title().replace("_", "")

    @property
    def is_prepared(self) -> bool:
        """Decided, but not every partition has its marker yet."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


AT_REST: Final = frozenset({TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})

VALID_PREVIOUS: Final[Mapping[TransactionState, frozenset[TransactionState]]] = MappingProxyType(
    {
        TransactionState.EMPTY: AT_REST,
        TransactionState.ONGOING: AT_REST | {TransactionState.ONGOING},
        TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
        # From a state at rest: the abort of a transaction that never reached a partition (KIP-890, version 2).
        TransactionState.PREPARE_ABORT: AT_REST | {TransactionState.ONGOING},
        TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
        TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
    }
)
"""For each state, those from which it may be entered. Any other transition is a bug."""

STATES_BY_NAME: Final[Mapping[str, TransactionState]] = MappingProxyType(
    {state.kafka_name: state for state in TransactionState}
)
