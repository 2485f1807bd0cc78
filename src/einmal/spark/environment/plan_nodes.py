"""Spark's plans: trees of objects in the driver's JVM, where each call is a round trip."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def walk(node: Any) -> Iterator[Any]:
    yield node
    for child in iterate(node.children()):
        yield from walk(child)


def iterate(scala_sequence: Any) -> Iterator[Any]:
    iterator = scala_sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()


def sorts_all(node: Any) -> bool:
    """Whether the node sorts all rows, and not those of each partition."""
    return str(node.getClass().getSimpleName()) == "Sort" and bool(getattr(node, "global")())
