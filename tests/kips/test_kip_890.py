"""KIP-890: verification (part 1), and version 2 of the transaction protocol (part 2). One test per rule."""

from __future__ import annotations

import pytest

from einmal.transactions.states import TransactionState
from einmal.types import EPOCH_MAX, ErrorCode
from tests.transactions.machine import ID, P0, P1, TV_0, TV_2, Machine, producer, with_epoch

OK = ErrorCode.none
FENCED = ErrorCode.producer_fenced
CONCURRENT = ErrorCode.concurrent_transactions
STATE = ErrorCode.invalid_txn_state


@pytest.mark.parametrize("committed", [True, False])
def test_every_end_txn_bumps_and_returns_the_epoch(committed: bool) -> None:
    machine = Machine()
    who = machine.begin()
    for _ in range(3):
        assert machine.add(who, P0) is OK
        error, next_who = machine.end(who, committed)
        assert (error, next_who) == (OK, producer(who.producer_id, who.producer_epoch + 1))
        machine.write_markers()
        who = next_who


def test_the_markers_carry_the_moved_epoch_and_the_clients_version() -> None:
    machine = Machine()
    who = machine.begin()
    machine.add(who, P0)
    _, next_who = machine.end(who, True)
    assert machine.actions[0].producer == next_who
    assert machine.actions[0].transaction_version is TV_2


def test_a_client_of_the_old_protocol_beside_it_keeps_its_epoch() -> None:
    machine = Machine(version=TV_2)
    who = machine.begin()
    machine.add(who, P0, version=TV_0)
    assert machine.end(who, True, version=TV_0)[0] is OK
    assert machine.actions[0].producer == who
    assert machine.actions[0].transaction_version is TV_0
    machine.write_markers()
    assert machine.stored().producer == who


def test_the_version_is_the_transactions_own() -> None:
    """A client may be upgraded, or downgraded, between two transactions."""
    machine = Machine()
    who = machine.begin()
    for version in (TV_0, TV_2, TV_0, TV_2):
        assert machine.add(who, P0, version=version) is OK
        error, answered = machine.end(who, True, version=version)
        assert error is OK
        who = answered if version is TV_2 else who
        machine.write_markers()
        assert machine.stored().client_version is version
    assert machine.stored().producer == who


def test_a_retry_while_prepared_waits() -> None:
    machine = Machine()
    who = machine.begin()
    machine.add(who, P0)
    machine.end(who, True)
    assert machine.end(who, True)[0] is CONCURRENT


def test_the_next_epoch_while_prepared_waits_and_does_not_fence_itself() -> None:
    """KAFKA-18464: what is pending is looked at before the epoch."""
    machine = Machine()
    who = machine.begin()
    machine.add(who, P0)
    _, next_who = machine.end(who, True)
    assert machine.add(next_who, P1) is CONCURRENT
    assert machine.end(next_who, False)[0] is CONCURRENT
    assert machine.init(next_who)[0] is CONCURRENT


def test_a_retry_after_completion_is_answered_as_before() -> None:
    machine = Machine()
    who = machine.begin()
    machine.add(who, P0)
    answer = machine.end(who, True)
    machine.write_markers()
    assert machine.end(who, True) == answer
    machine.fail_over()
    assert machine.end(who, True) == answer


def test_a_retry_with_the_opposite_outcome_is_invalid() -> None:
    machine = Machine()
    who = machine.begin()
    machine.add(who, P0)
    machine.end(who, True)
    machine.write_markers()
    assert machine.end(who, False)[0] is STATE


def test_an_empty_abort_is_allowed_at_rest_and_an_empty_commit_is_not() -> None:
    machine = Machine()
    who = machine.begin()
    assert machine.end(who, True)[0] is STATE
    error, who = machine.end(who, False)
    assert error is OK
    assert machine.end(who, True)[0] is STATE
    assert machine.stored().state is TransactionState.COMPLETE_ABORT


def test_at_the_end_of_the_epochs_the_end_gives_a_new_producer_id() -> None:
    machine = Machine()
    who = with_epoch(machine, EPOCH_MAX)
    machine.add(who, P0)
    error, next_who = machine.end(who, True)
    assert error is OK
    assert next_who.producer_id != who.producer_id
    assert next_who.producer_epoch == 0
    assert machine.actions[0].producer == producer(who.producer_id, EPOCH_MAX + 1)
    assert machine.add(next_who, P0) is CONCURRENT, "not a stranger: its completion is still to come"
    machine.write_markers()
    assert machine.add(next_who, P0) is OK


@pytest.mark.parametrize("fails_over", [False, True])
def test_a_retry_over_the_end_of_the_epochs_is_answered_as_before(fails_over: bool) -> None:
    """KAFKA-18660."""
    machine = Machine()
    who = with_epoch(machine, EPOCH_MAX)
    machine.add(who, P0)
    answer = machine.end(who, True)
    assert machine.end(who, True)[0] is CONCURRENT
    if fails_over:
        machine.fail_over()
    machine.write_markers()
    assert machine.end(who, True) == answer
    assert machine.end(who, False)[0] is STATE


def test_an_empty_abort_at_the_end_of_the_epochs_gives_a_new_producer_id() -> None:
    machine = Machine()
    who = with_epoch(machine, EPOCH_MAX)
    error, next_who = machine.end(who, False)
    assert (error, next_who.producer_epoch) == (OK, 0)
    assert machine.end(who, False) == (OK, next_who)


def test_a_new_producer_id_survives_a_failover_between_outcome_and_completion() -> None:
    machine = Machine()
    who = with_epoch(machine, EPOCH_MAX)
    machine.add(who, P0)
    _, next_who = machine.end(who, True)
    machine.fail_over()
    machine.write_markers()
    assert machine.stored(ID).producer == next_who


def test_verification_makes_the_leader_reject_unregistered_partitions() -> None:
    machine = Machine()
    who = machine.begin()
    assert machine.verify(who, P0) == [ErrorCode.transaction_abortable]
    machine.add(who, P0, version=TV_0)
    assert machine.verify(who, P0) == [OK]


def test_a_leader_adds_its_partition_in_the_clients_name() -> None:
    machine = Machine()
    who = machine.begin()
    assert machine.add(who, P0, version=TV_2) is OK
    assert machine.stored().state is TransactionState.ONGOING
    assert machine.stored().client_version is TV_2
