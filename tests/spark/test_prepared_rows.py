"""Claims about the rows of a batch as tasks see them: only what matters, and no plan of their own if possible."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from einmal.spark.output.job import prepared

pytestmark = pytest.mark.spark

FIXED = "t"
BY_ROW = None


@pytest.mark.parametrize(
    ("columns", "topic"),
    [
        (["binary(id) as value"], FIXED),
        (["binary(id) as key", "binary(id) as value"], FIXED),
        (["binary(id) as value", "binary(id) as key", "int(1) as partition"], FIXED),
        (["binary(id) as value", "'t' as topic"], BY_ROW),
    ],
)
def test_rows_that_have_the_types_of_records_are_taken_as_they_are(
    spark: SparkSession, columns: list[str], topic: str | None
) -> None:
    frame = spark.range(3).selectExpr("string(id) as id").selectExpr(*columns)
    assert prepared(frame, topic) is frame


@pytest.mark.parametrize(
    ("columns", "topic", "told"),
    [
        (["id as value"], FIXED, "value binary"),
        (["binary(id) as value", "id as key"], FIXED, "key binary, value binary"),
        (["binary(id) as value", "id as other"], FIXED, "value binary"),
        (["binary(id) as value", "'t' as topic"], FIXED, "value binary"),
        # Each row's number is compared with the bounds of an INT when it is written.
        (["binary(id) as value", "2L as partition"], FIXED, "value binary, partition bigint"),
        (["binary(id) as value", "current_timestamp() as timestamp"], FIXED, "value binary, timestamp bigint"),
        (
            ["binary(id) as value", "array(struct(id as key, binary(id) as value)) as headers"],
            FIXED,
            "value binary, headers array<struct<key:string,value:binary>>",
        ),
        (["id as value", "'t' as topic"], BY_ROW, "value binary, topic string"),
    ],
)
def test_other_rows_are_converted_and_lose_what_no_record_has(
    spark: SparkSession, columns: list[str], topic: str | None, told: str
) -> None:
    frame = spark.range(3).selectExpr("string(id) as id").selectExpr(*columns)
    rows = prepared(frame, topic)
    assert ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in rows.schema.fields) == told
    assert rows.count() == 3
