"""Actions of the committer in each transition: update the state by the event, and return the next effect.

The phase is not changed here: the table in ``committer`` has the next phase of every action.
"""

from __future__ import annotations

from einmal.commit_protocol.batch_plan import Batch, Refuse
from einmal.commit_protocol.claims import digest
from einmal.commit_protocol.commit_record import CommitRecord
from einmal.commit_protocol.effects import (
    AbortHeld,
    Acknowledged,
    CommitSourcePositions,
    Dead,
    Done,
    Ended,
    EndTxn,
    Expired,
    Failed,
    Fenced,
    Finished,
    FinishSparkCommit,
    IdentityGranted,
    InitProducerId,
    NextBatch,
    ReadRecord,
    Ready,
    RecordRead,
    Refused,
    RestartQuery,
    Start,
    Unclear,
    WriteBatch,
    WriteCommitRecord,
    WriteOnce,
)
from einmal.commit_protocol.run_state import RunState
from einmal.types import ProducerIdAndEpoch

# --- the start ----------------------------------------------------------------------------------------------


def look(_state: RunState, _event: Start) -> ReadRecord:
    return ReadRecord(certain=False)


def confirm_refusal(state: RunState, event: RecordRead) -> ReadRecord:
    plan = state.plan_of_start(event.record)
    assert isinstance(plan, Refuse)
    state.refusal = plan
    return ReadRecord(certain=True)


def refuse_start(state: RunState, event: RecordRead) -> Refused | Dead:
    plan = state.plan_of_start(event.record)
    assert isinstance(plan, Refuse)
    return _refused_start(state, plan)


def believe_refusal(state: RunState, _event: Failed) -> Refused | Dead:
    """Another driver's transaction is open: nothing contradicts the first read."""
    assert state.refusal is not None
    return _refused_start(state, state.refusal)


def _refused_start(state: RunState, refusal: Refuse) -> Refused | Dead:
    # A run that restarts owned the record: whoever has changed it since has superseded this process.
    return (Dead if state.is_restart else Refused)(refusal.reason, refusal.hint)


def find_version_committed(_state: RunState, event: RecordRead) -> Ready:
    """Nobody is fenced for it: a later version may be under way."""
    return Ready(event.record, already_in=True)


def abort_held(state: RunState, _event: RecordRead) -> AbortHeld:
    return AbortHeld(_identity(state))


def acquire(state: RunState, _event: RecordRead | Failed | Expired) -> InitProducerId:
    return InitProducerId(state.identity)


def acquire_after_abort(state: RunState, event: Ended) -> InitProducerId:
    state.identity = event.next_identity or state.identity
    return InitProducerId(state.identity)


def read_under_identity(state: RunState, event: IdentityGranted) -> ReadRecord:
    state.identity, state.identity_is_current = event.identity, True
    return ReadRecord(certain=True)


def refuse_checkpoint(state: RunState, event: RecordRead) -> Refused:
    plan = state.plan_of_checkpoint(event.record)
    assert isinstance(plan, Refuse)
    return Refused(plan.reason, plan.hint)


def finish_spark_commit(state: RunState, event: RecordRead) -> FinishSparkCommit:
    assert event.record is not None
    state.record = event.record
    return FinishSparkCommit(event.record)


def adopt_record(state: RunState, event: RecordRead) -> Ready:
    state.record = event.record
    return Ready(state.record)


def become_ready(state: RunState, _event: Finished) -> Ready:
    return Ready(state.record)


def refuse_state(_state: RunState, event: Failed) -> Refused:
    return Refused(event.reason, "restore the newest checkpoint; state and committed output do not agree")


def give_up_start(_state: RunState, event: Failed) -> RestartQuery:
    return RestartQuery(event.reason, "nothing was written")


# --- a batch ------------------------------------------------------------------------------------------------


def refuse_repetition(_state: RunState, event: NextBatch) -> Refused:
    return Refused(
        f"batch {event.batch.batch_id} is written a second time in one foreachBatch, which holds one transaction",
        "write all outputs of a batch through one call, with a topic column",
    )


def refuse_batch(state: RunState, event: NextBatch) -> Refused:
    plan = state.plan_of_batch(event.batch)
    assert isinstance(plan, Refuse)
    return Refused(plan.reason, plan.hint)


def refuse_replay(_state: RunState, event: NextBatch) -> Refused:
    return Refused(
        f"batch {event.batch.batch_id} is already committed, but Spark runs it again: its state would not be that of "
        "the committed output",
        "restart the query: the start finishes the checkpoint from the commit record",
    )


def skip_batch(state: RunState, _event: NextBatch) -> Ready:
    return Ready(state.record, already_in=True)


def bump_for_batch(state: RunState, event: NextBatch | WriteOnce) -> InitProducerId:
    _begin(state, event)
    return InitProducerId(_identity(state))


def write_batch(state: RunState, event: NextBatch | WriteOnce) -> WriteBatch:
    _begin(state, event)
    return _attempt(state)


def write_in_new_epoch(state: RunState, event: IdentityGranted) -> WriteBatch:
    _take_epoch(state, event)
    return _attempt(state)


def read_again(state: RunState, event: IdentityGranted) -> ReadRecord:
    """The epochs ran out, or the id had expired: another instance may have come and gone since.

    Below TV2 InitProducerId grants a new producer id silently after the transactional.id has expired.
    """
    _take_epoch(state, event)
    return ReadRecord(certain=True)


