"""The records of one open transaction: in which partitions, from where to where, how many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from einmal.client.errors import KafkaError
from einmal.inspection.model import TransactionView
from einmal.inspection.reading import (
    COUNTED_OFFSETS_MAX,
    Bounds,
    bounds_of,
    content_of,
    partition_of,
    producers_of,
    reason,
    transaction_of,
)
from einmal.types import TopicPartition

if TYPE_CHECKING:
    from einmal.client.blocking.admin import AdminCalls
    from einmal.client.blocking.raw import RangeReader


@dataclass(frozen=True, slots=True)
class RecordsInPartition:
    """The transaction's records in a partition. ``first_offset`` is None where it has none there yet."""

    topic: str
    partition: int
    first_offset: int | None
    last_offset: int | None
    records: int | None
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShownTransaction:
    transaction: TransactionView
    parts: tuple[RecordsInPartition, ...]


def show(admin: AdminCalls, reader: RangeReader, transactional_id: str, now: int) -> ShownTransaction:
    """``now`` in ms since 1970; ``reader``: one that reads uncommitted records. Raises RequestRefused for an id that no
    coordinator knows."""
    transaction = transaction_of(admin, transactional_id, now)
    partitions = [partition_of(partition) for partition in transaction.partitions or ()]
    bounds, unknown = bounds_of(admin, partitions)
    producers, no_producers = producers_of(admin, bounds)
    unknown |= no_producers
    parts = []
    for at in partitions:
        open_here = [producer for producer in producers.get(at, ()) if producer.producer_id == transaction.producer_id]
        start = next((producer.transaction_start_offset for producer in open_here), None)
        parts.append(_part(reader, at, transaction.producer_id, start, bounds.get(at), unknown.get(at)))
    return ShownTransaction(transaction, tuple(parts))


def _part(
    reader: RangeReader, at: TopicPartition, producer_id: int, start: int | None, bounds: Bounds | None, why: str | None
) -> RecordsInPartition:
    if bounds is None or why is not None:
        fields = ("first_offset", "last_offset", "records")
        return RecordsInPartition(*at, None, None, None, dict.fromkeys(fields, why or ""))
    if start is None:
        return RecordsInPartition(*at, None, None, 0)
    try:
        content = content_of(reader, at, start, bounds)
        why = f"not counted: more than {COUNTED_OFFSETS_MAX:,} offsets"
    except KafkaError as error:
        content, why = None, reason(error)
    if content is None:
        return RecordsInPartition(*at, start, None, None, dict.fromkeys(("last_offset", "records"), why))
    mine = [open_range for open_range in content.open_ranges if open_range.producer_id == producer_id]
    return RecordsInPartition(
        *at,
        start,
        max((open_range.last_offset for open_range in mine), default=None),
        sum(open_range.records for open_range in mine),
    )
