"""Cases of the benchmark. Each case returns figures: name, value, unit, and the budget where there is one.

Two kinds of load: ready-made requests (the broker's own speed) and confluent-kafka (what a user's client gets).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from einmal.bench import load
from einmal.bench.confluent import hand_over
from einmal.bench.load import Connection
from einmal.bench.topics import BenchTopics
from einmal.wire.record_batch import NewRecord, encode_batch

MEGABYTE: Final = 1_000_000
RECORD_SIZES: Final = (1_000, 100)
BATCH_SIZES: Final = (16_000, 100_000)
COMMIT_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Figure:
    """``budget``: the value wanted, in the same unit; ``at_most``: the budget is an upper bound. ``beside``: the other
    broker's value."""

    name: str
    value: float
    unit: str
    budget: float | None = None
    at_most: bool = False
    beside: float | None = None


@dataclass(frozen=True, slots=True)
class MeasuredBroker:
    """The measured broker. ``security``: settings of its clients, under librdkafka's names."""

    bootstrap: str
    security: Mapping[str, str] = field(default_factory=dict)

    def connect(self) -> Connection:
        """Raises BenchRefused for SASL, which ready-made requests have not."""
        return Connection(self.bootstrap, load.tls_of(self.bootstrap, self.security))

    def topics(self) -> BenchTopics:
        return BenchTopics(self.bootstrap, self.security)


Case = Callable[[MeasuredBroker, float], Iterator[Figure]]
"""A case takes the broker and a factor for its length."""


def throughput(target: MeasuredBroker, scale: float) -> Iterator[Figure]:
    """Produce and fetch in MB/s of record batches, pipelined, from ready-made requests."""
    budgets = {16_000: 400.0, 100_000: 900.0}
    with closing(target.connect()) as connection, target.topics() as topics:
        for batch_bytes in BATCH_SIZES:
            for record_bytes in RECORD_SIZES:
                topic = topics.create(f"{batch_bytes}-{record_bytes}")
                records, count = load.batch(record_bytes, batch_bytes)
                request = load.produce_request(topic, 0, records)
                load.warm_up(connection, request, 50, 5)
                rounds = max(100, int(scale * 400 * MEGABYTE / batch_bytes))
                seconds = load.produce_many(connection, request, rounds, 10)
                label = f"{batch_bytes // 1000} KB batches of {record_bytes} B records"
                rate = rounds * len(records) / seconds / MEGABYTE
                yield Figure(f"produce {label}", rate, "MB/s", budgets[batch_bytes])
                seconds, size = load.fetch_all(connection, topic, (rounds + 50) * count)
                yield Figure(f"fetch {label}", size / seconds / MEGABYTE, "MB/s", 2_500.0)


def single_records(target: MeasuredBroker, scale: float) -> Iterator[Figure]:
    """Requests of one 100 B record: pipelined, one at a time, and at a steady 2,000 per second."""
    with closing(target.connect()) as connection, target.topics() as topics:
        records, _count = load.batch(100, 100)
        request = load.produce_request(topics.create("single"), 0, records)
        load.warm_up(connection, request, 500, 50)
        rounds = max(2_000, int(50_000 * scale))
        rate = rounds / load.produce_many(connection, request, rounds, 200)
        yield Figure("single-record produce, pipelined", rate, "1/s", 50_000)
        rounds = max(1_000, int(10_000 * scale))
        rate = rounds / load.produce_many(connection, request, rounds, 1)
        yield Figure("single-record produce, one at a time", rate, "1/s", 8_000)
        latencies = load.produce_at_rate(connection, request, 2_000, max(1.0, 5 * scale))
        p50, p99 = _percentile(latencies, 50), _percentile(latencies, 99)
        yield Figure("latency at 2,000/s, p50", p50 * 1_000, "ms")
        yield Figure("latency at 2,000/s, p99", p99 * 1_000, "ms", 1.0, at_most=True)


def transactions(target: MeasuredBroker, scale: float) -> Iterator[Figure]:
    """Transactions of one record by one confluent-kafka producer: one coordinator shard, one at a time."""
    with target.topics() as topics:
        topic = topics.create("transactions")
        producer = _producer(target, {"transactional.id": topic, "linger.ms": 0})
        producer.init_transactions(30)
        count = max(50, int(400 * scale))
        latencies = []
        for _ in range(count):
            began = time.perf_counter()
            producer.begin_transaction()
            producer.produce(topic, b"x" * 100)
            producer.commit_transaction(30)
            latencies.append(time.perf_counter() - began)
    yield Figure("transactions of one record", 1 / statistics.median(latencies), "1/s")
    yield Figure("one transaction, p99", _percentile(latencies, 99) * 1_000, "ms")


def client_throughput(target: MeasuredBroker, scale: float) -> Iterator[Figure]:
    """Yield the throughput of confluent-kafka: idempotent produce, then read_committed consume, of 1 KB records."""
    with target.topics() as topics:
        yield from _client_throughput(target, topics.create("client"), max(5_000, int(100_000 * scale)))