def write_under_new_id(state: RunState, _event: RecordRead) -> WriteBatch:
    return _attempt(state)


def end_superseded(state: RunState, event: RecordRead) -> Dead:
    return Dead(
        f"the commit record is no longer this driver's: {state.record} has become {event.record}",
        "another instance has run under this transactional.id since: use one per pipeline",
    )


def give_up_batch(_state: RunState, event: Failed) -> RestartQuery:
    return RestartQuery(event.reason, "nothing of this batch was written")


def write_record(state: RunState, event: Acknowledged) -> WriteCommitRecord:
    batch = _batch(state)
    assert (event.commit_text is not None) == state.query.stateful
    state.candidate = CommitRecord(
        transactional_id=state.query.transactional_id,
        query_id=batch.query_id,
        checkpoint=batch.checkpoint,
        batch_id=batch.batch_id,
        end=batch.end if event.end is None else event.end,
        records=sum(output.count for output in event.outputs),
        digest=digest(event.outputs),
        commit_text=event.commit_text,
        run=batch.run,
    )
    return WriteCommitRecord(_identity(state), state.candidate)


def commit_positions(state: RunState, _event: Done) -> CommitSourcePositions:
    return CommitSourcePositions(_identity(state), _batch(state).end)


def commit(state: RunState, _event: Done) -> EndTxn:
    candidate = state.candidate
    assert candidate is not None, "a transaction without its record would be output of which nobody knows the batch"
    assert candidate.batch_id == _batch(state).batch_id, "a record proves the output that is in its transaction"
    return EndTxn(_identity(state), committed=True)


def finish_batch(state: RunState, event: Ended) -> Ready:
    assert state.candidate is not None, "what is committed has a record, which the next batch is compared with"
    state.use_epoch_of(event.next_identity)
    state.record, state.candidate = state.candidate, None
    state.written_batch_id = _batch(state).batch_id
    state.adopt = False
    return Ready(state.record)


def abort(state: RunState, event: Failed) -> EndTxn:
    if event.will_again:
        state.attempts = state.query.attempts
    state.failure = event.reason
    return EndTxn(_identity(state), committed=False)


def restart_stateful(state: RunState, event: Ended) -> RestartQuery:
    state.use_epoch_of(event.next_identity)
    return RestartQuery(
        f"the batch was aborted: {state.failure}",
        "a stateful batch is not written again in place: restart the query, it replays the batch from the state before "
        "it",
    )


def give_up_writing(state: RunState, event: Ended) -> RestartQuery:
    state.use_epoch_of(event.next_identity)
    return RestartQuery(
        f"the batch was aborted: {state.failure}",
        "fix the cause, then start the query again: nothing of the batch is visible to read_committed",
    )


def bump_for_retry(state: RunState, _event: Ended) -> InitProducerId:
    return InitProducerId(_identity(state))


def write_again(state: RunState, event: Ended) -> WriteBatch:
    state.use_epoch_of(event.next_identity)
    return _attempt(state)


# --- answers that may come to any effect --------------------------------------------------------------------


def end_fenced(_state: RunState, event: Fenced) -> Dead:
    # Never InitProducerId: on Apache Kafka one under any earlier epoch of the producer id aborts the transaction that
    # the successor has open.
    return Dead(event.reason, event.hint)


def end_expired(state: RunState, event: Expired) -> RestartQuery:
    return RestartQuery(
        f"the transactional.id {state.query.transactional_id!r} has expired: {event.reason}",
        "it was idle for longer than the brokers' transactional.id.expiration.ms; the restart acquires it "
        "again, unless another instance has",
    )


def end_undecided(_state: RunState, event: Unclear) -> RestartQuery:
    return RestartQuery(event.reason, "the next start reads the outcome from the commit record")


def end_without_identity(state: RunState, event: Unclear) -> RestartQuery:
    """The coordinator may have bumped the epoch: nothing can be aborted under the old one."""
    state.identity_is_current = False
    return end_undecided(state, event)


# --- shared -------------------------------------------------------------------------------------------------


def _begin(state: RunState, event: NextBatch | WriteOnce) -> None:
    assert state.candidate is None, "no batch begins while the outcome of another one's record is open"
    state.batch = event.batch if isinstance(event, NextBatch) else _only_batch(state)
    state.attempts = 0


def _only_batch(state: RunState) -> Batch:
    query = state.query
    assert query.version is not None
    return Batch(query_id=query.query_id, checkpoint=query.checkpoint, batch_id=query.version, start=None, end=())


def _take_epoch(state: RunState, event: IdentityGranted) -> None:
    assert event.identity != state.identity, "every transaction has an epoch of its own"
    state.identity = event.identity
    state.epoch_is_used = False


def _attempt(state: RunState) -> WriteBatch:
    assert not state.epoch_is_used, "a late write of another transaction would be accepted into this one"
    state.attempts += 1
    state.epoch_is_used = True
    return WriteBatch(_identity(state))


def _identity(state: RunState) -> ProducerIdAndEpoch:
    assert state.identity is not None
    return state.identity


def _batch(state: RunState) -> Batch:
    assert state.batch is not None
    return state.batch
