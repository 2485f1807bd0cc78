"""KIP-939, the coordinator's part: transactions of a two-phase commit. One test per rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from einmal.shard.decision import Decision
from einmal.transactions.coordinator import InitProducerIdResult, TwoPhase
from einmal.transactions.fencing import Relation, relation
from einmal.transactions.records import TransactionRecord
from einmal.transactions.states import TransactionState
from einmal.transactions.transaction import NO_TIMEOUT_MS
from einmal.types import (
    EPOCH_MAX,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ErrorCode,
    ProducerEpoch,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)
from tests.transactions.machine import ID, P0, P1, TV_0, Machine, producer, with_epoch

S = TransactionState
OK = ErrorCode.none
FENCED = ErrorCode.producer_fenced
MAPPING = ErrorCode.invalid_producer_id_mapping
CONCURRENT = ErrorCode.concurrent_transactions
STATE = ErrorCode.invalid_txn_state
YEAR_MS = 365 * 24 * 3_600_000


def client(answer: InitProducerIdResult) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)


def ongoing(answer: InitProducerIdResult) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(answer.ongoing_producer_id, answer.ongoing_producer_epoch)


def prepared(machine: Machine, epoch: int = 100) -> ProducerIdAndEpoch:
    """An open transaction of a two-phase commit under that epoch."""
    with_epoch(machine, epoch - 1)
    who = machine.begin_two_phase()
    assert machine.add(who, P0, P1) is OK
    return who


def with_client_epoch(machine: Machine, epoch: int) -> ProducerIdAndEpoch:
    """The kept transaction's client has that epoch, without thousands of crashes."""
    moved = replace(machine.stored(), next_producer_epoch=ProducerEpoch(epoch))
    machine.run(Decision(records=(TransactionRecord(ID, moved),), response=None))
    return machine.stored().client


# --- no timeout -----------------------------------------------------------------------------------------------------


def test_a_transaction_of_a_two_phase_commit_never_times_out() -> None:
    machine = Machine()
    prepared(machine)
    assert machine.stored().timeout_ms == NO_TIMEOUT_MS == 2_147_483_647, "as Apache Kafka stores it"
    machine.tick(after_ms=YEAR_MS)
    machine.fail_over()
    machine.tick(after_ms=YEAR_MS)
    assert machine.stored().state is S.ONGOING


def test_the_clients_timeout_is_ignored_under_two_phase_commit_only() -> None:
    machine = Machine(max_timeout_ms=1_000)

    def error(timeout_ms: int, how: TwoPhase) -> ErrorCode:
        return machine.run(machine.shard.init_producer_id(ID, timeout_ms, None, machine.now, how)).error

    assert error(99_999, TwoPhase(is_enabled=True)) is OK
    assert error(-1, TwoPhase(is_enabled=True, keeps_prepared=True)) is OK
    assert error(99_999, TwoPhase(keeps_prepared=True)) is ErrorCode.invalid_transaction_timeout


def test_an_open_transaction_does_not_expire_with_its_transactional_id() -> None:
    machine = Machine(id_expiration_ms=1_000, id_expiration_interval_ms=1_000)
    who = prepared(machine)
    machine.tick(after_ms=YEAR_MS)
    kept = machine.keep()
    machine.tick(after_ms=YEAR_MS)
    assert machine.end(client(kept), True)[0] is OK
    assert who == ongoing(kept)


def test_the_next_owner_without_two_phase_commit_has_a_timeout_again() -> None:
    machine = Machine()
    prepared(machine)
    who = machine.begin(timeout_ms=5_000)
    machine.add(who, P0)
    machine.tick(after_ms=5_000)
    assert machine.stored().state is S.PREPARE_ABORT


# --- keeping --------------------------------------------------------------------------------------------------------


def test_a_kept_transaction_stays_open_under_its_own_pair_and_its_client_gets_the_next() -> None:
    machine = Machine()
    who = prepared(machine)
    kept = machine.keep()
    assert kept.error is OK
    assert ongoing(kept) == who == machine.stored().producer
    assert client(kept) == producer(who.producer_id, 101) == machine.stored().client
    assert machine.stored().state is S.ONGOING
    assert machine.stored().partitions == (P0, P1)
    assert not machine.actions


def test_keeping_where_nothing_is_open_is_an_ordinary_init_producer_id() -> None:
    machine = Machine()
    for expected in range(3):
        kept = machine.keep()
        assert (kept.error, client(kept)) == (OK, producer(1_000, expected))
        assert ongoing(kept) == producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


