"""Dead letters: records that failed, with the headers of Kafka Connect's dead-letter queues. Pure.

A dead letter has the raw key and value, the timestamp and the headers of its record, and, before ``replay`` removes
them again, the headers below, whose values are text. Headers of these names that the record had itself are left out:
who produces a record does not choose where it is replayed. Connect's names and stages, with these differences:
``batch.id`` is ours, there is no ``exception.stacktrace``, the class names are those of Python, and
``connector.name`` is the pipeline's source, or the name of the commit record where a sink has rejected the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from einmal.types import Header

PREFIX: Final = "__connect.errors."
ORIGINAL_TOPIC: Final = PREFIX + "topic"
ORIGINAL_PARTITION: Final = PREFIX + "partition"
ORIGINAL_OFFSET: Final = PREFIX + "offset"
CONNECTOR: Final = PREFIX + "connector.name"
TASK: Final = PREFIX + "task.id"
STAGE: Final = PREFIX + "stage"
CLASS: Final = PREFIX + "class.name"
EXCEPTION: Final = PREFIX + "exception.class.name"
MESSAGE: Final = PREFIX + "exception.message"
BATCH: Final = PREFIX + "batch.id"

KEY_CONVERTER: Final = "KEY_CONVERTER"
VALUE_CONVERTER: Final = "VALUE_CONVERTER"
TASK_PUT: Final = "TASK_PUT"
"""A sink has rejected the row."""
STAGES: Final = (KEY_CONVERTER, VALUE_CONVERTER, TASK_PUT)
_MESSAGE_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFailure:
    """Why a record failed. ``exception``: the class of the error, with its module; ``executing``: what raised it;
    ``batch``: the micro-batch whose transaction has the dead letter."""

    source: str
    batch: int
    stage: str
    exception: str
    message: str
    executing: str = ""
    task: int = 0

    @property
    def reason(self) -> str:
        """The error's class without its module."""
        return self.exception.rpartition(".")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRecord:
    """A record as it was read. ``timestamp``: in microseconds, as Spark has it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row that a sink has rejected, by the record that it was made of. ``exception``: the sink's kind and its
    name for the error, such as postgres.unique_violation; ``message``: without values of the row."""

    topic: str
    partition: int
    offset: int
    exception: str
    message: str


class ToleranceExceeded(Exception):
    """A batch has more bad rows than ``errors.deadletterqueue.limit`` allows. Another attempt would have as many."""


def failed_record(row: Mapping[str, Any]) -> FailedRecord:
    """From a row of the source with its headers, as ``rows_of`` has it."""
    timestamp = row["timestamp"]
    return FailedRecord(
        topic=row["topic"],
        partition=row["partition"],
        offset=row["offset"],
        key=row["key"],
        value=row["value"],
        headers=tuple(Header(header["key"], header["value"]) for header in row["headers"] or ()),
        # A record without a timestamp has -1 ms; one whose timestamp is none of Spark's has none in its row.
        timestamp=timestamp if timestamp is not None and timestamp >= 0 else None,
    )


def rows_of(batch: Any) -> list[dict[str, Any]]:
    """An Arrow batch of the source's as rows. Timestamps are numbers: Python's end in the year 9999."""
    at = batch.schema.get_field_index("timestamp")
    rows: list[dict[str, Any]] = batch.set_column(at, "timestamp", batch.column(at).view("int64")).to_pylist()
    return rows


def dead_letter(
    record: FailedRecord, failure: RowFailure, topic: str, *, context_headers: bool = True
) -> dict[str, Any]:
    """A row for the dead-letter ``topic``: the columns topic, key, value, headers and timestamp of the sink."""
    headers = [{"key": header.key, "value": header.value} for header in original_headers(record.headers)]
    if context_headers:
        headers += [{"key": name, "value": text.encode()} for name, text in context(record, failure).items()]
    return {
        "topic": topic,
        "key": record.key,
        "value": record.value,
        "headers": headers,
        "timestamp": record.timestamp,
    }


def context(record: FailedRecord, failure: RowFailure) -> dict[str, str]:
    """Connect's context headers by name, in Connect's order, then ours."""
    return {
        ORIGINAL_TOPIC: record.topic,
        ORIGINAL_PARTITION: str(record.partition),
        ORIGINAL_OFFSET: str(record.offset),
        CONNECTOR: failure.source,
        TASK: str(failure.task),
        STAGE: failure.stage,
        CLASS: failure.executing,
        EXCEPTION: failure.exception,
        MESSAGE: failure.message[:_MESSAGE_MAX],
        BATCH: str(failure.batch),
    }


def context_of(headers: Iterable[Header]) -> Mapping[str, str]:
    """The context headers of a dead letter. Those of the pipeline are the last ones: earlier ones, of records that
    failed before their own headers were left out, do not count."""
    return {
        header.key: (header.value or b"").decode("utf-8", "replace")
        for header in headers
        if header.key.startswith(PREFIX)
    }


def original_headers(headers: Iterable[Header]) -> tuple[Header, ...]:
    """Those that a dead letter, or a record that is to become one, has of its own."""
    return tuple(header for header in headers if not header.key.startswith(PREFIX))
