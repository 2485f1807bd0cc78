"""Monitoring of pipelines: an observer with a thread of its own, so that no batch waits for it.

It combines the sink's events, Spark's StreamingQueryProgress (some time after a batch is over) and the ends of the
sources in their cluster. ``Progress`` computes the figures; views and metrics show them.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from py4j.protocol import Py4JError

from einmal.client.errors import KafkaError
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.commit_protocol.source_offsets import SourcePosition
from einmal.options.source import isolation_of
from einmal.options.values import client_settings
from einmal.pipeline import events
from einmal.spark.operate.progress import Progress
from einmal.spark.output.reports import BatchReport, Ends, Offsets, lag_behind
from einmal.spark.protocol.execution import sources

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from einmal.spark.protocol.query import PipelineQuery

_TICK_S: Final = 0.25
_POLL_S: Final = 0.05
"""While Spark has not reported a batch that is over: its commit file takes some tens of ms."""
_ENDS_IDLE_S: Final = 2.0
_ENDS_REPORT_S: Final = 0.5
"""The maximum age of the known ends of the sources, between batches and for the lag of one that is over."""
_SPARK_REPORTS_S: Final = 1.0
"""How long the end waits for Spark's report of the last batches."""


class PipelineView(Protocol):
    """Shows the pipelines; called on the watch's thread only."""

    def hear(self, pipeline: Watched, event: events.Event) -> None:
        """After ``pipeline.progress`` has processed it."""

    def report(self, pipeline: Watched, report: BatchReport) -> None:
        """A batch is over, and its report is complete; ``pipeline.lag`` is the lag at its end."""

    def tick(self, pipelines: Sequence[Watched], now: float) -> None:
        """Several times a second. ``now``: the clock of ``Progress``."""


class Watched:
    """One pipeline of this process, by the name that it was started under."""

    def __init__(self, name: str) -> None:
        self.progress = Progress(name)
        self.lag: Mapping[str, int] | None = None
        """Offsets behind the ends of the topics, as the source's isolation level sees them; None: unknown."""
        self.query: PipelineQuery | None = None
        self.ends = _Ends(())

    @property
    def is_running(self) -> bool:
        return self.query is not None and self.query.isActive