def test_keeping_waits_until_the_markers_of_a_decided_transaction_are_written() -> None:
    machine = Machine()
    who = prepared(machine)
    machine.end(who, True)
    assert machine.keep().error is CONCURRENT
    machine.write_markers()
    kept = machine.keep()
    assert (kept.error, ongoing(kept)) == (OK, producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH))


def test_each_instance_that_keeps_fences_the_one_before_and_the_transaction_stays_the_same() -> None:
    machine = Machine()
    who = prepared(machine)
    answers = [machine.keep() for _ in range(4)]
    assert {ongoing(answer) for answer in answers} == {who}
    assert [client(answer).producer_epoch for answer in answers] == [101, 102, 103, 104]
    for fenced in (who, *map(client, answers[:-1])):
        for committed in (True, False):
            assert machine.end(fenced, committed)[0] is FENCED
        assert machine.init(fenced)[0] is FENCED
    assert machine.stored().state is S.ONGOING


def test_only_a_new_instance_may_keep() -> None:
    machine = Machine()
    who = prepared(machine)
    decision = machine.shard.init_producer_id(ID, 1, who, machine.now, TwoPhase(keeps_prepared=True))
    assert machine.run(decision).error is ErrorCode.invalid_request


@pytest.mark.parametrize("version", [TransactionVersion.TV_0, TransactionVersion.TV_1])
@pytest.mark.parametrize("how", [TwoPhase(is_enabled=True), TwoPhase(keeps_prepared=True)])
def test_two_phase_commit_needs_transactions_of_version_2(version: TransactionVersion, how: TwoPhase) -> None:
    machine = Machine(version=version)
    decision = machine.shard.init_producer_id(ID, 60_000, None, machine.now, how)
    assert machine.run(decision).error is ErrorCode.unsupported_version


def test_a_transaction_with_a_timeout_may_be_kept_too_and_still_has_it() -> None:
    machine = Machine()
    machine.add(machine.begin(timeout_ms=5_000), P0)
    machine.now_ms += 4_000
    machine.keep(two_phase=False)
    machine.tick(after_ms=999)
    assert machine.stored().state is S.ONGOING
    machine.tick(after_ms=1)
    assert machine.stored().state is S.PREPARE_ABORT
    assert not machine.stored().is_two_phase


def test_keeping_under_two_phase_commit_takes_the_timeout_away() -> None:
    machine = Machine()
    machine.add(machine.begin(timeout_ms=5_000), P0)
    machine.keep()
    machine.tick(after_ms=YEAR_MS)
    assert machine.stored().state is S.ONGOING


def test_keeping_without_two_phase_commit_does_not_give_a_timeout_to_a_prepared_transaction() -> None:
    machine = Machine()
    prepared(machine)
    machine.keep(two_phase=False, timeout_ms=5_000)
    machine.tick(after_ms=YEAR_MS)
    assert machine.stored().state is S.ONGOING


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("by_force", [True, False])
def test_whoever_keeps_without_two_phase_commit_has_a_timeout_afterwards(committed: bool, by_force: bool) -> None:
    """To have none needs a permission, which nobody gets by keeping the transaction of somebody who has it."""
    machine = Machine()
    prepared(machine)
    current = client(machine.keep(two_phase=False, timeout_ms=5_000))
    machine.fail_over()
    if by_force:
        machine.init(current)
    else:
        machine.end(current, committed)
    machine.fail_over()
    machine.write_markers()
    machine.fail_over()
    assert machine.add(machine.stored().producer, P0) is OK
    machine.tick(after_ms=5_000)
    assert machine.stored().state is S.PREPARE_ABORT


def test_whoever_keeps_has_its_own_timeout_afterwards_not_the_predecessors() -> None:
    machine = Machine()
    machine.add(machine.begin(timeout_ms=5_000), P0)
    machine.keep(two_phase=False, timeout_ms=7_000)
    current = client(machine.keep(two_phase=False, timeout_ms=9_000))
    _, following = machine.end(current, True)
    machine.write_markers()
    machine.add(following, P0)
    machine.tick(after_ms=8_999)
    assert machine.stored().state is S.ONGOING
    machine.tick(after_ms=1)
    assert machine.stored().state is S.PREPARE_ABORT


