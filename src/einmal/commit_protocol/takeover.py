"""Changes of a pipeline's commit record by its owner, and their consequences: reset it, or adopt another checkpoint.

Pure: computes the new record from the existing record and the wanted position, and lists the consequences. The caller
fences and writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from einmal.commit_protocol.batch_plan import NOBODY, Refuse
from einmal.commit_protocol.commit_record import CommitRecord
from einmal.commit_protocol.positions import are_same, offsets_of, recreated, short


@dataclass(frozen=True, slots=True)
class RecordChange:
    """``record``: the new commit record; None: it is deleted. ``consequences``: line by line."""

    record: CommitRecord | None
    consequences: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The position of a checkpoint. ``query_id`` is None before the first start; ``batch_id``: the newest batch that
    Spark considers done, ``end``: its end; ``commit_text``: Spark's commit file of it, if the query keeps state."""

    checkpoint: str
    query_id: str | None
    batch_id: int | None = None
    end: tuple[Any, ...] | None = None
    commit_text: str | None = None


def plan_reset(transactional_id: str, record: CommitRecord | None, end: tuple[Any, ...] | None) -> RecordChange:
    """Let a new checkpoint begin at ``end``; None: at its own starting options."""
    lines = _fencing(record)
    if record is not None:
        lines.append(f"forget that {_standing(record)} is committed")
    if end is None:
        lines.append("a new checkpoint then begins at its startingOffsets, with empty state")
    else:
        lines.append(f"a new checkpoint then begins at {short(end)}, with empty state")
        lines += _gaps(None if record is None else record.end, end)
    if record is not None and record.checkpoint:
        lines.append(
            f"the checkpoint {record.checkpoint} will be refused: delete it, or choose another checkpointLocation"
        )
    if end is None:
        return RecordChange(None, tuple(lines))
    return RecordChange(_of_nobody(transactional_id, end), tuple(lines))


def plan_adopt(transactional_id: str, record: CommitRecord | None, standing: Standing) -> RecordChange | Refuse:
    """Let the query of this checkpoint resume under the name, from the position of the checkpoint."""
    lines = _fencing(record)
    if standing.query_id is None or standing.batch_id is None or standing.end is None:
        if record is None:
            return Refuse(
                f"{standing.checkpoint} has no finished batch, and {transactional_id!r} has no commit record: there is "
                "no position to resume from",
                "start the pipeline as a new one",
            )
        lines.append(f"{standing.checkpoint} has no finished batch: it begins at {short(record.end)}, with empty state")
        return RecordChange(_of_nobody(transactional_id, record.end), tuple(lines))
    adopted = CommitRecord(
        transactional_id=transactional_id,
        query_id=standing.query_id,
        checkpoint=standing.checkpoint,
        batch_id=standing.batch_id,
        end=standing.end,
        commit_text=standing.commit_text,
    )
    if record is not None and _same_batch(record, adopted):
        return Refuse(
            f"{transactional_id!r} is at batch {record.batch_id} of this checkpoint already", "start the pipeline"
        )
    if record is None:
        lines.append(f"assume that all output up to {short(standing.end)} has been written")
    else:
        lines.append(f"forget that {_standing(record)} is committed")
        lines += _gaps(record.end, standing.end)
    lines.append(f"resume with batch {standing.batch_id + 1} of {standing.checkpoint}, from {short(standing.end)}")
    return RecordChange(adopted, tuple(lines))


def _fencing(record: CommitRecord | None) -> list[str]:
    lines = ["fence the instance that runs under this name, and abort its open transaction"]
    if record is not None and record.prepared:
        lines.append(f"commit transaction {record.prepared} in the topics, as the database has, if it is still open")
    return lines


def _of_nobody(transactional_id: str, end: tuple[Any, ...]) -> CommitRecord:
    return CommitRecord(transactional_id=transactional_id, query_id=NOBODY, checkpoint="", batch_id=-1, end=end)


def _same_batch(record: CommitRecord, adopted: CommitRecord) -> bool:
    def batch_of(commit_record: CommitRecord) -> tuple[Any, ...]:
        return commit_record.query_id, commit_record.checkpoint, commit_record.batch_id

    return batch_of(record) == batch_of(adopted) and are_same(record.end, adopted.end)


def _standing(record: CommitRecord) -> str:
    if record.query_id == NOBODY:
        return f"everything up to {short(record.end)}"
    return f"batch {record.batch_id}, up to {short(record.end)},"


def _gaps(committed: tuple[Any, ...] | None, begin: tuple[Any, ...]) -> Iterator[str]:
    """Yield what is written twice, or never, if output up to ``committed`` resumes at ``begin``."""
    if committed is None or are_same(committed, begin):
        return
    others = recreated(committed, begin)
    if others:
        yield f"{', '.join(others)}: deleted and created again since, so its offsets count anew"
    before, after = offsets_of(committed), offsets_of(begin)
    if before is None or after is None:
        yield f"committed is output up to {short(committed)}: whether records are lost or repeated cannot be seen"
        return
    for partition in sorted(before.keys() | after.keys()):
        if partition.rpartition("-")[0] in others:
            continue
        if partition not in before or partition not in after:
            yield f"{partition} is in one of the two positions only"
        elif after[partition] < before[partition]:
            yield f"{partition}: offsets {after[partition]} to {before[partition] - 1} will be written AGAIN"
        elif after[partition] > before[partition]:
            yield f"{partition}: offsets {before[partition]} to {after[partition] - 1} will NOT be written"
