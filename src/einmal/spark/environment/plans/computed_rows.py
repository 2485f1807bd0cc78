"""Rows that Spark has computed or planned before it hands over their frame: a micro-batch, a local checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from einmal.spark.environment.plans.plan_nodes import kind_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def rdd_of(frame: DataFrame) -> Any | None:
    """Spark's RDD of the rows; None for another frame, which Spark would have to plan."""
    plan = frame._jdf.queryExecution().logical()
    return plan.rdd() if kind_of(plan) == "LogicalRDD" else None


def task_count(frame: DataFrame) -> int | None:
    """How many tasks have the rows, if it is known. One is the only writer of every partition."""
    # To plan another frame could run a part of it.
    rows = rdd_of(frame)
    return None if rows is None else int(rows.getNumPartitions())


def release(checkpointed: DataFrame) -> None:
    """Let go of the rows that a local checkpoint holds. Otherwise Spark does so at some collection of garbage."""
    rows = rdd_of(checkpointed)
    assert rows is not None, "a local checkpoint has its rows"
    rows.unpersist(False)
