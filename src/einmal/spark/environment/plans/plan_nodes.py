"""Spark's plans: trees of objects in the driver's JVM, where each call is a round trip."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def analyzed_plan(frame: DataFrame) -> Any:
    """The top node of a frame's plan, whose names are resolved."""
    return frame._jdf.queryExecution().analyzed()


def plan_nodes(frame: DataFrame) -> Iterator[Any]:
    """All nodes of a frame's plan, whose names are resolved."""
    return walk(analyzed_plan(frame))


def walk(node: Any) -> Iterator[Any]:
    yield node
    for child in iterate(node.children()):
        yield from walk(child)


def iterate(scala_sequence: Any) -> Iterator[Any]:
    iterator = scala_sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()


def kind_of(node: Any) -> str:
    """The name of the node's class."""
    return str(node.getClass().getSimpleName())


def sorts_all(node: Any) -> bool:
    """Whether the node sorts all rows, and not those of each partition."""
    return kind_of(node) == "Sort" and bool(getattr(node, "global")())
