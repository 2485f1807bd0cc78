"""Rows have the columns and types that Spark has, under the same names, whoever makes them. No session."""

from __future__ import annotations

import datetime
import decimal
import json
import math
from typing import Any

import pyarrow
import pytest
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from einmal.sinks.arrow_rows import ArrowRows, arrow_type
from einmal.sinks.batch_rows import Selected
from einmal.sinks.delta import DeltaLakeTable
from einmal.sinks.lake import prepare_table
from einmal.spark.environment.plans.row_schemas import schema_of, type_of

SCALARS = [
    types.BooleanType(),
    types.ByteType(),
    types.ShortType(),
    types.IntegerType(),
    types.LongType(),
    types.FloatType(),
    types.DoubleType(),
    types.DecimalType(38, 9),
    types.StringType(),
    types.BinaryType(),
    types.DateType(),
    types.TimestampType(),
    types.TimestampNTZType(),
]
OTHERS = [
    types.StringType("UTF8_LCASE"),
    types.CharType(3),
    types.VarcharType(3),
    types.NullType(),
    types.DayTimeIntervalType(),
    types.YearMonthIntervalType(),
    types.VariantType(),
]


def nested(kind: types.DataType) -> list[types.DataType]:
    struct = types.StructType([types.StructField("a.b", kind, False, {"comment": "c"}), types.StructField("d", kind)])
    return [
        kind,
        types.ArrayType(kind, False),
        types.MapType(types.StringType(), kind),
        struct,
        types.ArrayType(struct),
    ]


@pytest.mark.parametrize("kind", [each for scalar in [*SCALARS, *OTHERS] for each in nested(scalar)], ids=str)
def test_a_schema_has_sparks_names_and_json(kind: types.DataType) -> None:
    schema = types.StructType(
        [types.StructField("c", kind, True, {"comment": "of c"}), types.StructField("n", kind, False)]
    )
    assert schema_of(schema).as_json == schema.jsonValue()
    assert str(type_of(kind)) == kind.simpleString()


@pytest.mark.parametrize("kind", [each for scalar in SCALARS for each in nested(scalar)], ids=str)
def test_a_type_is_sparks_in_arrow_and_back(kind: types.DataType) -> None:
    (field,) = to_arrow_schema(types.StructType([types.StructField("c", kind)]), timezone="UTC")
    assert arrow_type(type_of(kind)) == field.type
    assert (
        str(ArrowRows([pyarrow.table({"c": pyarrow.array([], field.type)})]).schema.fields[0].type)
        == kind.simpleString()
    )


def test_a_type_of_the_users_own_is_no_built_in_one() -> None:
    class Long(types.UserDefinedType):
        @classmethod
        def sqlType(cls) -> types.DataType:
            return types.LongType()

    assert type_of(Long()).kind == "udt"


def test_a_delta_table_takes_text_with_a_collation(tmp_path: Any) -> None:
    """Its collation is in the metadata of the column, as Spark's own JSON has it."""
    collated = types.StringType("UTF8_LCASE")
    schema = schema_of(types.StructType().add("name", collated).add("names", types.ArrayType(collated)))
    for _ in range(2):
        assert prepare_table(DeltaLakeTable(tmp_path / "words"), schema) == []


def test_arrow_as_json_is_what_spark_makes_of_it() -> None:
    kind = pyarrow.struct(
        [
            ("d", pyarrow.decimal128(38, 2)),
            ("f", pyarrow.list_(pyarrow.float64())),
            ("m", pyarrow.map_(pyarrow.bool_(), pyarrow.int32())),
            ("t", pyarrow.timestamp("us", "UTC")),
            ("l", pyarrow.timestamp("us")),
            ("b", pyarrow.binary()),
            ("s", pyarrow.string()),
        ]
    )
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 6)
    value = {
        "d": decimal.Decimal("12345678901234567890.12"),
        "f": [math.nan, math.inf, -0.5],
        "m": [(True, 1)],
        "t": at.replace(tzinfo=datetime.UTC),
        "l": at,
        "b": b"\x00\xff",
        "s": 'q"',
    }
    rows = ArrowRows([pyarrow.table({"v": pyarrow.array([value, None], kind)})])
    (made,) = rows.select([Selected("json", "v", as_json=True)])._parts
    text, nothing = made.column("json").to_pylist()
    assert nothing is None
    assert json.loads(text, parse_float=decimal.Decimal) == {
        "d": decimal.Decimal("12345678901234567890.12"),
        "f": ["NaN", "Infinity", decimal.Decimal("-0.5")],
        "m": {"true": 1},
        "t": "2026-01-02T03:04:05.000006Z",
        "l": "2026-01-02T03:04:05.000006",
        "b": "AP8=",
        "s": 'q"',
    }
