"""Where ``einmal group seek`` moves a group's positions, and the moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from einmal.client import Admin, Consumer, OffsetAndMetadata, TopicPartition
    from einmal.client.errors import KafkaError


class Move(NamedTuple):
    """``current`` is None where the group has no position yet."""

    partition: TopicPartition
    current: int | None
    new: int


class SeekPlan(NamedTuple):
    """``left``: why partitions, and topics, are not moved."""

    moves: list[Move]
    left: dict[TopicPartition | str, KafkaError]


def planned(
    admin: Admin, group: str, to: str, topics: Sequence[str] | None, partitions: Sequence[int] | None
) -> SeekPlan:
    """The move of each partition; one that has no leader, or does not exist, keeps no other from being moved. Raises
    KafkaError where nothing can be asked."""
    from einmal.client import EARLIEST, LATEST, IsolationLevel, TopicPartition
    from einmal.client.errors import KafkaError, error_for
    from einmal.types import ErrorCode

    committed = admin.list_group_offsets_each(group)
    candidates, left = _candidates(admin, topics, committed)
    wanted = [candidate for candidate in candidates if partitions is None or candidate.partition in partitions]
    if topics is None and (lacking := set(partitions or ()) - {candidate.partition for candidate in candidates}):
        what = f"the group has no position in a partition {', '.join(map(str, sorted(lacking)))}"
        raise error_for(ErrorCode.unknown_topic_or_partition, what)
    asked_for = {TopicPartition(name, index) for name in topics or () if name not in left for index in partitions or ()}
    for at in sorted(asked_for - set(candidates)):
        left[at] = error_for(ErrorCode.unknown_topic_or_partition, str(at))
    current: dict[TopicPartition, int | None] = {}
    for partition in wanted:
        position = committed.get(partition)
        if isinstance(position, KafkaError):
            left[partition] = position
        else:
            current[partition] = None if position is None else position.offset
    offsets: dict[TopicPartition, list[int]] = {partition: [] for partition in current}
    questions = [(EARLIEST, IsolationLevel.READ_UNCOMMITTED), (LATEST, IsolationLevel.READ_COMMITTED)]
    if to.startswith("@"):
        questions.append((int(to[1:]), IsolationLevel.READ_UNCOMMITTED))
    for timestamp, isolation in questions:
        # One that had no answer would delay the next question again.
        asked = {partition: timestamp for partition in offsets if partition not in left}
        for partition, answer in admin.list_offsets_each(asked, isolation=isolation).items():
            if isinstance(answer, KafkaError):
                left[partition] = answer
            else:
                offsets[partition].append(answer.offset)
    return SeekPlan(
        [
            Move(partition, current[partition], _new(to, *offsets[partition]))
            for partition in offsets
            if partition not in left
        ],
        left,
    )


def commit(consumer: Consumer, plan: SeekPlan) -> SeekPlan:
    """The moves that the group's coordinator has accepted. Raises KafkaError where it accepts none for another reason
    than a topic."""
    from einmal.client.errors import RequestRefused

    consumer.assign(move.partition for move in plan.moves)
    try:
        consumer.commit({move.partition: move.new for move in plan.moves})
        return plan
    except RequestRefused:
        # A commit has an answer for each topic, and raises the first error, without those that were accepted.
        moved, left = list[Move](), dict(plan.left)
    for name in dict.fromkeys(move.partition.topic for move in plan.moves):
        moves = [move for move in plan.moves if move.partition.topic == name]
        try:
            consumer.commit({move.partition: move.new for move in moves})
            moved += moves
        except RequestRefused as error:
            left |= dict.fromkeys((move.partition for move in moves), error)
    return SeekPlan(moved, left)


def _new(to: str, start: int, end: int, since: int | None = None) -> int:
    if since is not None:
        chosen = since if since >= 0 else end
    elif to.isdigit():
        chosen = int(to)
    else:
        chosen = end if to in ("latest", "end") else start
    return min(max(chosen, start), end)


def _candidates(
    admin: Admin, topics: Iterable[str] | None, committed: Mapping[TopicPartition, OffsetAndMetadata | KafkaError]
) -> tuple[list[TopicPartition], dict[TopicPartition | str, KafkaError]]:
    """All partitions of the topics, or those in which the group has a position."""
    from einmal.client import TopicPartition
    from einmal.inspection.reading import topics_each

    if topics is None:
        return sorted(committed), {}
    described, errors = topics_each(admin, topics)
    partitions = [TopicPartition(name, index) for name, topic in described.items() for index in topic.partitions]
    return partitions, dict(errors.items())
