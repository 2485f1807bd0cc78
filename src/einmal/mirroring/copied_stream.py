"""Batches of a source partition as batches of the target's transaction, and the runs that map their offsets.

Batches are copied as they are, compressed or not: only the header names another producer. Some are decoded and encoded
anew, with keys, values, headers, timestamps and compression: those that lie in the range partly, those from which
compaction has removed records, and those whose header has attributes that a producer may not set.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from einmal.client.cores.fetched import RawBatch
from einmal.client.records import OffsetRange
from einmal.mirror_protocol.effects import CopyRecords
from einmal.mirror_protocol.offset_map import OffsetRun
from einmal.sinks.commit_point import SinkFailed
from einmal.sinks.kafka.batches import TransactionBatches
from einmal.types import TopicPartition
from einmal.wire.compression import Compression
from einmal.wire.record_batch import TRANSACTIONAL, NewRecord

_OF_PRODUCERS: Final = frozenset(codec | kind for codec in Compression for kind in (0, TRANSACTIONAL))
"""Attributes of batches that a producer may write. Others have the broker's timestamps, or tombstones' horizons."""


@dataclass(slots=True)
class CopiedStream:
    """The records of one source partition in one transaction. ``sources``: the first source offset and the number of
    records of each piece without a gap."""

    target: TopicPartition
    batches: TransactionBatches
    count: int = 0
    sources: list[tuple[int, int]] = field(default_factory=list)

    def take(self, batch: RawBatch, bounds: OffsetRange) -> tuple[TopicPartition, bytes] | None:
        """Return what is written of a source batch; None if nothing of it lies within ``bounds``. Raises
        CorruptData."""
        header = batch.header
        is_inside = bounds.start <= header.base_offset and header.next_offset <= bounds.end
        if is_inside and header.is_contiguous and header.attributes in _OF_PRODUCERS:
            self._note(header.base_offset, header.record_count)
            return self.batches.copy(self.target, batch)
        records = batch.records(bounds)
        if not records:
            return None
        for record in records:
            self._note(record.offset, 1)
        plain = [NewRecord(record.key, record.value, record.timestamp, record.headers) for record in records]
        return self.batches.encode(self.target, plain, header.compression)

    def _note(self, offset: int, records: int) -> None:
        """The source offsets of what is written next."""
        self.count += records
        first, count = self.sources[-1] if self.sources else (offset, 0)
        if offset == first + count:
            self.sources[-1:] = [(first, count + records)]
        else:
            self.sources.append((offset, records))


def streams_of(effect: CopyRecords) -> dict[TopicPartition, CopiedStream]:
    """One for each source partition."""
    batches = TransactionBatches(effect.identity)
    return {partition: CopiedStream(effect.targets[partition], batches) for partition in effect.ranges}


def encoded(
    fetched: Iterable[tuple[RawBatch, OffsetRange]], streams: Mapping[TopicPartition, CopiedStream]
) -> Generator[tuple[TopicPartition, bytes], None, None]:
    """Batches for the target, in the order of the fetched ones, each with the range that is copied of it. Raises
    CorruptData, and what ``fetched`` raises."""
    for batch, bounds in fetched:
        if (target_batch := streams[batch.topic_partition].take(batch, bounds)) is not None:
            yield target_batch


def runs_of(
    target: TopicPartition, sources: Iterable[tuple[int, int]], first_offset: int, last_offset: int
) -> tuple[OffsetRun, ...]:
    """The runs of what was written at these offsets. Raises SinkFailed if records of another producer lie between."""
    runs = []
    offset = first_offset
    for source, records in sources:
        runs.append(OffsetRun(source, offset, records))
        offset += records
    if last_offset + 1 != offset:
        raise SinkFailed(
            f"{target} has {last_offset - first_offset + 1} records where {offset - first_offset} were written: "
            "another producer writes into the topic of a mirror",
            will_again=True,
        )
    return tuple(runs)
