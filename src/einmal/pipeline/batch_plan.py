"""What to do with a micro-batch, from the commit record and the checkpoint. A pure comparison.

Never "batch id <= record's: skip": a fresh checkpoint begins at 0 again, and its data would be lost. A batch is already
in only if query, batch id and end offsets are all the record's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from einmal.pipeline.commit_record import CommitRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A micro-batch as the checkpoint describes it: ``offsets/N-1`` and ``offsets/N``, one JSON value per source.

    ``start`` is None where nothing says where the batch begins: batch 0. (Our source makes it an empty one, so that
    ``offsets/0`` holds the resolved ``startingOffsets``, and a crash in it does not move ``latest``.)
    """

    query_id: str
    checkpoint: str
    batch_id: int
    start: tuple[Any, ...] | None
    end: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Write:
    """The batch is not in: write it."""


@dataclass(frozen=True, slots=True)
class AlreadyIn:
    """The batch was committed by a driver that died before Spark's own commit file."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Neither can be shown to be right. ``reason`` says what disagrees, ``hint`` what to do."""

    reason: str
    hint: str


Plan = Write | AlreadyIn | Refuse

_HINT_ADOPT = (
    "if the output up to the start of this batch is known to be complete, start once with einmal.adopt=true; "
    "otherwise give the pipeline a transactional.id of its own"
)
_HINT_BEHIND = (
    "a stateless pipeline: delete the checkpoint, it then resumes at the commit record's end; "
    "a stateful one: restore the newest checkpoint"
)


def plan_start(
    record: CommitRecord | None, *, query_id: str, checkpoint: str, stateful: bool, adopt: bool
) -> Write | Refuse:
    """Whether this query may take the pipeline's name at all; asked before anything is fenced.

    A name whose record comes from another checkpoint is alive elsewhere for all we know: it is refused, not taken over
    by accident. Another query in the same place means that its checkpoint was deleted.
    """
    if record is None or adopt or query_id == record.query_id:
        return Write()
    if record.checkpoint != checkpoint:
        return Refuse(
            f"transactional.id {record.transactional_id!r} belongs to the query with checkpoint "
            f"{record.checkpoint!r}, which committed batch {record.batch_id}; this one has {checkpoint!r}",
            _HINT_ADOPT,
        )
    if stateful:
        return Refuse(
            f"the checkpoint {checkpoint!r} was deleted or replaced after batch {record.batch_id} was committed: "
            "the state that belongs to the committed output is gone",
            "restore the checkpoint, or start once with einmal.adopt=true to begin with empty state at the commit "
            "record's end",
        )
    return Write()


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
    if batch.start == record.end or adopt:
        return Write()
    return Refuse(
        f"this query begins at {_short(batch.start)}, but batch {record.batch_id} of the query before it was "
        f"committed up to {_short(record.end)}: going on would lose or repeat records",
        _HINT_ADOPT,
    )


def _plan_same_query(record: CommitRecord, batch: Batch, adopt: bool) -> Plan:
    if batch.batch_id == record.batch_id:
        if batch.end == record.end:
            return AlreadyIn()
        return Refuse(
            f"batch {batch.batch_id} was committed up to {_short(record.end)}, but the checkpoint now says "
            f"{_short(batch.end)}",
            _HINT_BEHIND,
        )
    if batch.batch_id < record.batch_id:
        return Refuse(
            f"the checkpoint is at batch {batch.batch_id}, behind the commit record's {record.batch_id}: "
            "it was restored from an older copy, or its files were deleted",
            _HINT_BEHIND,
        )
    if adopt:
        return Write()
    if batch.batch_id > record.batch_id + 1:
        return Refuse(
            f"the checkpoint is at batch {batch.batch_id}, but the last committed batch is {record.batch_id}: "
            "what lies between was never committed",
            _HINT_ADOPT,
        )
    if batch.start is not None and batch.start != record.end:
        return Refuse(
            f"batch {batch.batch_id} begins at {_short(batch.start)}, but batch {record.batch_id} was committed "
            f"up to {_short(record.end)}",
            _HINT_BEHIND,
        )
    return Write()


def _short(offsets: tuple[Any, ...] | None) -> str:
    text = "an unknown position" if offsets is None else ", ".join(map(str, offsets))
    return text if len(text) <= 200 else text[:197] + "..."
