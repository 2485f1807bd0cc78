"""Use of confluent-kafka's clients, shared by the measurements."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import Any, Final, NamedTuple

from einmal.bench.load import BenchRefused
from einmal.wire.record_batch import NewRecord

COMMIT_S: Final = 0.1
_TICK_S: Final = 0.002
_END_S: Final = 120.0


def hand_over(producer: Any, topic: str, value: bytes | None, **options: Any) -> None:
    """Queue one record, once the producer's queue has space for it. ``options``: of ``Producer.produce``."""
    while True:
        try:
            producer.produce(topic, value, **options)
            return
        except BufferError:
            producer.poll(0.01)


def supports(codec: str) -> bool:
    """Whether this build of librdkafka has the codec."""
    from confluent_kafka import KafkaException, Producer

    try:
        Producer({"compression.type": codec, "log_level": 0})
    except KafkaException:
        return False
    return True


class ClientLoad(NamedTuple):
    """``settings``: of every client. ``records`` are sent in turn, to one partition after the other."""

    settings: Mapping[str, str]
    topic: str
    partitions: int
    records: Sequence[NewRecord]

    def producer(self, extra: Mapping[str, Any]) -> Any:
        """A producer with large batches."""
        from confluent_kafka import Producer

        return Producer({**self.settings, "linger.ms": 5, "batch.size": 100_000, **extra})

    def produce_all(self, producer: Any, count: int) -> float:
        """Seconds until ``count`` records are acknowledged. Raises BenchRefused."""
        turns = self._turns()
        began = time.perf_counter()
        for _ in range(count):
            hand_over(producer, **next(turns))
        self._flush(producer, count)
        return time.perf_counter() - began

    def produce_for(self, producer: Any, seconds: float, *, in_transactions: bool) -> float:
        """Records per second, up to the last acknowledgement (``acks=0``: handed to the socket), or the last commit."""
        turns = self._turns()
        count = 0
        began = time.perf_counter()
        commit_at = began + COMMIT_S
        if in_transactions:
            producer.begin_transaction()
        while (now := time.perf_counter()) < began + seconds:
            hand_over(producer, **next(turns))
            count += 1
            if in_transactions and now >= commit_at:
                producer.commit_transaction(60)
                producer.begin_transaction()
                commit_at = time.perf_counter() + COMMIT_S
        if in_transactions:
            producer.commit_transaction(60)
        else:
            self._flush(producer, count)
        return count / (time.perf_counter() - began)

    def produce_at_rate(self, producer: Any, per_second: int, seconds: float) -> list[float]:
        """Send a few records every 2 ms; each acknowledgement's latency in seconds, from its record's scheduled time.

        Raises KafkaException, BenchRefused.
        """
        turns = self._turns()
        latencies: list[float] = []
        count = int(per_second * seconds)
        per_tick = max(1, round(per_second * _TICK_S))
        began = time.perf_counter()
        for sent in range(0, count, per_tick):
            due = began + sent / per_second
            while (wait := due - time.perf_counter()) > 0:
                producer.poll(wait)
            acknowledged = partial(_acknowledged, latencies, due)
            for _ in range(min(per_tick, count - sent)):
                hand_over(producer, **next(turns), on_delivery=acknowledged)
        self._flush(producer, count)
        return latencies

    def consume_all(self, count: int) -> float:
        """Seconds until a ``read_committed`` consumer has ``count`` records. Raises BenchRefused."""
        from confluent_kafka import Consumer, TopicPartition

        options = {
            "group.id": "bench",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            # librdkafka asks for nothing for a second when its queue is full: then the pauses would be measured.
            "queued.min.messages": 1_000_000,
            "fetch.queue.backoff.ms": 1,
        }
        consumer = Consumer({**self.settings, **options})
        consumer.assign([TopicPartition(self.topic, partition, 0) for partition in range(self.partitions)])
        began = time.perf_counter()
        seen = 0
        while seen < count:
            seen += sum(1 for message in consumer.consume(min(5_000, count - seen), 1.0) if message.error() is None)
            if time.perf_counter() - began > _END_S:
                raise BenchRefused(f"{self.topic}: {seen} of {count} records are readable after {_END_S:.0f} s")
        seconds = time.perf_counter() - began
        consumer.close()
        return seconds

    def _turns(self) -> Iterator[dict[str, Any]]:
        """Endless arguments of ``hand_over``, made beforehand."""
        return cycle(
            [
                {
                    "topic": self.topic,
                    "value": value,
                    "key": key,
                    "timestamp": timestamp,
                    "partition": number % self.partitions,
                }
                for number, (key, value, timestamp, _headers) in enumerate(self.records)
            ]
        )

    def _flush(self, producer: Any, count: int) -> None:
        if left := producer.flush(_END_S):
            raise BenchRefused(f"{self.topic}: {left} of {count} records are not acknowledged after {_END_S:.0f} s")


def _acknowledged(latencies: list[float], due: float, error: Any, _message: object) -> None:
    from confluent_kafka import KafkaException

    if error is not None:
        raise KafkaException(error)
    latencies.append(time.perf_counter() - due)
