"""Offsets of one source partition as offsets of its target partition: a sparse map of runs, exact for every offset.

Source and target count differently: markers, aborted records and compaction leave gaps in the source, and the mirror's
own markers in the target. A *run* is a range without a gap on either side. The map of a partition is the runs of
everything that was copied, in order. It belongs to two topics by their ids (``effects.MapKey``): a topic that was
created again begins another map.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple


class OffsetRun(NamedTuple):
    """``records`` records from ``source`` on are at ``target`` and after. ``records`` 0: where a map begins."""

    source: int
    target: int
    records: int

    @property
    def source_end(self) -> int:
        return self.source + self.records

    @property
    def target_end(self) -> int:
        return self.target + self.records


class InvalidRun(Exception):
    """A run before the end of another one, in the source or in the target."""


@dataclass(frozen=True, slots=True)
class OffsetMap:
    """``runs``: in order of both offsets, at least one."""

    runs: tuple[OffsetRun, ...]

    @staticmethod
    def beginning(source: int, target: int) -> OffsetMap:
        """Nothing is copied: the first record will be one at or after ``source``, at ``target`` or after."""
        return OffsetMap((OffsetRun(source, target, 0),))

    def extended(self, runs: Iterable[OffsetRun]) -> OffsetMap:
        """With what was copied next. Raises InvalidRun."""
        known = list(self.runs)
        for run in runs:
            last = known[-1]
            if run.source < last.source_end or run.target < last.target_end or run.records < 0:
                raise InvalidRun(f"{run} after {last}")
            if last.records and (run.source, run.target) == (last.source_end, last.target_end):
                known[-1] = last._replace(records=last.records + run.records)
            elif run.records:
                known.append(run)
        return replace(self, runs=tuple(known))

    def translate(self, offset: int) -> int | None:
        """The target offset of the first record at or after ``offset``; behind the last record, the offset after it.

        None if the runs that would show it were dropped. The caller ensures that everything below ``offset`` is copied.
        """
        if offset < self.runs[0].source:
            return None
        index = bisect.bisect_right(self.runs, offset, key=lambda run: run.source) - 1
        run = self.runs[index]
        if offset < run.source_end:
            return run.target + offset - run.source
        # In the gap behind a run, the next one has the first record; behind the last there is none yet.
        return self.runs[index + 1].target if index + 1 < len(self.runs) else run.target_end

    def resumes_at(self, target: int, offset: int) -> bool:
        """Whether a reader at ``target`` has the same records before it as one of the source at ``offset``. Between two
        runs of the target lie markers: an offset that was translated at the end of one is as good as the start of the
        next. The caller ensures that everything below ``offset`` is copied, and that ``target`` was translated."""
        translated = self.translate(offset)
        if translated is None:
            return False
        first, last = sorted((translated, target))
        return first == last or not any(
            run.records and run.target < last and run.target_end > first for run in self.runs
        )

    def truncated(self, offset: int) -> OffsetMap:
        """The source was truncated to ``offset``: what it has from there on will be behind all that was copied."""
        kept = (run._replace(records=min(run.records, offset - run.source)) for run in self.runs if run.source < offset)
        return replace(self, runs=(*kept, OffsetRun(offset, self.runs[-1].target_end, 0)))

    def dropped(self, offset: int) -> OffsetMap:
        """Without the runs that only offsets below ``offset`` need."""
        index = bisect.bisect_right(self.runs, offset, key=lambda run: run.source) - 1
        return replace(self, runs=self.runs[max(0, index) :])
