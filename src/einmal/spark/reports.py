"""What one micro-batch was, told once it is finished: made of the events that a pipeline tells its listeners.

Counts of offsets include those of markers and aborted records, as everywhere. Lag is asked of the cluster, so never on
the thread that writes batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from einmal.client.errors import KafkaError
from einmal.spark import events
from einmal.spark.cluster import KafkaCluster
from einmal.spark.offsets import from_json


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """``outcome``: written, already_in or skipped. Times in ms; ``start`` and ``end`` as in Spark's offset log."""

    pipeline: str
    batch_id: int
    outcome: str
    records: int
    offsets: int | None
    duration_ms: int
    write_ms: int
    commit_ms: int
    start: tuple[Any, ...] | None
    end: tuple[Any, ...] | None

    def fields(self) -> dict[str, Any]:
        return asdict(self)


class BatchReports:
    """A listener of one pipeline, which gives every finished batch to ``report``."""

    def __init__(
        self, pipeline: str, report: Callable[[BatchReport], None], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._pipeline = pipeline
        self._report = report
        self._now = now
        self._batch: events.BatchStarted | None = None
        self._records = 0
        self._outcome = "written"
        self._began = self._written = self._ended = 0.0

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.BatchStarted():
                self._batch, self._records, self._outcome = event, 0, "written"
                self._began = self._written = self._ended = self._now()
            case events.BatchWritten(_, records):
                self._records = records
                self._written = self._ended = self._now()
            case events.TransactionEnded():
                self._ended = self._now()
            case events.BatchAlreadyIn():
                self._outcome = "already_in"
            case events.BatchSkipped():
                self._outcome = "skipped"
            case events.BatchFinished(_, duration_ms):
                self._finish(duration_ms)
            case _:
                pass

    def _finish(self, duration_ms: int) -> None:
        batch = self._batch
        if batch is None:
            return
        self._report(
            BatchReport(
                pipeline=self._pipeline,
                batch_id=batch.batch_id,
                outcome=self._outcome,
                records=self._records,
                offsets=offsets_between(batch.start, batch.end),
                duration_ms=duration_ms,
                write_ms=round((self._written - self._began) * 1000),
                commit_ms=round((self._ended - self._written) * 1000),
                start=batch.start,
                end=batch.end,
            )
        )


def offsets_between(start: tuple[Any, ...] | None, end: tuple[Any, ...] | None) -> int | None:
    """How many offsets a batch went over, in sources that count in offsets; None: not known."""
    if start is None or end is None or len(start) != len(end):
        return None
    total = 0
    for first, last in zip(start, end, strict=True):
        if not isinstance(first, dict) or not isinstance(last, dict):
            return None
        before, after = from_json(first), from_json(last)
        # A partition that is new is read from its beginning, which is not known here.
        total += sum(after[each] - before[each] for each in after if each in before)
    return total


class Lag:
    """How far a pipeline is behind the ends of its topics, as its own isolation level sees them."""

    def __init__(self, sources: Iterable[tuple[str, Mapping[str, str]]]) -> None:
        """``sources``: formats and options as in ``execution.sources``, in the order of the query's offsets."""
        self._sources = list(sources)
        self._clusters: dict[int, KafkaCluster] = {}

    def of(self, end: tuple[Any, ...] | None) -> int | None:
        """Offsets between ``end`` and now; None where it cannot be asked."""
        if end is None or len(end) != len(self._sources):
            return None
        total = 0
        try:
            for number, (position, (kind, options)) in enumerate(zip(end, self._sources, strict=True)):
                if kind not in ("einmal", "kafka") or not isinstance(position, dict):
                    return None
                reached = from_json(position)
                committed = options.get("kafka.isolation.level", _DEFAULT_ISOLATION[kind]) == "read_committed"
                ends = self._cluster(number, options).latest(reached, committed=committed)
                total += sum(max(0, ends[each] - reached[each]) for each in reached)
        except KafkaError:
            return None
        return total

    def _cluster(self, number: int, options: Mapping[str, str]) -> KafkaCluster:
        if number not in self._clusters:
            client = {name.removeprefix("kafka."): each for name, each in options.items() if name.startswith("kafka.")}
            self._clusters[number] = KafkaCluster(client | {"default.api.timeout.ms": "2000"})
        return self._clusters[number]

    def close(self) -> None:
        for cluster in self._clusters.values():
            cluster.close()


_DEFAULT_ISOLATION: Final = {"einmal": "read_committed", "kafka": "read_uncommitted"}
