"""The offsets that groups have committed, and those that open transactions would commit.

Hard state: changed by ``replay`` and ``replay_marker`` only. An offset that was written in a transaction is pending
until that producer's marker: then it is committed, or dropped. Of a plain and a transactional commit of one partition,
the one that is later *in the log* stays, whenever the marker is written; the order of replay is that of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from einmal.groups.records import CommittedOffset, OffsetRecord
from einmal.types import ProducerId, TopicPartition


class _Placed(NamedTuple):
    """An offset and its position in the log's order."""

    position: int
    offset: CommittedOffset


class Offsets:
    def __init__(self) -> None:
        self._replayed = 0
        self._committed: dict[str, dict[TopicPartition, _Placed]] = {}
        self._pending: dict[ProducerId, dict[str, dict[TopicPartition, _Placed]]] = {}
        # How many open transactions would commit a partition's offset; a partition without any is absent.
        self._unstable: dict[str, dict[TopicPartition, int]] = {}

    # --- reading ------------------------------------------------------------------------------------------------

    def committed(self, group_id: str, partition: TopicPartition) -> CommittedOffset | None:
        placed = self._committed.get(group_id, {}).get(partition)
        return None if placed is None else placed.offset

    def committed_by(self, group_id: str) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
        for partition, placed in self._committed.get(group_id, {}).items():
            yield partition, placed.offset

    def partitions_of(self, group_id: str, *, pending: bool = True) -> Iterator[TopicPartition]:
        """Every partition with a committed offset, or also those with a pending one only."""
        committed = self._committed.get(group_id, {})
        yield from committed
        if pending:
            yield from (partition for partition in self._unstable.get(group_id, {}) if partition not in committed)

    def count(self, group_id: str) -> int:
        """How many partitions the group has committed offsets of."""
        return len(self._committed.get(group_id, {}))

    def is_unstable(self, group_id: str, partition: TopicPartition) -> bool:
        """Whether an open transaction would commit this partition's offset."""
        return partition in self._unstable.get(group_id, {})

    def has_pending(self, group_id: str) -> bool:
        return group_id in self._unstable

    def has_any(self, group_id: str) -> bool:
        return group_id in self._committed or group_id in self._unstable

    def groups(self) -> Iterator[str]:
        """Every group with an offset, committed or pending."""
        yield from self._committed
        for group_id in self._unstable:
            if group_id not in self._committed:
                yield group_id

    # --- the only mutators --------------------------------------------------------------------------------------

    def replay(self, record: OffsetRecord) -> None:
        self._replayed += 1
        partition = TopicPartition(record.topic, record.partition)
        if record.value is None:
            self._forget(record.group_id, partition)
        elif record.producer_id is None:
            placed = _Placed(self._replayed, record.value)
            self._committed.setdefault(record.group_id, {})[partition] = placed
        else:
            of_group = self._pending.setdefault(record.producer_id, {}).setdefault(record.group_id, {})
            if partition not in of_group:
                unstable = self._unstable.setdefault(record.group_id, {})
                unstable[partition] = unstable.get(partition, 0) + 1
            of_group[partition] = _Placed(self._replayed, record.value)

    def replay_marker(self, producer_id: ProducerId, committed: bool) -> None:
        for group_id, of_group in self._pending.pop(producer_id, {}).items():
            for partition, placed in of_group.items():
                self._settle(group_id, partition)
                if committed:
                    self._commit(group_id, partition, placed)

    def _commit(self, group_id: str, partition: TopicPartition, placed: _Placed) -> None:
        of_group = self._committed.setdefault(group_id, {})
        known = of_group.get(partition)
        # Compaction keeps the later of the two records: memory must keep the same one.
        if known is None or known.position < placed.position:
            of_group[partition] = placed

    def _forget(self, group_id: str, partition: TopicPartition) -> None:
        """A tombstone: compaction removes every earlier record of its key, also pending ones."""
        _discard(self._committed, group_id, partition)
        if not self.is_unstable(group_id, partition):
            return
        for of_producer in self._pending.values():
            if partition in of_producer.get(group_id, {}):
                _discard(of_producer, group_id, partition)
                self._settle(group_id, partition)

    def _settle(self, group_id: str, partition: TopicPartition) -> None:
        """One transaction less has a pending offset of this partition."""
        unstable = self._unstable[group_id]
        unstable[partition] -= 1
        if not unstable[partition]:
            _discard(self._unstable, group_id, partition)


def _discard(
    groups: dict[str, dict[TopicPartition, _Placed]] | dict[str, dict[TopicPartition, int]],
    group_id: str,
    partition: TopicPartition,
) -> None:
    of_group = groups.get(group_id, {})
    of_group.pop(partition, None)
    if not of_group:
        groups.pop(group_id, None)
