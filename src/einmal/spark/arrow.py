"""Records as rows of Arrow, in the columns of Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow

from einmal.types import TopicPartition
from einmal.wire.record_batch import Record

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
_HEADER: Final = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
_HEADERS: Final = pyarrow.field("headers", pyarrow.list_(_HEADER))


class RowBuilder:
    """Collects the records of one partition."""

    def __init__(self, topic_partition: TopicPartition, *, include_headers: bool) -> None:
        self._topic, self._partition = topic_partition
        self._include_headers = include_headers
        self._schema = pyarrow.schema([*_FIELDS, _HEADERS] if include_headers else _FIELDS)
        self._clear()

    def _clear(self) -> None:
        self._records: list[Record] = []
        self._timestamp_types: list[int] = []
        self._bytes = 0

    @property
    def is_empty(self) -> bool:
        return not self._records

    @property
    def is_full(self) -> bool:
        return len(self._records) >= _ROWS_MAX or self._bytes >= _BYTES_MAX

    def add(self, records: Iterable[Record], timestamp_type: int) -> None:
        before = len(self._records)
        self._records += records
        added = self._records[before:]
        self._timestamp_types += [timestamp_type] * len(added)
        self._bytes += sum(len(each.key or b"") + len(each.value or b"") for each in added)

    def take(self) -> Any:
        """The rows so far, as one Arrow record batch."""
        records, count = self._records, len(self._records)
        columns = [
            [each.key for each in records],
            [each.value for each in records],
            [self._topic] * count,
            [self._partition] * count,
            [each.offset for each in records],
            [each.timestamp * 1000 for each in records],
            self._timestamp_types,
        ]
        if self._include_headers:
            # As Spark's source: a record without headers has null there.
            columns.append([_spelled(each) if each.headers else None for each in records])
        arrays = [pyarrow.array(values, kind) for values, kind in zip(columns, self._schema.types, strict=True)]
        self._clear()
        return pyarrow.RecordBatch.from_arrays(arrays, schema=self._schema)


def _spelled(record: Record) -> list[dict[str, Any]]:
    return [{"key": header.key, "value": header.value} for header in record.headers]
