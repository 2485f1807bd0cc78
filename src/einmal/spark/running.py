"""The pipelines of this process, for who runs programs that he has not written: what they say, and their end.

An observer is asked once for every query that starts, and gives the listener of that query.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from einmal.spark import events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from einmal.spark.query import PipelineQuery

Listener = Callable[[events.Event], None]
Observer = Callable[[str, "DataFrame"], Listener]
"""Given the pipeline's name and its streaming frame."""

observers: Final[list[Observer]] = []
queries: Final[list[PipelineQuery]] = []


def started(query: PipelineQuery) -> None:
    """Those that have ended since are forgotten."""
    queries[:] = [*(each for each in queries if each.isActive), query]


def listeners(name: str, frame: DataFrame) -> list[Listener]:
    """What the observers want to hear of a query that is about to start."""
    return [observer(name, frame) for observer in observers]


def stop_all() -> None:
    """End every query between two batches."""
    for query in queries:
        query.stop()
