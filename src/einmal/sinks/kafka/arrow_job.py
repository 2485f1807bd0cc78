"""Arrow rows to topics in the driver's process: its parts are encoded and written one after the other.

By the rules of Spark's tasks (``claim_service``): each part claims its partitions, and the attempts that count must be
those that wrote.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow
import pyarrow.compute as pc

from einmal.commit_protocol.claims import Output, Task
from einmal.sinks.batch_rows import BatchRows, PartReport, TaskAttempt
from einmal.sinks.kafka.encoding import encoded, encoding_of
from einmal.sinks.kafka.open_transaction import OpenTransaction, OwnTurn, WriteAs
from einmal.sinks.kafka.routing import BatchRoute, check_columns, chooser
from einmal.sinks.kafka.transaction_writer import TransactionWriter
from einmal.sinks.kafka.writer import WriteTask, write_sections

_COLUMNS: Final = ("key", "value", "headers", "topic", "partition", "timestamp")


class ArrowJob:
    """How a run's batches are written."""

    def __init__(self, client: Mapping[str, str], topic: str | None, writer: TransactionWriter) -> None:
        """``client``: settings under Kafka's names."""
        self._client = client
        self._topic = topic
        self._writer = writer

    def run(self, rows: BatchRows, transaction: OpenTransaction, batch_id: int, write_as: WriteAs) -> list[Output]:
        """Raises OptionError, RowRefused, KafkaError, ClaimRefused, and what reading the rows raises."""
        check_columns(rows.schema, self._topic)
        count = 0 if self._topic is None else transaction.look_up(self._topic)
        columns = rows.schema.names
        now_ms = time.time_ns() // 1_000_000
        written: dict[TaskAttempt, list[Output]] = {}

        def write(attempt: TaskAttempt, batches: Iterator[Any]) -> PartReport | None:
            turn = OwnTurn(transaction, Task(0, attempt.part), attempt.attempt)
            choose = chooser(BatchRoute(self._topic, count, turn, batch_id), columns)
            encoding = encoding_of(self._client, self._topic, choose, now_ms)
            sections = encoded(encoding, attempt.part, map(prepared_rows, batches))
            task = WriteTask(write_as, encoding.compression, is_shared=False)
            assert write_as.identity is not None, "only in a transaction"
            with turn.claims() as claims, self._writer.begun(write_as.identity, write_as.transaction_version) as writer:
                outputs = write_sections(task, attempt.part, claims, writer, sections)
            written[attempt] = outputs
            return PartReport(*attempt, sum(output.count for output in outputs), 0, 0) if outputs else None

        reports = rows.write(write)
        return [output for report in reports for output in written[TaskAttempt(report.part, report.attempt)]]


def prepared_rows(rows: Any) -> Any:
    """The columns that a record is made of, with timestamps in ms."""
    rows = rows.select([name for name in rows.schema.names if name in _COLUMNS])
    column = rows.schema.get_field_index("timestamp")
    if column < 0:
        return rows
    # In UTC: another zone's clock shows some instants twice, which cannot be rounded there.
    times = pc.floor_temporal(rows.column(column).cast(pyarrow.timestamp("us", "UTC")), unit="millisecond")
    return rows.set_column(column, "timestamp", times.cast(pyarrow.timestamp("ms", "UTC")).cast(pyarrow.int64()))
