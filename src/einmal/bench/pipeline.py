"""A pipeline from topic to topic: ours, and Spark's own Kafka connector, in one session, on one broker and one input.

Every contender runs the same query (``workloads``). ``drain``: a backlog in several micro-batches, each contender in
turn, in another order each round; the first round, and the first batch with records of every run, are warm-up.
``latencies``: records at a steady rate, timed from before they are sent until a ``read_committed`` consumer has them.
For the overhead at a trigger the batches of a backlog are as large as what at_least_once can copy in that time.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from einmal.bench.cases import MEGABYTE, Figure, PipelineCases
from einmal.bench.load import BenchRefused
from einmal.bench.topics import BenchTopics
from einmal.bench.usage import usage
from einmal.bench.workloads import USUAL, WORKLOADS, PipelineWorkload, fill, key
from einmal.spark import events, session, write_stream
from einmal.spark.operate.progress import CHECKPOINT_KEYS, PLANNING_KEYS

ROUNDS: Final = 3
"""Measured rounds, after one that is not measured."""
BATCHES: Final = 6
PROBE: Final = 50_000
"""Records of the batch that measures how much a trigger can hold."""
LONG_S: Final = 10.0
"""From this trigger on one round is enough."""
RATE: Final = 200
"""Records per second of the steady load."""
_QUERY_S: Final = 300.0
_SETTLE_S: Final = 2.0

_SMALL: Final = WORKLOADS["100 B"]

EXACTLY_ONCE: Final = "exactly_once_v2"
AT_LEAST_ONCE: Final = "at_least_once"
PEER: Final = "spark's kafka connector"


@dataclass(frozen=True, slots=True)
class Copy:
    """One run of one contender. ``trigger``: as Spark's."""

    workload: PipelineWorkload
    source: str
    target: str
    checkpoint: str
    trigger: dict[str, Any]
    records_per_batch: int | None = None


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
_UNITS: Final = {"millisecond": 0.001, "second": 1.0, "minute": 60.0}


