"""Failures B 17 to 38 as far as one coordinator sees them, and what the tables leave out."""

from __future__ import annotations

from typing import Any

import pytest

from einmal.broker.coordinators.decided_batches import decided_batches
from einmal.transactions import records
from einmal.transactions.states import TransactionState
from einmal.types import NO_PRODUCER_ID, ErrorCode, TopicPartition, TransactionVersion
from tests.transactions.machine import ID, P0, P1, P2, TV_0, TV_2, Machine, producer, with_epoch

S = TransactionState
OK = ErrorCode.none
FENCED = ErrorCode.producer_fenced
CONCURRENT = ErrorCode.concurrent_transactions
BOTH = pytest.mark.parametrize("version", [TV_0, TV_2])


# --- 17, 18: zombies ------------------------------------------------------------------------------------------------


@BOTH
def test_a_zombie_is_refused_at_each_call(version: TransactionVersion) -> None:
    machine = Machine(version=version)
    zombie = machine.begin()
    successor = machine.begin()
    assert machine.add(zombie, P0, version=version) is FENCED
    assert machine.verify(zombie, P0) == [FENCED]
    assert machine.end(zombie, True, version=version)[0] is FENCED
    assert machine.end(zombie, False, version=version)[0] is FENCED
    assert machine.init(producer(zombie.producer_id, zombie.producer_epoch))[0] is FENCED
    assert machine.stored().producer == successor


def test_of_two_instances_that_start_at_once_exactly_one_wins() -> None:
    machine = Machine()
    first, second = machine.begin(), machine.begin()
    assert machine.add(first, P0) is FENCED
    assert machine.add(second, P0) is OK


# --- 19 to 22: the coordinator dies ---------------------------------------------------------------------------------


@BOTH
def test_an_open_transaction_continues_after_a_failover(version: TransactionVersion) -> None:
    machine = Machine(version=version)
    who = machine.begin()
    machine.add(who, P0, version=version)
    machine.fail_over()
    assert machine.add(who, P1, version=version) is OK
    assert machine.end(who, True, version=version)[0] is OK
    assert machine.actions[0].partitions == (P0, P1)


def test_an_open_transaction_is_aborted_by_timeout_after_a_failover() -> None:
    machine = Machine()
    who = machine.begin(timeout_ms=5_000)
    machine.add(who, P0)
    machine.now_ms += 4_000
    machine.fail_over()
    machine.tick(after_ms=4_999)
    assert machine.stored().state is S.ONGOING, "the remaining time starts anew"
    machine.tick(after_ms=1)
    assert machine.stored().state is S.PREPARE_ABORT


@BOTH
@pytest.mark.parametrize("committed", [True, False])
def test_a_prepared_outcome_survives_a_failover_and_is_never_turned(
    version: TransactionVersion, committed: bool
) -> None:
    machine = Machine(version=version)
    who = machine.begin()
    machine.add(who, P0, P1, version=version)
    machine.end(who, committed, version=version)
    before = machine.actions[:]
    machine.fail_over()
    assert machine.actions == before, "the same markers again, whether some were written or not"
    machine.tick(after_ms=10_000_000)
    assert machine.stored().state is (S.PREPARE_COMMIT if committed else S.PREPARE_ABORT)
    machine.write_markers()
    assert machine.stored().state is (S.COMPLETE_COMMIT if committed else S.COMPLETE_ABORT)


def test_reports_of_written_markers_are_idempotent() -> None:
    machine = Machine()
    who = machine.begin()
    machine.add(who, P0)
    machine.end(who, True)
    (action,) = machine.write_markers()
    records = len(machine.log)
    machine.run(machine.shard.markers_written(ID, action.producer, machine.now))
    machine.run(machine.shard.markers_written("unknown", action.producer, machine.now))
    assert len(machine.log) == records


def test_a_late_report_does_not_complete_the_next_transaction() -> None:
    machine = Machine()
    who = machine.begin()
    machine.add(who, P0)
    _, next_who = machine.end(who, True)
    (old,) = machine.write_markers()
    machine.add(next_who, P1)
    machine.end(next_who, True)
    machine.run(machine.shard.markers_written(ID, old.producer, machine.now))
    assert machine.stored().state is S.PREPARE_COMMIT


# --- 25 to 28: late and repeated requests ---------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("committed", [True, False])
def test_a_repeated_end_gets_the_same_answer(version: TransactionVersion, committed: bool) -> None:
    machine = Machine(version=version)
    who = machine.begin()
    machine.add(who, P0, version=version)
    first = machine.end(who, committed, version=version)
    assert machine.end(who, committed, version=version)[0] is CONCURRENT, "until the markers are written"
    machine.write_markers()
    records = len(machine.log)
    assert machine.end(who, committed, version=version) == first
    assert len(machine.log) == records


