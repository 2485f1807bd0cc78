"""Whether the order of a frame's rows reaches over Spark's tasks, or each task has an order of its own.

A task reads whole pieces of partitions, so the rows of a micro-batch have their order within a task, and the tasks can
write in any order. Not so where rows are sorted. A plan shows a sort unless its rows are computed already: after a
checkpoint, and in a frame that was made of an RDD or of collected rows, it is hidden. So a frame is unordered only if
its plan shows where all its rows come from: from a micro-batch that was marked, and from tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from einmal.spark.environment.plans.computed_rows import rdd_of
from einmal.spark.environment.plans.plan_nodes import iterate, kind_of, plan_nodes, sorts_all

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_UNORDERED: Final = "micro-batch of einmal"
"""The name of an RDD. Spark shows it, and gives every checkpoint an RDD of its own."""
_WITHOUT_ORDER: Final = frozenset(
    {
        "LogicalRelation",
        "DataSourceV2Relation",
        "HiveTableRelation",
        "Range",
        "OneRowRelation",
        # Its definition is a node of the plan, too.
        "CTERelationRef",
    }
)
"""Nodes without input whose rows are in no order that anybody has made."""


def mark_unordered(computed: DataFrame) -> None:
    """``computed``: a micro-batch as Spark hands it over, or a checkpoint."""
    if (rows := rdd_of(computed)) is not None:
        rows.setName(_UNORDERED)


def is_in_order(frame: DataFrame) -> bool:
    """Whether the order of rows in different tasks may matter."""
    has_batch = False
    for node in plan_nodes(frame):
        match kind_of(node):
            case "LogicalRDD" if node.rdd().name() == _UNORDERED:
                has_batch = True
            case "Sort" if sorts_all(node):
                return True
            case "RepartitionByExpression" if _is_by_range(node):
                return True
            case kind if kind not in _WITHOUT_ORDER and node.children().isEmpty():
                return True
    return not has_batch


def checkpointed(frame: DataFrame) -> DataFrame:
    """An eager local checkpoint, which hides no order. Raises what Spark raises."""
    rows = frame.localCheckpoint(eager=True)
    if not is_in_order(frame):
        mark_unordered(rows)
    return rows


def _is_by_range(node: Any) -> bool:
    """``repartitionByRange``: each task has greater rows than the one before."""
    return any(kind_of(expression) == "SortOrder" for expression in iterate(node.partitionExpressions()))
