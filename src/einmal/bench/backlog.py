"""Records per second of a pipeline: a backlog is copied in several micro-batches, by each contender in turn.

Their order changes with each round. The first round is warm-up, and so is the first batch with records of every run.
For the overhead at a trigger the batches are as large as what at_least_once can copy in that time.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from einmal.bench.cases import MEGABYTE, Figure
from einmal.bench.contenders import AT_LEAST_ONCE, EXACTLY_ONCE, Contenders, failures_refused, ratios, turns
from einmal.bench.load import BenchRefused
from einmal.bench.usage import spark_usage
from einmal.bench.workloads import SMALL, WORKLOADS, PipelineWorkload, fill
from einmal.pipeline import events
from einmal.spark.operate.progress import CHECKPOINT_KEYS, PLANNING_KEYS

_BATCHES: Final = 6
_PROBE: Final = 50_000
"""Records of the batch that measures how much a trigger can hold."""
_QUERY_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Drained:
    """Records per second, the phases of a batch in ms, on average, and CPU seconds per million records; None: on
    a cluster they are not known."""

    rate: float
    phases: dict[str, float]
    cpu_s: float | None = None


class Phases:
    """A listener that sums the time of batches with records by phase, in ms, in addition to Spark's own metrics."""

    def __init__(self) -> None:
        self._at: dict[type, float] = {}
        self.batches: list[dict[str, float]] = []

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.BatchStarted):
            self._at = {}
        self._at.setdefault(type(event), time.perf_counter())
        if isinstance(event, events.BatchFinished) and events.PartitionClaimed in self._at:
            steps = [events.BatchStarted, *(kind for kind in _PHASES if kind in self._at)]
            times = [self._at[kind] for kind in steps]
            self.batches.append(
                {
                    _PHASES[kind]: (after - before) * 1000
                    for kind, before, after in zip(steps[1:], times, times[1:], strict=False)
                }
            )


_PHASES: Final[dict[type, str]] = {
    events.PartitionClaimed: "reading",
    events.OutputWritten: "writing",
    events.BatchWritten: "commit record",
    events.TransactionEnded: "positions and EndTxn",
}
_SPARKS_PHASES: Final = {"planning": PLANNING_KEYS, "checkpoint": CHECKPOINT_KEYS}


def throughput(
    contenders: Contenders, workload: PipelineWorkload, scale: float, say: Callable[[str], None]
) -> Iterator[Figure]:
    """Yield the throughput of each contender, in records and bytes, with its phases and what it uses. Raises
    BenchRefused."""
    per_batch = max(1_000, int(workload.records * scale))
    label = workload.name
    source = contenders.topic(f"backlog-{list(WORKLOADS).index(label)}", workload)
    fill(contenders.bootstrap, source, workload, per_batch * _BATCHES)
    medians = _medians(contenders, workload, source, per_batch, label, say)
    for name, drained in medians.items():
        yield Figure(f"{label}, {name}", drained.rate, "records/s")
        yield Figure(f"{label}, {name}", drained.rate * workload.size / MEGABYTE, "MB/s")
        for phase, milliseconds in drained.phases.items():
            yield Figure(f"{label}, {name}: {phase}", milliseconds, "ms a batch")
        if drained.cpu_s is not None:
            yield Figure(f"{label}, {name}: CPU", drained.cpu_s, "s per million records")
    if contenders.is_local:
        usage = spark_usage()
        yield Figure(f"{label}, resident memory of driver and JVM", usage.driver_bytes / MEGABYTE, "MB")
        yield Figure(f"{label}, resident memory of Python workers", usage.workers_bytes / MEGABYTE, "MB")
    yield from ratios(label, {name: drained.rate for name, drained in medians.items()})


