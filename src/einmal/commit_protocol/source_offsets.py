"""Arithmetic on a source's offsets: what a trigger may read, and how it is cut into tasks. Pure.

On the outside a position has the shape of Spark's Kafka source, ``{"topic": {"0": 23}}``, with the identity of cluster
and topics beside it (``commit_protocol.positions``); inside, offsets are a dict by TopicPartition. An end offset is
exclusive. Offsets that hold a marker or an aborted record count like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from einmal.commit_protocol.positions import cluster_id, identity, starts, topic_ids, topics_in
from einmal.types import Offset, TopicPartition

Positions = dict[TopicPartition, Offset]

_SHARED_MAX: Final = 1_000
_TASKS: Final = 8
_SHARED_BY_MANY_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """Where a batch ends. ``topic_ids`` as Kafka prints them, without topics whose id is unknown (brokers before 2.8).

    ``starts``: where the batch begins in partitions in which it does not begin at the end of the batch before: they are
    new, or records were lost. They are part of the position, so that a replay reads the same records. The first record
    of a new partition, looked up at each replay, is another one once retention has removed the first: the batch would
    lose records silently.
    """

    offsets: Positions
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    cluster_id: str | None = None
    starts: Positions = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SourcePosition:
        return cls(from_json(value), topic_ids(value), cluster_id(value), from_json(starts(value)))

    def to_json(self) -> dict[str, Any]:
        return to_json(self.offsets) | identity(self.cluster_id, self.topic_ids, to_json(self.starts))


class PlannedRange(NamedTuple):
    """``start`` inclusive, ``end`` exclusive."""

    topic_partition: TopicPartition
    start: Offset
    end: Offset


def from_json(value: Mapping[str, Mapping[str, Any]]) -> Positions:
    """The offsets of a position."""
    return {
        TopicPartition(topic, int(partition)): Offset(int(offset))
        for topic, partitions in topics_in(value).items()
        for partition, offset in partitions.items()
    }


def to_json(positions: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """The JSON of Spark's own Kafka source, as ``startingOffsets`` takes it."""
    result: dict[str, dict[str, int]] = {}
    for topic_partition in sorted(positions):
        partitions = result.setdefault(topic_partition.topic, {})
        partitions[str(topic_partition.partition)] = int(positions[topic_partition])
    return result


def first_offsets(begin: SourcePosition, end: SourcePosition) -> Positions:
    """Where the batch between two positions begins in each partition, as far as the positions show.

    A partition that is new in ``end`` is missing where an older version planned the batch.
    """
    return {partition: begin.offsets[partition] for partition in end.offsets if partition in begin.offsets} | end.starts


def limited(start: Positions, available: Positions, most: int) -> Positions:
    """The end of a batch of at most about ``most`` offsets: every partition gives in proportion to its backlog.

    A partition with a backlog gives at least one, so none starves. Never before ``start``: what was read stays read.
    """
    backlog = {partition: max(0, available[partition] - start[partition]) for partition in available}
    total = sum(backlog.values())
    if total <= most:
        return {partition: Offset(start[partition] + backlog[partition]) for partition in available}
    return {
        partition: Offset(start[partition] + (min(size, max(1, size * most // total)) if size else 0))
        for partition, size in backlog.items()
    }


def ranges(
    start: Positions, end: Positions, min_partitions: int | None, max_records: int | None = None
) -> list[PlannedRange]:
    """One range per partition that has something to read; more where ``min_partitions`` asks for it, and as many as
    ``max_records`` of each needs."""
    whole = [
        PlannedRange(partition, start[partition], end[partition])
        for partition in sorted(end)
        if end[partition] > start[partition]
    ]
    total = sum(planned.end - planned.start for planned in whole)
    wanted = 0 if min_partitions is None or len(whole) >= min_partitions else min_partitions
    pieces = []
    for topic_partition, first, last in whole:
        size = last - first
        count = max(1, min(size, round(size * wanted / total)), -(-size // (max_records or size)))
        cuts = [Offset(first + (last - first) * i // count) for i in range(count + 1)]
        pieces += [PlannedRange(topic_partition, low, high) for low, high in zip(cuts, cuts[1:], strict=False)]
    return pieces


def shared_max(pieces: Sequence[PlannedRange]) -> int:
    """How many offsets a task may have that reads several partitions: starting a task costs more than 1,000 records do,
    and more than eight of them are many."""
    total = sum(piece.end - piece.start for piece in pieces)
    return min(max(_SHARED_MAX, total // _TASKS), _SHARED_BY_MANY_MAX)


def packed(pieces: list[PlannedRange], shared_max: int) -> list[tuple[PlannedRange, ...]]:
    """Return the ranges of each task: neighbours share one as long as they have no more than ``shared_max`` offsets
    together."""
    tasks: list[list[PlannedRange]] = []
    room = 0
    for piece in pieces:
        size = piece.end - piece.start
        if tasks and size <= room:
            tasks[-1].append(piece)
        else:
            tasks.append([piece])
            room = shared_max
        room -= size
    return [tuple(task) for task in tasks]
