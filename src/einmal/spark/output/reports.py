"""The report of a finished micro-batch: counts, the phases of its time, how far it went. Pure.

Counts of offsets include those of markers and aborted records, as everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from einmal.commit_protocol.positions import topics_in
from einmal.commit_protocol.source_offsets import SourcePosition, first_offsets, from_json
from einmal.types import Offset, TopicPartition

PLANNING: Final = "planning"
READING: Final = "reading"
WRITING: Final = "writing"
RECORD: Final = "record"
COMMIT: Final = "commit"
CHECKPOINT: Final = "checkpoint"
OTHER: Final = "other"
PHASES: Final = (PLANNING, READING, WRITING, RECORD, COMMIT, CHECKPOINT, OTHER)
"""``planning``: Spark asks the sources and plans. ``reading``: its job until a task claims the first partition; it has
then read and encoded its first piece, after all shuffles and state. ``writing``: until all tasks are done. ``record``:
the commit record. ``commit``: source positions and EndTxn. ``checkpoint``: Spark's ``offsets`` and ``commits`` files.
Without transactions ``reading`` is the whole job."""

WRITTEN: Final = "written"
ALREADY_IN: Final = "already_in"
SKIPPED: Final = "skipped"
OUTCOMES: Final = (WRITTEN, ALREADY_IN, SKIPPED)

Offsets = tuple[Any, ...]
"""One value per source, as in Spark's offset log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """``input``: offsets gone over, else the rows that Spark has counted, else None. ``records``: written by the batch.
    ``lost``: offsets of its sources that were deleted before they were read, as far as their number is known.
    ``phases_ms``: see ``PHASES``; without Spark's phases if it has not reported them, and ``duration_ms`` is then
    without them, too. ``aborts``: transactions of the batch before the one that was committed."""

    pipeline: str
    batch_id: int
    outcome: str
    input: int | None
    records: int
    duration_ms: int
    phases_ms: Mapping[str, int]
    aborts: int
    start: Offsets | None
    end: Offsets | None
    lost: int = 0

    @property
    def is_empty_beginning(self) -> bool:
        """Batch 0 of our source: it holds no rows, so that where the query begins is known before its first row."""
        return self.batch_id == 0 and self.outcome == WRITTEN and self.records == 0 and self.input in (0, None)

    def fields(self) -> dict[str, Any]:
        return asdict(self) | {"start": _without_identity(self.start), "end": _without_identity(self.end)}


def _without_identity(offsets: Offsets | None) -> Offsets | None:
    return offsets and tuple(topics_in(offset) if isinstance(offset, dict) else offset for offset in offsets)


def offsets_between(start: Offsets | None, end: Offsets | None) -> int | None:
    """How many offsets a batch went over, in sources that count in offsets; None: not known."""
    if start is None or end is None or len(start) != len(end):
        return None
    total = 0
    for first, last in zip(start, end, strict=True):
        if not isinstance(first, dict) or not isinstance(last, dict):
            return None
        if first == last:
            continue
        after = SourcePosition.from_json(last)
        starts = first_offsets(SourcePosition.from_json(first), after)
        # Where a partition is read from is unknown where an older version planned it as new.
        total += sum(after.offsets[partition] - starts[partition] for partition in after.offsets if partition in starts)
    return total


def lost_between(start: Offsets | None, end: Offsets | None) -> int:
    """Offsets that the batch passed over because their records were gone (failOnDataLoss=false).

    How many records a topic lost that was deleted and created again is unknown: they are not counted.
    """
    lost = 0
    for first, last in zip(start or (), end or (), strict=False):
        if first == last or not isinstance(first, dict) or not isinstance(last, dict):
            continue
        before, after = SourcePosition.from_json(first), SourcePosition.from_json(last)
        for partition, offset in after.starts.items():
            topic_id = before.topic_ids.get(partition.topic)
            if partition in before.offsets and topic_id in (None, after.topic_ids.get(partition.topic)):
                lost += max(0, offset - before.offsets[partition])
    return lost


Ends = tuple[Mapping[TopicPartition, Offset], ...]
"""The ends of a query's sources, one mapping per source."""


def lag_behind(reached: Offsets | None, ends: Ends | None) -> dict[str, int] | None:
    """Offsets between a batch's end and the topics' ends, by topic; None: not known."""
    if reached is None or ends is None or len(reached) != len(ends):
        return None
    lag: dict[str, int] = {}
    for offsets, source_ends in zip(reached, ends, strict=True):
        for partition, offset in from_json(offsets).items():
            # A topic that is gone has no lag. Ends that were asked before the batch was planned can lie behind it.
            if partition in source_ends:
                lag[partition.topic] = lag.get(partition.topic, 0) + max(0, source_ends[partition] - offset)
    return lag
