"""The Spark job that writes one micro-batch: rows encoded and written where they are, results collected.

The sequences of a producer id are counted per partition, so under one producer id each partition has one writer at a
time. Tasks take turns. Only where the order between tasks matters, each partition has one task, to which the
others send what they have encoded: sections of record batches are shuffled then, not rows. The same job for all
guarantees; what differs is the identity that the tasks write under.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame, functions
from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType

from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.commit_protocol.claims import Output
from einmal.security.redaction import RedactedDict
from einmal.sinks.kafka.claim_client import Address
from einmal.sinks.kafka.encoding import encoding_of
from einmal.sinks.kafka.open_transaction import OpenTransaction, WriteAs
from einmal.sinks.kafka.routing import BatchRoute, check_columns, chooser, is_keyless
from einmal.sinks.kafka.writer import WriteTask
from einmal.spark.environment.plans.computed_rows import task_count
from einmal.spark.environment.plans.row_order import is_in_order
from einmal.spark.environment.plans.row_schemas import schema_of
from einmal.spark.output.tasks import OUTPUT_SCHEMA, SECTION_SCHEMA, TaskTurn, encodes, writes

_HEADERS: Final = "array<struct<key:string,value:binary>>"
_SELECTED: Final[dict[str, tuple[DataType | None, str]]] = {
    "key": (BinaryType(), "cast(key as binary)"),
    "value": (BinaryType(), "cast(value as binary)"),
    "timestamp": (None, "unix_millis(timestamp)"),
    # With each row that it hands to Python Spark goes over all nulls of a list's column from the last value on: it asks
    # the Arrow writer for its size.
    "headers": (None, f"coalesce(cast(headers as {_HEADERS}), cast(array() as {_HEADERS}))"),
    # A wider one than Kafka's: without ANSI mode Spark would cut a number that is no partition to one that is.
    "partition": (IntegerType(), "cast(partition as bigint)"),
    "topic": (StringType(), "topic"),
}
"""Conversion of every column: the type that needs no expression, and the expression."""


class Job:
    """How a query's batches are written. ``address``: the claim service."""

    def __init__(self, cluster: KafkaCluster, client: Mapping[str, str], topic: str | None, address: Address) -> None:
        self._cluster = cluster
        # Its repr hides secrets: it is part of every task.
        self._client = RedactedDict(for_tasks(client))
        self._topic = topic
        self._address = address
        # A column object is several calls to the JVM; these serve every batch.
        self._order = [functions.col(name) for name in ("number", "task", "position")]

    def run(self, frame: DataFrame, transaction: OpenTransaction, batch_id: int, write_as: WriteAs) -> list[Output]:
        """Raises what Spark raises when a task fails."""
        check_columns(schema_of(frame.schema), self._topic)
        turn = TaskTurn(self._address, transaction.token)
        count = 0 if self._topic is None else transaction.look_up(self._topic)
        tasks = int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
        tasks = min(tasks, count) if count else tasks
        keyless = is_keyless(frame.columns, self._topic)
        choose = chooser(BatchRoute(self._topic, count, turn, batch_id), frame.columns)
        encoding = encoding_of(self._client, self._topic, choose, time.time_ns() // 1_000_000)
        encode = encodes(encoding)
        rows = prepared(frame, self._topic)
        tasks_before = task_count(frame)
        is_shared = not keyless and tasks_before != 1 and not is_in_order(frame)
        write = writes(WriteTask(write_as, encoding.compression, is_shared), turn, self._client)
        if keyless:
            rows = rows.coalesce(tasks)
        if keyless or is_shared or tasks_before == 1:
            outputs = rows.mapInArrow(lambda batches: write(encode(batches)), OUTPUT_SCHEMA)
        else:
            sections = rows.mapInArrow(encode, SECTION_SCHEMA).repartitionById(tasks, self._order[0])
            # Kafka keeps the order of a key's records, a shuffle does not.
            outputs = sections.sortWithinPartitions(*self._order).mapInArrow(write, OUTPUT_SCHEMA)
        return [Output(**row.asDict()) for row in outputs.collect()]


def prepared(frame: DataFrame, topic: str | None) -> DataFrame:
    """The frame's rows with only those of the columns key, value, timestamp (ms), headers, partition and topic that it
    has, and that matter."""
    kinds = {field.name: field.dataType for field in frame.schema.fields}
    known = _SELECTED if topic is None else {name: _SELECTED[name] for name in _SELECTED if name != "topic"}
    selected = {name: expression for name, (_, expression) in known.items() if name in kinds}
    if sorted(frame.columns) == sorted(selected) and all(kinds[name] == _SELECTED[name][0] for name in selected):
        # A selection is planned for every batch, which takes longer than to write a small one.
        return frame
    # As text: every column object is several calls to the JVM, in every batch.
    return frame.selectExpr(*(f"{expression} as {name}" for name, expression in selected.items()))


def for_tasks(client: Mapping[str, str]) -> dict[str, str]:
    """The settings that tasks write with."""
    return {name: value for name, value in client.items() if name not in _NOT_FOR_TASKS}


_NOT_FOR_TASKS: Final = frozenset({"transactional.id", "transaction.timeout.ms"})