def _client_throughput(target: MeasuredBroker, topic: str, count: int) -> Iterator[Figure]:
    from confluent_kafka import Consumer, TopicPartition

    producer = _producer(target, {"enable.idempotence": True})
    seconds = _produce(producer, topic, count, 1_000)
    yield Figure("confluent-kafka produce, 1 KB records", count / seconds, "records/s")
    consumer = Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            **target.security,
            "group.id": "bench",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    began = time.perf_counter()
    seen = 0
    while seen < count and time.perf_counter() - began < 60:
        seen += sum(1 for message in consumer.consume(5_000, 1.0) if message.error() is None)
    yield Figure("confluent-kafka consume, 1 KB records", seen / (time.perf_counter() - began), "records/s")
    consumer.close()


def price(target: MeasuredBroker, scale: float) -> Iterator[Figure]:
    """The price of exactly-once (F20): 1 KB records, a commit every 100 ms, rounds of the guarantees in turn.

    All keep at most 4 MB under way, as Kafka's own measurement did with its buffer: otherwise what is compared is
    how long a commit waits for a client's backlog.
    """
    with target.topics() as topics:
        medians = _price_rates(target, topics.create("price"), max(0.5, 2 * scale))
    for name, rate in medians.items():
        yield Figure(f"{name}, 1 KB records", rate, "records/s")
    exact = medians["exactly-once"]
    yield Figure("exactly-once against at-least-once", _cost(exact, medians["at-least-once, ordered"]), "%", 3, True)
    yield Figure("exactly-once against idempotent", _cost(exact, medians["at-least-once, idempotent"]), "%")
    yield Figure("exactly-once against at-most-once", _cost(exact, medians["at-most-once"]), "%", 20, True)


def _price_rates(target: MeasuredBroker, topic: str, round_seconds: float) -> dict[str, float]:
    """Records per second under each guarantee, medians of five rounds."""
    settings: dict[str, dict[str, Any]] = {
        "at-most-once": {"acks": 0, "enable.idempotence": False},
        "at-least-once, ordered": {"acks": "all", "enable.idempotence": False, "max.in.flight": 1},
        "at-least-once, idempotent": {"acks": "all", "enable.idempotence": True},
        "exactly-once": {"transactional.id": topic},
    }
    rates: dict[str, list[float]] = {name: [] for name in settings}
    producers = {
        name: _producer(target, {"queue.buffering.max.kbytes": 4_096, **extra}) for name, extra in settings.items()
    }
    producers["exactly-once"].init_transactions(30)
    for _ in range(5):
        for name, producer in producers.items():
            rates[name].append(_produce_for(producer, topic, round_seconds, name == "exactly-once"))
    return {name: statistics.median(values) for name, values in rates.items()}


def batch_overhead(_target: MeasuredBroker, _scale: float) -> Iterator[Figure]:
    """Bytes that record batch v2 adds to 100 B values, by records per batch (F18)."""
    for count in (1, 10, 100, 1_000):
        size = len(encode_batch([NewRecord(None, b"x" * 100, 1_700_000_000_000)] * count))
        yield Figure(f"batch overhead, {count} records of 100 B", (size / (100 * count) - 1) * 100, "%")


CASES: Final[dict[str, Case]] = {
    "throughput": throughput,
    "single": single_records,
    "transactions": transactions,
    "client": client_throughput,
    "price": price,
    "overhead": batch_overhead,
}


def _producer(target: MeasuredBroker, extra: dict[str, Any]) -> Any:
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": target.bootstrap, **target.security, "linger.ms": 5, "batch.size": 100_000}
    return Producer({**settings, **extra})


def _produce(producer: Any, topic: str, count: int, size: int) -> float:
    """Seconds until every record is acknowledged (``acks=0``: handed to the socket)."""
    value = b"x" * size
    began = time.perf_counter()
    for _ in range(count):
        hand_over(producer, topic, value, partition=0)
    producer.flush(120)
    return time.perf_counter() - began


def _produce_for(producer: Any, topic: str, seconds: float, in_transactions: bool) -> float:
    """Records per second, up to the last acknowledgement (``acks=0``: handed to the socket), or the last commit."""
    value = b"x" * 1_000
    count = 0
    began = time.perf_counter()
    commit_at = began + COMMIT_SECONDS
    if in_transactions:
        producer.begin_transaction()
    while (now := time.perf_counter()) < began + seconds:
        hand_over(producer, topic, value, partition=0)
        count += 1
        if in_transactions and now >= commit_at:
            producer.commit_transaction(60)
            producer.begin_transaction()
            commit_at = time.perf_counter() + COMMIT_SECONDS
    if in_transactions:
        producer.commit_transaction(60)
    else:
        producer.flush(60)
    return count / (time.perf_counter() - began)


def _cost(rate: float, against: float) -> float:
    """How much slower, in per cent."""
    return (1 - rate / against) * 100


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
