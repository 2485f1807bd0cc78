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
    from pyspark.sql.types import DataType

_JSON: Final = {
    "ignoreNullFields": "false",
    # An offset has no seconds here, as those before the zones of railways had.
    "timeZone": "UTC",
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
            number = numbers[selected.column]
            expression, kind = plain[f"c{number}"], self.frame.schema.fields[number].dataType
            if selected.field is not None:
                expression, kind = expression[selected.field], kind[selected.field].dataType  # type: ignore[index]  # a struct
            return functions.to_json(_with_text_keys(expression, kind), _JSON) if selected.as_json else expression

        rows = plain.select(*(column(selected).alias(f"c{number}") for number, selected in enumerate(columns)))
        return FrameRows(rows.toDF(*(selected.name for selected in columns)))

    def _numbered(self) -> DataFrame:
        return self.frame.toDF(*(f"c{number}" for number in range(len(self.frame.schema.names))))

    def write(self, write: WritePart) -> list[PartReport]:
        names, plain = self.frame.schema.names, self._numbered()
        return sorted(PartReport(*row) for row in plain.mapInArrow(_writes(write, names), _REPORT).collect())


def _with_text_keys(column: Column, kind: DataType) -> Column:
    """The column for ``to_json``, which names the entries of a map by Java's text of the key: for bytes an address in
    memory, for times a number."""
    from pyspark.sql import functions, types

    if not _has_other_keys(kind):
        return column
    match kind:
        case types.ArrayType():
            return functions.transform(column, lambda element: _with_text_keys(element, kind.elementType))
        case types.StructType():
            fields = (_with_text_keys(column[field.name], field.dataType).alias(field.name) for field in kind)
            return functions.when(column.isNotNull(), functions.struct(*fields))
        case types.MapType():
            named = functions.transform_values(column, lambda _, value: _with_text_keys(value, kind.valueType))
            return functions.transform_keys(named, lambda key, _: _text_of_key(key, kind.keyType))
    raise AssertionError(kind)


def _text_of_key(key: Column, kind: DataType) -> Column:
    from pyspark.sql import functions

    text = functions.to_json(functions.struct(_with_text_keys(key, kind).alias("key")), _JSON)
    return functions.get_json_object(text, "$.key")


def _has_other_keys(kind: DataType) -> bool:
    """Whether there is a map in it whose keys are no text, numbers or booleans."""
    from pyspark.sql import types

    match kind:
        case types.ArrayType():
            return _has_other_keys(kind.elementType)
        case types.StructType():
            return any(_has_other_keys(field.dataType) for field in kind)
        case types.MapType():
            is_plain = isinstance(kind.keyType, types.StringType | types.NumericType | types.BooleanType)
            return not is_plain or _has_other_keys(kind.valueType)
    return False


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
