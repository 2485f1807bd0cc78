"""KIP-360: a producer recovers by InitProducerId with its own id and epoch. One test per rule."""

from __future__ import annotations

import pytest

from einmal.types import EPOCH_MAX, ErrorCode, TransactionVersion
from tests.transactions.machine import ID, P0, TV_0, TV_2, Machine, producer, with_epoch

OK = ErrorCode.none
FENCED = ErrorCode.producer_fenced
CONCURRENT = ErrorCode.concurrent_transactions


def test_the_current_epoch_is_moved_on() -> None:
    machine = Machine()
    who = machine.begin()
    assert machine.init(who) == (OK, producer(who.producer_id, who.producer_epoch + 1))


def test_the_last_epoch_is_a_retry_and_gets_the_current_one() -> None:
    machine = Machine()
    who = machine.begin()
    _, moved = machine.init(who)
    for _ in range(3):
        assert machine.init(who) == (OK, moved)


def test_any_other_epoch_is_fenced() -> None:
    machine = Machine()
    first = machine.begin()
    _, second = machine.init(first)
    machine.init(second)
    assert machine.init(first)[0] is FENCED
    assert machine.init(producer(first.producer_id, 9))[0] is FENCED


def test_after_another_instance_began_the_retry_is_fenced() -> None:
    machine = Machine()
    who = machine.begin()
    machine.init(who)
    machine.begin()
    assert machine.init(who)[0] is FENCED


def test_another_producer_id_is_fenced() -> None:
    machine = Machine()
    machine.begin()
    assert machine.init(producer(77, 0))[0] is FENCED


def test_an_id_that_expired_begins_again_under_a_new_producer_id() -> None:
    machine = Machine()
    assert machine.init(producer(77, 5)) == (OK, producer(1_000, 0))


def test_a_retry_is_known_after_a_failover_too() -> None:
    """Apache Kafka keeps the last epoch in memory only, and fences a producer whose answer the failover has lost."""
    machine = Machine()
    who = machine.begin()
    _, second = machine.init(who)
    machine.fail_over()
    assert machine.init(who) == (OK, second)


def test_a_predecessor_stays_fenced_after_a_failover() -> None:
    machine = Machine()
    who = machine.begin()
    machine.begin()
    machine.fail_over()
    assert machine.init(who)[0] is FENCED


def test_an_exhausted_epoch_gives_a_new_producer_id() -> None:
    machine = Machine()
    who = with_epoch(machine, EPOCH_MAX)
    error, fresh = machine.init(who)
    assert (error, fresh.producer_epoch) == (OK, 0)
    assert fresh.producer_id != who.producer_id


def test_a_retry_over_the_end_of_the_epochs_gets_the_new_producer_id() -> None:
    machine = Machine()
    who = with_epoch(machine, EPOCH_MAX)
    _, fresh = machine.init(who)
    assert machine.init(who) == (OK, fresh)
    assert machine.init(producer(who.producer_id, EPOCH_MAX - 1))[0] is FENCED


def test_a_new_instance_over_the_end_of_the_epochs_fences_the_retry_too() -> None:
    machine = Machine()
    who = with_epoch(machine, EPOCH_MAX)
    error, fresh = machine.init()
    assert (error, fresh.producer_epoch) == (OK, 0)
    assert machine.init(who)[0] is FENCED


def test_init_producer_id_during_a_transaction_returns_concurrent_transactions() -> None:
    machine = Machine()
    who = machine.begin()
    machine.add(who, P0)
    assert machine.init(who)[0] is CONCURRENT
    assert machine.init(who)[0] is CONCURRENT, "until the markers are written"
    (action,) = machine.write_markers()
    assert not action.committed


def test_under_tv_2_the_owner_then_gets_the_epoch_that_fenced_it_and_no_second_move() -> None:
    """KAFKA-19367."""
    machine = Machine(version=TV_2)
    who = machine.begin()
    machine.add(who, P0)
    machine.init(who)
    machine.write_markers()
    next_who = producer(who.producer_id, who.producer_epoch + 1)
    assert machine.stored().producer == next_who
    assert machine.init(who) == (OK, next_who)


def test_under_tv_1_the_owner_is_fenced_for_good() -> None:
    machine = Machine(version=TransactionVersion.TV_1)
    who = machine.begin()
    machine.add(who, P0, version=TV_0)
    machine.init(who)
    machine.write_markers()
    assert machine.init(who)[0] is FENCED


@pytest.mark.parametrize("version", [TV_0, TV_2])
def test_a_new_instance_over_an_open_transaction_moves_the_epoch_twice(version: TransactionVersion) -> None:
    machine = Machine(version=version)
    who = machine.begin()
    machine.add(who, P0, version=version)
    assert machine.init()[0] is CONCURRENT
    assert machine.init()[0] is CONCURRENT, "a retry before the end does not fence again"
    machine.write_markers()
    assert machine.init() == (OK, producer(who.producer_id, who.producer_epoch + 2))


@pytest.mark.parametrize("version", [TV_0, TV_2])
def test_fencing_at_the_end_of_the_epochs_uses_the_reserved_one(version: TransactionVersion) -> None:
    machine = Machine(version=version)
    who = with_epoch(machine, EPOCH_MAX)
    machine.add(who, P0, version=version)
    machine.init()
    assert machine.actions[0].producer == producer(who.producer_id, EPOCH_MAX + 1)
    machine.write_markers()
    error, fresh = machine.init()
    assert error is OK
    assert fresh.producer_id != who.producer_id
    assert fresh.producer_epoch <= 1
    assert machine.stored(ID).producer == fresh
