"""Prometheus metrics of this process's pipelines, served by the driver process.

Served at the address in the Spark setting ``spark.einmal.metrics.address``, and pushed to the receiver of
OpenTelemetry's variables, from the start of the first pipeline until the process ends. docs/monitoring.md has the table
of names.
"""

from __future__ import annotations

import atexit
import itertools
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from pyspark.sql import SparkSession

from einmal.metrics import Naming, serve
from einmal.otlp import Push, wanted_push
from einmal.spark.operate.progress import DURATION_BOUNDS_S
from einmal.spark.operate.watch import Watch
from einmal.spark.protocol.queries import Queries, queries_of

ADDRESS: Final = "spark.einmal.metrics.address"
"""A Spark setting: "host:port", or a port of 127.0.0.1. Port 0 is one that is free."""
_NAMING: Final = Naming("pipeline", "pipeline")
_serving: Final[dict[str, str]] = {}
"""The addresses that are served, by the setting that asked for them."""
_pushes: Final[list[tuple[Push, _Pipelines]]] = []
"""At most one in a process, for the pipelines of its first session."""
_lock: Final = threading.Lock()


def served(spark: SparkSession) -> tuple[str, ...]:
    """Where the figures of a session's pipelines are from now on: the address that its setting names, and the receiver
    of OpenTelemetry's variables; empty: neither is named.

    Raises OptionError, and PipelineRefused where the address cannot be had.
    """
    wanted = spark.conf.get(ADDRESS, None)
    described = []
    with _lock:
        if wanted:
            if wanted not in _serving:
                registry = CollectorRegistry()
                _serving[wanted] = serve(ADDRESS, wanted, registry)
                registry.register(_Pipelines(_watch(queries_of(spark))))
            described.append(f"http://{_serving[wanted]}/metrics")
        if not _pushes and (push := wanted_push("einmal-pipeline")) is not None:
            pipelines = _Pipelines(_watch(queries_of(spark)))
            push.start(pipelines.collect)
            _pushes.append((push, pipelines))
            atexit.register(stop_pushing)
        described += [push.described for push, _ in _pushes]
    return tuple(described)


def stop_pushing() -> None:
    """Push for the last time; the next pipeline begins again."""
    with _lock:
        while _pushes:
            push, pipelines = _pushes.pop()
            pipelines.is_last = True
            push.close()


def _watch(queries: Queries) -> Watch:
    """The one that observes these queries, from now on if there was none."""
    watch = next((observer for observer in queries.observers if isinstance(observer, Watch)), None)
    if watch is None:
        watch = Watch()
        queries.add_observer(watch)
    return watch


class _Pipelines(Collector):
    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.is_last = False
        """Whether these are the last figures of the process, which have the lag that ended queries have left: a query
        with availableNow may have ended before any other."""

    def collect(self) -> Iterable[Metric]:
        with self._watch.lock:
            return list(_families(self._watch, self.is_last))


def _families(watch: Watch, is_last: bool) -> Iterator[Metric]:
    def counter(name: str, help_: str, *labels: str) -> CounterMetricFamily:
        return CounterMetricFamily(_NAMING.full(name), help_, labels=_NAMING.labels(*labels))

    def gauge(name: str, help_: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(_NAMING.full(name), help_, labels=_NAMING.labels(*labels))

    is_running = gauge("running", "1 while the query runs, also while it is restarted.")
    read = counter("input_records", "Offsets of the sources that finished batches went over.")
    lost = counter("lost_records", "Offsets of the sources that were deleted before they were read.")
    written = counter("output_records", "Records written by finished batches.")
    letters = counter("dead_letters", "Bad rows written to dead-letter topics.", "source", "stage", "reason")
    drifts = counter("schema_drifts", "Batches with fields that the declared schema does not have.", "source")
    batches = counter("batches", "Finished batches.", "outcome")
    last = gauge("last_batch_id", "Spark's number of the batch that was finished last.")
    durations = HistogramMetricFamily(
        _NAMING.full("batch_duration_seconds"), "Finished batches by their time.", labels=_NAMING.labels()
    )
    phases = counter("phase_seconds", "The time of finished batches, by phase.", "phase")
    transactions = counter("transactions", "Transactions that have ended.", "result")
    opened = gauge("open_transaction_seconds", "Age of the open transaction; 0 where none is.")
    restarts = counter("restarts", "Starts of the query from its checkpoint, after a batch that could not be decided.")
    lag = gauge("lag_records", "Offsets between the last finished batch and the end of a source's topic.", "topic")
    now = time.monotonic()
    for pipeline in watch.pipelines():
        progress, name = pipeline.progress, [pipeline.progress.pipeline]
        is_running.add_metric(name, pipeline.is_running)
        read.add_metric(name, progress.input)
        lost.add_metric(name, progress.lost)
        written.add_metric(name, progress.output)
        for group, count in progress.dead_letters.items():
            letters.add_metric([*name, *group], count)
        for source, count in progress.drifts.items():
            drifts.add_metric([*name, source], count)
        for outcome, count in progress.batches.items():
            batches.add_metric([*name, outcome], count)
        if progress.last is not None:
            last.add_metric(name, progress.last.batch_id)
        bounds = [*(str(bound) for bound in DURATION_BOUNDS_S), "+Inf"]
        counts = itertools.accumulate(progress.duration_counts)
        durations.add_metric(name, list(zip(bounds, counts, strict=True)), progress.duration_ms / 1000)
        for phase, spent_ms in progress.phases_ms.items():
            phases.add_metric([*name, phase], spent_ms / 1000)
        transactions.add_metric([*name, "commit"], progress.committed)
        transactions.add_metric([*name, "abort"], progress.aborted)
        opened.add_metric(name, progress.open_s(now))
        restarts.add_metric(name, progress.restarts)
        # Nobody measures that of a query that has ended.
        known = pipeline.lag if is_last or pipeline.is_running else None
        for topic, behind in (known or {}).items():
            lag.add_metric([*name, topic], behind)
    yield from (letters, drifts)
    yield from (is_running, read, lost, written, batches, last, durations, phases, transactions, opened, restarts, lag)
