"""Idempotence and transactions of one partition, case by case (failure list A and B; KIP-98, 360, 890, 1228)."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einmal.log.producer_state import (
    CONTINUES,
    AppendOrigin,
    BatchMetadata,
    CompletedTransaction,
    ProducerStates,
    VerificationGuard,
)
from einmal.types import (
    SEQUENCE_MAX,
    ErrorCode,
    Instant,
    Offset,
    ProducerIdAndEpoch,
    Sequence,
    TransactionVersion,
)
from einmal.wire.record_batch import BatchHeader
from tests.log.making import NOW, START, at, batch, header_of, producer

TV_0, TV_1, TV_2 = TransactionVersion
DAY_MS = 86_400_000
P = producer(7)


class Partition:
    """A log reduced to what producer state sees of it: offsets."""

    def __init__(self) -> None:
        self.states = ProducerStates()
        self.end = 0
        self.now = NOW

    def append(
        self,
        of: ProducerIdAndEpoch,
        sequence: int,
        count: int = 1,
        *,
        transactional: bool = False,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        verification: VerificationGuard | None = None,
    ) -> ErrorCode | int:
        """The error, or the offset that the producer gets."""
        header = self.header(of, sequence, count, transactional)
        verdict = self.states.check(header, origin, verification)
        if isinstance(verdict, BatchMetadata):
            return verdict.first_offset
        if verdict is not ErrorCode.none:
            return verdict
        first, self.end = self.end, self.end + count
        self.states.replay_batch(header, Offset(first), Offset(self.end - 1), header.max_timestamp, self.now)
        return first

    @staticmethod
    def header(of: ProducerIdAndEpoch, sequence: int, count: int = 1, transactional: bool = False) -> BatchHeader:
        return header_of(batch(count, of=of, sequence=sequence, transactional=transactional))

    def mark(
        self,
        of: ProducerIdAndEpoch,
        *,
        committed: bool = True,
        coordinator_epoch: int = 0,
        version: TransactionVersion = TV_0,
    ) -> ErrorCode | CompletedTransaction | None:
        error = self.states.check_marker(of, coordinator_epoch, version)
        if error is not ErrorCode.none:
            return error
        offset, self.end = self.end, self.end + 1
        return self.states.replay_marker(
            of,
            committed=committed,
            coordinator_epoch=coordinator_epoch,
            offset=Offset(offset),
            timestamp=START,
            now=self.now,
        )

    def reload(self) -> None:
        self.states = ProducerStates.decode_snapshot(self.states.picture().encode(), self.now, DAY_MS)


@pytest.fixture
def partition() -> Partition:
    return Partition()


# --- sequences (A1 to A6, A10, A11, A14) -------------------------------------------------------------------------


def test_a_repeated_batch_is_answered_with_its_first_offset(partition: Partition) -> None:
    assert partition.append(P, 0, 3) == 0
    assert partition.append(P, 0, 3) == 0
    assert partition.end == 3


def test_each_of_the_last_five_batches_is_found_in_any_order(partition: Partition) -> None:
    for number in range(7):
        partition.append(P, number * 2, 2)
    assert [partition.append(P, number * 2, 2) for number in (4, 2, 6, 3, 5)] == [8, 4, 12, 6, 10]
    assert partition.end == 14


def test_a_repeat_older_than_the_window_is_out_of_order(partition: Partition) -> None:
    for number in range(6):
        partition.append(P, number)
    assert partition.append(P, 0) is ErrorCode.out_of_order_sequence_number


def test_a_gap_is_out_of_order(partition: Partition) -> None:
    partition.append(P, 0, 2)
    assert partition.append(P, 3) is ErrorCode.out_of_order_sequence_number
    assert partition.append(P, 2) == 2


def test_a_batch_that_overlaps_a_known_one_without_being_it_is_out_of_order(partition: Partition) -> None:
    partition.append(P, 0, 4)
    assert partition.append(P, 0, 2) is ErrorCode.out_of_order_sequence_number
    assert partition.append(P, 2, 4) is ErrorCode.out_of_order_sequence_number
    assert partition.append(P, 2, 2) is ErrorCode.out_of_order_sequence_number
    partition.append(P, 4, 2)
    assert partition.append(P, 3, 3) is ErrorCode.out_of_order_sequence_number
    assert partition.append(P, 5, 1) is ErrorCode.out_of_order_sequence_number


def test_zero_follows_the_largest_sequence_also_inside_a_batch(partition: Partition) -> None:
    assert partition.append(P, SEQUENCE_MAX - 1, 2) == 0
    assert partition.append(P, 0) == 2
    other = producer(8)
    assert partition.append(other, SEQUENCE_MAX, 3) == 3
    assert partition.append(other, 2) == 6
    assert partition.append(other, SEQUENCE_MAX, 3) == 3


def test_a_producer_without_state_may_continue_at_any_sequence(partition: Partition) -> None:
    assert partition.append(P, 4711) == 0


def test_a_new_epoch_begins_at_zero_and_forgets_the_window(partition: Partition) -> None:
    partition.append(P, 0, 3)
    assert partition.append(producer(7, 1), 3) is ErrorCode.out_of_order_sequence_number
    assert partition.append(producer(7, 1), 0, 3) == 3
    assert partition.append(P, 0, 3) is ErrorCode.invalid_producer_epoch


def test_two_that_forge_one_identity_cannot_both_write(partition: Partition) -> None:
    partition.append(P, 0, 2)
    partition.append(P, 2, 2)
    assert partition.append(P, 2, 3) is ErrorCode.out_of_order_sequence_number


def test_coordinators_are_fenced_by_epoch_but_have_no_sequences(partition: Partition) -> None:
    newer = producer(7, 3)
    assert partition.append(newer, -1, 2, transactional=True, origin=AppendOrigin.COORDINATOR) == 0
    assert partition.append(newer, -1, 2, transactional=True, origin=AppendOrigin.COORDINATOR) == 2
    older = partition.append(producer(7, 2), -1, transactional=True, origin=AppendOrigin.COORDINATOR)
    assert older is ErrorCode.invalid_producer_epoch


def test_replicated_batches_are_taken_as_they_are(partition: Partition) -> None:
    partition.append(producer(7, 5), 0)
    assert partition.append(P, 9, origin=AppendOrigin.REPLICATION) == 1


# --- transactions --------------------------------------------------------------------------------------------------


def test_a_plain_batch_inside_an_open_transaction_is_refused(partition: Partition) -> None:
    partition.append(P, 0, transactional=True)
    assert partition.append(P, 1) is ErrorCode.invalid_txn_state
    partition.mark(P)
    assert partition.append(P, 1) == 2


def test_a_marker_ends_the_transaction_of_its_producer_only(partition: Partition) -> None:
    partition.append(P, 0, 2, transactional=True)
    partition.append(producer(8), 0, 1, transactional=True)
    completed = partition.mark(P, committed=False)
    assert completed == CompletedTransaction(P.producer_id, Offset(0), Offset(3), False, Offset(2))
    assert not partition.states.has_open_transaction(P)
    assert partition.states.has_open_transaction(producer(8))


def test_the_last_stable_offset_of_an_aborted_transaction_is_after_its_marker_when_nothing_else_is_open(
    partition: Partition,
) -> None:
    partition.append(P, 0, 2, transactional=True)
    completed = partition.mark(P, committed=False)
    assert isinstance(completed, CompletedTransaction)
    assert completed.last_stable_offset == 3


def test_a_marker_without_a_transaction_completes_nothing_but_fences(partition: Partition) -> None:
    assert partition.mark(producer(7, 4)) is None
    assert partition.append(producer(7, 3), 0) is ErrorCode.invalid_producer_epoch


def test_unstable_until_the_high_watermark_has_passed_the_marker(partition: Partition) -> None:
    partition.append(producer(1), 0)
    partition.append(P, 0, transactional=True)
    partition.append(producer(8), 0, transactional=True)
    partition.mark(P)
    states = partition.states
    assert states.first_unstable_offset == 1
    states.advance_high_watermark(Offset(3))
    assert states.first_unstable_offset == 1
    states.advance_high_watermark(Offset(4))
    assert states.first_unstable_offset == 2
    partition.mark(producer(8))
    states.advance_high_watermark(Offset(5))
    assert states.first_unstable_offset is None


def test_an_open_transaction_is_that_of_its_epoch_only(partition: Partition) -> None:
    partition.append(P, 0, transactional=True)
    assert partition.states.has_open_transaction(P)
    assert not partition.states.has_open_transaction(producer(7, 1))


@pytest.mark.parametrize(
    ("version", "marker_epoch", "expected"),
    [
        (TV_0, 4, ErrorCode.invalid_producer_epoch),
        (TV_0, 5, ErrorCode.none),
        (TV_1, 5, ErrorCode.none),
        (TV_1, 6, ErrorCode.none),
        (TV_2, 4, ErrorCode.invalid_producer_epoch),
        (TV_2, 5, ErrorCode.invalid_producer_epoch),
        (TV_2, 6, ErrorCode.none),
    ],
)
def test_a_marker_needs_an_epoch_that_is_not_older_and_under_tv2_a_newer_one(
    partition: Partition, version: TransactionVersion, marker_epoch: int, expected: ErrorCode
) -> None:
    partition.append(producer(7, 5), 0, transactional=True)
    assert partition.states.check_marker(producer(7, marker_epoch), 0, version) is expected


def test_a_repeated_tv2_marker_is_taken_once_the_transaction_is_over(partition: Partition) -> None:
    partition.append(producer(7, 5), 0, transactional=True)
    assert isinstance(partition.mark(producer(7, 6), version=TV_2), CompletedTransaction)
    assert partition.mark(producer(7, 6), version=TV_2) is None
    partition.append(producer(7, 6), 0, transactional=True)
    assert partition.mark(producer(7, 6), version=TV_2) is ErrorCode.invalid_producer_epoch


def test_a_late_batch_of_the_ended_tv2_transaction_is_fenced(partition: Partition) -> None:
    partition.append(producer(7, 5), 0, transactional=True)
    partition.mark(producer(7, 6), version=TV_2)
    late = partition.append(producer(7, 5), 1, transactional=True)
    assert late is ErrorCode.invalid_producer_epoch


def test_an_older_coordinator_is_fenced(partition: Partition) -> None:
    partition.append(P, 0, transactional=True)
    partition.mark(P, coordinator_epoch=3)
    partition.append(P, 1, transactional=True)
    assert partition.mark(P, coordinator_epoch=2) is ErrorCode.transaction_coordinator_fenced
    assert isinstance(partition.mark(P, coordinator_epoch=3), CompletedTransaction)


# --- verification (KIP-890) ----------------------------------------------------------------------------------------


def test_a_verified_first_batch_is_appended_and_later_ones_need_no_guard(partition: Partition) -> None:
    guard = partition.states.begin_verification(P, Sequence(0), TV_1)
    assert guard is not None
    assert partition.append(P, 0, transactional=True, verification=guard) == 0
    assert partition.states.begin_verification(P, Sequence(1), TV_1) is None


def test_a_marker_between_verification_and_append_makes_the_guard_void(partition: Partition) -> None:
    guard = partition.states.begin_verification(P, Sequence(0), TV_1)
    partition.mark(P, committed=False)
    refused = partition.append(P, 0, transactional=True, verification=guard)
    assert refused is ErrorCode.invalid_txn_state
    assert partition.states.first_unstable_offset is None


def test_a_guard_of_another_life_is_void(partition: Partition) -> None:
    guard = partition.states.begin_verification(P, Sequence(0), TV_1)
    partition.reload()
    refused = partition.append(P, 0, transactional=True, verification=guard)
    assert refused is ErrorCode.invalid_txn_state


def test_a_later_batch_cannot_slip_in_before_the_first_that_was_verified(partition: Partition) -> None:
    guard = partition.states.begin_verification(P, Sequence(3), TV_1)
    assert partition.states.begin_verification(P, Sequence(5), TV_1) == guard
    early = partition.append(P, 5, transactional=True, verification=guard)
    assert early is ErrorCode.out_of_order_sequence_number
    assert partition.append(P, 3, 2, transactional=True, verification=guard) == 0
    assert partition.append(P, 5, transactional=True) == 2


def test_a_batch_that_needed_no_verification_is_refused_once_its_transaction_has_ended(partition: Partition) -> None:
    partition.append(P, 0, transactional=True)
    assert partition.states.begin_verification(P, Sequence(1), TV_1) is None
    assert partition.append(P, 1, transactional=True, verification=CONTINUES) == 1
    partition.mark(P, committed=True)
    refused = partition.append(P, 2, transactional=True, verification=CONTINUES)
    assert refused is ErrorCode.invalid_txn_state


def test_a_fenced_producer_is_refused_without_being_verified(partition: Partition) -> None:
    partition.mark(producer(7, 3), committed=False)
    assert partition.states.begin_verification(producer(7, 2), Sequence(0), TV_2) is None
    refused = partition.append(producer(7, 2), 0, transactional=True, verification=CONTINUES)
    assert refused is ErrorCode.invalid_producer_epoch


def test_a_tv2_producer_without_state_has_to_begin_at_zero(partition: Partition) -> None:
    guard = partition.states.begin_verification(P, Sequence(4), TV_2)
    refused = partition.append(P, 4, transactional=True, verification=guard)
    assert refused is ErrorCode.out_of_order_sequence_number


def test_a_new_epoch_has_to_be_verified_while_the_transaction_of_the_old_one_is_open(partition: Partition) -> None:
    partition.append(P, 0, transactional=True)
    guard = partition.states.begin_verification(producer(7, 1), Sequence(0), TV_2)
    assert guard is not None
    refused = partition.append(producer(7, 1), 0, transactional=True, verification=CONTINUES)
    assert refused is ErrorCode.invalid_txn_state


def test_the_marker_that_begins_an_epoch_does_not_void_the_verification_of_its_first_batch(
    partition: Partition,
) -> None:
    """The question may be on its way while the marker comes, and be answered after the transaction before is over."""
    partition.append(P, 0, transactional=True)
    guard = partition.states.begin_verification(producer(7, 1), Sequence(0), TV_2)
    partition.mark(producer(7, 1), version=TV_2, committed=False)
    partition.mark(producer(7, 1), version=TV_2, committed=False)
    assert partition.append(producer(7, 1), 0, transactional=True, verification=guard) == 3


def test_the_marker_that_ends_an_epoch_leaves_its_batches_fenced(partition: Partition) -> None:
    guard = partition.states.begin_verification(producer(7, 1), Sequence(0), TV_2)
    partition.mark(producer(7, 2), version=TV_2, committed=False)
    refused = partition.append(producer(7, 1), 0, transactional=True, verification=guard)
    assert refused is ErrorCode.invalid_producer_epoch


# --- expiry (A10, A11, A15) ----------------------------------------------------------------------------------------


def test_an_idle_producer_is_forgotten_and_one_with_an_open_transaction_is_not(partition: Partition) -> None:
    partition.append(P, 0)
    partition.append(producer(8), 0, transactional=True)
    list(partition.states.expire(at(DAY_MS - 1), DAY_MS))
    assert len(partition.states) == 2
    list(partition.states.expire(at(DAY_MS), DAY_MS))
    assert partition.states.entry(P.producer_id) is None
    assert partition.states.has_open_transaction(producer(8))
    assert partition.append(P, 9) == 2


def test_old_record_timestamps_do_not_make_a_producer_idle(partition: Partition) -> None:
    header = header_of(batch(of=P, sequence=0, timestamp=1))
    partition.states.replay_batch(header, Offset(0), Offset(0), 1, NOW)
    list(partition.states.expire(at(1000), DAY_MS))
    partition.end = 1
    assert partition.append(P, 0) == 0


def test_a_jump_of_the_wall_clock_expires_no_session(partition: Partition) -> None:
    partition.append(P, 0)
    list(partition.states.expire(Instant(NOW.wall_ms + 10 * DAY_MS, NOW.monotonic_ms + 1), DAY_MS))
    assert len(partition.states) == 1


def test_idle_time_keeps_counting_across_a_restart(partition: Partition) -> None:
    partition.append(P, 0)
    partition.now = Instant(NOW.wall_ms + 1000, 5)
    partition.reload()
    list(partition.states.expire(Instant(0, 5 + DAY_MS - 1001), DAY_MS))
    assert len(partition.states) == 1
    list(partition.states.expire(Instant(0, 5 + DAY_MS - 1000), DAY_MS))
    assert len(partition.states) == 0


def test_a_snapshot_is_loaded_without_those_that_expired_meanwhile(partition: Partition) -> None:
    partition.append(P, 0)
    partition.append(producer(8), 0, transactional=True)
    partition.now = at(DAY_MS)
    partition.reload()
    assert [each.producer_id for each in partition.states.describe()] == [8]


# --- snapshots (A9) ------------------------------------------------------------------------------------------------


def test_a_snapshot_has_apache_kafkas_bytes(partition: Partition) -> None:
    partition.append(producer(7, 2), 5, 3, transactional=True)
    data = partition.states.picture().encode()
    version, _crc, count = struct.unpack_from(">hIi", data)
    assert (version, count, len(data)) == (1, 1, 10 + 46)
    assert struct.unpack_from(">qhiqiqiq", data, 10) == (7, 2, 7, 2, 2, START, -1, 0)


def test_after_a_restart_the_last_batch_is_still_a_duplicate_and_the_next_is_awaited(partition: Partition) -> None:
    partition.append(P, SEQUENCE_MAX, 3)
    partition.reload()
    assert partition.append(P, SEQUENCE_MAX, 3) == 0
    assert partition.append(P, 5) is ErrorCode.out_of_order_sequence_number
    assert partition.append(P, 2) == 3


def test_open_transactions_survive_a_restart_in_their_order(partition: Partition) -> None:
    partition.append(producer(9), 0, transactional=True)
    partition.append(P, 0, transactional=True)
    partition.append(producer(9), 1, transactional=True)
    partition.reload()
    assert partition.states.first_unstable_offset == 0
    partition.mark(producer(9), committed=True)
    partition.states.advance_high_watermark(Offset(partition.end))
    assert partition.states.first_unstable_offset == 1


def test_windows_are_filled_from_batches_before_the_snapshot(partition: Partition) -> None:
    headers = [Partition.header(P, number) for number in range(7)]
    for number in range(7):
        partition.append(P, number)
    partition.reload()
    for number in reversed(range(7)):
        partition.states.refill_window(headers[number]._replace(base_offset=Offset(number)))
    assert [partition.append(P, number) for number in (2, 3, 4, 5, 6)] == [2, 3, 4, 5, 6]
    assert partition.append(P, 1) is ErrorCode.out_of_order_sequence_number


@given(st.data())
def test_a_broken_snapshot_is_refused(data: st.DataObject) -> None:
    partition = Partition()
    partition.append(P, 0)
    partition.append(producer(8), 0, 2, transactional=True)
    whole = partition.states.picture().encode()
    if data.draw(st.booleans()):
        broken = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        place = data.draw(st.integers(0, len(whole) - 1))
        broken = whole[:place] + bytes([whole[place] ^ data.draw(st.integers(1, 255))]) + whole[place + 1 :]
    with pytest.raises(ValueError):
        ProducerStates.decode_snapshot(broken, NOW, DAY_MS)


def test_describe_shows_what_describe_producers_asks_for(partition: Partition) -> None:
    partition.append(producer(7, 2), 5, 3, transactional=True)
    partition.mark(producer(8), coordinator_epoch=4)
    assert [tuple(each) for each in partition.states.describe()] == [
        (7, 2, 7, START + 2, -1, 0),
        (8, 0, -1, START, 4, -1),
    ]
