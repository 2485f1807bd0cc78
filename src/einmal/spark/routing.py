"""Every row to the one task that owns its target partition.

The sequences of a producer id are counted per partition, so under one producer id each partition must have exactly one
writer. A row's partition is Kafka's choice: the ``partition`` column, else murmur2 of the key, else spread. Rows are
then shuffled by partition. Where nothing can name a partition (no key, no partition column) there is nothing to route:
the frame is cut down to at most as many tasks as the topic has partitions, and each writes one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

import pyarrow
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
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

from einmal.spark.claim_service import Address, ClaimClient
from einmal.spark.options import OptionError
from einmal.wire.murmur2 import partition_for_key

NUMBER: Final = "number"
"""The routed column: which of the batch's partitions, as ``TopicTable`` numbers them."""
_ORDER: Final = "order"


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
class Route:
    """How the rows of one batch find their partitions. ``count`` is the fixed topic's number of partitions."""

    topic: str | None
    count: int
    turn: Turn
    tasks: int


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


def routed(frame: DataFrame, route: Route) -> DataFrame:
    """The frame's rows as key, value, headers, timestamp (ms, or null) and NUMBER, one owner for each NUMBER."""
    columns = {field.name: field.dataType for field in frame.schema.fields}
    keyed = "key" in columns or "partition" in columns
    selected = [
        _column(columns, "key", "binary"),
        F.col("value").cast("binary").alias("value"),
        _column(columns, "headers", "array<struct<key:string,value:binary>>"),
        _timestamp(columns),
    ]
    if not keyed and route.topic is not None:
        return frame.select(*selected).coalesce(min(route.count, route.tasks))
    # The stubs know only the form that names the type of function.
    number = cast(Any, arrow_udf)(_chooser(route), "int").asNondeterministic()
    chosen = number(
        _column(columns, "key", "binary"),
        _column(columns, "partition", "int"),
        F.lit(None).cast("string") if route.topic is not None else F.col("topic"),
    )
    selected.append(chosen.alias(NUMBER))
    # Kafka keeps the order of a key's records, a shuffle does not: the source's offsets, if still there, restore it.
    ordered = isinstance(columns.get("offset"), LongType)
    if ordered:
        selected.append(F.col("offset").alias(_ORDER))
    result = frame.select(*selected).repartitionById(route.tasks, NUMBER)
    return result.sortWithinPartitions(NUMBER, _ORDER).drop(_ORDER) if ordered else result


def _chooser(route: Route) -> Callable[..., Any]:
    """The function that numbers rows, for Arrow arrays of keys, partitions and topics."""
    topic, count, turn = route.topic, route.count, route.turn

    # Spark learns from the annotations that this is a function of whole arrays.
    def choose(keys: pyarrow.Array, partitions: pyarrow.Array, topics: pyarrow.Array) -> pyarrow.Array:
        chosen = choose_numbers(keys.to_pylist(), partitions.to_pylist(), topics.to_pylist(), topic, count, turn)
        return pyarrow.array(chosen, pyarrow.int32())

    return choose


def choose_numbers(
    keys: list[bytes | None],
    partitions: list[int | None],
    topics: list[str | None],
    fixed_topic: str | None,
    count: int,
    turn: Turn,
) -> list[int]:
    """The number of every row's partition. Raises RowRefused for a row that names none that exists."""
    tables: dict[str | None, tuple[int, int]] = {}
    if fixed_topic is not None:
        topics = [None for _ in keys]
        tables[None] = (0, count)
    else:
        with turn.claims() as claims:
            for name in sorted({each for each in topics if each is not None}):
                tables[name] = claims.topic(name)
    context = TaskContext.get()
    # Without a key rows are spread, from another beginning in each task; the same rows always in the same way.
    spread = 0 if context is None else context.partitionId()
    numbers = []
    for key, partition, topic in zip(keys, partitions, topics, strict=True):
        if topic is None and fixed_topic is None:
            raise RowRefused('a row has no topic: set .option("topic", ...), or fill the topic column')
        base, size = tables[topic]
        if partition is not None:
            if not 0 <= partition < size:
                raise RowRefused(f"a row names partition {partition} of {topic or fixed_topic}, which has {size}")
            numbers.append(base + partition)
        elif key is not None:
            numbers.append(base + partition_for_key(key, size))
        else:
            numbers.append(base + spread % size)
            spread += 1
    return numbers


def _column(columns: dict[str, DataType], name: str, kind: str) -> Column:
    return (F.col(name) if name in columns else F.lit(None)).cast(kind).alias(name)


def _timestamp(columns: dict[str, DataType]) -> Column:
    return (F.unix_millis(F.col("timestamp")) if "timestamp" in columns else F.lit(None).cast("bigint")).alias(
        "timestamp"
    )


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
