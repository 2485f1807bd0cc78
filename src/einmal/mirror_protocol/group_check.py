"""Comparison of what groups have committed at the source with what was translated, once in a run. Pure.

What the mirror passes without translating it, because the target has refused the group, is read by no later run. So the
source is asked which offsets groups have now. An offset was missed if the source had it before some ends of
``__consumer_offsets`` were taken, everything below these ends is copied, the source still has it, and another one was
translated last. It belongs to the mirror's position then: nothing that the group has passed is missing at the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from einmal.mirror_protocol.cut import Cut
from einmal.mirror_protocol.effects import Extent, TargetOffsets
from einmal.mirror_protocol.flow import Flow
from einmal.mirror_protocol.progress import OFFSETS_TOPIC, MirrorProgress
from einmal.types import TopicPartition

GroupOffsets = dict[tuple[str, TopicPartition], int]
"""Offsets in the source, by group and partition."""
_SKIPPED_MAX: Final = 64


@dataclass(slots=True)
class GroupCheck:
    """``is_done``: every offset that was committed before the check is translated, or reported, or is in
    ``MirrorProgress.missed``."""

    is_done: bool = False
    _suspects: GroupOffsets | None = None
    """Offsets that the source had when it was first asked, and that were not translated then."""
    _ends: Cut | None = None
    """Ends of ``__consumer_offsets``, taken afterwards."""
    _refused: frozenset[str] = frozenset()
    _failures: int = 0
    _skipped: int = field(default=0)

    def asks(self, progress: MirrorProgress, refused: Mapping[str, str]) -> bool:
        """Whether the source is to be asked now. ``refused``: groups that the target refuses; one that is tried again
        begins another check."""
        if self._refused - refused.keys():
            self.is_done, self._suspects, self._ends = False, None, None
        self._refused = frozenset(refused)
        if OFFSETS_TOPIC not in progress.topics:
            # No offset is translated, which is reported.
            self.is_done = True
        if self.is_done or (self._suspects is not None and not self._has_passed(progress)):
            return False
        if self._skipped:
            self._skipped -= 1
            return False
        return True

    def fail(self) -> None:
        """The source has not answered: it is asked again, less and less often."""
        self._skipped = min(2**self._failures, _SKIPPED_MAX)
        self._failures += 1

    def take(self, flow: Flow, progress: MirrorProgress, committed: TargetOffsets) -> GroupOffsets:
        """The source has answered. Returns what was missed, after the second answer."""
        self._failures = 0
        found = dict(self._untranslated(flow, progress, committed))
        if self._suspects is None:
            self._suspects, self._ends = found, None
            self.is_done = not found
            return {}
        missed = {
            (group, partition): offset
            for (group, partition), offset in found.items()
            if self._suspects.get((group, partition)) == offset and _can_be_translated(progress, partition, offset)
        }
        self.is_done = True
        return missed

    def see(self, extents: Mapping[TopicPartition, Extent]) -> None:
        """Ends that were taken after the last answer."""
        if self._suspects is not None and self._ends is None:
            self._ends = {each: extent.end for each, extent in extents.items() if each.topic == OFFSETS_TOPIC}

    def _has_passed(self, progress: MirrorProgress) -> bool:
        if self._ends is None:
            return False
        scans = progress.scans
        return all(each in scans and scans[each].has_copied(end) for each, end in self._ends.items())

    def _untranslated(
        self, flow: Flow, progress: MirrorProgress, committed: TargetOffsets
    ) -> list[tuple[tuple[str, TopicPartition], int]]:
        return [
            ((group, partition), offset)
            for group, offsets in sorted(committed.items())
            if flow.groups.accepts(group) and group not in self._refused
            for partition, offset in sorted(offsets.items())
            if _is_of_its_topic(progress, partition) and not _is_translated(progress, group, partition, offset)
        ]


def _is_of_its_topic(progress: MirrorProgress, partition: TopicPartition) -> bool:
    """Whether an offset can only be one of the topic that is copied: not where it was just created again."""
    topic = partition.topic
    return progress.is_copied(partition) and topic not in progress.seen and topic not in progress.recreated


def _can_be_translated(progress: MirrorProgress, partition: TopicPartition, offset: int) -> bool:
    key = progress.key(partition)
    known = progress.maps.get(key) or progress.begun.get(key)
    return known is not None and known.translate(offset) is not None and offset <= progress.scans[partition].scanned


def _is_translated(progress: MirrorProgress, group: str, partition: TopicPartition, offset: int) -> bool:
    known = progress.groups.get(progress.key(partition), {}).get(group)
    return known is not None and known.source == offset
