"""A pipeline from topic to topic: ours, and Spark's own Kafka connector, in one session, on one broker and one input.

Every contender copies key and value. ``drain``: a backlog in several micro-batches, each contender in turn, in another
order each round; the first round, and the first batch with records of every run, are warm-up. ``latency``: records at a
steady rate, timed from before they are sent until a ``read_committed`` consumer has them.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from einmal.bench.cases import MEGABYTE, Figure
from einmal.bench.load import BenchRefused, Connection, create_topic
from einmal.spark import session, write_stream

PARTITIONS: Final = 4
ROUNDS: Final = 3
"""Measured, after one that is not."""
BATCHES: Final = 6
BACKLOGS: Final = {100: 200_000, 1_000: 60_000}
"""Records of a micro-batch, by their size."""
RATE: Final = 200
"""Records per second of the steady load."""
_KEYS: Final = 10_000
_QUERY_S: Final = 300.0
_SETTLE_S: Final = 2.0

EXACTLY_ONCE: Final = "exactly_once_v2"
AT_LEAST_ONCE: Final = "at_least_once"
PEER: Final = "spark's kafka connector"


@dataclass(frozen=True, slots=True)
class Copy:
    """One run of one contender. ``trigger``: as Spark's."""

    source: str
    target: str
    checkpoint: str
    trigger: dict[str, Any]
    records_per_batch: int | None = None


class Bench:
    """``connector``: the folder with the jars of Spark's own connector, or None."""

    def __init__(self, bootstrap: str, connector: Path | None, folder: str) -> None:
        jars = sorted(str(jar) for jar in connector.glob("*.jar")) if connector is not None else []
        if connector is not None and not jars:
            raise BenchRefused(f"no jars in {connector}")
        self.contenders = [EXACTLY_ONCE, AT_LEAST_ONCE, *([PEER] if jars else [])]
        self._bootstrap = bootstrap
        self._folder = folder
        self._runs = 0
        self._connection = Connection(bootstrap)
        self.spark: SparkSession = session("einmal bench", config={"spark.jars": ",".join(jars)} if jars else None)

    def close(self) -> None:
        self.spark.stop()
        self._connection.close()

    def topic(self, name: str) -> str:
        create_topic(self._connection, name, PARTITIONS)
        return name

    def new_copy(self, source: str, trigger: dict[str, Any], records_per_batch: int | None = None) -> Copy:
        """A run with an output topic and a checkpoint of its own."""
        self._runs += 1
        target = self.topic(f"{source}-copy-{self._runs}")
        return Copy(source, target, f"{self._folder}/checkpoint-{self._runs}", trigger, records_per_batch)

    def start(self, contender: str, copy: Copy) -> Any:
        """The query, running."""
        if contender == PEER:
            return self._started_by_spark(copy)
        return (
            write_stream(self._input("einmal", copy))
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("topic", copy.target)
            .option("transactional.id", copy.target)
            .option("processing.guarantee", contender)
            .option("checkpointLocation", copy.checkpoint)
            .trigger(**copy.trigger)
            .start()
        )

    def _started_by_spark(self, copy: Copy) -> Any:
        return (
            self._input("kafka", copy)
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("topic", copy.target)
            .option("checkpointLocation", copy.checkpoint)
            .trigger(**copy.trigger)
            .start()
        )

    def _input(self, kind: str, copy: Copy) -> DataFrame:
        reader = self.spark.readStream.format(kind).option("kafka.bootstrap.servers", self._bootstrap)
        reader = reader.option("subscribe", copy.source).option("startingOffsets", "earliest")
        reader = reader.option("kafka.isolation.level", "read_committed")
        if copy.records_per_batch is not None:
            reader = reader.option("maxOffsetsPerTrigger", copy.records_per_batch)
        return reader.load().select("key", "value")

    # --- a backlog ----------------------------------------------------------------------------------------------

    def drain(self, contender: str, source: str, records_per_batch: int) -> list[dict[str, Any]]:
        """Copy all of a topic; what Spark tells of each batch with records, but the first."""
        copy = self.new_copy(source, {"availableNow": True}, records_per_batch)
        query = self.start(contender, copy)
        query.awaitTermination(_QUERY_S)
        if query.isActive:
            query.stop()
            raise BenchRefused(f"{contender} did not copy {source} in {_QUERY_S:.0f} s")
        progress = [dict(json.loads(each.json)) for each in query.recentProgress]
        return [each for each in progress if each["numInputRows"]][1:]

    # --- a steady load ------------------------------------------------------------------------------------------

    def latencies(self, contender: str, source: str, trigger: dict[str, Any], seconds: float) -> list[float]:
        """Seconds from topic to topic of every record that was sent after the query had settled."""
        copy = self.new_copy(self.topic(f"{source}-{self._runs}"), trigger)
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
        self._consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
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
        """Until so many settled records have come, or any at all for one."""
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
        producer.produce(topic, value, key=_key(number))
        producer.poll(0)
    producer.flush(30)
    return count


