"""A group's lag in records that its readers will get: markers and aborted records are none of them.

What others report as lag counts offsets, and stays above zero where the last offset of a topic is a marker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from einmal.client.errors import KafkaError
from einmal.inspection.content import RangeContent
from einmal.inspection.reading import AFTER_THE_END, COUNTED_OFFSETS_MAX, Bounds, bounds_of, content_of, reason

if TYPE_CHECKING:
    from einmal.client.blocking.admin import AdminCalls
    from einmal.client.blocking.raw import RangeReader
    from einmal.types import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """From a group's position on: ``unread`` committed records, ``aborted`` ones and ``markers`` up to the last stable
    offset; ``behind``: records after it, which an open transaction holds back.

    ``current_offset`` None: a member reads the partition, and no offset is committed. ``is_upper_bound``: too far to be
    counted: ``unread`` and ``behind`` are numbers of offsets.
    """

    topic: str
    partition: int
    current_offset: int | None
    last_stable_offset: int | None
    high_watermark: int | None
    unread: int | None
    aborted: int | None
    markers: int | None
    behind: int | None
    is_upper_bound: bool = False
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupLag:
    """``unread``, ``behind``: sums of the partitions; None where one is not known. ``is_upper_bound``: of the sums."""

    group_id: str
    unread: int | None
    behind: int | None
    is_upper_bound: bool
    partitions: tuple[PartitionLag, ...]


def lag_of(
    admin: AdminCalls,
    reader: RangeReader,
    group_id: str,
    assigned: Iterable[TopicPartition] = (),
    most: int = COUNTED_OFFSETS_MAX,
    seen: Callable[[TopicPartition], str | None] = lambda _at: None,
) -> GroupLag:
    """Count what each partition has for the group that it has an offset of, or that is ``assigned`` to a member.

    ``reader``: one that reads uncommitted records. ``most``: offsets of a partition that are read. ``seen``: why a
    partition had no offsets just now, so that its leader is not waited for again. Raises KafkaError where the group
    cannot be asked.
    """
    committed = admin.list_group_offsets(group_id, require_stable=False)
    unread = sorted({*assigned} - committed.keys())
    without = {at: why for at in (*committed, *unread) if (why := seen(at)) is not None}
    bounds, unknown = bounds_of(admin, [at for at in (*committed, *unread) if at not in without])
    unknown |= without
    partitions = [_uncommitted(at, bounds.get(at), unknown.get(at)) for at in unread]
    for at in sorted(committed):
        offset = committed[at].offset
        if at in bounds and offset > bounds[at].high:
            unknown[at] = f"the position is after the end, {bounds[at].high}: {AFTER_THE_END}"
        if at in unknown:
            partitions.append(_lag(at, offset, bounds.get(at), None, unknown[at], most))
            continue
        try:
            content = content_of(reader, at, offset, bounds[at], most)
        except KafkaError as error:
            unknown[at] = reason(error)
            content = None
        partitions.append(_lag(at, offset, bounds.get(at), content, unknown.get(at), most))
    return GroupLag(
        group_id,
        _sum([partition.unread for partition in partitions]),
        _sum([partition.behind for partition in partitions]),
        any(partition.is_upper_bound for partition in partitions),
        tuple(partitions),
    )


def _uncommitted(at: TopicPartition, bounds: Bounds | None, why: str | None) -> PartitionLag:
    """Lag of a partition that a member reads without a position: known only where there are no records."""
    if bounds is not None and bounds.start == bounds.high:
        return PartitionLag(*at, None, bounds.stable, bounds.high, 0, 0, 0, 0)
    return _lag(at, None, bounds, None, why or "a member reads it, and the group has committed no offset", 0)


def _lag(
    at: TopicPartition,
    offset: int | None,
    bounds: Bounds | None,
    content: RangeContent | None,
    why: str | None,
    most: int,
) -> PartitionLag:
    counts = ("unread", "aborted", "markers", "behind")
    if offset is None or bounds is None or why is not None:
        fields = counts if bounds is not None else (*counts, "last_stable_offset", "high_watermark")
        unknown = dict.fromkeys(fields, why or "")
        stable, high = (bounds.stable, bounds.high) if bounds else (None, None)
        return PartitionLag(at.topic, at.partition, offset, stable, high, None, None, None, None, unknown=unknown)
    common = (at.topic, at.partition, offset, bounds.stable, bounds.high)
    if content is not None:
        return PartitionLag(*common, content.committed, content.aborted, content.markers, content.behind)
    unread = max(0, bounds.stable - max(offset, bounds.start))
    behind = bounds.high - max(offset, bounds.stable)
    unknown = dict.fromkeys(("aborted", "markers"), f"not counted: more than {most:,} offsets")
    return PartitionLag(*common, unread, None, None, behind, True, unknown)


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