def test_whoever_keeps_under_two_phase_commit_has_no_timeout_afterwards() -> None:
    machine = Machine()
    machine.add(machine.begin(timeout_ms=5_000), P0)
    machine.keep(two_phase=False, timeout_ms=7_000)
    _, following = machine.end(client(machine.keep()), True)
    machine.write_markers()
    assert machine.add(following, P0) is OK
    machine.tick(after_ms=YEAR_MS)
    assert machine.stored().state is S.ONGOING


# --- what a kept transaction accepts ----------------------------------------------------------------------------------


def test_nothing_can_be_added_to_a_kept_transaction() -> None:
    machine = Machine()
    who = prepared(machine)
    current = client(machine.keep())
    other = TopicPartition("t", 7)
    for partition in (P0, other):
        assert machine.add(current, partition) is STATE
        assert machine.add(who, partition) is FENCED
    assert machine.verify(current, P0, other) == [STATE, STATE]
    assert machine.verify(who, P0) == [FENCED]
    assert machine.stored().partitions == (P0, P1)


def test_end_txn_of_an_older_version_cannot_end_a_kept_transaction() -> None:
    """Its answer has no room for the epoch that follows."""
    machine = Machine()
    prepared(machine)
    current = client(machine.keep())
    assert machine.end(current, True, version=TV_0)[0] is ErrorCode.unsupported_version
    assert machine.stored().state is S.ONGOING


# --- its end --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("committed", [True, False])
def test_markers_follow_the_transactions_epoch_and_the_client_moves_past_its_own(committed: bool) -> None:
    machine = Machine()
    who = prepared(machine)
    machine.keep()
    current = client(machine.keep())
    assert machine.end(current, committed) == (OK, producer(who.producer_id, 103))
    (action,) = machine.actions
    assert (action.producer, action.committed) == (producer(who.producer_id, 101), committed)
    assert action.partitions == (P0, P1)
    machine.write_markers()
    assert machine.stored().state is (S.COMPLETE_COMMIT if committed else S.COMPLETE_ABORT)
    assert machine.stored().producer == producer(who.producer_id, 103)
    assert not machine.stored().is_kept


def test_a_delayed_commit_of_a_kept_transaction_does_not_commit_the_next_one() -> None:
    """The first commit is delayed, its retry arrives. Markers have the epoch of the kept transaction's client: without
    another bump the delayed one would have the epoch of the next transaction."""
    machine = Machine()
    prepared(machine)
    current = client(machine.keep())
    _, following = machine.end(current, True)
    machine.write_markers()
    assert machine.add(following, P0) is OK
    for committed in (True, False):
        assert machine.end(current, committed)[0] is FENCED
    assert machine.stored().state is S.ONGOING


@pytest.mark.parametrize("committed", [True, False])
def test_a_repeated_end_of_a_kept_transaction_gets_the_same_answer(committed: bool) -> None:
    machine = Machine()
    prepared(machine)
    current = client(machine.keep())
    first = machine.end(current, committed)
    assert machine.end(current, committed)[0] is CONCURRENT, "until the markers are written"
    machine.fail_over()
    machine.write_markers()
    assert machine.end(current, committed) == first
    assert machine.end(current, not committed)[0] is STATE


def test_after_the_end_the_fenced_instance_stays_fenced() -> None:
    machine = Machine()
    who = prepared(machine)
    current = client(machine.keep())
    machine.end(current, True)
    machine.write_markers()
    for committed in (True, False):
        assert machine.end(who, committed)[0] is FENCED
    assert machine.add(who, P0) is FENCED
    assert machine.init(who)[0] is FENCED


def test_the_client_may_recover_a_lost_answer_with_its_own_pair() -> None:
    """KIP-360, after the end of a kept transaction."""
    machine = Machine()
    prepared(machine)
    current = client(machine.keep())
    _, following = machine.end(current, True)
    machine.fail_over()
    machine.write_markers()
    assert machine.init(current) == (OK, following)


# --- the coordinator dies -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("committed", [True, False])
def test_both_pairs_survive_the_coordinator_at_each_step(committed: bool) -> None:
    machine = Machine()
    who = prepared(machine)
    machine.fail_over()
    current = client(machine.keep())
    machine.fail_over()
    assert (machine.stored().producer, machine.stored().client) == (who, current)
    assert machine.end(who, committed)[0] is FENCED
    assert machine.end(current, committed)[0] is OK
    before = machine.actions[:]
    machine.fail_over()
    assert machine.actions == before
    machine.write_markers()
    machine.fail_over()
    assert machine.stored().producer == producer(who.producer_id, 102)


