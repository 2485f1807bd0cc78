"""Claims about the committer's table: every pair of phase and event, permitted or not, and every row of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import get_args

import pytest

from einmal.commit_protocol.commit_record import CommitRecord
from einmal.commit_protocol.committer import TRANSITIONS, Committer, Phase, Transition
from einmal.commit_protocol.effects import (
    AbortHeld,
    Acknowledged,
    Command,
    CommitSourcePositions,
    Dead,
    Done,
    Effect,
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
from einmal.commit_protocol.run_state import WRITE_ATTEMPTS_MAX, Held, always
from tests.commit_protocol.committers import (
    BATCH,
    FOLLOWING,
    OUTPUTS,
    QUERY,
    WRITE,
    at_end_txn,
    committed_under_tv1,
    identity,
    record_of,
    restarted,
    started,
)
from tests.suite.cases import each_case

COPIED = record_of(replace(BATCH, query_id="alive", checkpoint="elsewhere"))
"""Forbids the start."""
VERSION_3 = record_of(replace(BATCH, query_id=WRITE.query_id, checkpoint="", batch_id=3))
STATEFUL = replace(QUERY, stateful=True, is_fresh=False)
COMMITTED_STATE = record_of(BATCH, "v1\n{}")

EVENTS: tuple[Command | Event, ...] = (
    Start(),
    NextBatch(BATCH),
    WriteOnce(),
    RecordRead(None),
    IdentityGranted(identity(7)),
    Finished(),
    Acknowledged(OUTPUTS),
    Done(),
    Ended(identity(8)),
    Failed("failed"),
    Fenced("fenced"),
    Expired("expired"),
    Unclear("unclear"),
)


# --- a committer in each phase ------------------------------------------------------------------------------


def new() -> Committer:
    return Committer(QUERY)


def looking() -> Committer:
    committer = new()
    committer.start()
    return committer


def confirming() -> Committer:
    committer = looking()
    committer.step(RecordRead(COPIED))
    return committer


def aborting_held() -> Committer:
    committer = restarted(Held(identity(4)))
    committer.step(RecordRead(None))
    return committer


def fencing() -> Committer:
    committer = looking()
    committer.step(RecordRead(None))
    return committer


def reading() -> Committer:
    committer = fencing()
    committer.step(IdentityGranted(identity(0)))
    return committer


def finishing() -> Committer:
    committer = Committer(STATEFUL)
    committer.start()
    committer.step(RecordRead(COMMITTED_STATE))
    committer.step(IdentityGranted(identity(0)))
    committer.step(RecordRead(COMMITTED_STATE))
    return committer


def bumping() -> Committer:
    committer = committed_under_tv1()
    committer.batch(FOLLOWING)
    return committer


def reading_again() -> Committer:
    committer = bumping()
    committer.step(IdentityGranted(identity(0, producer_id=2)))
    return committer


def writing() -> Committer:
    committer = started()
    committer.batch(BATCH)
    return committer


def recording() -> Committer:
    committer = writing()
    committer.step(Acknowledged(OUTPUTS))
    return committer


def positioning() -> Committer:
    committer = recording()
    committer.step(Done())
    return committer


def committing() -> Committer:
    committer = started()
    at_end_txn(committer)
    return committer


def aborting() -> Committer:
    committer = writing()
    committer.step(Failed("a task failed"))
    return committer


def over() -> Committer:
    committer = writing()
    committer.step(Fenced("fenced"))
    return committer


IN_PHASE: dict[Phase, Callable[[], Committer]] = {
    Phase.NEW: new,
    Phase.LOOKING: looking,
    Phase.CONFIRMING: confirming,
    Phase.ABORTING_HELD: aborting_held,
    Phase.FENCING: fencing,
    Phase.READING: reading,
    Phase.FINISHING: finishing,
    Phase.READY: started,
    Phase.BUMPING: bumping,
    Phase.READING_AGAIN: reading_again,
    Phase.WRITING: writing,
    Phase.RECORDING: recording,
    Phase.POSITIONING: positioning,
    Phase.COMMITTING: committing,
    Phase.ABORTING: aborting,
    Phase.OVER: over,
}

Outcome = tuple[Phase, type]
ENDS: dict[type, Outcome] = {
    Fenced: (Phase.OVER, Dead),
    Expired: (Phase.OVER, RestartQuery),
    Unclear: (Phase.OVER, RestartQuery),
}
"""What these events come to wherever an effect is being performed."""
EXPECTED: dict[Phase, dict[type, Outcome]] = {
    Phase.NEW: {Start: (Phase.LOOKING, ReadRecord)},
    Phase.LOOKING: {
        **ENDS,
        RecordRead: (Phase.FENCING, InitProducerId),
        Failed: (Phase.OVER, RestartQuery),
    },
    Phase.CONFIRMING: {
        **ENDS,
        RecordRead: (Phase.FENCING, InitProducerId),
        Failed: (Phase.OVER, Refused),
    },
    Phase.ABORTING_HELD: {
        **ENDS,
        Ended: (Phase.FENCING, InitProducerId),
        Failed: (Phase.FENCING, InitProducerId),
        Expired: (Phase.FENCING, InitProducerId),
    },
    Phase.FENCING: {
        **ENDS,
        IdentityGranted: (Phase.READING, ReadRecord),
        Failed: (Phase.OVER, RestartQuery),
    },
    Phase.READING: {
        **ENDS,
        RecordRead: (Phase.READY, Ready),
        Failed: (Phase.OVER, RestartQuery),
    },
    Phase.FINISHING: {
        **ENDS,
        Finished: (Phase.READY, Ready),
        Failed: (Phase.OVER, Refused),
    },
    Phase.READY: {
        NextBatch: (Phase.WRITING, WriteBatch),
        WriteOnce: (Phase.WRITING, WriteBatch),
    },
    Phase.BUMPING: {
        **ENDS,
        IdentityGranted: (Phase.WRITING, WriteBatch),
        Failed: (Phase.OVER, RestartQuery),
    },
    Phase.READING_AGAIN: {
        **ENDS,
        RecordRead: (Phase.OVER, Dead),
        Failed: (Phase.OVER, RestartQuery),
    },
    Phase.WRITING: {
        **ENDS,
        Acknowledged: (Phase.RECORDING, WriteCommitRecord),
        Failed: (Phase.ABORTING, EndTxn),
    },
    Phase.RECORDING: {
        **ENDS,
        Done: (Phase.POSITIONING, CommitSourcePositions),
        Failed: (Phase.ABORTING, EndTxn),
    },
    Phase.POSITIONING: {
        **ENDS,
        Done: (Phase.COMMITTING, EndTxn),
        Failed: (Phase.ABORTING, EndTxn),
    },
    Phase.COMMITTING: {
        **ENDS,
        Ended: (Phase.READY, Ready),
        Failed: (Phase.ABORTING, EndTxn),
    },
    Phase.ABORTING: {
        **ENDS,
        Ended: (Phase.WRITING, WriteBatch),
    },
    Phase.OVER: {},
}
"""By phase and event, as ``IN_PHASE`` and ``EVENTS`` have them. A pair that is missing is forbidden."""


def in_phase(phase: Phase, event: Command | Event) -> Committer:
    is_batch_write = phase is Phase.READY and isinstance(event, WriteOnce)
    committer = started(WRITE) if is_batch_write else IN_PHASE[phase]()
    assert committer._phase is phase
    return committer


# --- where a guard decides ----------------------------------------------------------------------------------


def record_again() -> CommitRecord:
    record = committed_under_tv1().record
    assert record is not None
    return record


def looking_for_version() -> Committer:
    committer = Committer(WRITE)
    committer.start()
    return committer


def confirming_version() -> Committer:
    committer = looking_for_version()
    committer.step(RecordRead(replace(VERSION_3, batch_id=4)))
    return committer


def reading_version() -> Committer:
    committer = looking_for_version()
    committer.step(RecordRead(None))
    committer.step(IdentityGranted(identity(0)))
    return committer


def confirming_again() -> Committer:
    committer = restarted(Held(identity(4)))
    committer.step(RecordRead(COPIED))
    return committer


def reading_stateful() -> Committer:
    committer = Committer(STATEFUL)
    committer.start()
    committer.step(RecordRead(COMMITTED_STATE))
    committer.step(IdentityGranted(identity(0)))
    return committer


def reading_ahead() -> Committer:
    """The checkpoint is at batch 2, so batch 1 must be committed."""
    committer = Committer(replace(QUERY, is_fresh=False, next_batch_id=2))
    committer.start()
    committer.step(RecordRead(record_of(FOLLOWING)))
    committer.step(IdentityGranted(identity(0)))
    return committer


def ready_again() -> Committer:
    committer = committing()
    committer.step(Ended(identity(1)))
    return committer


def ready_after_a_version() -> Committer:
    committer = started(WRITE)
    committer.write()
    committer.step(Acknowledged(OUTPUTS))
    committer.step(Done())
    committer.step(Done())
    committer.step(Ended(None))
    return committer


def ready_with_record() -> Committer:
    return started(replace(QUERY, is_fresh=False), record_of(BATCH))


def ready_with_state() -> Committer:
    committer = finishing()
    committer.step(Finished())
    return committer


def aborting_stateful() -> Committer:
    committer = started(replace(QUERY, stateful=True))
    committer.batch(BATCH)
    committer.step(Failed("an executor was lost"))
    return committer


def aborting_for_the_last_time() -> Committer:
    committer = writing()
    committer.step(Failed("a row was refused", will_again=True))
    return committer


GUARDED: list[tuple[Callable[[], Committer], Command | Event, Phase, type]] = [
    (looking, RecordRead(COPIED), Phase.CONFIRMING, ReadRecord),
    (looking_for_version, RecordRead(VERSION_3), Phase.OVER, Ready),
    (lambda: restarted(Held(identity(4))), RecordRead(None), Phase.ABORTING_HELD, AbortHeld),
    (lambda: restarted(Held(identity(4), is_current=False)), RecordRead(None), Phase.FENCING, InitProducerId),
    (confirming, RecordRead(COPIED), Phase.OVER, Refused),
    (confirming_again, RecordRead(COPIED), Phase.OVER, Dead),
    (confirming_again, Failed("another transaction is open"), Phase.OVER, Dead),
    (confirming_again, RecordRead(None), Phase.ABORTING_HELD, AbortHeld),
    (confirming_version, RecordRead(VERSION_3), Phase.OVER, Ready),
    (reading, RecordRead(COPIED), Phase.OVER, Refused),
    (reading_version, RecordRead(VERSION_3), Phase.OVER, Ready),
    (reading_ahead, RecordRead(record_of(BATCH)), Phase.OVER, Refused),
    (reading_stateful, RecordRead(COMMITTED_STATE), Phase.FINISHING, FinishSparkCommit),
    (ready_again, NextBatch(BATCH), Phase.OVER, Refused),
    (ready_with_record, NextBatch(replace(BATCH, end=(11,))), Phase.OVER, Refused),
    (ready_with_state, NextBatch(BATCH), Phase.OVER, Refused),
    (ready_with_record, NextBatch(BATCH), Phase.READY, Ready),
    (committed_under_tv1, NextBatch(FOLLOWING), Phase.BUMPING, InitProducerId),
    (ready_after_a_version, WriteOnce(), Phase.BUMPING, InitProducerId),
    (bumping, IdentityGranted(identity(0, producer_id=2)), Phase.READING_AGAIN, ReadRecord),
    (reading_again, RecordRead(record_again()), Phase.WRITING, WriteBatch),
    (aborting_stateful, Ended(identity(8)), Phase.OVER, RestartQuery),
    (aborting_for_the_last_time, Ended(identity(8)), Phase.OVER, RestartQuery),
    (aborting, Ended(None), Phase.BUMPING, InitProducerId),
]


def chosen(committer: Committer, event: Command | Event) -> Transition:
    rows = TRANSITIONS[committer._phase, type(event)]
    return next(row for row in rows if row.guard(committer._state, event))


def advanced(committer: Committer, event: Command | Event) -> tuple[Phase, Effect]:
    effect = committer._advance(event)
    return committer._phase, effect


# --- the claims ---------------------------------------------------------------------------------------------


def test_every_event_has_an_example() -> None:
    assert {type(event) for event in EVENTS} == {*get_args(Command), *get_args(Event)}


@each_case(("phase", "event"), product(Phase, EVENTS))
def test_every_pair_of_phase_and_event_leads_where_it_should(phase: Phase, event: Command | Event) -> None:
    committer = in_phase(phase, event)
    expected = EXPECTED[phase].get(type(event))
    if expected is not None:
        next_phase, effect = advanced(committer, event)
        assert (next_phase, type(effect)) == expected
        return
    with pytest.raises(AssertionError, match=type(event).__name__):
        committer._advance(event)
    assert committer._phase is phase


@pytest.mark.parametrize(("prepare", "event", "next_phase", "effect"), GUARDED)
def test_a_guard_chooses_between_transitions(
    prepare: Callable[[], Committer], event: Command | Event, next_phase: Phase, effect: type
) -> None:
    reached, answer = advanced(prepare(), event)
    assert (reached, type(answer)) == (next_phase, effect)


def test_every_row_of_the_table_is_taken() -> None:
    taken = {
        chosen(in_phase(phase, event), event) for phase in Phase for event in EVENTS if type(event) in EXPECTED[phase]
    }
    taken |= {chosen(prepare(), event) for prepare, event, *_ in GUARDED}
    assert [row for rows in TRANSITIONS.values() for row in rows if row not in taken] == []


def test_the_last_row_of_every_pair_and_only_that_has_no_guard() -> None:
    for rows in TRANSITIONS.values():
        assert [row.guard is always for row in rows] == [*(False for _ in rows[1:]), True]


def test_attempts_to_write_a_batch_are_counted_anew_for_each_batch() -> None:
    committer = committed_under_tv1()
    committer.batch(FOLLOWING)
    committer.step(IdentityGranted(identity(1)))
    for attempt in range(1, WRITE_ATTEMPTS_MAX):
        committer.step(Failed("a task failed"))
        assert committer.step(Ended(identity(attempt + 1))) == WriteBatch(identity(attempt + 1))
    committer.step(Failed("a task failed"))
    assert isinstance(committer.step(Ended(None)), RestartQuery)


def test_a_read_without_an_answer_does_not_restore_an_identity_that_may_be_old() -> None:
    held = Held(identity(4), is_current=False)
    committer = restarted(held)
    assert isinstance(committer.step(Unclear("timed out")), RestartQuery)
    assert committer.held == held