class Watch:
    """Watches every query that starts while it is an observer of the application's ``Queries``."""

    def __init__(self, view: PipelineView | None = None) -> None:
        self.lock = threading.Lock()
        """Held while figures change."""
        self._view = view
        self._pipelines: dict[str, Watched] = {}
        self._events: queue.SimpleQueue[tuple[Watched, events.Event, float] | None] = queue.SimpleQueue()
        self._former: queue.SimpleQueue[_Ends] = queue.SimpleQueue()
        """Those of queries that were started again; the thread may be asking them."""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="einmal-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Show the remaining reports, and end."""
        self._events.put(None)
        self._thread.join()
        for pipeline in self.pipelines():
            pipeline.ends.close()
        self._close_former()

    def pipelines(self) -> list[Watched]:
        return list(self._pipelines.values())

    # --- as an observer -----------------------------------------------------------------------------------------

    def starting(self, name: str, frame: DataFrame) -> events.Listener:
        watched = self._pipelines.setdefault(name, Watched(name))
        former, watched.ends = watched.ends, _Ends(sources(frame))
        self._former.put(former)
        return lambda event: self._events.put((watched, event, time.monotonic()))

    def started(self, name: str, query: PipelineQuery) -> None:
        self._pipelines[name].query = query

    # --- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            self._hear()
            self._look()
        deadline = time.monotonic() + _SPARK_REPORTS_S
        while self._waits_for_spark() and time.monotonic() < deadline:
            self._hear()
            self._look()
        for pipeline in self.pipelines():
            with self.lock:
                reports = pipeline.progress.without_spark()
            self._report(pipeline, reports)

    def _hear(self) -> None:
        """Process all events so far, or wait a moment for the first."""
        try:
            item = self._events.get(timeout=_POLL_S if self._waits_for_spark() else _TICK_S)
            while True:
                if item is None:
                    self._closing = True
                else:
                    watched, event, now = item
                    with self.lock:
                        watched.progress.hear(event, now)
                    if self._view is not None:
                        self._view.hear(watched, event)
                item = self._events.get_nowait()
        except queue.Empty:
            return

    def _close_former(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._former.get_nowait().close()

    def _look(self) -> None:
        self._close_former()
        for pipeline in self.pipelines():
            self._report(pipeline, self._reports_of_spark(pipeline))
            if pipeline.is_running:
                self._measure_lag(pipeline, _ENDS_IDLE_S)
        if self._view is not None:
            self._view.tick(self.pipelines(), time.monotonic())

    def _waits_for_spark(self) -> bool:
        return any(pipeline.progress.waits_for_spark for pipeline in self.pipelines())

    def _reports_of_spark(self, watched: Watched) -> list[BatchReport]:
        waiting = watched.progress.waits_for_spark
        if not waiting or watched.query is None:
            return []
        try:
            last = watched.query.lastProgress
            if last is None or last.batchId < min(waiting):
                return []
            recent = [last] if len(waiting) == 1 and last.batchId in waiting else watched.query.recentProgress
        except (Py4JError, OSError):
            # The session was stopped.
            recent = []
        with self.lock:
            if recent:
                reports = [
                    report
                    for progress in recent
                    for report in watched.progress.spark_reports(
                        progress.batchId, progress.durationMs, progress.numInputRows
                    )
                ]
            else:
                reports = watched.progress.without_spark()
            if reports:
                # So that nobody sees the new batch with the old one's lag, while the ends are asked for again.
                watched.lag = lag_behind(reports[-1].end, watched.ends.known)
            return reports

    def _report(self, watched: Watched, reports: Iterable[BatchReport]) -> None:
        for report in reports:
            self._measure_lag(watched, _ENDS_REPORT_S, report.end)
            if self._view is not None:
                self._view.report(watched, report)

    def _measure_lag(self, watched: Watched, age_s: float, reached: Offsets | None = None) -> None:
        if reached is None:
            reached = None if watched.progress.last is None else watched.progress.last.end
        lag = lag_behind(reached, watched.ends.not_older_than(age_s, reached))
        with self.lock:
            watched.lag = lag


class _Ends:
    """Where the topics of a query's sources end, as their isolation level sees them."""

    def __init__(self, query_sources: Iterable[tuple[str, Mapping[str, str]]]) -> None:
        """``query_sources``: formats and options as in ``execution.sources``, in the order of the query's offsets."""
        self._sources = list(query_sources)
        self._clusters: dict[int, KafkaCluster] = {}
        self.known: Ends | None = None
        """As of the last request."""
        self._asked = float("-inf")

    def not_older_than(self, age_s: float, reached: Offsets | None) -> Ends | None:
        """Return the ends of the partitions in ``reached``; None if they are unknown."""
        if reached is not None and time.monotonic() - self._asked >= age_s:
            self.known = self._ask(reached)
            self._asked = time.monotonic()
        return self.known

    def _ask(self, reached: Offsets) -> Ends | None:
        if len(reached) != len(self._sources):
            return None
        ends = []
        try:
            for number, (offsets, (kind, options)) in enumerate(zip(reached, self._sources, strict=True)):
                isolation = isolation_of(kind, client_settings(options))
                if isolation is None or not isinstance(offsets, dict):
                    return None
                position = SourcePosition.from_json(offsets)
                cluster = self._cluster(number, options)
                ends.append(cluster.latest(cluster.existing(position), committed=isolation == "read_committed"))
        except KafkaError:
            return None
        return tuple(ends)

    def _cluster(self, number: int, options: Mapping[str, str]) -> KafkaCluster:
        if number not in self._clusters:
            self._clusters[number] = KafkaCluster(client_settings(options) | {"default.api.timeout.ms": "2000"})
        return self._clusters[number]

    def close(self) -> None:
        for cluster in self._clusters.values():
            cluster.close()
