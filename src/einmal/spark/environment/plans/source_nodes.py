"""The streaming sources of a query, in its plan, and the names that ``spark.readStream.name`` gives them (Spark 4.3).

A checkpoint has one offset per source: by the source's position in the plan or, where sources have names, by its name.
Here the order of named sources is that of their names, so that it stays the same when the plan changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from einmal.pipeline.errors import PipelineRefused
from einmal.spark.environment.plans.plan_nodes import kind_of, plan_nodes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCE_NAMES_SETTING: Final = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
_SOURCES: Final = ("StreamingRelationV2", "StreamingRelation")


def is_source(node: Any) -> bool:
    return kind_of(node) in _SOURCES


def have_names(spark: SparkSession) -> bool:
    """Whether every source of a query must have a name; otherwise none can have one."""
    return str(spark.conf.get(SOURCE_NAMES_SETTING, "false")).lower() == "true"


def source_names(frame: DataFrame) -> tuple[str, ...]:
    """In order; empty where sources have no names. Raises PipelineRefused."""
    return tuple(sorted(_names(frame)))


def source_nodes(frame: DataFrame) -> list[Any]:
    """In the order of the offsets in a checkpoint (``OffsetLogEntry``)."""
    nodes = [node for node in plan_nodes(frame) if is_source(node)]
    numbers = offset_numbers(frame, len(nodes))
    return [nodes[at] for at in sorted(range(len(nodes)), key=numbers.__getitem__)]


def offset_numbers(frame: DataFrame, count: int) -> list[int]:
    """For each of ``count`` sources, in the order of the plan, the number of its offset."""
    names = _names(frame)
    ordered = sorted(names)
    return [ordered.index(name) for name in names] if names else list(range(count))


def _names(frame: DataFrame) -> list[str]:
    """In the order of the plan."""
    if not have_names(frame.sparkSession):
        return []
    names = []
    for node in plan_nodes(frame):
        if is_source(node):
            name = node.sourceIdentifyingName().nameOpt()
            if name.isEmpty():
                raise PipelineRefused(
                    f"{SOURCE_NAMES_SETTING} is true, and a source ({node.sourceName()}) has no name",
                    "spark.readStream.name(...) gives it one; or leave the setting out",
                )
            names.append(str(name.get()))
    return names
