"""Facts of streaming queries that Spark's JVM knows, and shows nobody in Python.

Everything here is public in bytecode and private by contract, and it moved between releases. What is missing is named
together with Spark's version. Read only; nothing of Spark is changed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError

from einmal.spark.environment.plans.plan_nodes import analyzed_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_STATEFUL_OPERATOR: Final = (
    "org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter",
    # Until Spark 4.0.
    "org.apache.spark.sql.execution.streaming.StateStoreWriter",
)
_OFFSET_METADATA: Final = "org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata"


class SparkInternalsMissing(Exception):
    """This release of Spark does not have what the sink depends on for stateful queries."""


def check_streaming(frame: DataFrame, output_mode: str) -> None:
    """Raises AnalysisException, IllegalArgumentException where Spark would refuse the query when it starts."""
    spark = frame.sparkSession
    jvm: Any = spark._jvm
    catalyst = jvm.org.apache.spark.sql.catalyst
    mode = catalyst.streaming.InternalOutputModes.apply(output_mode)
    if spark.conf.get("spark.sql.streaming.unsupportedOperationCheck", "true") == "true":
        catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(analyzed_plan(frame), mode)


def execution_of(query: StreamingQuery) -> Any:
    """Spark's own object of a query that has started (``StreamExecution``)."""
    return query._jsq.streamingQuery()


def operator_class(spark: SparkSession) -> Any:
    """The trait of stateful operators. Raises SparkInternalsMissing."""
    jvm: Any = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for name in _STATEFUL_OPERATOR:
        resource = name.replace(".", "/") + ".class"
        if loader.getResource(resource) is not None:
            return jvm.java.lang.Class.forName(name, False, loader)
    raise SparkInternalsMissing(
        f"Spark {spark.version} has no {_STATEFUL_OPERATOR[0]}: state and output of a stateful query cannot be shown "
        "to agree\nhint: use Spark 4.3, or processing.guarantee=at_least_once"
    )


def offset_metadata(spark: SparkSession) -> str:
    """The line before the offsets in ``offsets/N``, of a first batch: the settings that a query's state depends on.

    Raises SparkInternalsMissing.
    """
    made: Any = spark._jvm
    for component in _OFFSET_METADATA.split("."):
        made = getattr(made, component)
    try:
        line: dict[str, Any] = json.loads(made.apply(0, 0, spark._jsparkSession.conf()).json())
    except (TypeError, Py4JError) as error:
        raise SparkInternalsMissing(
            f"Spark {spark.version} has no {_OFFSET_METADATA}: a stateful query cannot be started at a position\n"
            "hint: reset the pipeline, and set startingOffsets"
        ) from error
    # A running query names the number of its state partitions under another, internal setting.
    line["conf"] = {"spark.sql.shuffle.partitions": spark.conf.get("spark.sql.shuffle.partitions")} | {
        name: value for name, value in line["conf"].items() if value is not None
    }
    return json.dumps(line, separators=(",", ":"))
