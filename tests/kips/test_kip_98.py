"""KIP-98, the coordinator's part: identities, two phases, fencing. One test per rule."""

from __future__ import annotations

import pytest

from einmal.transactions.states import TransactionState
from einmal.types import ErrorCode
from einmal.wire.java_hash import partition_for_id
from tests.transactions.machine import ID, P0, P1, TV_0, TV_2, Machine, producer

OK = ErrorCode.none


def test_a_new_transactional_id_gets_a_producer_id_of_its_own_and_epoch_zero() -> None:
    machine = Machine()
    assert machine.begin(id="a") == producer(1_000, 0)
    assert machine.begin(id="b") == producer(1_001, 0)


def test_a_known_transactional_id_keeps_its_producer_id_and_moves_its_epoch() -> None:
    machine = Machine()
    assert [machine.begin() for _ in range(3)] == [producer(1_000, epoch) for epoch in range(3)]


def test_the_mapping_survives_the_coordinator() -> None:
    machine = Machine()
    machine.begin()
    machine.fail_over()
    assert machine.begin() == producer(1_000, 1)


def test_a_transaction_begins_with_its_first_partition() -> None:
    machine = Machine()
    who = machine.begin()
    assert machine.stored().state is TransactionState.EMPTY
    machine.add(who, P0)
    assert machine.stored().state is TransactionState.ONGOING
    assert machine.stored().start_ms == machine.now.wall_ms


@pytest.mark.parametrize("committed", [True, False])
def test_the_outcome_is_logged_then_answered_then_the_markers_are_written_then_its_completion_is_logged(
    committed: bool,
) -> None:
    machine = Machine()
    who = machine.begin()
    machine.add(who, P0, P1)
    decision = machine.shard.end_txn(ID, who, committed=committed, version=TV_2, now=machine.now)
    (record,) = decision.records
    assert record.transaction is not None and record.transaction.state.is_prepared
    assert decision.response.error is OK
    (action,) = decision.actions
    assert (action.committed, action.partitions) == (committed, (P0, P1))
    machine.run(decision)
    assert machine.write_markers() == [action]
    expected = TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT
    assert machine.stored().state is expected


def test_a_new_instance_first_ends_what_its_predecessor_left() -> None:
    machine = Machine(version=TV_0)
    who = machine.begin()
    machine.add(who, P0, version=TV_0)
    assert machine.init()[0] is ErrorCode.concurrent_transactions
    (action,) = machine.actions
    assert not action.committed
    assert action.producer == producer(who.producer_id, who.producer_epoch + 1), "so that late data is refused"


def test_a_new_instance_waits_for_an_outcome_that_is_decided_and_does_not_turn_it() -> None:
    machine = Machine()
    who = machine.begin()
    machine.add(who, P0)
    machine.end(who, True)
    assert machine.init()[0] is ErrorCode.concurrent_transactions
    (action,) = machine.write_markers()
    assert action.committed
    assert machine.init()[0] is OK


def test_the_next_transaction_waits_for_the_markers_of_the_last() -> None:
    machine = Machine(version=TV_0)
    who = machine.begin()
    machine.add(who, P0, version=TV_0)
    machine.end(who, True, version=TV_0)
    assert machine.add(who, P1, version=TV_0) is ErrorCode.concurrent_transactions
    machine.write_markers()
    assert machine.add(who, P1, version=TV_0) is OK
    assert machine.stored().partitions == (P1,)


def test_a_transactional_id_is_located_by_its_java_hash() -> None:
    assert partition_for_id("orders", 50) == 31, "its hash is -1008770331"
    assert partition_for_id("polygenelubricants", 50) == 0, "its hash is the number without an absolute value"
