"""The pipelines of a Spark application, for code that did not start them: observe them, stop them.

``einmal run`` also runs programs that start their queries themselves. The command and such a program share nothing but
Spark, so the queries are found by the session: one ``Queries`` per JVM, which outlives a session that is stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakKeyDictionary

from einmal.pipeline.events import Listener
from einmal.spark.environment.spark_session import connection_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from einmal.spark.protocol.query import PipelineQuery


class Observer(Protocol):
    """Is notified of every query that starts."""

    def starting(self, name: str, frame: DataFrame) -> Listener:
        """The listener for the query's events. ``name``: of the pipeline; ``frame``: streaming."""

    def started(self, name: str, query: PipelineQuery) -> None:
        """The query runs; its listener may have received events already."""


class Queries:
    """The active queries of one Spark application, and their observers."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []
        self._queries: list[PipelineQuery] = []
        self.has_started = False
        """Whether a query has run, ended or not."""

    @property
    def observers(self) -> tuple[Observer, ...]:
        return tuple(self._observers)

    def add_observer(self, observer: Observer) -> None:
        self._observers.append(observer)

    def remove_observer(self, observer: Observer) -> None:
        self._observers.remove(observer)

    def starting(self, name: str, frame: DataFrame) -> list[Listener]:
        """The observers' listeners for a query that is about to start."""
        return [observer.starting(name, frame) for observer in self._observers]

    def started(self, name: str, query: PipelineQuery) -> None:
        """Keep the query until it has ended."""
        self.has_started = True
        self._queries[:] = [*(earlier_query for earlier_query in self._queries if earlier_query.isActive), query]
        for observer in self._observers:
            observer.started(name, query)

    def stop_all(self) -> None:
        """Stop every query between two batches."""
        for query in self._queries:
            query.stop()


def queries_of(spark: SparkSession) -> Queries:
    """The queries of the Spark application that a session belongs to."""
    return _queries_of_jvm.setdefault(connection_of(spark), Queries())


_queries_of_jvm: Final[WeakKeyDictionary[object, Queries]] = WeakKeyDictionary()
"""By PySpark's connection to the JVM."""