def test_a_late_end_does_not_touch_the_next_transaction() -> None:
    """KAFKA-17754."""
    machine = Machine()
    who = machine.begin()
    machine.add(who, P0)
    _, next_who = machine.end(who, False)
    machine.write_markers()
    machine.add(next_who, P1)
    for committed in (True, False):
        assert machine.end(who, committed)[0] is FENCED
    assert machine.stored().state is S.ONGOING


def test_a_late_add_does_not_reach_the_next_transaction() -> None:
    machine = Machine()
    who = machine.begin()
    machine.add(who, P0)
    _, next_who = machine.end(who, False)
    assert machine.add(who, P1) is CONCURRENT
    machine.write_markers()
    assert machine.add(who, P1) is FENCED
    machine.add(next_who, P2)
    assert machine.add(who, P1) is FENCED
    assert machine.verify(who, P2) == [FENCED]
    assert machine.stored().partitions == (P2,)


def test_a_late_init_of_the_predecessor_does_not_abort_its_successors_transaction() -> None:
    """Stricter than Apache Kafka, which aborts it and fences the owner."""
    machine = Machine()
    first = machine.begin()
    machine.init(first)
    owner = machine.stored().producer
    machine.add(owner, P0)
    assert machine.init(first)[0] is FENCED
    assert machine.stored().state is S.ONGOING
    assert machine.end(owner, True)[0] is OK


# --- 29: partitions that were never added ---------------------------------------------------------------------------


def test_verification_distinguishes_added_partitions_from_others() -> None:
    machine = Machine()
    who = machine.begin()
    machine.add(who, P0, version=TV_0)
    assert machine.verify(who, P0, P1) == [OK, ErrorCode.transaction_abortable]


def test_adding_partitions_again_writes_nothing() -> None:
    machine = Machine()
    who = machine.begin()
    machine.add(who, P0, P1)
    records = len(machine.log)
    assert machine.add(who, P1) is OK
    assert len(machine.log) == records


# --- 30, 31: timeouts -----------------------------------------------------------------------------------------------


@BOTH
def test_an_overdue_transaction_is_aborted_under_the_next_epoch(version: TransactionVersion) -> None:
    machine = Machine(version=version)
    who = machine.begin(timeout_ms=5_000)
    machine.add(who, P0, version=version)
    assert machine.shard.next_deadline() == machine.now_ms + 5_000
    machine.tick(after_ms=4_999)
    assert machine.stored().state is S.ONGOING
    machine.tick(after_ms=1)
    (action,) = machine.actions
    assert not action.committed
    assert action.producer == producer(who.producer_id, who.producer_epoch + 1)
    machine.write_markers()
    assert machine.stored().state is S.COMPLETE_ABORT


def test_a_commit_after_the_timeout_is_refused_under_tv_0() -> None:
    machine = Machine(version=TV_0)
    who = machine.begin(timeout_ms=5_000)
    machine.add(who, P0, version=TV_0)
    machine.tick(after_ms=5_000)
    assert machine.end(who, True, version=TV_0)[0] is FENCED
    machine.write_markers()
    assert machine.end(who, True, version=TV_0)[0] is FENCED
    assert machine.end(who, False, version=TV_0)[0] is FENCED


def test_a_commit_after_the_timeout_is_refused_under_tv_2_and_an_abort_gets_the_next_epoch() -> None:
    machine = Machine()
    who = machine.begin(timeout_ms=5_000)
    machine.add(who, P0)
    machine.tick(after_ms=5_000)
    machine.write_markers()
    assert machine.end(who, True)[0] is ErrorCode.invalid_txn_state
    assert machine.end(who, False) == (OK, machine.stored().producer)


def test_a_transactions_age_counts_from_its_first_partition() -> None:
    machine = Machine()
    who = machine.begin(timeout_ms=5_000)
    machine.now_ms += 3_000
    machine.add(who, P0)
    machine.now_ms += 3_000
    machine.add(who, P1)
    assert machine.shard.next_deadline() == machine.now_ms + 2_000


def test_a_finished_transaction_leaves_no_deadline_behind() -> None:
    machine = Machine(id_expiration_interval_ms=10_000_000)
    who = machine.begin(timeout_ms=5_000)
    machine.add(who, P0)
    _, who = machine.end(who, True)
    machine.write_markers()
    machine.now_ms += 2_000
    machine.add(who, P0)
    assert machine.shard.next_deadline() == machine.now_ms + 5_000
    machine.tick(after_ms=4_999)
    assert machine.stored().state is S.ONGOING


