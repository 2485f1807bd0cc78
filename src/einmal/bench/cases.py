"""Cases of the benchmark. Each case returns figures: name, value, unit, and the budget where there is one.

Two kinds of load: ready-made requests (the broker's own speed) and confluent-kafka (what a user's client gets). The
records are those of ``records.varied``, but for the case "equal".
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final

from einmal.bench import confluent, load, records
from einmal.bench.confluent import ClientLoad
from einmal.bench.load import Connection
from einmal.bench.topics import BenchTopics
from einmal.wire.record_batch import NewRecord, encode_batch

MEGABYTE: Final = 1_000_000
RECORD_SIZES: Final = (1_000, 100)
BATCH_SIZES: Final = (16_000, 100_000)
CODECS: Final = ("none", "lz4", "zstd", "gzip", "snappy")
_CLIENT_BYTES: Final = 300_000_000
"""Some seconds of work: less is over before a JVM is warm, and before the clock of CPU time has counted much."""
_CLIENT_RECORDS_MAX: Final = 1_000_000
_GZIP_PART: Final = 5
"""As few records for gzip, which takes as many times longer."""
_WARM_UP: Final = 1_000
"""Records: metadata, the connection and the producer id are not measured."""
_STEADY: Final = {100: 10_000, 1_000: 2_000}
"""Records per second by their size: gzip keeps up as well."""


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

    @property
    def ratio(self) -> float | None:
        """None for percentages as well: below zero their ratio has no meaning."""
        return self.value / self.beside if self.beside and self.unit != "%" else None


@dataclass(frozen=True, slots=True)
class MeasuredBroker:
    """The measured broker. ``security``: settings of its clients, under librdkafka's names."""

    bootstrap: str
    security: Mapping[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, str]:
        """Settings of every client."""
        return {"bootstrap.servers": self.bootstrap, **self.security}

    def connect(self, topics: BenchTopics, topic: str) -> Connection:
        """Connect to the leader of the topic's first partition. Raises BenchRefused for SASL, which ready-made requests
        have not."""
        return Connection(topics.leader(topic), load.tls_of(self.bootstrap, self.security))

    def topics(self) -> BenchTopics:
        """Raises ConfigError or OSError where no broker listens: librdkafka tries for a minute before it fails."""
        load.reach(self.bootstrap)
        return BenchTopics(self.bootstrap, self.security)


Case = Callable[[MeasuredBroker, float], Iterator[Figure]]
"""A case takes the broker and a factor for its length."""


def throughput(target: MeasuredBroker, scale: float) -> Iterator[Figure]:
    """Produce and fetch in MB/s of record batches, pipelined, from ready-made requests."""
    return _throughput(target, scale, records.varied, "records")


def equal(target: MeasuredBroker, scale: float) -> Iterator[Figure]:
    """Yield the throughput of batches whose records are all alike: a broker may validate these at less cost."""
    return _throughput(target, scale, records.equal, "equal records")


def _throughput(
    target: MeasuredBroker, scale: float, made: Callable[[int], Sequence[NewRecord]], what: str
) -> Iterator[Figure]:
    budgets = {16_000: 400.0, 100_000: 900.0}
    with target.topics() as topics:
        for batch_bytes in BATCH_SIZES:
            for record_bytes in RECORD_SIZES:
                topic = topics.create(f"{batch_bytes}-{record_bytes}")
                with closing(target.connect(topics, topic)) as connection:
                    batch, count = load.batch(made(record_bytes), batch_bytes)
                    request = load.produce_request(topic, 0, batch)
                    load.warm_up(connection, request, 50, 5)
                    rounds = max(100, int(scale * 400 * MEGABYTE / batch_bytes))
                    seconds = load.produce_many(connection, request, rounds, 10)
                    label = f"{batch_bytes // 1000} KB batches of {record_bytes} B {what}"
                    rate = rounds * len(batch) / seconds / MEGABYTE
                    yield Figure(f"produce {label}", rate, "MB/s", budgets[batch_bytes])
                    seconds, size = load.fetch_all(connection, topic, (rounds + 50) * count)
                    yield Figure(f"fetch {label}", size / seconds / MEGABYTE, "MB/s", 2_500.0)


def single_records(target: MeasuredBroker, scale: float) -> Iterator[Figure]:
    """Requests of one 100 B record: pipelined, one at a time, and at a steady 2,000 per second."""
    with target.topics() as topics:
        topic = topics.create("single")
        with closing(target.connect(topics, topic)) as connection:
            # A varied record's size is any.
            batch, _count = load.batch(records.equal(100), 100)
            request = load.produce_request(topic, 0, batch)
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
        made = records.varied(100)
        producer = ClientLoad(target.settings, topic, 1, made).producer({"transactional.id": topic, "linger.ms": 0})
        producer.init_transactions(30)
        latencies = []
        for key, value, timestamp, _headers in made[: max(50, int(400 * scale))]:
            began = time.perf_counter()
            producer.begin_transaction()
            producer.produce(topic, value, key=key, timestamp=timestamp)
            producer.commit_transaction(30)
            latencies.append(time.perf_counter() - began)
    yield Figure("transactions of one record", 1 / statistics.median(latencies), "1/s")
    yield Figure("one transaction, p99", _percentile(latencies, 99) * 1_000, "ms")