def overhead(
    contenders: Contenders, trigger: str, length_s: float, scale: float, say: Callable[[str], None]
) -> Iterator[Figure]:
    """Yield the overhead of exactly-once, in batches as large as the input of one trigger. Raises BenchRefused."""
    batches = max(2, min(20, int(10 / length_s))) + 1
    source = contenders.topic(f"price-{length_s}-probe", SMALL)
    fill(contenders.bootstrap, source, SMALL, _PROBE * _BATCHES)
    _drain(contenders, AT_LEAST_ONCE, SMALL, source, _PROBE)
    probed = _drain(contenders, AT_LEAST_ONCE, SMALL, source, _PROBE)
    per_batch = max(1_000, int(probed.rate * length_s * min(scale, 1.0)))
    say(f"{trigger}: batches of {per_batch:,} records")
    source = contenders.topic(f"price-{length_s}", SMALL)
    fill(contenders.bootstrap, source, SMALL, per_batch * batches)
    medians = _medians(contenders, SMALL, source, per_batch, trigger, say, length_s)
    rates = {name: drained.rate for name, drained in medians.items()}
    for name, rate in rates.items():
        yield Figure(f"trigger {trigger}, {name}", rate, "records/s")
    cost = (1 - rates[EXACTLY_ONCE] / rates[AT_LEAST_ONCE]) * 100
    yield Figure(f"trigger {trigger}, exactly-once against {AT_LEAST_ONCE}", cost, "%")


def _medians(
    contenders: Contenders,
    workload: PipelineWorkload,
    source: str,
    per_batch: int,
    label: str,
    say: Callable[[str], None],
    trigger_s: float = 0.0,
) -> dict[str, Drained]:
    """Medians over the rounds that count."""
    rounds: dict[str, list[Drained]] = {name: [] for name in contenders.names}
    for contender, counts in turns(contenders.names, label, say, trigger_s):
        drained = _drain(contenders, contender, workload, source, per_batch)
        if counts:
            rounds[contender].append(drained)
    return {
        name: Drained(
            statistics.median(run.rate for run in runs),
            {phase: statistics.median(run.phases[phase] for run in runs) for phase in runs[0].phases},
            None if runs[0].cpu_s is None else statistics.median(run.cpu_s or 0.0 for run in runs),
        )
        for name, runs in rounds.items()
    }


def _drain(
    contenders: Contenders, contender: str, workload: PipelineWorkload, source: str, records_per_batch: int
) -> Drained:
    """Copy all of a topic. Raises BenchRefused."""
    run = contenders.new_run(workload, source, {"availableNow": True}, records_per_batch)
    phases = Phases()
    before = spark_usage()
    with failures_refused(f"{contender} did not copy {source}"):
        query = contenders.start(contender, run, phases)
        query.awaitTermination(_QUERY_S)
        if query.isActive:
            query.stop()
            raise BenchRefused(f"{contender} did not copy {source} in {_QUERY_S:.0f} s")
        reports = [dict(json.loads(progress.json)) for progress in query.recentProgress]
    batches = [report for report in reports if report["numInputRows"]][1:]
    if not batches:
        raise BenchRefused(f"{contender} has copied {source} in one batch")
    contenders.delete_output(run)
    cpu_s = (spark_usage().cpu_s - before.cpu_s) / sum(report["numInputRows"] for report in reports) * 1_000_000
    return replace(_drained(batches, phases.batches[1:]), cpu_s=cpu_s if contenders.is_local else None)


def _drained(batches: list[dict[str, Any]], phases: list[dict[str, float]]) -> Drained:
    """``batches``: Spark's progress reports; ``phases``: the phases of the same batches, if the sink is einmal's."""
    durations: list[dict[str, float]] = [batch["durationMs"] for batch in batches]
    total = statistics.mean(duration["triggerExecution"] for duration in durations)
    means = {
        phase: statistics.mean(sum(duration.get(name, 0) for name in names) for duration in durations)
        for phase, names in _SPARKS_PHASES.items()
    }
    if phases:
        means |= {
            phase: statistics.mean(times.get(phase, 0) for times in phases)
            for phase in _PHASES.values()
            if any(phase in times for times in phases)
        }
        means["other"] = total - sum(means.values())
    else:
        means["reading and writing"] = total - sum(means.values())
    rows = sum(batch["numInputRows"] for batch in batches)
    return Drained(rows / (total * len(batches)) * 1000, means)
