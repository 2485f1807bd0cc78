"""Questions of a partition's leader to the transaction coordinator before the first batch of a transaction (KIP-890).

Clients of version 2 (Produce 12, TxnOffsetCommit 5 and later) have their partition added; for older ones the leader
only verifies that the client has added it. The coordinator's errors are turned into what each client can understand.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from einmal.types import ErrorCode


class Operation(Enum):
    VERIFY = auto()
    VERIFY_ABORTABLE = auto()
    """The client knows TRANSACTION_ABORTABLE."""
    ADD = auto()


def produce_operation(version: int) -> Operation:
    """By the version of Produce."""
    return Operation.ADD if version >= 12 else Operation.VERIFY_ABORTABLE if version == 11 else Operation.VERIFY


def offset_commit_operation(version: int) -> Operation:
    """By the version of TxnOffsetCommit."""
    return Operation.ADD if version >= 5 else Operation.VERIFY_ABORTABLE if version == 4 else Operation.VERIFY


_COORDINATOR_AWAY: Final = (
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    # It is on another broker, which has not answered.
    ErrorCode.network_exception,
    # Another partition of the same question was refused.
    ErrorCode.operation_not_attempted,
)
"""Errors that may pass, about nothing that the client asked for: it speaks to this broker, not to that coordinator."""


def produce_error(error: ErrorCode, operation: Operation) -> ErrorCode:
    """For a Produce answer. What may pass becomes NOT_ENOUGH_REPLICAS: clients repeat it without new metadata."""
    if error in _COORDINATOR_AWAY:
        return ErrorCode.not_enough_replicas
    return _error(error, operation, may_pass=ErrorCode.not_enough_replicas)


def offset_commit_error(error: ErrorCode, operation: Operation) -> ErrorCode:
    """For a TxnOffsetCommit answer. Coordinator errors there speak of the group's coordinator, which is well."""
    if error in _COORDINATOR_AWAY:
        return ErrorCode.coordinator_load_in_progress
    return _error(error, operation, may_pass=ErrorCode.coordinator_load_in_progress)


_ERRORS: Final[Mapping[ErrorCode, ErrorCode]] = MappingProxyType(
    # Clients take PRODUCER_FENCED for the coordinator's word only.
    {ErrorCode.producer_fenced: ErrorCode.invalid_producer_epoch}
)


def _error(error: ErrorCode, operation: Operation, *, may_pass: ErrorCode) -> ErrorCode:
    if error is ErrorCode.concurrent_transactions and operation is not Operation.ADD:
        return may_pass
    if error is ErrorCode.transaction_abortable and operation is Operation.VERIFY:
        return ErrorCode.invalid_txn_state
    return _ERRORS.get(error, error)
