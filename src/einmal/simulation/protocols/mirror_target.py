"""The target cluster of a simulated mirror: topics with ids, markers that have offsets, and what its readers see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from einmal.mirror_protocol.effects import GroupPosition, MapChange, MapKey, SavedMap
from einmal.mirror_protocol.offset_map import OffsetRun
from einmal.simulation.protocols.kafka_model import OURS, KafkaModel, ModelRecord, ModelState
from einmal.types import TopicPartition, TransactionVersion

MAPS: Final = "maps-0"
GROUPS: Final = "groups-0"
_OUTSIDE: Final = -1
"""No transaction of the mirror's."""
_FURTHER: Final = 1_000


@dataclass(frozen=True, slots=True)
class GroupOffset:
    group: str
    partition: TopicPartition
    offset: int


class MirrorTarget(KafkaModel):
    """A partition's log is named by topic and index. Topics are never deleted here."""

    def __init__(self, version: TransactionVersion) -> None:
        super().__init__(version)
        self.topics: dict[str, list[str]] = {}
        """The logs of each topic."""
        self.moved: dict[tuple[str, TopicPartition], int] = {}
        """Offsets that members of a group have committed here."""

    def create(self, name: str, count: int) -> None:
        """Also: add partitions."""
        existing = self.topics.setdefault(name, [])
        existing += [f"{name}-{index}" for index in range(len(existing), count)]

    def topic_id(self, name: str) -> str:
        return f"target-{name}"

    def write_one_marker(self, choice: int) -> bool:
        """As in a real log, the marker has an offset."""
        if not self._pending_markers:
            return False
        partition = self._pending_markers[choice % len(self._pending_markers)]
        written = super().write_one_marker(choice)
        self.append_plain(partition, None)
        return written

    def decided_records(self, log: str) -> Iterator[tuple[int, Any]]:
        """Offsets and values of everything that is decided to be committed, whether its marker is written or not."""
        for offset, entry in enumerate(self.log(log).entries):
            if entry.producer_id == OURS and self.decided.get(entry.transaction):
                yield offset, entry.value

    def group_offsets(self) -> dict[tuple[str, TopicPartition], int]:
        return {
            (committed.group, committed.partition): committed.offset for _, committed in self.decided_records(GROUPS)
        }

    def move_group(self, group: str, choice: int) -> None:
        """A member of the group has run here for a while, and has committed an offset."""
        partitions = [partition for name, partition in self.group_offsets() if name == group]
        # Between the mirror's question and its EndTxn nobody can be protected.
        if partitions and self._state is not ModelState.ONGOING:
            partition = partitions[choice % len(partitions)]
            offset = self.moved[group, partition] = self.group_offsets()[group, partition] + _FURTHER
            self.decided[_OUTSIDE] = self.visible[GROUPS, _OUTSIDE] = True
            self.log(GROUPS).entries.append(ModelRecord(OURS, _OUTSIDE, GroupOffset(group, partition, offset)))

    def saved_maps(self) -> dict[MapKey, SavedMap]:
        """As a reader of the compacted topic gets them."""
        runs: dict[MapKey, dict[int, OffsetRun]] = {}
        groups: dict[MapKey, dict[str, GroupPosition]] = {}
        for _, (key, change) in self.decided_records(MAPS):
            assert isinstance(change, MapChange)
            known = runs.setdefault(key, {})
            for run in change.dropped:
                del known[run.source]
            known.update({run.source: run for run in change.added})
            groups.setdefault(key, {}).update(change.groups)
        return {
            key: SavedMap(tuple(sorted(known.values())), groups.get(key, {})) for key, known in runs.items() if known
        }
