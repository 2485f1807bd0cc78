"""The rows of a declaration's sinks as one frame: those of several topics have a topic column, those of other sinks are
struct columns.

A union fills a column that one of its parts lacks with nulls, and a null value is a tombstone. So the columns of each
topic are checked, and have their types, before the union.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import reduce
from operator import ne
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from einmal.declare.pipeline import Declaration, DeclaredSink
from einmal.misspelt import nearest_name
from einmal.options.values import OptionError
from einmal.pipeline.errors import PipelineRefused
from einmal.sinks.kafka.routing import WRITTEN, check_columns
from einmal.spark.api.letter_part import TOPICS_COLUMN
from einmal.spark.environment.plans.row_schemas import schema_of
from einmal.spark.errors import reason_of
from einmal.spark.sinks.part import in_one_column

_UNITED: Final = (*WRITTEN, "offset")
"""``offset`` keeps the source's order."""
_OPTIONAL: Final = ("key", "partition", "headers")
"""Columns without which rows can be written, and which somebody misses only later."""
_ALMOST: Final = 0.91
"""A letter more or less than in "partition" or "headers": "position" and "readers" are other words."""
_TYPES: Final = {
    "key": "binary",
    "value": "binary",
    "partition": "int",
    # The short name is one without a zone under spark.sql.timestampType=TIMESTAMP_NTZ.
    "timestamp": "timestamp_ltz",
    "headers": "array<struct<key:string,value:binary>>",
}
"""Types of columns that are NULL in every row, and so have none of their own."""


def combined(declaration: Declaration, frames: Mapping[str, DataFrame]) -> DataFrame:
    """``frames``: by the names of sources and views; where code makes the rows, of sinks. Raises PipelineRefused."""
    try:
        return _combined(declaration, frames)
    except PySparkException as error:
        what = f"the rows of the sinks are not of one kind: {reason_of(error)}"
        raise PipelineRefused(what, "cast the columns of their views to one type") from error


def _combined(declaration: Declaration, frames: Mapping[str, DataFrame]) -> DataFrame:
    made = {sink.name: frames[sink.name if sink.origin is None else sink.origin] for sink in declaration.sinks}
    if len(declaration.sinks) == 1:
        (sink,) = declaration.sinks
        return _as_named(made[sink.name]) if sink.is_topic else made[sink.name]
    parts = [_with_topic(made[sink.name], sink) for sink in declaration.sinks if sink.is_topic]
    others = [sink for sink in declaration.sinks if not sink.is_topic]
    if others:
        # Beside the struct column of one part those of the others are null.
        parts = [in_one_column(_union(parts), TOPICS_COLUMN)] if parts else []
        parts += [in_one_column(made[sink.name], sink.name) for sink in others]
    return _union(parts)


def _union(parts: list[DataFrame]) -> DataFrame:
    return reduce(lambda first, second: first.unionByName(second, allowMissingColumns=True), parts)


def _with_topic(frame: DataFrame, sink: DeclaredSink) -> DataFrame:
    """A sink's rows as part of a union: the columns that are written, with the topic in each row. Raises
    PipelineRefused."""
    frame = _typed(_as_named(frame))
    try:
        check_columns(schema_of(frame.schema), sink.topic)
    except OptionError as error:
        what, _, hint = str(error).partition("\nhint: ")
        raise PipelineRefused(f"sinks.{sink.name}: {what}", hint) from error
    _refuse_misspelt(frame, sink)
    columns = [name for name in _UNITED if name in frame.columns and (name != "topic" or sink.topic is None)]
    # A view may have bytes where another has text: a record has bytes.
    rows = frame.select(
        *(F.col(name).cast("binary").alias(name) if name in ("key", "value") else F.col(name) for name in columns)
    )
    return rows if sink.topic is None else rows.withColumn("topic", F.lit(sink.topic))


def _as_named(frame: DataFrame) -> DataFrame:
    """With the names of the columns that are written, whatever their case: to Spark's SQL they are the same."""
    renamed = {
        column: column.lower()
        for column in frame.columns
        if column.lower() in _UNITED and column.lower() not in frame.columns
    }
    return frame.withColumnsRenamed(renamed) if renamed else frame


def _typed(frame: DataFrame) -> DataFrame:
    """With types for columns that are NULL in every row."""
    void = {name for name, kind in frame.dtypes if kind == "void" and name in _TYPES}
    return frame.withColumns({name: F.col(name).cast(_TYPES[name]) for name in void}) if void else frame


def _refuse_misspelt(frame: DataFrame, sink: DeclaredSink) -> None:
    """Raises PipelineRefused for a column that is not written, and has almost the name of one that is missing."""
    missing = [name for name in _OPTIONAL if name not in frame.columns]
    for column in frame.columns:
        if column in _UNITED:
            continue
        if meant := _meant(column.lower(), missing):
            raise PipelineRefused(
                f"sinks.{sink.name}: column {column!r} is not written, and there is no column {meant!r}",
                f"did you mean {meant!r}? Leave a column out of the view that is not to be written",
            )


def _meant(column: str, missing: Collection[str]) -> str | None:
    """Its name is the word with two letters transposed, or one more or less; of "key" that is its plural only."""
    for name in missing:
        if sorted(name) == sorted(column) and sum(map(ne, name, column)) == 2:
            return name
    if column == "keys" and "key" in missing:
        return "key"
    return nearest_name(column, [name for name in missing if name != "key"], _ALMOST)
