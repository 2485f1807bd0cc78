"""Plan for a micro-batch, from the commit record and the checkpoint. A pure comparison.

The rule is not "skip if the batch id is at most the record's": a fresh checkpoint begins at 0 again, and its data would
be lost. A batch is committed already only if query, batch id and end offsets are all the record's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from einmal.commit_protocol.commit_record import CommitRecord
from einmal.commit_protocol.positions import are_same, recreated, short

NOBODY: Final = ""
"""The query id of a record that an owner has set: any query that begins at its end may resume from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A micro-batch as the checkpoint describes it: ``offsets/N-1`` and ``offsets/N``, one JSON value per source.

    ``start`` is None where the checkpoint has no position before the batch: batch 0. (Our source makes it empty, so
    that ``offsets/0`` holds the resolved ``startingOffsets``, and a crash in it does not move ``latest``.)
    """

    query_id: str
    checkpoint: str
    batch_id: int
    start: tuple[Any, ...] | None
    end: tuple[Any, ...]
    run: str = ""
    """See ``CommitRecord.run``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStart:
    """The checkpoint of a query that starts. ``next_batch_id``: the batch that Spark runs next. ``others``: where the
    last run on it wrote, if that was under another transactional.id or in another cluster."""

    query_id: str
    checkpoint: str
    next_batch_id: int
    others: str = ""


@dataclass(frozen=True, slots=True)
class Write:
    """The batch is not in: write it."""


@dataclass(frozen=True, slots=True)
class AlreadyIn:
    """A driver committed the batch, and died before it wrote Spark's own commit file."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Neither can be shown to be right. ``reason`` names the contradiction, ``hint`` the way out."""

    reason: str
    hint: str


Plan = Write | AlreadyIn | Refuse

BATCH_WRITES: Final = "batch writes"
"""Stands for the query id in the records of batch writes, which have no query."""

ADOPT_ONCE: Final = "start once with einmal.adopt=true (einmal run -X; .option of a program)"
"""Hint for a pipeline whose output is known to be complete."""
_HINT_ADOPT = (
    "if the output up to the start of this batch is known to be complete: einmal pipeline adopt NAME --checkpoint DIR "
    f"(with --file pipeline.toml, if it writes to a database), or {ADOPT_ONCE}; "
    "otherwise set a transactional.id of its own"
)
_HINT_NO_RECORD = (
    "check transactional.id and the address of the sink (kafka.bootstrap.servers; url or path of a database), and "
    "that its commit records (topic __einmal_commits, table einmal_commits) were not deleted; " + _HINT_ADOPT
)
_HINT_BEHIND = (
    "a stateless pipeline: delete the checkpoint, it then resumes at the commit record's end; "
    "a stateful one: restore the newest checkpoint"
)


def plan_start(record: CommitRecord | None, start: QueryStart, *, stateful: bool, adopt: bool) -> Write | Refuse:
    """Whether this query may acquire the pipeline's transactional.id; asked before anything is fenced, and again after.

    A record of another checkpoint means that the pipeline may be running elsewhere. A copy of a checkpoint has the same
    query id as its original, so only the location distinguishes them. Another query in the same location means that its
    checkpoint was deleted.
    """
    if adopt:
        return Write()
    if record is None:
        return _plan_start_without_record(start)
    if record.query_id == NOBODY:
        return Write()
    if record.query_id == BATCH_WRITES:
        return Refuse(
            f"transactional.id {record.transactional_id!r} belongs to batch writes, which committed txnVersion "
            f"{record.batch_id}",
            "set a transactional.id of its own for this pipeline",
        )
    if record.checkpoint != start.checkpoint:
        is_copy = record.query_id == start.query_id
        return Refuse(
            f"transactional.id {record.transactional_id!r} belongs to the query with checkpoint "
            f"{record.checkpoint!r}, which committed batch {record.batch_id}; this one has {start.checkpoint!r}"
            + (", a copy of that checkpoint or its new location" if is_copy else ""),
            _HINT_ADOPT,
        )
    if record.query_id == start.query_id:
        return Write() if stateful else _plan_start_behind(record, start)
    if stateful:
        return Refuse(
            f"the checkpoint {start.checkpoint!r} was deleted or replaced after batch {record.batch_id} was "
            "committed: the state that belongs to the committed output is gone",
            f"restore the checkpoint, or {ADOPT_ONCE} to begin with empty state at the commit record's end",
        )
    return Write()


def _plan_start_without_record(start: QueryStart) -> Write | Refuse:
    if start.next_batch_id > 0:
        return Refuse(
            f"the checkpoint {start.checkpoint!r} is at batch {start.next_batch_id}, but no commit record exists"
            ": earlier batches were not written by this pipeline, or the record was lost",
            _HINT_NO_RECORD,
        )
    if start.others:
        return Refuse(
            f"no commit record exists, and the checkpoint {start.checkpoint!r} was last used {start.others}: its "
            "batch 0 may be committed there",
            _HINT_NO_RECORD,
        )
    return Write()