class Bench:
    """``connector``: the folder with the jars of Spark's own connector, or None. ``master``: see ``PipelineCases``."""

    def __init__(self, bootstrap: str, connector: Path | None, folder: str, master: str | None) -> None:
        jars = sorted(str(jar) for jar in connector.glob("*.jar")) if connector is not None else []
        if connector is not None and not jars:
            raise BenchRefused(f"no jars in {connector}")
        self.contenders = [EXACTLY_ONCE, AT_LEAST_ONCE, *([PEER] if jars else [])]
        self._bootstrap = bootstrap
        self._folder = folder
        self._runs = 0
        self._topics = BenchTopics(bootstrap)
        config = {"spark.jars": ",".join(jars)} if jars else None
        self.spark: SparkSession = session("einmal bench", master=master, config=config)
        self.is_local: bool = str(self.spark.sparkContext.master).startswith("local")

    def close(self) -> None:
        self.spark.stop()
        self._topics.close()

    def topic(self, name: str, workload: PipelineWorkload) -> str:
        """The whole name, which stands for all topics of the workload. Raises BenchRefused."""
        self._topics.create_all(workload.names(name), workload.partitions)
        return self._topics.prefix + name

    def new_copy(
        self, workload: PipelineWorkload, source: str, trigger: dict[str, Any], records_per_batch: int | None = None
    ) -> Copy:
        """A run with output topics and a checkpoint of its own."""
        self._runs += 1
        target = self.topic(f"copy-{self._runs}", workload)
        return Copy(workload, source, target, f"{self._folder}/checkpoint-{self._runs}", trigger, records_per_batch)

    def start(self, contender: str, copy: Copy, listener: Phases | None = None) -> Any:
        """The query, running. ``listener``: for those of ours."""
        if contender == PEER:
            return self._started_by_spark(copy)
        writer = (
            write_stream(self._rows("einmal", copy))
            .options(**self._sink(copy))
            .option("transactional.id", copy.target)
            .option("processing.guarantee", contender)
            .outputMode(copy.workload.output_mode)
            .trigger(**copy.trigger)
        )
        return (writer if listener is None else writer.listener(listener)).start()

    def _started_by_spark(self, copy: Copy) -> Any:
        return (
            self._rows("kafka", copy)
            .writeStream.format("kafka")
            .options(**self._sink(copy))
            .outputMode(copy.workload.output_mode)
            .trigger(**copy.trigger)
            .start()
        )

    def _sink(self, copy: Copy) -> dict[str, str]:
        options = {"kafka.bootstrap.servers": self._bootstrap, "checkpointLocation": copy.checkpoint}
        options |= {f"kafka.{name}": value for name, value in copy.workload.settings.items()}
        return options if copy.workload.topics > 1 else options | {"topic": copy.target}

    def _rows(self, kind: str, copy: Copy) -> DataFrame:
        reader = self.spark.readStream.format(kind).option("kafka.bootstrap.servers", self._bootstrap)
        reader = reader.option("subscribe", ",".join(copy.workload.names(copy.source)))
        reader = reader.option("startingOffsets", "earliest")
        reader = reader.option("kafka.isolation.level", "read_committed")
        if copy.records_per_batch is not None:
            reader = reader.option("maxOffsetsPerTrigger", copy.records_per_batch)
        return copy.workload.query(reader.load(), f"{copy.target}-")

    # --- a backlog ----------------------------------------------------------------------------------------------

    def drain(self, contender: str, workload: PipelineWorkload, source: str, records_per_batch: int) -> Drained:
        """All of a topic. Raises BenchRefused."""
        copy = self.new_copy(workload, source, {"availableNow": True}, records_per_batch)
        phases = Phases()
        before = usage()
        query = self.start(contender, copy, phases)
        try:
            query.awaitTermination(_QUERY_S)
        except PySparkException as error:
            raise BenchRefused(f"{contender} did not copy {source}: {str(error).splitlines()[0]}") from error
        if query.isActive:
            query.stop()
            raise BenchRefused(f"{contender} did not copy {source} in {_QUERY_S:.0f} s")
        told = [dict(json.loads(each.json)) for each in query.recentProgress]
        batches = [each for each in told if each["numInputRows"]][1:]
        if not batches:
            raise BenchRefused(f"{contender} has copied {source} in one batch")
        self._topics.delete(workload.names(copy.target))
        cpu_s = (usage().cpu_s - before.cpu_s) / sum(each["numInputRows"] for each in told) * 1_000_000
        return replace(_drained(batches, phases.batches[1:]), cpu_s=cpu_s if self.is_local else None)

    # --- a steady load ------------------------------------------------------------------------------------------

    def latencies(self, contender: str, source: str, trigger: dict[str, Any], seconds: float) -> list[float]:
        """Seconds from topic to topic of every record that was sent after the query had settled."""
        copy = self.new_copy(_SMALL, self.topic(f"{source}-{self._runs}", _SMALL), trigger)
        reader = _LatencyReader(self._bootstrap, copy.target)
        query = self.start(contender, copy)
        try:
            _send_at_rate(self._bootstrap, copy.source, _SETTLE_S, settled=False)
            reader.wait(1)
            sent = _send_at_rate(self._bootstrap, copy.source, seconds, settled=True)
            return reader.wait(sent)
        finally:
            query.stop()
            reader.close()


