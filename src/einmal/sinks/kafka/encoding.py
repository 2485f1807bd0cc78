"""Rows to records: a column at a time, into the sections of record batches, each for one partition.

A section is a batch without its header: who may write it, under which identity and sequence, is not known yet. So rows
are encoded where they are, and sections are what goes to the owners of partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow
import pyarrow.compute as pc

from einmal.client.cores.producer_batch import RECORD_OVERHEAD, over_request_size
from einmal.sinks.batch_rows import RowRefused
from einmal.sinks.kafka.vectors import Ints, Varints, binary, bounds_of, data_of, ints, joined, present
from einmal.sinks.text import NotText, check_text
from einmal.types import Header
from einmal.wire.compression import Compression, compress
from einmal.wire.record_batch import HEADER_SIZE, encode_headers

SECTION_NAMES: Final = ("number", "task", "position", "section", "count", "first_timestamp", "max_timestamp")
"""The columns of sections. ``number``: of the partition; ``task`` and ``position``: the order of the sections from one
source."""
_BATCH_BYTES: Final = 256 * 1024
"""A task has all its records at once: larger batches than a producer's that waits for them."""
_MAX_REQUEST_SIZE: Final = 1_048_576
"""Kafka's default for ``max.request.size``."""
_BYTES_MAX: Final = 8 * 1024 * 1024
"""Rows are encoded in pieces of about so many bytes."""

Chooser = Callable[[Any, int], Ints]
"""From an Arrow batch of rows, and the task's number, to the number of every row's partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """``topic``: None where each row has its own. ``batch_bytes``: where a batch ends. ``largest``: what no record may
    exceed (max.request.size).

    ``now_ms``: the time of rows that have none. The driver's, so that a task that runs again makes the same records.
    Otherwise Spark's shuffle checksums differ, and the whole stage runs again.
    """

    choose: Chooser
    topic: str | None
    compression: Compression
    batch_bytes: int
    largest: int
    now_ms: int


def encoding_of(client: Mapping[str, str], topic: str | None, choose: Chooser, now_ms: int) -> Encoding:
    """``client``: settings under Kafka's names."""
    return Encoding(
        choose=choose,
        topic=topic,
        compression=Compression[client.get("compression.type", "none").upper()],
        batch_bytes=int(client.get("batch.size", _BATCH_BYTES)),
        largest=int(client.get("max.request.size", _MAX_REQUEST_SIZE)),
        now_ms=now_ms,
    )


def encoded(encoding: Encoding, task: int, batches: Iterator[Any]) -> Iterator[Any]:
    """Sections (SECTION_NAMES) of the Arrow rows of one task. Raises RowRefused, and RecordTooLarge."""
    position = 0
    for rows in _gathered(batches):
        sections = _sections(encoding, rows, task, position)
        position += sections.num_rows
        yield sections


def _gathered(batches: Iterator[Any]) -> Iterator[Any]:
    """Larger batches: what is done once per batch is not little."""
    gathered: list[Any] = []
    size = 0
    for batch in batches:
        gathered.append(batch)
        size += batch.nbytes
        if size >= _BYTES_MAX:
            yield _together(gathered)
            gathered, size = [], 0
    if any(batch.num_rows for batch in gathered):
        yield _together(gathered)


def _together(batches: list[Any]) -> Any:
    rows = batches[0] if len(batches) == 1 else pyarrow.concat_batches(batches)
    if "key" not in rows.schema.names:
        rows = rows.append_column("key", pyarrow.nulls(rows.num_rows, pyarrow.binary()))
    for name in ("key", "value"):
        # A session may have Arrow's large types.
        rows = rows.set_column(rows.schema.get_field_index(name), name, rows.column(name).cast(pyarrow.binary()))
    try:
        check_text(rows.select([name for name in ("topic", "headers") if name in rows.schema.names]))
    except NotText as error:
        raise RowRefused(str(error)) from None
    if "timestamp" not in rows.schema.names:
        rows = rows.append_column("timestamp", pyarrow.nulls(rows.num_rows, pyarrow.int64()))
    return rows


