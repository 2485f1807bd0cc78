"""The pipelines of this process, for who runs programs that he has not written: what they say, and their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from einmal.spark import events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from einmal.spark.query import PipelineQuery

Listener = Callable[[events.Event], None]


class Observer(Protocol):
    """Hears of every query that starts."""

    def starting(self, name: str, frame: DataFrame) -> Listener:
        """What is to hear the events of a query. ``name``: of the pipeline; ``frame``: streaming."""

    def started(self, name: str, query: PipelineQuery) -> None:
        """The query runs; its first events may have been heard already."""


observers: Final[list[Observer]] = []
queries: Final[list[PipelineQuery]] = []


def starting(name: str, frame: DataFrame) -> list[Listener]:
    """What the observers want to hear of a query that is about to start."""
    return [observer.starting(name, frame) for observer in observers]


def started(name: str, query: PipelineQuery) -> None:
    """Those that have ended since are forgotten."""
    queries[:] = [*(each for each in queries if each.isActive), query]
    for observer in observers:
        observer.started(name, query)


def stop_all() -> None:
    """End every query between two batches."""
    for query in queries:
        query.stop()
