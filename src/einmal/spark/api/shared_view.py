"""The view that all sinks of a declaration have in common, computed once per batch.

A union of two sinks' rows reads and computes what they share twice: a random function would have two results, and the
source would be read twice. So the query ends at the last view that all sinks come from, and the views behind it are
computed in each batch, from its rows. That changes nothing only for views whose rows of several batches are those of
each: where one has state, or compares the rows of a batch with each other, the query is the union.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from einmal.declare.pipeline import View
from einmal.pipeline.errors import PipelineFailed
from einmal.spark.environment.plans.computed_rows import release
from einmal.spark.environment.plans.plan_nodes import analyzed_plan, iterate, kind_of
from einmal.spark.environment.plans.row_order import checkpointed
from einmal.spark.errors import reason_of
from einmal.spark.protocol.execution import is_stateful_node

Combine = Callable[[Mapping[str, DataFrame]], DataFrame]
"""From the frames of sources and views to the rows of all sinks."""
_ACROSS_ROWS: Final = frozenset({"Window", "Intersect"})
"""Nodes of a plan that Spark refuses on a stream: in a batch they would take its rows for all there are."""


def shared_view(frames: dict[str, DataFrame], origins: Sequence[str]) -> str | None:
    """The last of the frames that all origins come from, with nothing behind it that is more than its batches, or reads
    a source.

    ``frames``: sources and views, in the order in which they were declared.
    """
    plans = {origin: analyzed_plan(frames[origin]) for origin in origins}
    for name in reversed(frames):
        if all(name == origin or not any(map(_needs_a_stream, _behind(name, plan))) for origin, plan in plans.items()):
            return name
    return None


class SharedView:
    """View that is computed in each batch, for ``each_batch``."""

    def __init__(self, name: str, views: Sequence[View], combine: Combine) -> None:
        """``views``: those that the sinks need behind the shared one."""
        self._name = name
        self._views = views
        self._combine = combine
        self._computed: DataFrame | None = None
        """Frame of the last batch."""

    def transform(self, frame: DataFrame, _batch_id: int) -> DataFrame:
        spark: SparkSession = frame.sparkSession
        # Not persist: a part that is lost with its executor would be computed again, perhaps with another result. Of a
        # local checkpoint it cannot be, and the batch fails. Not a lazy one: in its first job two executors that read
        # one part for two sinks each compute it.
        if self._computed is not None:
            release(self._computed)
        self._computed = _computed(frame)
        frames = {self._name: self._computed}
        frames[self._name].createOrReplaceTempView(self._name)
        for view in self._views:
            frames[view.name] = spark.sql(view.sql)
            frames[view.name].createOrReplaceTempView(view.name)
        return self._combine(frames)


def _computed(frame: DataFrame) -> DataFrame:
    """Raises PipelineFailed."""
    try:
        return checkpointed(frame)
    except Exception as error:
        raise PipelineFailed(reason_of(error)) from error


def needed_behind(name: str, frames: Mapping[str, DataFrame], origins: Sequence[str]) -> set[str]:
    """The frames behind a shared one that the origins are made of, themselves among them."""
    names = {origin.lower() for origin in origins}
    for origin in origins:
        nodes = _behind(name, analyzed_plan(frames[origin]))
        names |= {used for node in nodes if (used := _view(node)) is not None}
    return names


def _behind(name: str, node: Any) -> Iterator[Any]:
    """The nodes of a plan, without the frame of this name and what is below it."""
    if _view(node) != name.lower():
        yield node
        for child in iterate(node.children()):
            yield from _behind(name, child)


def _view(node: Any) -> str | None:
    """The name of a temporary view, where a plan uses one; an alias in a query may be the same word."""
    if kind_of(node) != "View" or not node.isTempView():
        return None
    return str(node.desc().identifier().table()).lower()


def _needs_a_stream(node: Any) -> bool:
    if not node.isStreaming():
        return False
    # The definition of a CTE is a node of the plan, too.
    is_leaf = not any(iterate(node.children())) and kind_of(node) != "CTERelationRef"
    return is_leaf or is_stateful_node(node) or kind_of(node) in _ACROSS_ROWS