# --- epochs at their end --------------------------------------------------------------------------------------------


def test_an_exhausted_epoch_of_the_client_leads_to_another_producer_id_while_the_transaction_keeps_its_own() -> None:
    machine = Machine()
    who = prepared(machine, EPOCH_MAX)
    kept = machine.keep()
    assert ongoing(kept) == who
    assert client(kept) == producer(who.producer_id + 1, 0)
    assert machine.end(who, True)[0] is FENCED
    assert machine.add(who, P0) is FENCED
    machine.fail_over()
    assert machine.end(client(kept), True) == (OK, producer(who.producer_id + 1, 1))
    assert machine.actions[0].producer == producer(who.producer_id, EPOCH_MAX + 1)
    machine.write_markers()
    assert machine.end(client(kept), True) == (OK, producer(who.producer_id + 1, 1)), "a retry"
    assert machine.end(who, True)[0] is MAPPING


@pytest.mark.parametrize("committed", [True, False])
def test_three_producer_ids_take_part_where_the_clients_epoch_is_exhausted_too(committed: bool) -> None:
    """Markers under the first, EndTxn under the second, the next transaction under the third."""
    machine = Machine()
    who = prepared(machine, EPOCH_MAX)
    machine.keep()
    current = with_client_epoch(machine, EPOCH_MAX)
    assert current.producer_id == who.producer_id + 1
    following = producer(who.producer_id + 2, 0)
    assert machine.end(current, committed) == (OK, following)
    assert machine.actions[0].producer == producer(who.producer_id, EPOCH_MAX + 1)
    machine.fail_over()
    machine.write_markers()
    machine.fail_over()
    assert machine.stored().producer == following
    assert machine.end(current, committed) == (OK, following), "a retry"
    assert machine.init(current) == (OK, following), "or KIP-360"
    assert machine.add(following, P0) is OK


def test_a_second_rotation_fences_the_holder_of_the_first() -> None:
    machine = Machine()
    who = prepared(machine, EPOCH_MAX)
    machine.keep()
    fenced = with_client_epoch(machine, EPOCH_MAX)
    kept = machine.keep()
    assert (ongoing(kept), client(kept)) == (who, producer(who.producer_id + 2, 0))
    for committed in (True, False):
        assert machine.end(fenced, committed)[0] is FENCED
    assert machine.add(fenced, P0) is MAPPING
    assert relation(machine.stored(), who) is Relation.FENCED
    assert machine.end(client(kept), True)[0] is OK


def test_without_a_producer_id_nothing_is_kept_and_nothing_lost() -> None:
    machine = Machine()
    who = prepared(machine, EPOCH_MAX)
    machine.has_producer_ids = False
    assert machine.keep().error is ErrorCode.coordinator_load_in_progress
    assert not machine.stored().is_kept
    machine.has_producer_ids = True
    assert ongoing(machine.keep()) == who


# --- by force -------------------------------------------------------------------------------------------------------


def test_init_producer_id_without_keeping_aborts_a_kept_transaction_and_fences_its_client() -> None:
    """How an operator ends it: Admin.fenceProducers, ``einmal txn abort``."""
    machine = Machine()
    who = prepared(machine)
    current = client(machine.keep())
    assert machine.init()[0] is CONCURRENT
    (action,) = machine.actions
    assert (action.committed, action.producer) == (False, producer(who.producer_id, 101))
    machine.write_markers()
    error, operator = machine.init()
    assert (error, operator) == (OK, producer(who.producer_id, 103))
    for fenced in (who, current):
        assert machine.end(fenced, True)[0] is FENCED
    assert not machine.stored().is_two_phase


def test_an_abort_by_force_works_after_the_clusters_version_was_lowered() -> None:
    machine = Machine()
    who = prepared(machine)
    machine.keep()
    machine.config = replace(machine.config, version=TV_0)
    machine.fail_over()
    assert machine.init()[0] is CONCURRENT
    machine.write_markers()
    assert machine.init() == (OK, producer(who.producer_id, 103))


def test_a_prepared_transaction_is_listed_as_open_and_without_timeout() -> None:
    machine = Machine()
    prepared(machine)
    machine.keep()
    machine.now_ms += 60_000
    (listed,) = machine.run(machine.shard.list_transactions(longer_than_ms=59_999, now=machine.now))
    assert (listed.state, listed.is_two_phase) == (S.ONGOING, True)
