"""A DataFrame as the rows of a batch: Spark's tasks write them.

Columns are named by numbers on their way: ``mapInArrow`` reads the names of columns as SQL does. It would look for a
field of ``a.b``, for all columns of ``*``, and find no column of a name with a backtick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from einmal.sinks.batch_rows import BatchRows, PartReport, Selected, TaskAttempt, WritePart
from einmal.sinks.row_schema import RowSchema
from einmal.spark.environment.plans.row_schemas import schema_of
from einmal.spark.environment.python_worker import settle

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_JSON: Final = {
    "ignoreNullFields": "false",
    # Spark's default has milliseconds.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_REPORT: Final = "part int, attempt bigint, rows bigint, size bigint, crc bigint"


class FrameRows(BatchRows):
    def __init__(self, frame: DataFrame) -> None:
        self.frame = frame

    @cached_property
    def schema(self) -> RowSchema:
        return schema_of(self.frame.schema)

    def without(self, column: str) -> FrameRows:
        return FrameRows(self.frame.drop(column))

    def select(self, columns: Sequence[Selected]) -> FrameRows:
        from pyspark.sql import functions

        plain, numbers = self._numbered(), {name: number for number, name in enumerate(self.frame.schema.names)}

        def column(selected: Selected) -> Column:
            expression = plain[f"c{numbers[selected.column]}"]
            if selected.field is not None:
                expression = expression[selected.field]
            return functions.to_json(expression, _JSON) if selected.as_json else expression

        rows = plain.select(*(column(selected).alias(f"c{number}") for number, selected in enumerate(columns)))
        return FrameRows(rows.toDF(*(selected.name for selected in columns)))

    def _numbered(self) -> DataFrame:
        return self.frame.toDF(*(f"c{number}" for number in range(len(self.frame.schema.names))))

    def write(self, write: WritePart) -> list[PartReport]:
        names, plain = self.frame.schema.names, self._numbered()
        return sorted(PartReport(*row) for row in plain.mapInArrow(_writes(write, names), _REPORT).collect())


def _writes(write: WritePart, names: Sequence[str]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for ``mapInArrow``: rows in, one report out, or none where there are no rows."""

    def written(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        settle()
        attempt = TaskAttempt(context.partitionId(), context.taskAttemptId())
        report = write(attempt, (batch.rename_columns(list(names)) for batch in batches))
        if report is not None:
            kinds = (pyarrow.int32(), *(pyarrow.int64(),) * 4)
            arrays = [pyarrow.array([value], kind) for value, kind in zip(report, kinds, strict=True)]
            yield pyarrow.RecordBatch.from_arrays(arrays, names=list(PartReport._fields))

    return written
