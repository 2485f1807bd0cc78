"""Where ``einmal group seek`` moves a group's positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from einmal.client import Admin, TopicPartition


class Move(NamedTuple):
    """``current`` is None where the group has no position yet."""

    partition: TopicPartition
    current: int | None
    new: int


def planned(
    admin: Admin, group: str, to: str, topics: Sequence[str] | None, partitions: Sequence[int] | None
) -> list[Move]:
    """The move of each partition. Raises KafkaError, also where a partition has no leader."""
    from einmal.client import EARLIEST, LATEST, IsolationLevel

    committed = admin.list_group_offsets(group)
    wanted = [
        each for each in _candidates(admin, topics, committed) if partitions is None or each.partition in partitions
    ]
    starts = admin.list_offsets(dict.fromkeys(wanted, EARLIEST))
    ends = admin.list_offsets(dict.fromkeys(wanted, LATEST), isolation=IsolationLevel.READ_COMMITTED)
    times = admin.list_offsets(dict.fromkeys(wanted, int(to[1:]))) if to.startswith("@") else {}
    moves = []
    for each in wanted:
        start, end = starts[each].offset, ends[each].offset
        chosen = end if to in ("latest", "end") else start
        if times:
            chosen = times[each].offset if times[each].offset >= 0 else end
        elif to.isdigit():
            chosen = int(to)
        current = committed[each].offset if each in committed else None
        moves.append(Move(each, current, min(max(chosen, start), end)))
    return moves


def _candidates(
    admin: Admin, topics: Sequence[str] | None, committed: Mapping[TopicPartition, object]
) -> list[TopicPartition]:
    """All partitions of the topics, or those in which the group has a position."""
    from einmal.client import TopicPartition

    if topics is None:
        return sorted(committed)
    described = admin.describe_topics(topics)
    return [TopicPartition(name, index) for name, each in described.items() for index in each.partitions]