def _key(number: int) -> bytes:
    return b"key-%04d" % (number * 7919 % _KEYS)


def fill(bootstrap: str, topic: str, count: int, size: int) -> None:
    """A backlog of records with keys, spread by them."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 200_000})
    value = b"x" * size
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value, key=_key(number))
                break
            except BufferError:
                producer.poll(0.01)
    producer.flush(60)


def pipeline(
    bootstrap: str, scale: float, connector: Path | None, triggers: Sequence[str], say: Callable[[str], None]
) -> Iterator[Figure]:
    """``triggers``: as in Spark ("1 second"); then it is the price of exactly-once that is measured, at each."""
    with tempfile.TemporaryDirectory(prefix="einmal-bench-") as folder:
        say("starting Spark")
        bench = Bench(bootstrap, connector, folder)
        try:
            if PEER not in bench.contenders:
                say("no jars of Spark's own connector (--connector): it is left out")
            for size in BACKLOGS:
                yield from _throughput(bench, bootstrap, size, scale, say)
            yield from _latency(bench, scale, say)
        finally:
            bench.close()


def _throughput(bench: Bench, bootstrap: str, size: int, scale: float, say: Callable[[str], None]) -> Iterator[Figure]:
    per_batch = max(1_000, int(BACKLOGS[size] * scale))
    source = bench.topic(f"backlog-{size}")
    fill(bootstrap, source, per_batch * BATCHES, size)
    rates: dict[str, list[float]] = {name: [] for name in bench.contenders}
    phases: dict[str, dict[str, float]] = {}
    for round_number in range(ROUNDS + 1):
        order = bench.contenders if round_number % 2 else bench.contenders[::-1]
        for contender in order:
            say(f"{size} B, round {round_number}: {contender}")
            batches = bench.drain(contender, source, per_batch)
            seconds = sum(each["durationMs"]["triggerExecution"] for each in batches) / 1000
            if round_number:
                rates[contender].append(sum(each["numInputRows"] for each in batches) / seconds)
                phases[contender] = _phases(batches)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    for name, rate in medians.items():
        yield Figure(f"{size} B, {name}", rate, "records/s")
        yield Figure(f"{size} B, {name}", rate * size / MEGABYTE, "MB/s")
        for phase, milliseconds in phases[name].items():
            yield Figure(f"{size} B, {name}: {phase}", milliseconds, "ms a batch")
    yield from _ratios(f"{size} B", medians)


def _ratios(label: str, values: dict[str, float]) -> Iterator[Figure]:
    ours = values[EXACTLY_ONCE]
    for name, value in values.items():
        if name != EXACTLY_ONCE:
            yield Figure(f"{label}, exactly once : {name}", ours / value, "")


def _phases(batches: list[dict[str, Any]]) -> dict[str, float]:
    names = sorted({name for each in batches for name in each["durationMs"]})
    return {name: statistics.mean(each["durationMs"].get(name, 0) for each in batches) for name in names}


def _latency(bench: Bench, scale: float, say: Callable[[str], None]) -> Iterator[Figure]:
    medians = {}
    for contender in bench.contenders:
        say(f"latency: {contender}")
        latencies = bench.latencies(contender, "steady", {"processingTime": "0 seconds"}, max(3.0, 15 * scale))
        quantiles = statistics.quantiles(latencies, n=100, method="inclusive")
        medians[contender] = quantiles[49]
        yield Figure(f"latency, {contender}: p50", quantiles[49] * 1_000, "ms")
        yield Figure(f"latency, {contender}: p99", quantiles[98] * 1_000, "ms")
    yield from _ratios("latency p50", medians)
