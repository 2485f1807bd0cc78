"""Spark's schemas as those of the rows that a sink takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from einmal.sinks.row_schema import ArrayRowType, DecimalRowType, MapRowType, RowField, RowSchema, RowType

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


def schema_of(schema: StructType) -> RowSchema:
    return RowSchema(
        fields=tuple(
            RowField(field.name, type_of(field.dataType), field.nullable, field.jsonValue()["metadata"])
            for field in schema.fields
        )
    )


def type_of(kind: DataType) -> RowType:
    from pyspark.sql import types

    match kind:
        case types.StructType():
            return schema_of(kind)
        case types.ArrayType():
            return ArrayRowType(element=type_of(kind.elementType), has_null=kind.containsNull)
        case types.MapType():
            return MapRowType(key=type_of(kind.keyType), value=type_of(kind.valueType), has_null=kind.valueContainsNull)
        case types.DecimalType():
            return DecimalRowType(precision=kind.precision, scale=kind.scale)
        case types.StringType():
            # A collation is in the metadata of the column.
            return RowType("string", kind.simpleString(), "string")
        case types.UserDefinedType():
            return RowType("udt", "udt")
    return RowType(kind.typeName(), kind.simpleString(), kind.jsonValue())
