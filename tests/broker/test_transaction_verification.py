"""The error of a client whose transaction could not be verified, by the version of its request."""

from __future__ import annotations

import pytest

from einmal.broker.coordinators.transaction_verification import (
    Operation,
    offset_commit_error,
    offset_commit_operation,
    produce_error,
    produce_operation,
)
from einmal.types import ErrorCode as E


def test_the_version_of_the_request_determines_the_verification() -> None:
    assert [produce_operation(version) for version in (3, 10, 11, 12, 13)] == [
        Operation.VERIFY,
        Operation.VERIFY,
        Operation.VERIFY_ABORTABLE,
        Operation.ADD,
        Operation.ADD,
    ]
    assert [offset_commit_operation(version) for version in (0, 3, 4, 5)] == [
        Operation.VERIFY,
        Operation.VERIFY,
        Operation.VERIFY_ABORTABLE,
        Operation.ADD,
    ]


# error of the coordinator: (what Produce 10, 11 and 12 answer), (what TxnOffsetCommit 3, 4 and 5 answer)
TOLD = {
    E.none: ((E.none,) * 3, (E.none,) * 3),
    E.producer_fenced: ((E.invalid_producer_epoch,) * 3, (E.invalid_producer_epoch,) * 3),
    E.invalid_producer_id_mapping: ((E.invalid_producer_id_mapping,) * 3, (E.invalid_producer_id_mapping,) * 3),
    E.transaction_abortable: (
        (E.invalid_txn_state, E.transaction_abortable, E.transaction_abortable),
        (E.invalid_txn_state, E.transaction_abortable, E.transaction_abortable),
    ),
    E.concurrent_transactions: (
        (E.not_enough_replicas, E.not_enough_replicas, E.concurrent_transactions),
        (E.coordinator_load_in_progress, E.coordinator_load_in_progress, E.concurrent_transactions),
    ),
    E.coordinator_load_in_progress: ((E.not_enough_replicas,) * 3, (E.coordinator_load_in_progress,) * 3),
    E.coordinator_not_available: ((E.not_enough_replicas,) * 3, (E.coordinator_load_in_progress,) * 3),
    E.not_coordinator: ((E.not_enough_replicas,) * 3, (E.coordinator_load_in_progress,) * 3),
}


@pytest.mark.parametrize("error", TOLD)
def test_each_client_gets_an_error_that_it_understands(error: E) -> None:
    produced, committed = TOLD[error]
    assert tuple(produce_error(error, operation) for operation in Operation) == produced
    assert tuple(offset_commit_error(error, operation) for operation in Operation) == committed
