"""Which partition every row goes to.

Kafka's choice: the ``partition`` column, else murmur2 of the key, else spread. Partitions of a batch are numbered over
all its topics (``TopicTable``). Where nothing can name a partition (no key, no partition column) each task has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from einmal.pipeline.commit_record import RESERVED_TOPICS
from einmal.spark.options import OptionError, reserved
from einmal.spark.output.claim_service import Address, ClaimClient
from einmal.spark.source.vectors import Ints, ints, murmur2s, present

_HEADERS: Final = "array<struct<key:string,value:binary>>"


class RowRefused(ValueError):
    """A row that cannot be a record: the batch cannot be written with it, and is not written without it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What a task must know of the transaction it writes in."""

    address: Address
    token: str

    def claims(self) -> ClaimClient:
        """A line to the driver, as the task attempt that runs here. Its questions raise OSError, ClaimRefused."""
        context = TaskContext.get()
        assert context is not None, "only tasks claim"
        return ClaimClient(self.address, self.token, context.taskAttemptId())


@dataclass(frozen=True, slots=True)
class BatchRoute:
    """What the rows of one batch go by. ``count`` is the fixed topic's number of partitions.

    ``batch``: its number. Rows without a key begin at another partition in each, else a batch that one task has read
    would always go to the first.
    """

    topic: str | None
    count: int
    turn: Turn
    batch: int


def check_columns(schema: StructType, topic: str | None) -> None:
    """Whether a frame can be written, as Spark's Kafka sink would ask. Raises OptionError."""
    columns = {field.name: field.dataType for field in schema.fields}
    _require(
        columns, "value", (StringType, BinaryType), 'select it, for example .selectExpr("to_json(struct(*)) AS value")'
    )
    if topic is None:
        _require(columns, "topic", (StringType,), 'set .option("topic", "counts"), or add a topic column')
    _allow(columns, "key", (StringType, BinaryType))
    _allow(columns, "partition", (IntegerType, ShortType, LongType))
    _allow(columns, "timestamp", (TimestampType,))
    headers = columns.get("headers")
    if headers is not None and not _is_headers(headers):
        raise OptionError(f'column "headers" is array<struct<key:string,value:binary>>, not {headers.simpleString()}')


def prepared(frame: DataFrame, route: BatchRoute) -> DataFrame:
    """The frame's rows as key, value, timestamp (ms, or null), and headers, partition and topic where they matter."""
    there = set(frame.columns)
    key = "key" if "key" in there else "null"
    timestamp = "unix_millis(timestamp)" if "timestamp" in there else "cast(null as bigint)"
    # As text: every column object is several calls to the JVM, in every batch.
    selected = [f"cast({key} as binary) as key", "cast(value as binary) as value", f"{timestamp} as timestamp"]
    if "headers" in there:
        # With each row that it hands to Python Spark goes over all nulls of a list's column from the last value on: it
        # asks the Arrow writer for its size. For the same reason rows without headers go without the column.
        selected.append(f"coalesce(cast(headers as {_HEADERS}), cast(array() as {_HEADERS})) as headers")
    if "partition" in there:
        selected.append("cast(partition as int) as partition")
    if route.topic is None:
        selected.append("topic")
    return frame.selectExpr(*selected)


def is_keyless(frame: DataFrame, route: BatchRoute) -> bool:
    """Whether nothing can name a partition, so that every task may have one of its own."""
    return route.topic is not None and not {"key", "partition"}.intersection(frame.columns)


@dataclass(frozen=True, slots=True)
class OwnPartition:
    """Every row of a task to a partition that is the task's own."""

    route: BatchRoute

    def __call__(self, rows: Any, task: int) -> Ints:
        return np.full(rows.num_rows, (self.route.batch + task) % self.route.count, np.int64)


@dataclass(frozen=True, slots=True)
class KafkasChoice:
    """Every row to the partition that Kafka's producer would choose. Raises RowRefused for a row without one."""

    route: BatchRoute

    def __call__(self, rows: Any, task: int) -> Ints:
        names = rows.schema.names
        topics = rows.column("topic") if self.route.topic is None else None
        partitions = rows.column("partition") if "partition" in names else None
        return choose_numbers(self.route, rows.column("key"), partitions, topics, task)


def choose_numbers(route: BatchRoute, keys: Any, partitions: Any, topics: Any, task: int) -> Ints:
    """The number of every row's partition, from Arrow arrays. Raises RowRefused."""
    base, size = _tables(route, topics, len(keys))
    has_key = present(keys)
    offsets = np.zeros(len(keys), np.int64)
    if has_key.any():
        offsets = murmur2s(keys.cast(pyarrow.binary())) % size
    if partitions is not None:
        given = present(partitions)
        named = ints(partitions)
        if (wrong := np.flatnonzero(given & ((named < 0) | (named >= size)))).size:
            row = wrong[0]
            topic = route.topic if topics is None else topics[int(row)].as_py()
            raise RowRefused(f"a row names partition {named[row]} of {topic}, which has {size[row]}")
        offsets = np.where(given, named, offsets)
        has_key = has_key | given
    # Without a key rows are spread, from another beginning in each task; the same rows always in the same way.
    spread = np.flatnonzero(~has_key)
    offsets[spread] = (route.batch + task + np.arange(len(spread))) % size[spread]
    return base + offsets


def _tables(route: BatchRoute, topics: Any, rows: int) -> tuple[Ints, Ints]:
    """Of every row's topic, the number of its partition 0, and how many partitions it has."""
    if topics is None:
        return np.zeros(rows, np.int64), np.full(rows, route.count, np.int64)
    if topics.null_count:
        raise RowRefused('a row has no topic: set .option("topic", ...), or fill the topic column')
    encoded = topics.dictionary_encode()
    for name in sorted(RESERVED_TOPICS.intersection(encoded.dictionary.to_pylist())):
        raise RowRefused("a row's topic " + reserved(name))
    with route.turn.claims() as claims:
        tables = np.array([claims.topic(name) for name in encoded.dictionary.to_pylist()], np.int64).reshape(-1, 2)
    which = encoded.indices.to_numpy()
    return tables[which, 0], tables[which, 1]


def _require(columns: dict[str, DataType], name: str, kinds: tuple[type[DataType], ...], hint: str) -> None:
    if name not in columns:
        raise OptionError(f'column "{name}" is missing; there are: {", ".join(columns)}\nhint: {hint}')
    _allow(columns, name, kinds)


def _allow(columns: dict[str, DataType], name: str, kinds: tuple[type[DataType], ...]) -> None:
    kind = columns.get(name)
    if kind is not None and not isinstance(kind, kinds):
        wanted = " or ".join(each().simpleString() for each in kinds)
        raise OptionError(
            f'column "{name}" is {wanted}, not {kind.simpleString()}\n'
            f'hint: .withColumn("{name}", F.col("{name}").cast("{kinds[0]().simpleString()}"))'
        )


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name, type(field.dataType)) for field in kind.elementType.fields]
    return fields == [("key", StringType), ("value", BinaryType)]