def test_timeouts_of_transactions_that_have_ended_take_no_memory_until_they_would_have_come() -> None:
    """A producer of short transactions with a long timeout left an entry with each of them."""
    machine = Machine()
    who = machine.begin(timeout_ms=900_000)
    for _ in range(3_000):
        assert machine.add(who, P0) is OK
        error, who = machine.end(who, True)
        assert error is OK
        machine.write_markers()
        machine.now_ms += 1
        assert len(machine.shard._timeouts._heap) < 2_000
    assert machine.add(who, P0) is OK
    machine.tick(900_000)
    assert machine.stored().state is S.PREPARE_ABORT


def test_the_wall_clock_does_not_affect_timeouts() -> None:
    machine = Machine()
    who = machine.begin(timeout_ms=5_000)
    machine.add(who, P0)
    jumped = machine.now._replace(wall_ms=machine.now.wall_ms + 3_600_000)
    assert machine.shard.tick(jumped) == ()


def test_an_overdue_transaction_waits_for_a_producer_id_where_its_epochs_are_at_the_end() -> None:
    machine = Machine()
    who = with_epoch(machine, 32_766)
    machine.add(who, P0)
    machine.has_producer_ids = False
    machine.tick(after_ms=60_000)
    assert machine.stored().state is S.ONGOING
    machine.has_producer_ids = True
    machine.tick()
    assert machine.stored().state is S.PREPARE_ABORT


# --- 32: empty transactions -----------------------------------------------------------------------------------------


def test_the_abort_of_nothing_moves_the_epoch_and_needs_no_marker() -> None:
    machine = Machine()
    who = machine.begin()
    for _ in range(3):
        error, next_who = machine.end(who, False)
        assert error is OK
        assert next_who == producer(who.producer_id, who.producer_epoch + 1)
        assert machine.stored().state is S.COMPLETE_ABORT
        assert machine.actions == []
        who = next_who


def test_an_offsets_only_transaction_gets_its_one_marker() -> None:
    machine = Machine(version=TV_0)
    who = machine.begin()
    offsets = TopicPartition("__consumer_offsets", 7)
    machine.add(who, offsets, version=TV_0)
    machine.end(who, True, version=TV_0)
    assert machine.actions[0].partitions == (offsets,)


# --- 36, 37: size and compaction ------------------------------------------------------------------------------------


def test_the_latest_record_of_each_id_alone_gives_the_same_state() -> None:
    machine = Machine()
    for name in ("a", "b"):
        who = machine.begin(id=name)
        machine.add(who, P0, id=name)
        machine.end(who, True, id=name)
    whole = machine.reloaded()
    machine.log = list(dict(machine.log).items())
    assert machine.reloaded().transactions == whole.transactions


def test_a_transaction_over_a_thousand_partitions_ends_as_one() -> None:
    machine = Machine()
    who = machine.begin()
    partitions = [TopicPartition("wide", n) for n in range(1_000)]
    for n in range(0, 1_000, 100):
        machine.add(who, *partitions[n : n + 100])
    machine.end(who, True)
    assert machine.actions[0].partitions == tuple(partitions)
    machine.fail_over()
    assert machine.actions[0].partitions == tuple(partitions)


# --- 38: precise errors, no change ----------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_out_of_bounds_is_refused(timeout_ms: int) -> None:
    machine = Machine()
    assert machine.init(timeout_ms=timeout_ms)[0] is ErrorCode.invalid_transaction_timeout
    assert machine.log == []


@pytest.mark.parametrize("timeout_ms", [1, 900_000])
def test_a_timeout_at_the_bounds_is_accepted(timeout_ms: int) -> None:
    machine = Machine()
    assert machine.init(timeout_ms=timeout_ms)[0] is OK
    assert machine.stored().timeout_ms == timeout_ms


def test_an_empty_transactional_id_is_an_invalid_request() -> None:
    machine = Machine()
    who = producer(1, 0)
    assert machine.init(id="")[0] is ErrorCode.invalid_request
    assert machine.add(who, P0, id="") is ErrorCode.invalid_request
    assert machine.verify(who, P0, id="") == [ErrorCode.invalid_request]
    assert machine.end(who, True, id="")[0] is ErrorCode.invalid_request


@BOTH
def test_a_commit_before_anything_began_is_refused(version: TransactionVersion) -> None:
    machine = Machine(version=version)
    who = machine.begin()
    assert machine.end(who, True, version=version)[0] is ErrorCode.invalid_txn_state
    assert machine.stored().state is S.EMPTY


