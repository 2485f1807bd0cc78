"""The rows of a query, where they go to several sinks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from einmal.sinks.sink import RowSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a query that go to one sink. ``column``: the struct column that holds them, where the query has
    several parts; it is null in the rows of others. ``name``: of its commit record, where that is not the query's: two
    tables of one database have two records."""

    sink: RowSink
    column: str | None = None
    name: str | None = None

    def rows(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        if self.column is None:
            return frame
        return frame.where(F.col(self.column).isNotNull()).select(f"`{self.column}`.*")

    def schema(self, schema: StructType) -> StructType:
        """Return the schema of its rows, from that of the query."""
        from pyspark.sql.types import StructType

        if self.column is None:
            return schema
        kind = schema[self.column].dataType
        assert isinstance(kind, StructType), kind
        return kind


def in_one_column(frame: DataFrame, column: str) -> DataFrame:
    """The rows as a struct column, whatever the names of their own columns."""
    from pyspark.sql import functions as F

    names = (name.replace("`", "``") for name in frame.columns)
    return frame.select(F.struct(*(F.col(f"`{name}`") for name in names)).alias(column))