def _sections(encoding: Encoding, rows: Any, task: int, position: int) -> Any:
    numbers = encoding.choose(rows, task)
    if (numbers[1:] < numbers[:-1]).any():
        order = np.argsort(numbers, kind="stable")
        numbers = numbers[order]
        rows = rows.take(pyarrow.array(order))
    timestamps = ints(rows.column("timestamp"), encoding.now_ms)
    # -1 is Kafka's timestamp of a record that has none.
    if (timestamps < -1).any():
        raise RowRefused(f"a row has a timestamp {-int(timestamps.min())} ms before 1970, which no record can have")
    tails = _tails(rows.column("headers")) if "headers" in rows.schema.names else None
    starts = _starts(encoding, numbers, _estimates(encoding, rows, tails))
    counts = np.diff(starts, append=len(numbers))
    data, bounds = _records(rows, timestamps, tails, starts, counts)
    edges = np.append(bounds[starts], bounds[-1])
    columns = [
        pyarrow.array(numbers[starts].astype(np.int32)),
        pyarrow.array(np.full(len(starts), task, np.int32)),
        pyarrow.array(np.arange(position, position + len(starts))),
        _compressed(encoding.compression, binary(data, edges)),
        pyarrow.array(counts.astype(np.int32)),
        pyarrow.array(timestamps[starts]),
        pyarrow.array(np.maximum.reduceat(timestamps, starts)),
    ]
    return pyarrow.RecordBatch.from_arrays(columns, names=list(SECTION_NAMES))


def _estimates(encoding: Encoding, rows: Any, tails: Any) -> Ints:
    """The most that each record may take. Raises RecordTooLarge for one that is too large."""
    keys, values = rows.column("key"), rows.column("value")
    sizes = RECORD_OVERHEAD + np.diff(bounds_of(keys)) + np.diff(bounds_of(values))
    if tails is not None:
        sizes += np.diff(bounds_of(tails))
    largest = int(sizes.argmax())
    if HEADER_SIZE + sizes[largest] > encoding.largest:
        topic = rows.column("topic")[largest].as_py() if encoding.topic is None else encoding.topic
        raise over_request_size(f"{topic}: a row", int(sizes[largest]), encoding.largest, "kafka.max.request.size")
    return sizes


def _starts(encoding: Encoding, numbers: Ints, sizes: Ints) -> Ints:
    """The first row of every section: another partition, or the batch would become too large."""
    reached = np.cumsum(sizes)
    ends = np.append(np.flatnonzero(np.diff(numbers)) + 1, len(numbers))
    starts = []
    start = 0
    for end in ends:
        while start < end:
            starts.append(start)
            before = reached[start - 1] if start else 0
            full = np.searchsorted(reached, before + encoding.batch_bytes, side="right")
            start = min(int(end), max(start + 1, int(full)))
    return np.array(starts, np.int64)


def _records(rows: Any, timestamps: Ints, tails: Any, starts: Ints, counts: Ints) -> tuple[Any, Ints]:
    """All records one after the other, and where each begins, and the last one ends."""
    keys, values = rows.column("key"), rows.column("value")
    has_key, has_value = present(keys), present(values)
    keys = keys if has_key.all() else keys.fill_null(b"")
    values = values if has_value.all() else values.fill_null(b"")
    key_sizes, value_sizes = np.diff(bounds_of(keys)), np.diff(bounds_of(values))
    since = Varints(timestamps - np.repeat(timestamps[starts], counts))
    delta = Varints(np.arange(len(timestamps)) - np.repeat(starts, counts))
    key_size = Varints(np.where(has_key, key_sizes, -1))
    value_size = Varints(np.where(has_value, value_sizes, -1))
    tail_sizes = 1 if tails is None else np.diff(bounds_of(tails))
    body = 1 + since.sizes + delta.sizes + key_size.sizes + key_sizes + value_size.sizes + value_sizes + tail_sizes
    records = pc.binary_join_element_wise(
        joined(Varints(body), b"\x00", since, delta, key_size),
        keys,
        joined(value_size),
        values,
        pyarrow.scalar(b"\x00", pyarrow.binary()) if tails is None else tails,
        pyarrow.scalar(b"", pyarrow.binary()),
    )
    return data_of(records), bounds_of(records)


def _tails(headers: Any) -> Any:
    """The headers of every record as they end it; None where no row has any."""
    if not pc.sum(pc.list_value_length(headers)).as_py():
        return None
    return pyarrow.array(
        [encode_headers(_headers(row_headers)) for row_headers in headers.to_pylist()], pyarrow.binary()
    )


def _headers(given: list[dict[str, Any]] | None) -> tuple[Header, ...]:
    if any(header is None or header["key"] is None for header in given or ()):
        raise RowRefused("a row has a header without a key")
    return tuple(Header(header["key"], header["value"]) for header in given or ())


def _compressed(compression: Compression, sections: Any) -> Any:
    if not compression:
        return sections
    return pyarrow.array([compress(compression, section.as_py()) for section in sections], pyarrow.binary())
