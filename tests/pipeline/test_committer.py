"""Claims about the order of steps, without Spark and without Kafka. Whole schedules are in tests/simulation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from einmal.pipeline.batch_plan import BATCH_WRITES, Batch
from einmal.pipeline.claims import Output
from einmal.pipeline.commit_record import CommitRecord
from einmal.pipeline.committer import (
    WRITE_ATTEMPTS_MAX,
    AbortHeld,
    CommitSourcePositions,
    Committer,
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
    Held,
    IdentityGranted,
    InitProducerId,
    Query,
    ReadRecord,
    Ready,
    RecordRead,
    Refused,
    Restart,
    Unclear,
    WriteBatch,
    WriteCommitRecord,
    Written,
)
from einmal.types import ProducerEpoch, ProducerId, ProducerIdAndEpoch

QUERY = Query(transactional_id="t", query_id="q", checkpoint="cp", is_fresh=True, stateful=False)
BATCH = Batch(query_id="q", checkpoint="cp", batch_id=0, start=None, end=(10,))
OUTPUTS = (Output("out", 0, 0, 4, 5),)


def identity(epoch: int) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(epoch))


def started(query: Query = QUERY, record: CommitRecord | None = None) -> Committer:
    committer = Committer(query)
    assert committer.start() == ReadRecord(certain=False)
    assert committer.step(RecordRead(record)) == InitProducerId(None)
    assert committer.step(IdentityGranted(identity(0))) == ReadRecord(certain=True)
    assert committer.step(RecordRead(record)) == Ready(record)
    return committer


def at_end_txn(committer: Committer, batch: Batch = BATCH) -> None:
    assert committer.batch(batch) == WriteBatch(identity(0))
    assert isinstance(committer.step(Written(OUTPUTS)), WriteCommitRecord)
    assert isinstance(committer.step(Done()), CommitSourcePositions)
    assert committer.step(Done()) == EndTxn(identity(0), committed=True)


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
    following = replace(BATCH, batch_id=1, start=(10,), end=(20,))
    assert committer.batch(following) == WriteBatch(identity(1))


def test_under_tv1_init_producer_id_gives_the_next_transaction_its_epoch() -> None:
    committer = started()
    at_end_txn(committer)
    committer.step(Ended(None))
    following = replace(BATCH, batch_id=1, start=(10,), end=(20,))
    assert committer.batch(following) == InitProducerId(identity(0))
    assert committer.step(IdentityGranted(identity(1))) == WriteBatch(identity(1))


@pytest.mark.parametrize("is_unchanged", [True, False])
def test_under_a_new_producer_id_the_record_is_read_again(is_unchanged: bool) -> None:
    """The old one may have expired, and another instance may have committed since."""
    committer = started()
    at_end_txn(committer)
    ready = committer.step(Ended(None))
    assert isinstance(ready, Ready) and ready.record is not None
    committer.batch(replace(BATCH, batch_id=1, start=(10,), end=(20,)))
    other = ProducerIdAndEpoch(ProducerId(2), ProducerEpoch(0))
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
    assert isinstance(effect, Restart) and "task died" in effect.reason


def test_a_failed_stateful_batch_ends_the_query() -> None:
    committer = started(replace(QUERY, stateful=True))
    committer.batch(BATCH)
    committer.step(Failed("executor lost"))
    assert isinstance(committer.step(Ended(identity(1))), Restart)


def test_no_decision_follows_an_unanswered_commit() -> None:
    committer = started()
    at_end_txn(committer)
    assert isinstance(committer.step(Unclear("timed out")), Restart)


def test_a_fenced_driver_writes_nothing_more_and_names_the_ways_out() -> None:
    committer = started()
    at_end_txn(committer)
    effect = committer.step(Fenced("PRODUCER_FENCED"))
    assert isinstance(effect, Dead)
    assert "transactional.id" in effect.hint and "transaction.timeout.ms" in effect.hint


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


def record_of(batch: Batch, commit_text: str | None = None) -> CommitRecord:
    return CommitRecord(
        transactional_id="t",
        query_id=batch.query_id,
        checkpoint=batch.checkpoint,
        batch_id=batch.batch_id,
        end=batch.end,
        commit_text=commit_text,
    )


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


WRITE = Query(transactional_id="t", query_id=BATCH_WRITES, checkpoint="", is_fresh=False, stateful=False, version=3)


def test_a_batch_write_is_recorded_with_its_version() -> None:
    committer = started(WRITE)
    assert committer.write() == WriteBatch(identity(0))
    effect = committer.step(Written(OUTPUTS))
    assert isinstance(effect, WriteCommitRecord)
    assert (effect.record.query_id, effect.record.batch_id, effect.record.end) == (BATCH_WRITES, 3, ())
    committer.step(Done())
    assert committer.step(Done()) == EndTxn(identity(0), committed=True)
    assert isinstance(committer.step(Ended(identity(1))), Ready)


def test_a_batch_write_that_is_in_already_fences_nobody() -> None:
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
    assert isinstance(committer.step(Ended(identity(1))), Restart)


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


def restarted(held: Held) -> Committer:
    committer = Committer(QUERY, held)
    committer.start()
    return committer


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
    committer.batch(replace(BATCH, batch_id=1, start=(10,), end=(20,)))
    committer.step(Unclear("timed out"))
    assert committer.held == Held(identity(0), is_current=False)
    assert restarted(committer.held).step(RecordRead(None)) == InitProducerId(identity(0))


def test_an_expired_transactional_id_ends_in_a_restart_that_says_so() -> None:
    committer = started()
    committer.batch(BATCH)
    committer.step(Failed("a task failed"))
    effect = committer.step(Expired("INVALID_PRODUCER_ID_MAPPING"))
    assert isinstance(effect, Restart) and "expired" in effect.reason
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
        committer.batch(replace(BATCH, batch_id=1, start=(10,), end=(20,)))
    assert isinstance(committer.step(Unclear("timed out")), Restart)