class _LatencyReader:
    """Notes, on a thread of its own, how old each settled record is when it arrives."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self._seen: list[float] = []
        self._any = 0
        self._stop = threading.Event()
        settings = {"group.id": "bench", "isolation.level": "read_committed", "enable.auto.commit": False}
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "fetch.wait.max.ms": 20, **settings})
        self._consumer.assign([TopicPartition(topic, index, 0) for index in range(_SMALL.partitions)])
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            now = time.perf_counter()
            settled, sent, _filling = (message.value() or b"").split(b" ", 2)
            self._any += 1
            if settled == b"1":
                self._seen.append(now - float(sent))

    def wait(self, count: int) -> list[float]:
        """Wait until so many settled records have arrived."""
        deadline = time.monotonic() + _QUERY_S
        while (self._any if count == 1 else len(self._seen)) < count:
            if time.monotonic() > deadline:
                raise BenchRefused(f"{len(self._seen)} of {count} records came")
            time.sleep(0.01)
        return self._seen

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()


def _send_at_rate(bootstrap: str, topic: str, seconds: float, *, settled: bool) -> int:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    count = int(RATE * seconds)
    began = time.perf_counter()
    for number in range(count):
        if (wait := began + number / RATE - time.perf_counter()) > 0:
            time.sleep(wait)
        value = f"{settled:d} {time.perf_counter()} ".encode().ljust(100, b"x")
        producer.produce(topic, value, key=key(number))
        producer.poll(0)
    producer.flush(30)
    return count


def pipeline(bootstrap: str, scale: float, cases: PipelineCases, say: Callable[[str], None]) -> Iterator[Figure]:
    """The figures, as they come. Raises BenchRefused."""
    triggers, workloads = cases.triggers, cases.workloads
    lengths = {trigger: _seconds(trigger) for trigger in triggers}
    if unknown := [name for name in workloads if name not in WORKLOADS]:
        raise BenchRefused(f"no workload {', '.join(map(repr, unknown))}; there are: {', '.join(map(repr, WORKLOADS))}")
    with tempfile.TemporaryDirectory(prefix="einmal-bench-") as folder:
        say("starting Spark")
        bench = Bench(bootstrap, None if triggers else cases.connector, folder, cases.master)
        try:
            if triggers:
                for trigger, length in lengths.items():
                    yield from _price(bench, bootstrap, trigger, length, scale, say)
                return
            if PEER not in bench.contenders:
                say("no jars of Spark's own connector (--connector): it is left out")
            for name in workloads or USUAL:
                yield from _throughput(bench, bootstrap, WORKLOADS[name], scale, say)
            if not workloads:
                yield from _latency(bench, "now", {"processingTime": "0 seconds"}, max(3.0, 15 * scale), say)
        finally:
            bench.close()


def _throughput(
    bench: Bench, bootstrap: str, workload: PipelineWorkload, scale: float, say: Callable[[str], None]
) -> Iterator[Figure]:
    per_batch = max(1_000, int(workload.records * scale))
    label = workload.name
    source = bench.topic(f"backlog-{list(WORKLOADS).index(label)}", workload)
    fill(bootstrap, source, workload, per_batch * BATCHES)
    found = _rounds(bench, workload, source, per_batch, ROUNDS, label, say)
    for name, drained in found.items():
        yield Figure(f"{label}, {name}", drained.rate, "records/s")
        yield Figure(f"{label}, {name}", drained.rate * workload.size / MEGABYTE, "MB/s")
        for phase, milliseconds in drained.phases.items():
            yield Figure(f"{label}, {name}: {phase}", milliseconds, "ms a batch")
        if drained.cpu_s is not None:
            yield Figure(f"{label}, {name}: CPU", drained.cpu_s, "s per million records")
    if bench.is_local:
        now = usage()
        yield Figure(f"{label}, resident memory of driver and JVM", now.driver_bytes / MEGABYTE, "MB")
        yield Figure(f"{label}, resident memory of Python workers", now.workers_bytes / MEGABYTE, "MB")
    yield from _ratios(label, {name: drained.rate for name, drained in found.items()})


def _price(
    bench: Bench, bootstrap: str, trigger: str, length: float, scale: float, say: Callable[[str], None]
) -> Iterator[Figure]:
    batches = max(2, min(20, int(10 / length))) + 1
    source = bench.topic(f"price-{length}-probe", _SMALL)
    fill(bootstrap, source, _SMALL, PROBE * BATCHES)
    bench.drain(AT_LEAST_ONCE, _SMALL, source, PROBE)
    probed = bench.drain(AT_LEAST_ONCE, _SMALL, source, PROBE)
    per_batch = max(1_000, int(probed.rate * length * min(scale, 1.0)))
    say(f"{trigger}: batches of {per_batch:,} records")
    source = bench.topic(f"price-{length}", _SMALL)
    fill(bootstrap, source, _SMALL, per_batch * batches)
    found = _rounds(bench, _SMALL, source, per_batch, ROUNDS if length < LONG_S else 1, trigger, say)
    rates = {name: drained.rate for name, drained in found.items()}
    for name, rate in rates.items():
        yield Figure(f"trigger {trigger}, {name}", rate, "records/s")
    cost = (1 - rates[EXACTLY_ONCE] / rates[AT_LEAST_ONCE]) * 100
    yield Figure(f"trigger {trigger}, exactly-once against {AT_LEAST_ONCE}", cost, "%")
    seconds = max(10.0, 3 * length) * min(scale, 1.0)
    yield from _latency(bench, f"trigger {trigger}", {"processingTime": trigger}, seconds, say)


def _rounds(
    bench: Bench,
    workload: PipelineWorkload,
    source: str,
    per_batch: int,
    rounds: int,
    label: str,
    say: Callable[[str], None],
) -> dict[str, Drained]:
    """Medians over the rounds; of several, the first does not count."""
    found: dict[str, list[Drained]] = {name: [] for name in bench.contenders}
    for round_number in range(rounds + 1 if rounds > 1 else 1):
        for contender in bench.contenders if round_number % 2 else bench.contenders[::-1]:
            say(f"{label}, round {round_number}: {contender}")
            drained = bench.drain(contender, workload, source, per_batch)
            if round_number or rounds == 1:
                found[contender].append(drained)
    return {
        name: Drained(
            statistics.median(each.rate for each in runs),
            {phase: statistics.median(each.phases[phase] for each in runs) for phase in runs[0].phases},
            None if runs[0].cpu_s is None else statistics.median(each.cpu_s or 0.0 for each in runs),
        )
        for name, runs in found.items()
    }


def _drained(batches: list[dict[str, Any]], phases: list[dict[str, float]]) -> Drained:
    """``batches``: Spark's progress reports; ``phases``: the phases of the same batches, if the sink is ours."""
    durations: list[dict[str, float]] = [each["durationMs"] for each in batches]
    total = statistics.mean(each["triggerExecution"] for each in durations)
    found = {
        phase: statistics.mean(sum(each.get(name, 0) for name in names) for each in durations)
        for phase, names in _SPARKS_PHASES.items()
    }
    if phases:
        found |= {
            phase: statistics.mean(each.get(phase, 0) for each in phases)
            for phase in _PHASES.values()
            if any(phase in each for each in phases)
        }
        found["other"] = total - sum(found.values())
    else:
        found["reading and writing"] = total - sum(found.values())
    rows = sum(each["numInputRows"] for each in batches)
    return Drained(rows / (total * len(batches)) * 1000, found)


