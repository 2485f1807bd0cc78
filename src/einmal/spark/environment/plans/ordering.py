"""``ORDER BY`` over a query with state, without the job that Spark runs to choose the ranges of a sort.

A sort over several partitions begins with a job that samples its input. Above an operator with state that job computes
the state too, so the state is computed twice in one batch, and nothing shows that the sampled run and the written one
agree. Rows that come together in one partition are sorted without a sample. Their order is then that of the batch: a
topic keeps it within each of its partitions.
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from einmal.pipeline.errors import PipelineRefused
from einmal.spark.environment.plans.plan_nodes import analyzed_plan, iterate, sorts_all, walk


def sorted_in_one_partition(frame: DataFrame) -> DataFrame:
    """The frame, with each sort of all its rows done in one partition. Raises PipelineRefused."""
    plan = analyzed_plan(frame)
    if not any(sorts_all(node) for node in walk(plan)):
        return frame
    spark: Any = frame.sparkSession
    try:
        rows = spark._jvm.org.apache.spark.sql.classic.Dataset.ofRows(
            spark._jsparkSession, _rewritten(spark._jvm, plan)
        )
    except (TypeError, Py4JError) as error:
        raise PipelineRefused(
            f"Spark {spark.version} computes the state of a query twice to sort its rows, and this sink cannot rewrite "
            "the sort in that version",
            "sort in one partition: .repartition(1).sortWithinPartitions(...)",
        ) from error
    return DataFrame(rows, spark)


def _rewritten(jvm: Any, node: Any) -> Any:
    children = [_rewritten(jvm, child) for child in iterate(node.children())]
    if sorts_all(node):
        children = [jvm.org.apache.spark.sql.catalyst.plans.logical.Repartition(1, True, children[0])]
    return node.withNewChildren(jvm.PythonUtils.toSeq(children)) if children else node
