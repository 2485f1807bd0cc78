"""State of one run of the committer, and the guards that choose between its transitions.

A guard answers from the state and the event alone, and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from einmal.commit_protocol.batch_plan import (
    AlreadyIn,
    Batch,
    Plan,
    QueryStart,
    Refuse,
    plan_ahead,
    plan_batch,
    plan_start,
    plan_version,
)
from einmal.commit_protocol.commit_record import CommitRecord
from einmal.commit_protocol.effects import Ended, IdentityGranted, NextBatch, RecordRead
from einmal.types import ProducerIdAndEpoch

WRITE_ATTEMPTS_MAX: Final = 4
"""Attempts to write a stateless batch: as many as Spark makes for a task (spark.task.maxFailures)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Facts that are known when the query starts. ``query_id`` as in the checkpoint's ``metadata``; ``is_fresh``: the
    checkpoint has no batch yet. ``next_batch_id`` and ``others``: see ``QueryStart``. ``version``: not a query at all,
    but one batch write with this number. ``attempts``: to write a batch, without a restart."""

    transactional_id: str
    query_id: str
    checkpoint: str
    is_fresh: bool
    stateful: bool
    next_batch_id: int = 0
    others: str = ""
    adopt: bool = False
    version: int | None = None
    attempts: int = WRITE_ATTEMPTS_MAX

    @property
    def start(self) -> QueryStart:
        return QueryStart(
            query_id=self.query_id,
            checkpoint=self.checkpoint,
            next_batch_id=self.next_batch_id,
            others=self.others,
        )


@dataclass(frozen=True, slots=True)
class Held:
    """Identity that a run leaves to the next run in the same process. ``is_current`` is False where an InitProducerId
    was not answered: the epoch may have been bumped, and no transaction is open."""

    identity: ProducerIdAndEpoch
    is_current: bool = True


@dataclass(slots=True, kw_only=True)
class RunState:
    """The committer's memory, its phase aside."""

    query: Query
    is_restart: bool
    """The run before this one was in the same process."""
    adopt: bool
    """Until the first commit the owner vouches for the record."""
    identity: ProducerIdAndEpoch | None
    identity_is_current: bool
    epoch_is_used: bool = False
    """A transaction was begun under this epoch, so the next one needs another."""
    record: CommitRecord | None = None
    """The last commit record that was read for certain, or written by this run."""
    refusal: Refuse | None = None
    """By a record that was not read for certain."""
    batch: Batch | None = None
    attempts: int = 0
    failure: str = ""
    """Why the batch is being aborted."""
    candidate: CommitRecord | None = None
    """The record in the open transaction."""
    written_batch_id: int | None = None

    def plan_of_start(self, record: CommitRecord | None) -> Plan:
        if self.query.version is not None:
            return plan_version(record, self.query.version)
        return plan_start(record, self.query.start, stateful=self.query.stateful, adopt=self.adopt)

    def plan_of_checkpoint(self, record: CommitRecord | None) -> Plan:
        return plan_ahead(record, self.query.start, adopt=self.adopt)

    def plan_of_batch(self, batch: Batch) -> Plan:
        return plan_batch(self.record, batch, adopt=self.adopt)

    def use_epoch_of(self, next_identity: ProducerIdAndEpoch | None) -> None:
        """The transaction has ended."""
        if next_identity is not None:
            assert next_identity != self.identity, "every transaction has an epoch of its own"
            self.identity = next_identity
            self.epoch_is_used = False


# --- guards -------------------------------------------------------------------------------------------------


def always(_state: RunState, _event: object) -> bool:
    return True


def record_forbids_start(state: RunState, event: RecordRead) -> bool:
    return isinstance(state.plan_of_start(event.record), Refuse)


def version_is_committed(state: RunState, event: RecordRead) -> bool:
    return isinstance(state.plan_of_start(event.record), AlreadyIn)


def held_identity_is_current(state: RunState, _event: object) -> bool:
    return state.identity is not None and state.identity_is_current


def checkpoint_is_ahead(state: RunState, event: RecordRead) -> bool:
    return state.query.version is None and isinstance(state.plan_of_checkpoint(event.record), Refuse)


def state_belongs_to_record(state: RunState, event: RecordRead) -> bool:
    """The record has the commit file of this stateful query's last batch."""
    record = event.record
    is_own = record is not None and record.query_id == state.query.query_id
    return state.query.stateful and is_own and record is not None and bool(record.commit_text)


def batch_is_repeated(state: RunState, event: NextBatch) -> bool:
    return state.written_batch_id == event.batch.batch_id


def record_forbids_batch(state: RunState, event: NextBatch) -> bool:
    return isinstance(state.plan_of_batch(event.batch), Refuse)


def batch_is_committed(state: RunState, event: NextBatch) -> bool:
    return isinstance(state.plan_of_batch(event.batch), AlreadyIn)


def stateful_batch_is_committed(state: RunState, event: NextBatch) -> bool:
    return state.query.stateful and batch_is_committed(state, event)


def epoch_is_used(state: RunState, _event: object) -> bool:
    return state.epoch_is_used


def epoch_stays_used(state: RunState, event: Ended) -> bool:
    return state.epoch_is_used and event.next_identity is None


def producer_id_is_kept(state: RunState, event: IdentityGranted) -> bool:
    return state.identity is not None and event.identity.producer_id == state.identity.producer_id


def record_is_unchanged(state: RunState, event: RecordRead) -> bool:
    return event.record == state.record


def query_is_stateful(state: RunState, _event: object) -> bool:
    return state.query.stateful


def attempts_are_used_up(state: RunState, _event: object) -> bool:
    return state.attempts >= state.query.attempts
