"""The driver's side of one exactly-once pipeline: which step comes next, whatever has just happened.

Theory of operation. A micro-batch is one Kafka transaction. Executors write under the driver's producer id and epoch.
The driver alone begins and ends the transaction, and puts the commit record (which batch this is, up to which offsets)
inside it. So "is batch N committed?" has one answer: its record is visible if and only if its output is.

    start   look at the record  ->  InitProducerId  ->  read the record for certain  ->  finish Spark's commit file
    restart look at the record  ->  abort under the held epoch  ->  InitProducerId(held)  ->  as above
    batch   compare  ->  (new epoch)  ->  write  ->  commit record  ->  source positions  ->  EndTxn

Invariants, and the ordering that keeps them:

1. *A start fences nobody whom the record protects.* The record is compared before InitProducerId: a copied
   transactional.id must not stop the pipeline that owns it. The first read may be out of date, so a refusal needs a
   second, certain read.
2. *The record that a batch is compared with is the last one.* It is read again after InitProducerId, up to the high
   watermark, and every record of ours counts by its own transaction's marker. Before InitProducerId the predecessor's
   last batch may still commit. (The last stable offset would do too, but other pipelines' open transactions in the same
   partition hold it back.)
3. *Every transaction has an epoch of its own.* TV2 returns one with each EndTxn (KIP-890). Before TV2, InitProducerId
   must bump it. Otherwise a late produce request of the previous transaction would be accepted into this one, and this
   one's first batches, with sequences that the broker has seen before, would be acknowledged without being written.
4. *No decision follows an undecided one.* An EndTxn without an answer ends the query, and the next start reads the
   record. To write the batch again could repeat committed output; to continue with the next one could lose it.
5. *Output and state come from the same attempt.* A failed stateless batch is aborted and written again. A stateful
   batch is not: Spark keeps the state of the first successful attempt, which a second attempt's output would not match.
   The query restarts from the state before the batch instead.
6. *The record follows the last acknowledgement of the output, and precedes EndTxn.* A record in a transaction without
   some of the output would prove a batch that is not there.
7. *A restart in the same process cannot fence a newer instance.* The run keeps its identity (KIP-360): the coordinator
   refuses it if a newer instance has started since. The run first aborts under that identity, which only the owner can:
   Apache Kafka compares the epoch of EndTxn, but not that of an InitProducerId that finds a transaction open.

The machine performs nothing. ``start``, ``batch`` and ``write`` begin a conversation (``effects``). Each effect is
answered by one event through ``step``, until the effect is Ready, Refused, RestartQuery or Dead, which need no answer.

Everything that changes the phase is in the table below, and nowhere else. For a phase and an event, the first row
applies whose guard holds (``run_state``); its action (``actions``) updates the state and returns the effect. A pair
without a row is a bug of the driver, and raises. docs/states.md draws the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Final, TypeVar

from einmal.commit_protocol import actions, run_state
from einmal.commit_protocol.batch_plan import Batch
from einmal.commit_protocol.commit_record import CommitRecord
from einmal.commit_protocol.effects import (
    Acknowledged,
    Command,
    Done,
    Effect,
    Ended,
    Event,
    Expired,
    Failed,
    Fenced,
    Finished,
    IdentityGranted,
    NextBatch,
    RecordRead,
    Start,
    Unclear,
    WriteOnce,
)
from einmal.commit_protocol.run_state import Held, Query, RunState, always


class Phase(Enum):
    """Phase of the committer: what it is waiting for."""

    NEW = auto()
    """The start."""
    LOOKING = auto()
    """ReadRecord, before anything is fenced."""
    CONFIRMING = auto()
    """ReadRecord for certain, because what LOOKING found forbids the start."""
    ABORTING_HELD = auto()
    """AbortHeld."""
    FENCING = auto()
    """InitProducerId of the start: it fences whoever had the transactional.id before."""
    READING = auto()
    """ReadRecord for certain, after fencing."""
    FINISHING = auto()
    """FinishSparkCommit."""
    READY = auto()
    """The next batch."""
    BUMPING = auto()
    """InitProducerId for a new epoch."""
    READING_AGAIN = auto()
    """ReadRecord for certain, because the new epoch came with another producer id."""
    WRITING = auto()
    """WriteBatch."""
    RECORDING = auto()
    """WriteCommitRecord."""
    POSITIONING = auto()
    """CommitSourcePositions."""
    COMMITTING = auto()
    """EndTxn(committed=True)."""
    ABORTING = auto()
    """EndTxn(committed=False)."""
    OVER = auto()
    """Nothing: this run has ended."""


Guard = Callable[[RunState, Any], bool]
Action = Callable[[RunState, Any], Effect]
_E = TypeVar("_E")


@dataclass(frozen=True, slots=True)
class Transition:
    """A row of the table."""

    phase: Phase
    event: type
    guard: Guard
    next_phase: Phase
    action: Action


def _on(
    phase: Phase,
    event: type[_E],
    guard: Callable[[RunState, _E], bool],
    next_phase: Phase,
    action: Callable[[RunState, _E], Effect],
) -> Transition:
    """So that the type checker compares the event with what guard and action take."""
    return Transition(phase, event, guard, next_phase, action)


_P = Phase
_a = actions
_g = run_state


def _permitted(phase: Phase) -> tuple[Transition, ...]:
    """The rows of a record that does not forbid the start."""
    return (
        _on(phase, RecordRead, _g.version_is_committed, _P.OVER, _a.find_version_committed),
        _on(phase, RecordRead, _g.held_identity_is_current, _P.ABORTING_HELD, _a.abort_held),
        _on(phase, RecordRead, always, _P.FENCING, _a.acquire),
    )


# fmt: off
_ROWS: Final = (
    #   phase             event            guard                           next phase        action
    _on(_P.NEW,           Start,           always,                         _P.LOOKING,       _a.look),

    _on(_P.LOOKING,       RecordRead,      _g.record_forbids_start,        _P.CONFIRMING,    _a.confirm_refusal),
    *_permitted(_P.LOOKING),
    _on(_P.LOOKING,       Failed,          always,                         _P.OVER,          _a.give_up_start),

    _on(_P.CONFIRMING,    RecordRead,      _g.record_forbids_start,        _P.OVER,          _a.refuse_start),
    *_permitted(_P.CONFIRMING),
    _on(_P.CONFIRMING,    Failed,          always,                         _P.OVER,          _a.believe_refusal),

    _on(_P.ABORTING_HELD, Ended,           always,                         _P.FENCING,       _a.acquire_after_abort),
    _on(_P.ABORTING_HELD, Failed,          always,                         _P.FENCING,       _a.acquire),
    _on(_P.ABORTING_HELD, Expired,         always,                         _P.FENCING,       _a.acquire),

    _on(_P.FENCING,       IdentityGranted, always,                         _P.READING,       _a.read_under_identity),
    _on(_P.FENCING,       Failed,          always,                         _P.OVER,          _a.give_up_start),
    _on(_P.FENCING,       Unclear,         always,                         _P.OVER,          _a.end_without_identity),

    _on(_P.READING,       RecordRead,      _g.record_forbids_start,        _P.OVER,          _a.refuse_start),
    _on(_P.READING,       RecordRead,      _g.version_is_committed,        _P.OVER,          _a.find_version_committed),
    _on(_P.READING,       RecordRead,      _g.checkpoint_is_ahead,         _P.OVER,          _a.refuse_checkpoint),
    _on(_P.READING,       RecordRead,      _g.state_belongs_to_record,     _P.FINISHING,     _a.finish_spark_commit),
    _on(_P.READING,       RecordRead,      always,                         _P.READY,         _a.adopt_record),
    _on(_P.READING,       Failed,          always,                         _P.OVER,          _a.give_up_start),

    _on(_P.FINISHING,     Finished,        always,                         _P.READY,         _a.become_ready),
    _on(_P.FINISHING,     Failed,          always,                         _P.OVER,          _a.refuse_state),

    _on(_P.READY,         NextBatch,       _g.batch_is_repeated,           _P.OVER,          _a.refuse_repetition),
    _on(_P.READY,         NextBatch,       _g.record_forbids_batch,        _P.OVER,          _a.refuse_batch),
    _on(_P.READY,         NextBatch,       _g.stateful_batch_is_committed, _P.OVER,          _a.refuse_replay),
    _on(_P.READY,         NextBatch,       _g.batch_is_committed,          _P.READY,         _a.skip_batch),
    _on(_P.READY,         NextBatch,       _g.epoch_is_used,               _P.BUMPING,       _a.bump_for_batch),
    _on(_P.READY,         NextBatch,       always,                         _P.WRITING,       _a.write_batch),
    _on(_P.READY,         WriteOnce,       _g.epoch_is_used,               _P.BUMPING,       _a.bump_for_batch),
    _on(_P.READY,         WriteOnce,       always,                         _P.WRITING,       _a.write_batch),

    _on(_P.BUMPING,       IdentityGranted, _g.producer_id_is_kept,         _P.WRITING,       _a.write_in_new_epoch),
    _on(_P.BUMPING,       IdentityGranted, always,                         _P.READING_AGAIN, _a.read_again),
    _on(_P.BUMPING,       Failed,          always,                         _P.OVER,          _a.give_up_batch),
    _on(_P.BUMPING,       Unclear,         always,                         _P.OVER,          _a.end_without_identity),

    _on(_P.READING_AGAIN, RecordRead,      _g.record_is_unchanged,         _P.WRITING,       _a.write_under_new_id),
    _on(_P.READING_AGAIN, RecordRead,      always,                         _P.OVER,          _a.end_superseded),
    _on(_P.READING_AGAIN, Failed,          always,                         _P.OVER,          _a.give_up_batch),

    _on(_P.WRITING,       Acknowledged,    always,                         _P.RECORDING,     _a.write_record),
    _on(_P.WRITING,       Failed,          always,                         _P.ABORTING,      _a.abort),
    _on(_P.RECORDING,     Done,            always,                         _P.POSITIONING,   _a.commit_positions),
    _on(_P.RECORDING,     Failed,          always,                         _P.ABORTING,      _a.abort),
    _on(_P.POSITIONING,   Done,            always,                         _P.COMMITTING,    _a.commit),
    _on(_P.POSITIONING,   Failed,          always,                         _P.ABORTING,      _a.abort),

    _on(_P.COMMITTING,    Ended,           always,                         _P.READY,         _a.finish_batch),
    _on(_P.COMMITTING,    Failed,          always,                         _P.ABORTING,      _a.abort),

    _on(_P.ABORTING,      Ended,           _g.query_is_stateful,           _P.OVER,          _a.restart_stateful),
    _on(_P.ABORTING,      Ended,           _g.attempts_are_used_up,        _P.OVER,          _a.give_up_writing),
    _on(_P.ABORTING,      Ended,           _g.epoch_stays_used,            _P.BUMPING,       _a.bump_for_retry),
    _on(_P.ABORTING,      Ended,           always,                         _P.WRITING,       _a.write_again),
)
# fmt: on

WAITING: Final = frozenset(Phase) - {Phase.NEW, Phase.READY, Phase.OVER}
"""The phases in which an effect is being performed."""


def _anywhere(phase: Phase) -> tuple[Transition, ...]:
    """The answers that any effect may get, unless the phase has a row of its own for them."""
    return (
        _on(phase, Fenced, always, Phase.OVER, actions.end_fenced),
        _on(phase, Expired, always, Phase.OVER, actions.end_expired),
        _on(phase, Unclear, always, Phase.OVER, actions.end_undecided),
    )


def _table() -> dict[tuple[Phase, type], tuple[Transition, ...]]:
    table: dict[tuple[Phase, type], tuple[Transition, ...]] = {}
    for row in _ROWS:
        table[row.phase, row.event] = (*table.get((row.phase, row.event), ()), row)
    for phase in Phase:
        if phase in WAITING:
            for row in _anywhere(phase):
                table.setdefault((row.phase, row.event), (row,))
    return table


TRANSITIONS: Final[Mapping[tuple[Phase, type], tuple[Transition, ...]]] = MappingProxyType(_table())
"""By phase and event, in the order in which guards are asked. What is not here is a bug of the driver."""


class Committer:
    """One run of one query. Not reusable after Refused, RestartQuery or Dead."""

    def __init__(self, query: Query, held: Held | None = None) -> None:
        """``held``: by the run before this one, if the query is restarted in the same process."""
        self._phase = Phase.NEW
        self._state = RunState(
            query=query,
            is_restart=held is not None,
            adopt=query.adopt,
            identity=None if held is None else held.identity,
            identity_is_current=held is None or held.is_current,
        )

    @property
    def record(self) -> CommitRecord | None:
        """The last commit record that is known for certain, or was written by this run."""
        return self._state.record

    @property
    def held(self) -> Held | None:
        """The identity of this run, for a restart."""
        state = self._state
        return None if state.identity is None else Held(state.identity, state.identity_is_current)

    def resume_from(self) -> tuple[Any, ...] | None:
        """Where a fresh checkpoint must begin because output up to there is committed; None: at its own options."""
        assert self._phase is Phase.READY, self._phase
        record = self._state.record
        return record.end if record is not None and self._state.query.is_fresh else None

    def start(self) -> Effect:
        """Begin the run."""
        return self._advance(Start())

    def batch(self, batch: Batch) -> Effect:
        """Spark is about to run this batch (``foreachBatch`` was called)."""
        return self._advance(NextBatch(batch))

    def write(self) -> Effect:
        """Write the one batch of a batch write. To be called after a ``start`` that did not find it committed."""
        return self._advance(WriteOnce())

    def step(self, event: Event) -> Effect:
        """The answer to the last effect."""
        return self._advance(event)

    def _advance(self, event: Command | Event) -> Effect:
        for row in TRANSITIONS.get((self._phase, type(event)), ()):
            if row.guard(self._state, event):
                effect = row.action(self._state, event)
                self._phase = row.next_phase
                return effect
        raise AssertionError(f"{event} in {self._phase}")
