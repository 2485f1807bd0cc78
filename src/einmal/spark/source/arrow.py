"""Records as rows of Arrow, in the columns of Spark's Kafka source.

The records of many batches are taken apart together, by column: only from one record to the next is gone step by step.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow

from einmal.client import OffsetRange as Bounds
from einmal.client.cores.fetched import CorruptData, RawBatch
from einmal.sinks.kafka.vectors import Bools, Bytes, Ints, binary, read_varints
from einmal.types import TopicPartition
from einmal.wire.errors import CorruptBatch
from einmal.wire.record_batch import decode_headers, read_varint

_ROWS_MAX: Final = 20_000
_BYTES_MAX: Final = 8 * 1024 * 1024
"""Rows and bytes after which a batch of rows is handed on: large enough for Arrow, small enough for a task's memory."""

_FIELDS: Final = (
    pyarrow.field("key", pyarrow.binary()),
    pyarrow.field("value", pyarrow.binary()),
    pyarrow.field("topic", pyarrow.string()),
    pyarrow.field("partition", pyarrow.int32()),
    pyarrow.field("offset", pyarrow.int64()),
    pyarrow.field("timestamp", pyarrow.timestamp("us", tz="UTC")),
    pyarrow.field("timestampType", pyarrow.int32()),
)
MILLISECONDS_MAX: Final = (2**63 - 1) // 1_000
"""Spark counts microseconds in 64 bits."""
_HEADER: Final = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
_HEADERS: Final = pyarrow.field("headers", pyarrow.list_(_HEADER))


class FarTimestamp(ValueError):
    """A record's timestamp is none of Spark's: with another one the record would not be the same."""


