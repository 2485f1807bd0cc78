"""Claims about the order of steps, without Spark and without Kafka. Whole schedules are in tests/simulation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from einmal.commit_protocol.batch_plan import BATCH_WRITES
from einmal.commit_protocol.committer import Committer
from einmal.commit_protocol.effects import (
    AbortHeld,
    Acknowledged,
    Dead,
    Done,
    Ended,
    EndTxn,
    Event,
    Expired,
    Failed,
    Fenced,
    Finished,
    FinishSparkCommit,
    IdentityGranted,
    InitProducerId,
    ReadRecord,
    Ready,
    RecordRead,
    Refused,
    RestartQuery,
    Unclear,
    WriteBatch,
    WriteCommitRecord,
)
from einmal.commit_protocol.run_state import WRITE_ATTEMPTS_MAX, Held
from tests.commit_protocol.committers import (
    BATCH,
    FOLLOWING,
    OUTPUTS,
    QUERY,
    WRITE,
    at_end_txn,
    identity,
    record_of,
    restarted,
    started,
)


def test_a_batch_is_written_recorded_and_committed_in_this_order() -> None:
    committer = started()
    at_end_txn(committer)
    ready = committer.step(Ended(identity(1)))
    assert isinstance(ready, Ready) and ready.record is not None
    assert (ready.record.batch_id, ready.record.end, ready.record.records) == (0, (10,), 5)


def test_under_tv2_the_next_transaction_has_the_epoch_that_end_txn_gave() -> None:
    committer = started()
    at_end_txn(committer)
    committer.step(Ended(identity(1)))
    assert committer.batch(FOLLOWING) == WriteBatch(identity(1))


def test_under_tv1_init_producer_id_gives_the_next_transaction_its_epoch() -> None:
    committer = started()
    at_end_txn(committer)
    committer.step(Ended(None))
    assert committer.batch(FOLLOWING) == InitProducerId(identity(0))
    assert committer.step(IdentityGranted(identity(1))) == WriteBatch(identity(1))


@pytest.mark.parametrize("is_unchanged", [True, False])
def test_under_a_new_producer_id_the_record_is_read_again(is_unchanged: bool) -> None:
    """The old one may have expired, and another instance may have committed since."""
    committer = started()
    at_end_txn(committer)
    ready = committer.step(Ended(None))
    assert isinstance(ready, Ready) and ready.record is not None
    committer.batch(FOLLOWING)
    other = identity(0, producer_id=2)
    assert committer.step(IdentityGranted(other)) == ReadRecord(certain=True)
    effect = committer.step(RecordRead(ready.record if is_unchanged else replace(ready.record, batch_id=5)))
    assert effect == WriteBatch(other) if is_unchanged else isinstance(effect, Dead)


def test_a_failed_stateless_batch_is_written_again_a_bounded_number_of_times() -> None:
    committer = started()
    effect = committer.batch(BATCH)
    for attempt in range(WRITE_ATTEMPTS_MAX):
        assert effect == WriteBatch(identity(attempt))
        assert committer.step(Failed("task died")) == EndTxn(identity(attempt), committed=False)
        effect = committer.step(Ended(identity(attempt + 1)))
    assert isinstance(effect, RestartQuery) and "task died" in effect.reason


def test_a_failed_stateful_batch_ends_the_query() -> None:
    committer = started(replace(QUERY, stateful=True))
    committer.batch(BATCH)
    committer.step(Failed("executor lost"))
    assert isinstance(committer.step(Ended(identity(1))), RestartQuery)


def test_no_decision_follows_an_unanswered_commit() -> None:
    committer = started()
    at_end_txn(committer)
    assert isinstance(committer.step(Unclear("timed out")), RestartQuery)


def test_a_fenced_driver_writes_nothing_more_and_names_the_ways_out() -> None:
    committer = started()
    at_end_txn(committer)
    effect = committer.step(Fenced("PRODUCER_FENCED", "use one per pipeline"))
    assert isinstance(effect, Dead)
    assert effect.hint == "use one per pipeline"


def test_a_commit_that_the_broker_turned_into_an_abort_is_written_again() -> None:
    committer = started()
    at_end_txn(committer)
    assert committer.step(Failed("INVALID_TXN_STATE")) == EndTxn(identity(0), committed=False)
    assert committer.step(Ended(identity(1))) == WriteBatch(identity(1))


def test_two_writes_in_one_foreach_batch_are_refused() -> None:
    committer = started()
    at_end_txn(committer)
    committer.step(Ended(identity(1)))
    effect = committer.batch(BATCH)
    assert isinstance(effect, Refused) and "second time" in effect.reason


def test_a_batch_that_is_in_is_not_written_again() -> None:
    committer = started(replace(QUERY, is_fresh=False), record_of(BATCH))
    assert committer.batch(BATCH) == Ready(record_of(BATCH), already_in=True)


def test_a_stateful_query_finishes_sparks_commit_file_before_it_begins() -> None:
    record = record_of(BATCH, "v1\n{}")
    committer = Committer(replace(QUERY, stateful=True, is_fresh=False))
    committer.start()
    committer.step(RecordRead(record))
    committer.step(IdentityGranted(identity(0)))
    assert committer.step(RecordRead(record)) == FinishSparkCommit(record)
    assert committer.step(Finished()) == Ready(record)
    assert isinstance(committer.batch(BATCH), Refused)


def test_a_deleted_checkpoint_resumes_where_the_record_ends() -> None:
    committer = started(QUERY, record_of(replace(BATCH, query_id="deleted")))
    assert committer.resume_from() == (10,)


def test_a_batch_write_is_recorded_with_its_version() -> None:
    committer = started(WRITE)
    assert committer.write() == WriteBatch(identity(0))
    effect = committer.step(Acknowledged(OUTPUTS))
    assert isinstance(effect, WriteCommitRecord)
    assert (effect.record.query_id, effect.record.batch_id, effect.record.end) == (BATCH_WRITES, 3, ())
    committer.step(Done())
    assert committer.step(Done()) == EndTxn(identity(0), committed=True)
    assert isinstance(committer.step(Ended(identity(1))), Ready)


def test_a_batch_write_that_is_already_committed_fences_no_producer() -> None:
    record = replace(record_of(BATCH), query_id=BATCH_WRITES, batch_id=3)
    committer = Committer(WRITE)
    committer.start()
    assert committer.step(RecordRead(record)) == Ready(record, already_in=True)


def test_a_batch_write_that_was_committed_while_its_name_was_taken_is_not_written_again() -> None:
    record = replace(record_of(BATCH), query_id=BATCH_WRITES, batch_id=3)
    committer = Committer(WRITE)
    committer.start()
    committer.step(RecordRead(None))
    committer.step(IdentityGranted(identity(0)))
    assert committer.step(RecordRead(record)) == Ready(record, already_in=True)


def test_a_batch_write_that_failed_is_aborted_and_begun_again() -> None:
    committer = started(WRITE)
    committer.write()
    assert committer.step(Failed("a task died")) == EndTxn(identity(0), committed=False)
    assert committer.step(Ended(identity(1))) == WriteBatch(identity(1))


def test_a_batch_that_will_always_fail_is_tried_once() -> None:
    committer = started(WRITE)
    committer.write()
    assert committer.step(Failed("no topic", will_again=True)) == EndTxn(identity(0), committed=False)
    assert isinstance(committer.step(Ended(identity(1))), RestartQuery)


def test_a_copied_name_is_refused_before_init_producer_id() -> None:
    committer = Committer(QUERY)
    committer.start()
    record = record_of(replace(BATCH, query_id="alive", checkpoint="elsewhere"))
    assert committer.step(RecordRead(record)) == ReadRecord(certain=True)
    assert isinstance(committer.step(RecordRead(record)), Refused)


def test_a_refusal_by_a_record_that_is_out_of_date_is_not_believed() -> None:
    committer = Committer(replace(QUERY, is_fresh=False, next_batch_id=1))
    committer.start()
    assert committer.step(RecordRead(None)) == ReadRecord(certain=True)
    assert committer.step(RecordRead(record_of(BATCH))) == InitProducerId(None)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Ended(identity(5)), InitProducerId(identity(5))),
        (Ended(None), InitProducerId(identity(4))),
        (Failed("INVALID_TXN_STATE"), InitProducerId(identity(4))),
        (Expired("INVALID_PRODUCER_ID_MAPPING"), InitProducerId(identity(4))),
    ],
)
def test_a_restart_keeps_the_identity_that_it_can_still_abort_under(answer: Event, expected: InitProducerId) -> None:
    committer = restarted(Held(identity(4)))
    assert committer.step(RecordRead(None)) == AbortHeld(identity(4))
    assert committer.step(answer) == expected


def test_a_restart_that_finds_a_newer_instance_does_not_call_init_producer_id() -> None:
    committer = restarted(Held(identity(4)))
    assert committer.step(RecordRead(None)) == AbortHeld(identity(4))
    assert isinstance(committer.step(Fenced("PRODUCER_FENCED")), Dead)


def test_a_restart_after_an_unanswered_init_producer_id_asks_again_under_the_epoch_from_before() -> None:
    committer = started()
    at_end_txn(committer)
    committer.step(Ended(None))
    committer.batch(FOLLOWING)
    committer.step(Unclear("timed out"))
    assert committer.held == Held(identity(0), is_current=False)
    assert restarted(committer.held).step(RecordRead(None)) == InitProducerId(identity(0))


def test_an_expired_transactional_id_ends_in_a_reported_restart() -> None:
    committer = started()
    committer.batch(BATCH)
    committer.step(Failed("a task failed"))
    effect = committer.step(Expired("INVALID_PRODUCER_ID_MAPPING"))
    assert isinstance(effect, RestartQuery) and "expired" in effect.reason
    assert committer.held == Held(identity(0))


@pytest.mark.parametrize("phase", ["init", "bump"])
def test_an_identity_that_did_not_come_ends_the_query(phase: str) -> None:
    if phase == "init":
        committer = Committer(QUERY)
        committer.start()
        committer.step(RecordRead(None))
    else:
        committer = started()
        at_end_txn(committer)
        committer.step(Ended(None))
        committer.batch(FOLLOWING)
    assert isinstance(committer.step(Unclear("timed out")), RestartQuery)
