"""Claims about whether the order of a frame's rows reaches over Spark's tasks, as its plan shows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from einmal.spark.environment.plans.row_order import checkpointed, is_in_order, mark_unordered

pytestmark = pytest.mark.spark

Change = Callable[[DataFrame], DataFrame]


@pytest.fixture
def batch(spark: SparkSession) -> DataFrame:
    """As Spark hands it to ``foreachBatch``."""
    frame = spark.range(20, numPartitions=4).selectExpr("CAST(id AS STRING) AS key", "id AS value").localCheckpoint()
    mark_unordered(frame)
    return frame


def with_sql(statement: str) -> Change:
    def change(frame: DataFrame) -> DataFrame:
        frame.createOrReplaceTempView("batch")
        return frame.sparkSession.sql(statement)

    return change


def summed(frame: DataFrame) -> DataFrame:
    return frame.groupBy("key").agg(F.sum("value").alias("value"))


UNORDERED: dict[str, Change] = {
    "itself": lambda frame: frame,
    "selected": lambda frame: frame.where("value > 3").select("key"),
    "in Python": lambda frame: frame.mapInArrow(lambda rows: rows, frame.schema),
    "aggregated": summed,
    "sorted in each task": lambda frame: frame.sortWithinPartitions("value"),
    "repartitioned": lambda frame: frame.repartition(3, "key"),
    "joined with itself": lambda frame: frame.join(summed(frame), "key"),
    "with other rows": lambda frame: frame.union(frame.sparkSession.range(3).selectExpr("CAST(id AS STRING)", "id")),
    "persisted": lambda frame: frame.persist(),
    "SQL": with_sql("WITH some AS (SELECT * FROM batch) SELECT a.* FROM some a JOIN some b USING (key)"),
    "checkpointed by us": lambda frame: checkpointed(frame.where("value > 3")).select("value"),
}

IN_ORDER: dict[str, Change] = {
    "sorted": lambda frame: frame.orderBy("value"),
    "sorted below": lambda frame: frame.orderBy("value").select("key").mapInArrow(lambda rows: rows, "key string"),
    "sorted and persisted": lambda frame: frame.orderBy("value").persist().where("value > 3"),
    "ranges": lambda frame: frame.repartitionByRange(2, "value").sortWithinPartitions("value"),
    "SQL": with_sql("WITH some AS (SELECT * FROM batch ORDER BY value) SELECT key FROM some"),
    "checkpointed by us": lambda frame: checkpointed(frame.orderBy("value")).select("key"),
    "checkpointed": lambda frame: frame.localCheckpoint(),
    "checkpointed later": lambda frame: frame.localCheckpoint(eager=False).select("key"),
    "collected": lambda frame: frame.sparkSession.createDataFrame(frame.collect(), frame.schema),
    "of an RDD": lambda frame: frame.rdd.toDF(frame.schema),
    "with collected rows": lambda frame: frame.union(frame.sparkSession.createDataFrame(frame.collect(), frame.schema)),
    "of something else": lambda frame: frame.sparkSession.range(9).selectExpr("id AS value"),
}


@pytest.mark.representatives(4)
@pytest.mark.parametrize("change", UNORDERED.values(), ids=UNORDERED)
def test_the_order_of_a_batch_ends_with_each_task(batch: DataFrame, change: Change) -> None:
    assert not is_in_order(change(batch))


@pytest.mark.representatives(4)
@pytest.mark.parametrize("change", IN_ORDER.values(), ids=IN_ORDER)
def test_rows_that_are_sorted_or_may_have_been_are_in_order(batch: DataFrame, change: Change) -> None:
    assert is_in_order(change(batch))


def test_a_batch_that_is_joined_with_a_table_stays_unordered(
    spark: SparkSession, batch: DataFrame, tmp_path: Path
) -> None:
    spark.range(3).selectExpr("CAST(id AS STRING) AS key").write.parquet(str(tmp_path / "table"))
    assert not is_in_order(batch.join(spark.read.parquet(str(tmp_path / "table")), "key"))
    spark.sql(f"CREATE TABLE looked_up (key string) USING parquet LOCATION '{tmp_path / 'table'}'")
    try:
        assert not is_in_order(batch.join(spark.table("looked_up"), "key"))
    finally:
        spark.sql("DROP TABLE looked_up")