def creation(target: MeasuredBroker, scale: float) -> Iterator[Figure]:
    """Seconds from CreateTopics until every partition has a leader: one topic of many partitions, and many topics.

    Apache Kafka holds three files of each partition open, of deleted ones for a minute longer: more than these, in all
    rounds, and it ends where a process may open 20,000.
    """
    count = max(100, int(500 * scale))
    with target.topics() as topics:
        # Connected.
        topics.brokers()
        began = time.perf_counter()
        topics.create("wide", count)
        yield Figure(f"create one topic of {count:,} partitions", time.perf_counter() - began, "s", at_most=True)
        began = time.perf_counter()
        topics.create_all([f"narrow-{number}" for number in range(count)], 1)
        yield Figure(f"create {count:,} topics of one partition", time.perf_counter() - began, "s", at_most=True)


def client(target: MeasuredBroker, scale: float) -> Iterator[Figure]:
    """Yield what confluent-kafka gets by record size and codec: idempotent produce with the brokers' CPU time,
    ``read_committed`` consume, and the latency of acknowledgements under a steady load.

    A topic has a partition for each broker.
    """
    with target.topics() as topics:
        brokers = topics.brokers()
        for size in reversed(RECORD_SIZES):
            made = records.varied(size)
            for codec in filter(confluent.supports, CODECS):
                topic = topics.create(f"client-{size}-{codec}", len(brokers))
                clients = ClientLoad(target.settings, topic, len(brokers), made)
                for figure in _client(clients, size, codec, brokers, scale):
                    yield replace(figure, name=f"{size} B, {codec}: {figure.name}")


def _client(
    clients: ClientLoad, size: int, codec: str, brokers: list[tuple[str, int]], scale: float
) -> Iterator[Figure]:
    options = {"enable.idempotence": True, "compression.type": codec}
    count = max(5_000, int(scale * min(_CLIENT_RECORDS_MAX, _CLIENT_BYTES // size)))
    if codec == "gzip":
        count //= _GZIP_PART
    producer = clients.producer(options)
    clients.produce_all(producer, _WARM_UP)
    yield from produced(brokers, count, lambda: count / clients.produce_all(producer, count))
    yield Figure("consume", count / clients.consume_all(_WARM_UP + count), "records/s")
    producer = clients.producer({**options, "linger.ms": 0})
    clients.produce_all(producer, _WARM_UP)
    latencies = clients.produce_at_rate(producer, _STEADY[size], max(0.5, 2 * scale))
    for percent in (50, 99):
        yield Figure(f"latency at {_STEADY[size]:,}/s, p{percent}", _percentile(latencies, percent) * 1_000, "ms")


def produced(brokers: list[tuple[str, int]], count: int, rate: Callable[[], float]) -> Iterator[Figure]:
    """Yield the ``rate``, in records per second, of ``count`` records, and the brokers' CPU time for them."""
    # Only here: the extra may be missing.
    from einmal.bench.usage import cpu_seconds, listening_processes

    processes = listening_processes(brokers)
    before = cpu_seconds(processes)
    yield Figure("produce", rate(), "records/s")
    if processes:
        yield Figure("broker CPU", (cpu_seconds(processes) - before) / count * 1_000_000, "s per million records")


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
    yield Figure("exactly-once against at-least-once", cost(exact, medians["at-least-once, ordered"]), "%", 3, True)
    yield Figure("exactly-once against idempotent", cost(exact, medians["at-least-once, idempotent"]), "%")
    yield Figure("exactly-once against at-most-once", cost(exact, medians["at-most-once"]), "%", 20, True)


def _price_rates(target: MeasuredBroker, topic: str, round_seconds: float) -> dict[str, float]:
    """Records per second under each guarantee, medians of five rounds."""
    settings: dict[str, dict[str, Any]] = {
        "at-most-once": {"acks": 0, "enable.idempotence": False},
        "at-least-once, ordered": {"acks": "all", "enable.idempotence": False, "max.in.flight": 1},
        "at-least-once, idempotent": {"acks": "all", "enable.idempotence": True},
        "exactly-once": {"transactional.id": topic},
    }
    rates: dict[str, list[float]] = {name: [] for name in settings}
    clients = ClientLoad(target.settings, topic, 1, records.varied(1_000))
    producers = {
        name: clients.producer({"queue.buffering.max.kbytes": 4_096, **extra}) for name, extra in settings.items()
    }
    producers["exactly-once"].init_transactions(30)
    for _ in range(5):
        for name, producer in producers.items():
            is_exact = name == "exactly-once"
            rates[name].append(clients.produce_for(producer, round_seconds, in_transactions=is_exact))
    return {name: statistics.median(values) for name, values in rates.items()}


def batch_overhead(_target: MeasuredBroker, _scale: float) -> Iterator[Figure]:
    """Bytes that record batch v2 adds to keys and 100 B values, by records per batch (F18)."""
    for count in (1, 10, 100, 1_000):
        made = records.varied(100)[:count]
        size = sum(len(record.key or b"") + len(record.value or b"") for record in made)
        overhead = (len(encode_batch(made)) / size - 1) * 100
        yield Figure(f"batch overhead, {count} records of 100 B", overhead, "%")


CASES: Final[dict[str, Case]] = {
    "throughput": throughput,
    "single": single_records,
    "transactions": transactions,
    "creation": creation,
    "client": client,
    "price": price,
    "overhead": batch_overhead,
    "equal": equal,
}
DEFAULT: Final = tuple(name for name in CASES if name != "equal")
"""The cases that are measured unless others are named."""


def cost(rate: float, against: float) -> float:
    """How much slower, in per cent."""
    return (1 - rate / against) * 100


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