def _plan_start_behind(record: CommitRecord, start: QueryStart) -> Write | Refuse:
    """A stateful query is compared when Spark's commit file is finished."""
    if start.next_batch_id < record.batch_id:
        return _behind(record, start.next_batch_id)
    return Write()


def plan_ahead(record: CommitRecord | None, start: QueryStart, *, adopt: bool) -> Write | Refuse:
    """Whether the checkpoint is ahead of the record, which must be read for certain, after fencing: a record whose
    marker is under way is behind a checkpoint that is right."""
    if record is None or adopt or record.query_id != start.query_id:
        return Write()
    if start.next_batch_id > record.batch_id + 1:
        return _ahead(record, start.next_batch_id)
    return Write()


def plan_version(record: CommitRecord | None, version: int) -> Plan:
    """Plan a batch write that has a number. The record knows only the last one that was committed.

    An older number may be in or not: it is never taken for written.
    """
    if record is None:
        return Write()
    if record.query_id != BATCH_WRITES:
        owner = (
            f"a streaming pipeline that begins at {short(record.end)}"
            if record.query_id == NOBODY
            else f"the query with checkpoint {record.checkpoint!r}, which committed batch {record.batch_id}"
        )
        return Refuse(
            f"transactional.id {record.transactional_id!r} belongs to {owner}",
            "set a transactional.id of their own for the batch writes",
        )
    if version == record.batch_id:
        return AlreadyIn()
    if version > record.batch_id:
        return Write()
    return Refuse(
        f"txnVersion {version} of {record.transactional_id!r} comes after {record.batch_id}, the last that was "
        "committed: einmal cannot know whether it was written before",
        "increase txnVersion with every batch; a batch that may run again out of order needs its own transactional.id, "
        f"for example {record.transactional_id}-{version}",
    )


def plan_batch(record: CommitRecord | None, batch: Batch, *, adopt: bool) -> Plan:
    """Compare the record, read for certain after fencing, with the batch that Spark is about to run."""
    if record is None:
        if batch.batch_id == 0 or adopt:
            return Write()
        return Refuse(
            f"the checkpoint is at batch {batch.batch_id}, but no commit record exists: "
            "earlier batches were not written by this pipeline, or the record was lost",
            _HINT_ADOPT,
        )
    if batch.query_id == record.query_id:
        return _plan_same_query(record, batch, adopt)
    if are_same(batch.start, record.end) or adopt:
        return Write()
    if record.query_id == NOBODY:
        return Refuse(
            f"the pipeline was reset to {short(record.end)}, but this checkpoint resumes at {short(batch.start)}",
            "delete the checkpoint: a new one of write_stream begins where the pipeline was reset to; one of "
            'writeStream.format("einmal") begins at startingOffsets: set it to that position',
        )
    return Refuse(
        f"this query begins at {short(batch.start)}, but batch {record.batch_id} of the query before it was "
        f"committed up to {short(record.end)}{_in_others(record, batch.start)}: to resume would lose or repeat records",
        _HINT_ADOPT,
    )


def _plan_same_query(record: CommitRecord, batch: Batch, adopt: bool) -> Plan:
    if batch.batch_id == record.batch_id:
        if are_same(batch.end, record.end):
            return AlreadyIn()
        return Refuse(
            f"batch {batch.batch_id} was committed up to {short(record.end)}, but the checkpoint now has "
            f"{short(batch.end)}{_in_others(record, batch.end)}",
            _HINT_BEHIND,
        )
    if batch.batch_id < record.batch_id:
        return _behind(record, batch.batch_id)
    if adopt:
        return Write()
    if batch.batch_id > record.batch_id + 1:
        return _ahead(record, batch.batch_id)
    if batch.start is not None and not are_same(batch.start, record.end):
        return Refuse(
            f"batch {batch.batch_id} begins at {short(batch.start)}, but batch {record.batch_id} was committed "
            f"up to {short(record.end)}{_in_others(record, batch.start)}",
            _HINT_BEHIND,
        )
    return Write()


def _behind(record: CommitRecord, batch_id: int) -> Refuse:
    return Refuse(
        f"the checkpoint is at batch {batch_id}, behind the commit record's {record.batch_id}: "
        "it was restored from an older copy, or its files were deleted",
        _HINT_BEHIND,
    )


def _ahead(record: CommitRecord, batch_id: int) -> Refuse:
    return Refuse(
        f"the checkpoint is at batch {batch_id}, but the last committed batch is {record.batch_id}: "
        "the batches between them were never committed",
        _HINT_ADOPT,
    )


def _in_others(record: CommitRecord, position: tuple[Any, ...] | None) -> str:
    """Offsets may be equal, and be offsets in other topics."""
    topics = recreated(record.end, position)
    return f" ({', '.join(topics)}: deleted and created again in between)" if topics else ""