def _ratios(label: str, values: dict[str, float]) -> Iterator[Figure]:
    ours = values[EXACTLY_ONCE]
    for name, value in values.items():
        if name != EXACTLY_ONCE:
            yield Figure(f"{label}, {EXACTLY_ONCE} : {name}", ours / value, "")


def _latency(
    bench: Bench, label: str, trigger: dict[str, Any], seconds: float, say: Callable[[str], None]
) -> Iterator[Figure]:
    medians = {}
    for contender in bench.contenders:
        say(f"latency, {label}: {contender}")
        latencies = bench.latencies(contender, "steady", trigger, seconds)
        quantiles = statistics.quantiles(latencies, n=100, method="inclusive")
        medians[contender] = quantiles[49]
        yield Figure(f"latency, {label}, {contender}: p50", quantiles[49] * 1_000, "ms")
        yield Figure(f"latency, {label}, {contender}: p99", quantiles[98] * 1_000, "ms")
    yield from _ratios(f"latency, {label}, p50", medians)


def _seconds(trigger: str) -> float:
    number, _, unit = trigger.partition(" ")
    length = _UNITS.get(unit.removesuffix("s"))
    if length is None or not number.isdecimal() or int(number) == 0:
        raise BenchRefused(f"a trigger is like '100 milliseconds', '1 second' or '30 seconds', not {trigger!r}")
    return int(number) * length
