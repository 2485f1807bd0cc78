"""Facts that Spark knows of the batch that is running, and keeps to itself: the state it has committed, its watermark.

Spark's objects are looked up once, when a query starts. Read only; nothing of Spark is changed.

Why it is needed: ``commits/N`` names the state that belongs to batch N. It is written after ``foreachBatch`` returns,
so a driver that dies in between would compute the batch, and its state, a second time. With the file's text in the
commit record the next start can write the file instead (``checkpoint.py``).
"""

from __future__ import annotations

import json
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from einmal.options.source import source_options
from einmal.spark.environment.plans.plan_nodes import iterate, kind_of, plan_nodes, walk
from einmal.spark.environment.plans.source_nodes import source_nodes
from einmal.spark.environment.plans.streaming_query import execution_of, operator_class
from einmal.spark.source.source import KafkaDataSource

FORMAT_SETTING: Final = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_STATEFUL_PLANS: Final = frozenset(
    {
        "Aggregate",
        "Distinct",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        # Spark runs it as a join and a Distinct, or with ALL as an Aggregate.
        "Except",
        "FlatMapGroupsWithState",
        "FlatMapGroupsInPandasWithState",
        "TransformWithState",
        "TransformWithStateInPySpark",
        "TransformWithStateInPandas",
        "GlobalLimit",
    }
)


_SECOND_JOB: Final = (
    "a job of its own has read the batch: repartitionByRange starts one, and so do count() and show() in each_batch "
    "unless the frame is persisted first"
)


class StateInDoubt(Exception):
    """The state that Spark would commit is not certain to be that of the output: the batch must not be committed."""


def is_stateful(frame: DataFrame) -> bool:
    """Whether a streaming query keeps state from batch to batch."""
    return any(is_stateful_node(node) for node in plan_nodes(frame))


def sources(frame: DataFrame) -> list[tuple[str, dict[str, str]]]:
    """(format, options) of every streaming source of a query, in the order of its offsets; options in lower case."""
    return [(str(node.sourceName()), _options(node)) for node in source_nodes(frame)]


def divides_partitions(frame: DataFrame) -> bool:
    """Whether a query's sources may give records of one partition to several tasks: the order of these tasks is then
    that of the records."""
    return any(
        kind != KafkaDataSource.name() or source_options(options, streaming=True).divides_partitions
        for kind, options in sources(frame)
    )


class Execution:
    """A running query, seen from inside its own ``foreachBatch``."""

    def __init__(self, spark: SparkSession, query: StreamingQuery) -> None:
        """``query``: what ``start()`` of the writer returned."""
        self._query = execution_of(query)
        self._operator = operator_class(spark)
        self._format = state_format(spark)

    def commit_text(self, batch_id: int) -> str:
        """Return what Spark is about to write in ``commits/N``, once the batch's job is done.

        Raises StateInDoubt where the stage with the state did not run exactly once.
        """
        execution = self._query.lastExecution()
        assert execution.currentBatchId() == batch_id, (execution.currentBatchId(), batch_id)
        plan = execution.executedPlan()
        operators = [node for node in walk(plan) if self._operator.isInstance(node)]
        if self._format == 2:
            state: dict[str, Any] = {"stateUniqueIds": dict(_checkpoint_ids(node, batch_id) for node in operators)}
        else:
            for node in operators:
                _guard_format_1(node)
            state = {}
        # Spark makes the same call, with the same result, right before it writes the file.
        tracker = self._query.watermarkTracker()
        tracker.updateWatermark(plan)
        return commit_file(self._format, int(tracker.currentWatermark()), state)

    def keeps_state(self) -> bool:
        """Whether the plan that is running has a stateful operator."""
        return any(self._operator.isInstance(node) for node in walk(self._query.lastExecution().executedPlan()))


def commit_file(version: int, watermark_ms: int, state: dict[str, Any]) -> str:
    return f"v{version}\n" + json.dumps({"nextBatchWatermarkMs": watermark_ms} | state, separators=(",", ":"))


def empty_commit_file(version: int) -> str:
    """The commit file of a batch of a query without state."""
    return commit_file(version, 0, {"stateUniqueIds": {}} if version == 2 else {})


def state_format(spark: SparkSession) -> int:
    """1: state files are named by version alone, and a late task can replace them. 2: every attempt has its own."""
    return int(spark.conf.get(FORMAT_SETTING, "1") or "1")


def _checkpoint_ids(node: Any, batch_id: int) -> tuple[str, list[list[str]]]:
    info = node.stateInfo().get()
    partitions = _state_partitions(node)
    entries = node.checkpointInfoAccumulator().value()
    ids: dict[int, list[str]] = {}
    for index in range(entries.size()):
        entry = entries.get(index)
        partition = int(entry.partitionId())
        if partition in ids:
            # Two attempts of the stage: Spark keeps the first one's state, the output is the second one's.
            raise StateInDoubt(
                f"the stage of {node.nodeName()} ran more than once (state partition {partition}): an executor was "
                f"lost, or {_SECOND_JOB}"
            )
        assert entry.batchVersion() == batch_id + 1, (entry.batchVersion(), batch_id)
        ids[partition] = [str(checkpoint_id) for checkpoint_id in entry.stateStoreCkptId().get()]
    if sorted(ids) != list(range(partitions)):
        raise StateInDoubt(f"{node.nodeName()} has committed {len(ids)} of {partitions} state partitions")
    return str(info.operatorId()), [ids[partition] for partition in sorted(ids)]


def _guard_format_1(node: Any) -> None:
    partitions = _state_partitions(node)
    stores = sum(1 for _ in iterate(node.stateStoreNames()))
    instances = int(node.metrics().get("numStateStoreInstances").get().value())
    if instances != partitions * stores:
        raise StateInDoubt(
            f"{node.nodeName()} has committed {instances} state stores, not {partitions} x {stores}: its stage ran "
            f"more than once, or not to its end. An executor was lost, or {_SECOND_JOB}"
        )


def _state_partitions(node: Any) -> int:
    """In how many partitions an operator runs, and keeps state: one where it needs all rows together (a count without
    GROUP BY, a LIMIT), whatever number its query's state has."""
    required = [distribution.requiredNumPartitions() for distribution in iterate(node.requiredChildDistribution())]
    numbers = {int(number.get()) for number in required if number.isDefined()}
    assert len(numbers) <= 1, numbers
    return numbers.pop() if numbers else int(node.stateInfo().get().numPartitions())


def is_stateful_node(node: Any) -> bool:
    if not node.isStreaming():
        return False
    kind = kind_of(node)
    if kind == "Join":
        return all(child.isStreaming() for child in iterate(node.children()))
    return kind in _STATEFUL_PLANS


def _options(source: Any) -> dict[str, str]:
    if kind_of(source) == "StreamingRelation":
        return {}
    entries = source.extraOptions().asCaseSensitiveMap()
    return {str(name).lower(): str(entries[name]) for name in entries}
