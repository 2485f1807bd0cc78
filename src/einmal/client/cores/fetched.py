"""A fetched piece of a partition's log: its whole batches, and those that a reader may see.

A fetch ends wherever its byte limit falls, so a last batch may be cut off. Under ``read_committed`` the answer lists
the aborted transactions of the piece: a batch is hidden from the first offset of an aborted transaction of its
producer until that producer's abort marker. The broker lists them again with every fetch, so nothing is kept in
between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from einmal.client.errors import KafkaError
from einmal.client.records import OffsetRange
from einmal.types import TopicPartition
from einmal.wire.control_batch import ABORT, control_type
from einmal.wire.errors import CorruptBatch, WireError
from einmal.wire.record_batch import BatchHeader, Record, decode_records, iter_headers, records_section, validate

_OFFSET_MAX: Final = 2**63 - 2
"""The next fetch can be sent after it."""


class CorruptData(KafkaError):
    meaning = "a record batch in the log is damaged or too large: its CRC-32C, its structure, or its size unpacked"
    what_to_do = "restore the partition from a replica, or seek to the offset after the batch and lose its records"


class RawBatch(NamedTuple):
    """One batch as it is in the log. It may begin before, or end after, the requested range."""

    topic_partition: TopicPartition
    header: BatchHeader
    data: memoryview

    def section(self) -> bytes:
        """The encoded records, decompressed. Raises CorruptData."""
        try:
            return records_section(self.data, 0, self.header)
        except WireError as error:
            raise _corrupt(self.topic_partition, self.header, error) from error

    def records(self, bounds: OffsetRange | None = None) -> list[Record]:
        """The records, within ``bounds`` where given. Raises CorruptData."""
        try:
            records = decode_records(self.data, 0, self.header)
        except WireError as error:
            raise _corrupt(self.topic_partition, self.header, error) from error
        if bounds is None or (bounds.start <= self.header.base_offset and self.header.next_offset <= bounds.end):
            return records
        return [record for record in records if bounds.start <= record.offset < bounds.end]


def whole_batches(
    topic_partition: TopicPartition, buffer: memoryview, *, first_offset: int = 0, check_crcs: bool = True
) -> list[RawBatch]:
    """The batches that are wholly in the buffer, control batches too, up to the first that is damaged.

    ``first_offset``: the requested one, so every batch ends after it. No CRC covers a batch's offset. Raises
    CorruptData if the very first is damaged, which a reader that continues from the last good one reaches.
    """
    batches: list[RawBatch] = []
    header, end = None, first_offset
    try:
        for position, header in iter_headers(buffer):
            if check_crcs:
                validate(buffer, position, header)
            if header.base_offset < 0 or not end <= header.last_offset <= _OFFSET_MAX:
                raise CorruptBatch(f"offsets {header.base_offset} to {header.last_offset}, where {end} is due")
            end = header.next_offset
            batches.append(RawBatch(topic_partition, header, buffer[position : position + header.size]))
    except WireError as error:
        if not batches:
            raise _corrupt(topic_partition, header, error) from error
    return batches


def visible_batches(batches: Iterable[RawBatch], aborted: Sequence[tuple[int, int]] | None) -> Iterator[RawBatch]:
    """The data batches of one fetch that a reader may see; ``aborted``: (producer id, first offset), in any order."""
    pending = sorted((first_offset, producer_id) for producer_id, first_offset in aborted or ())
    begun = 0
    hidden: dict[int, None] = {}
    for batch in batches:
        header = batch.header
        while begun < len(pending) and pending[begun][0] <= header.last_offset:
            hidden[pending[begun][1]] = None
            begun += 1
        if header.is_control:
            if header.producer_id in hidden and _is_abort(batch):
                del hidden[header.producer_id]
        elif not (header.is_transactional and header.producer_id in hidden):
            yield batch


def _is_abort(batch: RawBatch) -> bool:
    try:
        # A compacted marker may have lost its record; its transaction is not listed as aborted any more then.
        return any(control_type(record) == ABORT for record in batch.records())
    except WireError as error:
        raise _corrupt(batch.topic_partition, batch.header, error) from error


def _corrupt(topic_partition: TopicPartition, header: BatchHeader | None, error: WireError) -> CorruptData:
    if header is None:
        return CorruptData(detail=f"{topic_partition}, the batch at the position: {error}")
    where = f"{topic_partition}, the batch of offsets {header.base_offset} to {header.last_offset}"
    return CorruptData(detail=f"{where}: {error}; seek to {header.next_offset} to skip it")
