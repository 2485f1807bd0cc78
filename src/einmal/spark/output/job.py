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

from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.pipeline.claims import Output
from einmal.security.redaction import RedactedDict
from einmal.sinks.kafka.claim_client import Address
from einmal.sinks.kafka.open_transaction import OpenTransaction, WriteAs
from einmal.spark.environment.computed_rows import task_count
from einmal.spark.environment.row_order import is_in_order
from einmal.spark.output.encoding import SECTION_SCHEMA, Encoding, encodes
from einmal.spark.output.routing import (
    BatchRoute,
    KafkasChoice,
    OwnPartition,
    Turn,
    check_columns,
    is_keyless,
    prepared,
)
from einmal.spark.output.writer import OUTPUT_SCHEMA, WriteTask, writes
from einmal.wire.compression import Compression

_BATCH_BYTES: Final = 256 * 1024
"""A task has all its records at once: larger batches than a producer's that waits for them."""

_MAX_REQUEST_SIZE: Final = 1_048_576
"""Kafka's default for ``max.request.size``."""


class Job:
    """How a query's batches are written. ``address``: the claim service."""

    def __init__(self, cluster: KafkaCluster, client: Mapping[str, str], topic: str | None, address: Address) -> None:
        self._cluster = cluster
        # Its repr hides secrets: it is part of every task.
        self._client = RedactedDict({name: value for name, value in client.items() if name not in _NOT_FOR_TASKS})
        self._topic = topic
        self._address = address
        self._compression = Compression[client.get("compression.type", "none").upper()]
        self._batch_bytes = int(client.get("batch.size", _BATCH_BYTES))
        self._largest = int(client.get("max.request.size", _MAX_REQUEST_SIZE))
        # A column object is several calls to the JVM; these serve every batch.
        self._order = [functions.col(name) for name in ("number", "task", "place")]

    def run(self, frame: DataFrame, transaction: OpenTransaction, batch_id: int, write_as: WriteAs) -> list[Output]:
        """Raises what Spark raises when a task fails."""
        check_columns(frame.schema, self._topic)
        turn = Turn(self._address, transaction.token)
        count = 0 if self._topic is None else transaction.look_up(self._topic)
        tasks = int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
        tasks = min(tasks, count) if count else tasks
        route = BatchRoute(self._topic, count, turn, batch_id)
        keyless = is_keyless(frame, route)
        encode = encodes(
            Encoding(
                choose=OwnPartition(route) if keyless else KafkasChoice(route),
                topic=self._topic,
                compression=self._compression,
                batch_bytes=self._batch_bytes,
                largest=self._largest,
                now_ms=time.time_ns() // 1_000_000,
            )
        )
        rows = prepared(frame, route)
        tasks_before = task_count(frame)
        is_shared = not keyless and tasks_before != 1 and not is_in_order(frame)
        write = writes(WriteTask(turn, self._client, write_as, self._compression, is_shared))
        if keyless:
            rows = rows.coalesce(tasks)
        if keyless or is_shared or tasks_before == 1:
            outputs = rows.mapInArrow(lambda batches: write(encode(batches)), OUTPUT_SCHEMA)
        else:
            sections = rows.mapInArrow(encode, SECTION_SCHEMA).repartitionById(tasks, self._order[0])
            # Kafka keeps the order of a key's records, a shuffle does not.
            outputs = sections.sortWithinPartitions(*self._order).mapInArrow(write, OUTPUT_SCHEMA)
        return [Output(**row.asDict()) for row in outputs.collect()]


_NOT_FOR_TASKS: Final = frozenset({"transactional.id", "transaction.timeout.ms"})
