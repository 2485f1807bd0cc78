"""Latency of a pipeline under a steady load.

It is the time from before a record is sent until a ``read_committed`` consumer has it.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Final

from einmal.bench.cases import Figure
from einmal.bench.contenders import Contenders, failures_refused, ratios, turns
from einmal.bench.load import BenchRefused
from einmal.bench.workloads import SMALL, key

_RATE: Final = 200
"""Records per second."""
_SETTLE_S: Final = 2.0
_ARRIVAL_S: Final = 300.0
_POLL_S: Final = 0.01
_CHECK_S: Final = 1.0
"""Whether the query still runs is a question to the JVM, which must not disturb what is measured."""


def latency(
    contenders: Contenders,
    label: str,
    trigger: dict[str, Any],
    seconds: float,
    say: Callable[[str], None],
    trigger_s: float = 0.0,
) -> Iterator[Figure]:
    """Yield p50 and p99 of each contender, medians over the rounds that count, and their ratios. ``seconds``: length of
    a round. Raises BenchRefused."""
    measured: dict[str, dict[str, list[float]]] = {
        percentile: {name: [] for name in contenders.names} for percentile in ("p50", "p99")
    }
    for contender, counts in turns(contenders.names, f"latency, {label}", say, trigger_s):
        latencies = _latencies(contenders, contender, trigger, seconds)
        quantiles = statistics.quantiles(latencies, n=100, method="inclusive")
        if counts:
            for percentile, values in measured.items():
                values[contender].append(quantiles[int(percentile[1:]) - 1])
    medians = {
        percentile: {name: statistics.median(of) for name, of in values.items()}
        for percentile, values in measured.items()
    }
    for contender in contenders.names:
        for percentile, values_of in medians.items():
            yield Figure(f"latency, {label}, {contender}: {percentile}", values_of[contender] * 1_000, "ms")
    for percentile, values_of in medians.items():
        yield from ratios(f"latency, {label}, {percentile}", values_of)


def _latencies(contenders: Contenders, contender: str, trigger: dict[str, Any], seconds: float) -> list[float]:
    """Seconds from topic to topic of every record that was sent after the query had settled. Raises BenchRefused."""
    run = contenders.new_run(SMALL, contenders.new_source("steady", SMALL), trigger)
    with failures_refused(f"{contender} did not copy {run.source}"):
        query = contenders.start(contender, run)
        try:
            with closing(_LatencyReader(contenders.bootstrap, run.sink, query)) as reader:
                _send(contenders.bootstrap, run.source, _SETTLE_S, settled=False)
                reader.wait_for_any()
                sent = _send(contenders.bootstrap, run.source, seconds, settled=True)
                return reader.wait_for_settled(sent)
        finally:
            query.stop()


class _LatencyReader:
    """Notes, on a thread of its own, how old each settled record is when it arrives."""

    def __init__(self, bootstrap: str, topic: str, query: Any) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self._query = query
        self._latencies: list[float] = []
        self._arrived = 0
        """Records, settled or not."""
        self._stop = threading.Event()
        settings = {"group.id": "bench", "isolation.level": "read_committed", "enable.auto.commit": False}
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "fetch.wait.max.ms": 20, **settings})
        self._consumer.assign([TopicPartition(topic, index, 0) for index in range(SMALL.partitions)])
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            now = time.perf_counter()
            settled, sent, _filling = (message.value() or b"").split(b" ", 2)
            self._arrived += 1
            if settled == b"1":
                self._latencies.append(now - float(sent))

    def wait_for_any(self) -> None:
        """Wait until a record has arrived. Raises BenchRefused, and the error of the query."""
        _wait(lambda: self._arrived > 0, self._query, "no record has arrived")

    def wait_for_settled(self, count: int) -> list[float]:
        """The latencies of so many settled records. Raises BenchRefused, and the error of the query."""
        _wait(lambda: len(self._latencies) >= count, self._query, f"fewer than {count} records have arrived")
        return self._latencies

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()


def _wait(is_done: Callable[[], bool], query: Any, missing: str) -> None:
    """Until it is done. Raises BenchRefused, and the error of a query that has failed."""
    now = time.monotonic()
    deadline, check_at = now + _ARRIVAL_S, now + _CHECK_S
    while not is_done():
        time.sleep(_POLL_S)
        now = time.monotonic()
        if now > deadline:
            raise BenchRefused(f"{missing} in {_ARRIVAL_S:.0f} s")
        if now > check_at:
            check_at = now + _CHECK_S
            if not query.isActive:
                query.awaitTermination()
                raise BenchRefused(f"{missing}, and the query has ended")


def _send(bootstrap: str, topic: str, seconds: float, *, settled: bool) -> int:
    """Send records at the rate; returns their number."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    count = int(_RATE * seconds)
    began = time.perf_counter()
    for number in range(count):
        if (wait := began + number / _RATE - time.perf_counter()) > 0:
            time.sleep(wait)
        value = f"{settled:d} {time.perf_counter()} ".encode().ljust(100, b"x")
        producer.produce(topic, value, key=key(number))
        producer.poll(0)
    producer.flush(30)
    return count
