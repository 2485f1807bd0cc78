"""Arithmetic on a source's offsets: what a trigger may read, and how it is cut into tasks. Pure.

On the outside offsets have the shape of Spark's Kafka source, ``{"topic": {"0": 23}}``; inside they are a dict by
TopicPartition. An end offset is exclusive. Offsets that hold a marker or an aborted record count like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from einmal.types import Offset, TopicPartition

Positions = dict[TopicPartition, Offset]


class OffsetRange(NamedTuple):
    """``start`` inclusive, ``end`` exclusive."""

    topic_partition: TopicPartition
    start: Offset
    end: Offset


class DataLoss(Exception):
    """Offsets that were to be read are gone. Raised under ``failOnDataLoss``."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}: records were deleted before they were read (retention, a deleted or re-created topic)\n"
            'hint: .option("failOnDataLoss", "false") goes on with what is there'
        )


def from_json(value: Mapping[str, Mapping[str, Any]]) -> Positions:
    return {
        TopicPartition(topic, int(partition)): Offset(int(offset))
        for topic, partitions in value.items()
        for partition, offset in partitions.items()
    }


def to_json(positions: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    result: dict[str, dict[str, int]] = {}
    for topic_partition in sorted(positions):
        partitions = result.setdefault(topic_partition.topic, {})
        partitions[str(topic_partition.partition)] = int(positions[topic_partition])
    return result


def limited(start: Positions, available: Positions, most: int) -> Positions:
    """The end of a batch of at most about ``most`` offsets: every partition gives in proportion to its backlog.

    A partition with a backlog gives at least one, so none starves. Never before ``start``: what was read stays read.
    """
    backlog = {each: max(0, available[each] - start[each]) for each in available}
    total = sum(backlog.values())
    if total <= most:
        return {each: Offset(start[each] + backlog[each]) for each in available}
    return {
        each: Offset(start[each] + (min(size, max(1, size * most // total)) if size else 0))
        for each, size in backlog.items()
    }


def ranges(start: Positions, end: Positions, min_partitions: int | None) -> list[OffsetRange]:
    """One range per partition that has something to read; more where ``min_partitions`` asks for it."""
    whole = [OffsetRange(each, start[each], end[each]) for each in sorted(end) if end[each] > start[each]]
    if min_partitions is None or not whole or len(whole) >= min_partitions:
        return whole
    total = sum(each.end - each.start for each in whole)
    pieces = []
    for topic_partition, first, last in whole:
        count = max(1, min(last - first, round((last - first) * min_partitions / total)))
        cuts = [Offset(first + (last - first) * i // count) for i in range(count + 1)]
        pieces += [OffsetRange(topic_partition, low, high) for low, high in zip(cuts, cuts[1:], strict=False)]
    return pieces


def packed(pieces: list[OffsetRange], shared_max: int) -> list[tuple[OffsetRange, ...]]:
    """What each task reads: neighbours share one as long as they have no more than ``shared_max`` offsets together."""
    tasks: list[list[OffsetRange]] = []
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