def test_without_an_allocated_producer_id_the_client_gets_a_retriable_error() -> None:
    machine = Machine()
    machine.has_producer_ids = False
    assert machine.init()[0] is ErrorCode.coordinator_load_in_progress
    assert machine.log == []


# --- expiry ---------------------------------------------------------------------------------------------------------


def test_an_idle_id_expires_with_a_tombstone() -> None:
    machine = Machine(id_expiration_ms=10_000, id_expiration_interval_ms=1_000)
    who = machine.begin()
    machine.tick(after_ms=9_999)
    assert ID in machine.shard.transactions
    machine.tick(after_ms=1_000)
    assert ID not in machine.shard.transactions
    assert machine.log[-1][1] is None
    assert machine.add(who, P0) is ErrorCode.invalid_producer_id_mapping
    assert machine.begin().producer_id != who.producer_id, "an expired id's producer id is never given again"


@BOTH
def test_a_transaction_that_is_open_or_prepared_never_expires(version: TransactionVersion) -> None:
    machine = Machine(version=version, id_expiration_ms=10_000, id_expiration_interval_ms=1_000)
    who = machine.begin(timeout_ms=900_000)
    machine.add(who, P0, version=version)
    machine.tick(after_ms=50_000)
    assert machine.stored().state is S.ONGOING
    machine.end(who, True, version=version)
    machine.tick(after_ms=50_000)
    assert machine.stored().state is S.PREPARE_COMMIT


@pytest.mark.parametrize(("count", "name"), [(200, "x" * 32_000), (5_000, "short")])
def test_the_tombstones_of_idle_ids_fit_into_segments_however_long_the_ids_are(count: int, name: str) -> None:
    machine = Machine(id_expiration_ms=1_000, id_expiration_interval_ms=1_000)
    for n in range(count):
        machine.begin(id=f"{name}-{n}")
    machine.now_ms += 5_000
    batches = [
        batch
        for decision in machine.shard.tick(machine.now)
        for batch in decided_batches(decision, records, machine.now_ms, segment_bytes=1 << 20)
    ]
    assert sum(len(written) for written, _batch in batches) == count
    assert max(len(batch) for _written, batch in batches) <= 1 << 20


# --- describe and list ----------------------------------------------------------------------------------------------


def test_describe_transactions_returns_one_transaction() -> None:
    machine = Machine()
    machine.begin()
    assert machine.run(machine.shard.describe_transactions(ID)) == machine.stored()
    assert machine.run(machine.shard.describe_transactions("nobody")) is ErrorCode.transactional_id_not_found
    assert machine.run(machine.shard.describe_transactions("")) is ErrorCode.invalid_request


def test_list_passes_what_every_filter_passes() -> None:
    machine = Machine()
    who = machine.begin(id="open")
    machine.add(who, P0, id="open")
    idle = machine.begin(id="idle")

    def names(**filters: object) -> list[str]:
        answer = machine.run(machine.shard.list_transactions(now=machine.now, **filters))  # type: ignore[arg-type]
        return [each.transactional_id for each in answer]

    assert names() == ["open", "idle"]
    assert names(states=[S.ONGOING]) == ["open"]
    assert names(producer_ids=[idle.producer_id]) == ["idle"]
    assert names(states=[S.ONGOING], producer_ids=[idle.producer_id]) == []
    machine.now_ms += 5_000
    assert names(states=[S.ONGOING], longer_than_ms=4_999) == ["open"]
    assert names(states=[S.ONGOING], longer_than_ms=5_000) == []


def test_a_filter_of_many_values_is_not_searched_for_each_transaction() -> None:
    class Searched(tuple[Any, ...]):
        def __contains__(self, value: object) -> bool:
            raise AssertionError("a request may have 49,000 values, a shard 10,000 transactions")

    machine = Machine()
    who = machine.begin()
    filters = Searched((who.producer_id,))
    (listed,) = machine.run(machine.shard.list_transactions(producer_ids=filters, now=machine.now))
    assert listed.producer_id == who.producer_id
    assert machine.run(machine.shard.list_transactions(states=Searched((S.ONGOING,)), now=machine.now)) == ()


def test_completion_forgets_the_staged_producer_id() -> None:
    machine = Machine()
    who = machine.begin()
    machine.add(who, P0)
    machine.end(who, True)
    machine.write_markers()
    assert machine.stored().next_producer_id == NO_PRODUCER_ID
    assert machine.stored().partitions == ()
