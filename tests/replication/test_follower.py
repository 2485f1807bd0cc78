"""What a follower does with an answer."""

import pytest

from einmal.replication.follower import Append, Later, Outdated, Restart, Step, Truncate, next_step, question
from einmal.types import ErrorCode, LeaderEpoch, Offset
from einmal.wire.fetch import EpochEndOffset, FetchedPartition
from tests.replication.cluster import Log


def log_of(*epochs: int, start: int = 0) -> Log:
    """A log with one entry of each epoch named."""
    log = Log()
    log.restart(start)
    for epoch in epochs:
        log.append((epoch, 0))
    return log


def diverging(log: Log, epoch: int, end_offset: int) -> Step:
    return next_step(log, FetchedPartition(0, diverging_epoch=EpochEndOffset(epoch, end_offset)))


def test_a_follower_fetches_from_its_end_with_the_epoch_of_its_last_batch() -> None:
    asked = question(log_of(1, 1, 4), 3, LeaderEpoch(6), 100)
    assert (asked.partition, asked.fetch_offset, asked.last_fetched_epoch, asked.current_leader_epoch) == (3, 3, 4, 6)


def test_an_empty_log_names_no_epoch() -> None:
    asked = question(log_of(start=7), 0, LeaderEpoch(6), 100)
    assert (asked.fetch_offset, asked.last_fetched_epoch, asked.log_start_offset) == (7, -1, 7)


def test_records_are_appended() -> None:
    answer = FetchedPartition(0, ErrorCode.none, 5, -1, 2, None, b"batches")
    assert next_step(log_of(1), answer) == Append(b"batches", Offset(5), Offset(2))


def test_what_the_leader_never_had_is_cut_off() -> None:
    assert diverging(log_of(1, 1, 2, 2, 2), 2, 3) == Truncate(Offset(3))


def test_an_epoch_that_the_leader_never_had_is_cut_off() -> None:
    assert diverging(log_of(1, 1, 2, 2), 1, 5) == Truncate(Offset(2))


def test_an_epoch_that_only_the_leader_has_is_asked_about_from_the_end_of_the_one_before() -> None:
    # KIP-279: both have epochs that the other does not know.
    assert diverging(log_of(1, 1, 3, 3), 2, 4) == Truncate(Offset(2))


def test_a_leader_that_begins_after_all_that_is_here_makes_the_follower_begin_anew() -> None:
    answer = FetchedPartition(0, ErrorCode.offset_out_of_range, log_start_offset=9)
    assert next_step(log_of(1, 1), answer) == Restart(Offset(9))


def test_a_log_that_diverges_before_its_start_is_emptied() -> None:
    assert diverging(log_of(5, 5, start=10), 4, 3) == Restart(Offset(3))


@pytest.mark.parametrize("answer", [EpochEndOffset(-1, -1), EpochEndOffset(1, 9), EpochEndOffset(9, 2)])
def test_an_answer_without_sense_truncates_nothing(answer: EpochEndOffset) -> None:
    assert isinstance(diverging(log_of(1, 1), *answer), Later)


def test_out_of_range_without_a_start_is_tried_again() -> None:
    assert isinstance(next_step(log_of(1), FetchedPartition(0, ErrorCode.offset_out_of_range)), Later)


def test_a_fenced_follower_waits_for_new_metadata_and_retries_every_other_error() -> None:
    assert next_step(log_of(1), FetchedPartition(0, ErrorCode.fenced_leader_epoch)) == Outdated()
    for error in (ErrorCode.not_leader_or_follower, ErrorCode.unknown_topic_id, ErrorCode.kafka_storage_error):
        assert next_step(log_of(1), FetchedPartition(0, error)) == Later(error)