class RowBuilder:
    """Collects the records of one partition that lie within ``bounds``.

    ``undated``: a record whose timestamp Spark does not have is without one, instead of an error.
    """

    def __init__(
        self, topic_partition: TopicPartition, bounds: Bounds, *, include_headers: bool, undated: bool = False
    ) -> None:
        self._topic_partition = topic_partition
        self._bounds = bounds
        self._undated = undated
        self._include_headers = include_headers
        self._schema = pyarrow.schema([*_FIELDS, _HEADERS] if include_headers else _FIELDS)
        self._clear()

    def _clear(self) -> None:
        self._sections: list[bytes] = []
        self._batches: list[tuple[int, int, int, int]] = []
        """Numbers of every batch: records, base offset, base timestamp, and the time of its appending or -1."""
        self._rows = 0
        self._bytes = 0

    @property
    def is_empty(self) -> bool:
        return not self._rows

    @property
    def is_full(self) -> bool:
        return self._rows >= _ROWS_MAX or self._bytes >= _BYTES_MAX

    def add(self, batch: RawBatch) -> None:
        """Raises CorruptData."""
        header = batch.header
        section = batch.section()
        self._sections.append(section)
        append_time = header.max_timestamp if header.has_log_append_time else -1
        self._batches.append((header.record_count, header.base_offset, header.base_timestamp, append_time))
        self._rows += header.record_count
        self._bytes += len(section)

    def take(self) -> Any:
        """The rows so far, as one Arrow record batch. Raises CorruptData, FarTimestamp."""
        try:
            return self._taken()
        except (CorruptBatch, IndexError) as error:
            first = self._batches[0][1]
            raise CorruptData(detail=f"{self._topic_partition} from {first} on: {error}") from error
        finally:
            self._clear()

    def _taken(self) -> Any:
        data = b"".join(self._sections)
        starts, ends = _extents(
            data, [len(section) for section in self._sections], [batch[0] for batch in self._batches]
        )
        view = np.frombuffer(data, np.uint8)
        since, at = read_varints(view, starts + 1)
        delta, at = read_varints(view, at)
        key_begin, key_end, has_key = _extent(view, at)
        value_begin, value_end, has_value = _extent(view, key_end)
        counts = np.array([batch[0] for batch in self._batches])
        base_offsets, base_timestamps, append_times = (
            np.repeat(np.array([batch[column] for batch in self._batches], np.int64), counts) for column in (1, 2, 3)
        )
        headers = self._headers(data, view, value_end, ends)
        offsets = base_offsets + delta
        timestamps = np.where(append_times >= 0, append_times, base_timestamps + since)
        wanted = (offsets >= self._bounds.start) & (offsets < self._bounds.end)
        far = (timestamps > MILLISECONDS_MAX) | (timestamps < -MILLISECONDS_MAX)
        if not self._undated:
            self._check_timestamps(timestamps, offsets, far & wanted)
        # Values lie in the records; as every second value of an array of all pieces they are found without a loop.
        cells = binary(data, np.stack([key_begin, key_end, value_begin, value_end], axis=1).ravel())
        row = 4 * np.arange(len(starts))
        rows = len(starts)
        topic, partition = self._topic_partition
        columns = [
            cells.take(pyarrow.array(row, mask=~has_key)),
            cells.take(pyarrow.array(row + 2, mask=~has_value)),
            pyarrow.repeat(topic, rows),
            pyarrow.repeat(pyarrow.scalar(partition, pyarrow.int32()), rows),
            pyarrow.array(offsets),
            pyarrow.array(np.where(far, 0, timestamps) * 1000, mask=far).view(_FIELDS[5].type),
            pyarrow.array((append_times >= 0).astype(np.int32)),
            *headers,
        ]
        taken = pyarrow.RecordBatch.from_arrays(columns, schema=self._schema)
        return taken if wanted.all() else taken.filter(pyarrow.array(wanted))

    def _check_timestamps(self, timestamps: Ints, offsets: Ints, is_far: Bools) -> None:
        """Raises FarTimestamp."""
        far = np.flatnonzero(is_far)
        if far.size:
            raise FarTimestamp(
                f"{self._topic_partition} offset {offsets[far[0]]}: the timestamp {timestamps[far[0]]} ms is beyond "
                f"{MILLISECONDS_MAX} ms, the last one of Spark\nhint: its producer counts nanoseconds, perhaps: "
                "correct it, have the topic refuse such records (message.timestamp.after.max.ms), and start behind "
                "the record, or decode the source with errors.tolerance=all, which makes it a dead letter"
            )

    def _headers(self, data: bytes, view: Bytes, at: Ints, ends: Ints) -> list[Any]:
        """The column, if it is asked for. Raises CorruptBatch for a record whose length is wrong."""
        with_headers = np.flatnonzero(view[at])
        column: list[list[dict[str, Any]] | None] = [None] * (len(at) if self._include_headers else 0)
        after = at + 1
        for row in with_headers:
            headers, after[row] = decode_headers(data, int(at[row]))
            if self._include_headers:
                # As Spark's source: a record without headers has null there.
                column[row] = [{"key": header.key, "value": header.value} for header in headers] or None
        if not np.array_equal(after, ends):
            raise CorruptBatch("a record is longer or shorter than its length field")
        return [pyarrow.array(column, _HEADERS.type)] if self._include_headers else []


def _extents(data: bytes, sizes: list[int], counts: list[int]) -> tuple[Ints, Ints]:
    """Where the records begin, behind their length, and end. Raises IndexError or CorruptBatch."""
    starts: list[int] = []
    ends: list[int] = []
    position = end = 0
    for section, count in zip(sizes, counts, strict=True):
        end += section
        for _ in range(count):
            byte = data[position]
            if byte < 0x80:
                position += 1
                size = (byte >> 1) ^ -(byte & 1)
            elif (second := data[position + 1]) < 0x80:
                position += 2
                size = ((byte & 0x7F | second << 7) >> 1) ^ -(byte & 1)
            else:
                size, position = read_varint(data, position)
            starts.append(position)
            position += size
            ends.append(position)
        if position != end:
            raise CorruptBatch("bytes after the last record")
    return np.array(starts, np.int64), np.array(ends, np.int64)


def _extent(view: Bytes, at: Ints) -> tuple[Ints, Ints, Any]:
    """Where the bytes with their length at each position begin and end, and whether they are not null."""
    sizes, begin = read_varints(view, at)
    if (sizes < -1).any():
        raise CorruptBatch("negative size")
    end = begin + np.maximum(sizes, 0)
    if (end >= len(view)).any():
        raise CorruptBatch("a record ends after its batch")
    return begin, end, sizes >= 0
