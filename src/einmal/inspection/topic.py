"""The content of a topic's partitions: committed and aborted records, markers, and the ranges of transactions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from einmal.client.errors import KafkaError
from einmal.inspection.content import RangeContent, TransactionRange
from einmal.inspection.reading import COUNTED_OFFSETS_MAX, bounds_of, content_of, reason
from einmal.types import TopicPartition

if TYPE_CHECKING:
    from einmal.client.blocking.admin import AdminCalls
    from einmal.client.blocking.raw import RangeReader


@dataclass(frozen=True, slots=True)
class PartitionContent:
    """Counts of records from the log's start on: ``committed`` and ``aborted`` ones and ``markers`` up to the last
    stable offset, ``behind`` after it. The ranges of aborted transactions, and of open ones."""

    partition: int
    committed: int | None
    aborted: int | None
    markers: int | None
    behind: int | None
    aborted_ranges: tuple[TransactionRange, ...] | None
    open_ranges: tuple[TransactionRange, ...] | None
    unknown: Mapping[str, str] = field(default_factory=dict)


def contents_of(admin: AdminCalls, reader: RangeReader, topic: str) -> tuple[PartitionContent, ...]:
    """Read the partitions of a topic, each if it has no more than ``COUNTED_OFFSETS_MAX`` offsets. ``reader``: one that
    reads uncommitted records. Raises KafkaError where the topic cannot be asked."""
    asked = [TopicPartition(topic, index) for index in admin.describe_topics([topic])[topic].partitions]
    bounds, unknown = bounds_of(admin, asked)
    contents = []
    for at in asked:
        content, why = None, unknown.get(at, f"not read: more than {COUNTED_OFFSETS_MAX:,} offsets")
        try:
            if at in bounds:
                content = content_of(reader, at, bounds[at].start, bounds[at])
        except KafkaError as error:
            why = reason(error)
        contents.append(_content(at.partition, content, why))
    return tuple(contents)


def _content(partition: int, content: RangeContent | None, why: str) -> PartitionContent:
    if content is None:
        fields = ("committed", "aborted", "markers", "behind", "aborted_ranges", "open_ranges")
        return PartitionContent(partition, None, None, None, None, None, None, dict.fromkeys(fields, why))
    return PartitionContent(
        partition,
        content.committed,
        content.aborted,
        content.markers,
        content.behind,
        content.aborted_ranges,
        content.open_ranges,
    )
