"""What an owner may do to a pipeline's name from outside, and what it means: reset it, or give it another checkpoint.

Pure: from the record that is there, and where the user wants to be, the record that is to be written, with everything
that follows said in advance. Whether it is done, and the fencing, is somebody else's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from einmal.pipeline.batch_plan import NOBODY, Refuse
from einmal.pipeline.commit_record import CommitRecord
from einmal.pipeline.positions import are_same, offsets_of, recreated, short


@dataclass(frozen=True, slots=True)
class Change:
    """``record``: what the name's record becomes; None: it is deleted. ``says``: what this means, line by line."""

    record: CommitRecord | None
    says: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a checkpoint is. ``query_id`` is None where there is none yet; ``batch_id`` the newest that Spark believes
    done, ``end`` where it ends; ``commit_text``: Spark's file of it, where the query keeps state."""

    checkpoint: str
    query_id: str | None
    batch_id: int | None = None
    end: tuple[Any, ...] | None = None
    commit_text: str | None = None


def plan_reset(transactional_id: str, record: CommitRecord | None, end: tuple[Any, ...] | None) -> Change:
    """Let a new checkpoint begin at ``end``; None: where its own options say."""
    says = [_FENCE]
    if record is not None:
        says.append(f"forget that {_standing(record)} is committed")
    if end is None:
        says.append("a new checkpoint then begins where startingOffsets says, with empty state")
    else:
        says.append(f"a new checkpoint then begins at {short(end)}, with empty state")
        says += _gaps(None if record is None else record.end, end)
    if record is not None and record.checkpoint:
        says.append(
            f"the checkpoint {record.checkpoint} will be refused: delete it, or give the pipeline another place"
        )
    if end is None:
        return Change(None, tuple(says))
    return Change(_of_nobody(transactional_id, end), tuple(says))


def plan_adopt(transactional_id: str, record: CommitRecord | None, standing: Standing) -> Change | Refuse:
    """Let the query of this checkpoint go on under the name, from where the checkpoint is."""
    says = [_FENCE]
    if standing.query_id is None or standing.batch_id is None or standing.end is None:
        if record is None:
            return Refuse(
                f"{standing.checkpoint} has no finished batch, and {transactional_id!r} has no commit record: there is "
                "nothing to go on from",
                "start the pipeline as a new one",
            )
        says.append(f"{standing.checkpoint} has no finished batch: it begins at {short(record.end)}, with empty state")
        return Change(_of_nobody(transactional_id, record.end), tuple(says))
    adopted = CommitRecord(
        transactional_id=transactional_id,
        query_id=standing.query_id,
        checkpoint=standing.checkpoint,
        batch_id=standing.batch_id,
        end=standing.end,
        commit_text=standing.commit_text,
    )
    if record is not None and _same_place(record, adopted):
        return Refuse(
            f"{transactional_id!r} is at batch {record.batch_id} of this checkpoint already", "start the pipeline"
        )
    if record is None:
        says.append(f"take it that everything up to {short(standing.end)} has been written")
    else:
        says.append(f"forget that {_standing(record)} is committed")
        says += _gaps(record.end, standing.end)
    says.append(f"go on with batch {standing.batch_id + 1} of {standing.checkpoint}, from {short(standing.end)}")
    return Change(adopted, tuple(says))


_FENCE = "fence whoever runs under this name, and abort what it has open"


def _of_nobody(transactional_id: str, end: tuple[Any, ...]) -> CommitRecord:
    return CommitRecord(transactional_id=transactional_id, query_id=NOBODY, checkpoint="", batch_id=-1, end=end)


def _same_place(record: CommitRecord, adopted: CommitRecord) -> bool:
    def place(each: CommitRecord) -> tuple[Any, ...]:
        return each.query_id, each.checkpoint, each.batch_id

    return place(record) == place(adopted) and are_same(record.end, adopted.end)


def _standing(record: CommitRecord) -> str:
    if record.query_id == NOBODY:
        return f"everything up to {short(record.end)}"
    return f"batch {record.batch_id}, up to {short(record.end)},"


def _gaps(committed: tuple[Any, ...] | None, begin: tuple[Any, ...]) -> Iterator[str]:
    """What is written twice, or never, if output up to ``committed`` goes on at ``begin``."""
    if committed is None or are_same(committed, begin):
        return
    others = recreated(committed, begin)
    if others:
        yield f"{', '.join(others)}: deleted and created again since, so its offsets count anew"
    before, after = offsets_of(committed), offsets_of(begin)
    if before is None or after is None:
        yield f"committed is output up to {short(committed)}: whether records are lost or repeated cannot be seen"
        return
    for place in sorted(before.keys() | after.keys()):
        if place.rpartition("-")[0] in others:
            continue
        if place not in before or place not in after:
            yield f"{place} is in one of the two positions only"
        elif after[place] < before[place]:
            yield f"{place}: offsets {after[place]} to {before[place] - 1} will be written AGAIN"
        elif after[place] > before[place]:
            yield f"{place}: offsets {before[place]} to {after[place] - 1} will NOT be written"
