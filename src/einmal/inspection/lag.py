"""A group's lag in records that its readers will get: markers and aborted records are none of them.

What others report as lag counts offsets, and stays above zero where the last offset of a topic is a marker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from einmal.client.errors import KafkaError
from einmal.inspection.content import RangeContent
from einmal.inspection.reading import COUNTED_OFFSETS_MAX, Bounds, bounds_of, content_of, reason

if TYPE_CHECKING:
    from einmal.client.blocking.admin import AdminCalls
    from einmal.client.blocking.raw import RangeReader
    from einmal.types import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """From a group's position on: ``unread`` committed records, ``aborted`` ones and ``markers`` up to the last stable
    offset; ``behind``: records after it, which an open transaction holds back.

    ``is_upper_bound``: too far to be counted: ``unread`` and ``behind`` are numbers of offsets.
    """

    topic: str
    partition: int
    current_offset: int
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


def lag_of(admin: AdminCalls, reader: RangeReader, group_id: str, most: int = COUNTED_OFFSETS_MAX) -> GroupLag:
    """Count what each partition that the group has an offset of has for it. ``reader``: one that reads uncommitted
    records. ``most``: offsets of a partition that are read. Raises KafkaError where the group cannot be asked."""
    committed = admin.list_group_offsets(group_id, require_stable=False)
    positions = {partition: committed[partition].offset for partition in sorted(committed)}
    bounds, unknown = bounds_of(admin, positions)
    partitions = []
    for at, offset in positions.items():
        try:
            content = content_of(reader, at, offset, bounds[at], most) if at in bounds else None
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


def _lag(
    at: TopicPartition, offset: int, bounds: Bounds | None, content: RangeContent | None, why: str | None, most: int
) -> PartitionLag:
    counts = ("unread", "aborted", "markers", "behind")
    if bounds is None or why is not None:
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
