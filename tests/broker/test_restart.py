"""A broker process that is killed with -9 under load: nothing acknowledged is lost, nothing is doubled."""

import random
import signal
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.cli.broker_process import BrokerProcess
from tests.ports import loopback_ports
from tests.suite.patience import patient

pytestmark = pytest.mark.system

KILLS = 4
PARTITIONS = 3


@pytest.mark.parametrize(
    "flush", [False, pytest.param(True, marks=pytest.mark.long)], ids=["page cache", "every write flushed"]
)
def test_killed_under_load_it_keeps_what_it_acknowledged_once_and_in_order(tmp_path: Path, flush: bool) -> None:
    options = ("-X", "num.partitions=3", *(("-X", "log.flush.interval.messages=1") if flush else ()))
    source = random.Random(1)
    (port,) = loopback_ports(1)
    broker = BrokerProcess(tmp_path, *options, port=port).wait_until_ready()
    acknowledged: list[list[int]] = [[] for _ in range(PARTITIONS)]
    progress = threading.Condition()
    stop = threading.Event()

    def await_more(count: int) -> None:
        """Wait until so many more records are acknowledged."""
        with progress:
            target = sum(map(len, acknowledged)) + count
            assert progress.wait_for(lambda: sum(map(len, acknowledged)) >= target, patient(30))

    def load() -> None:
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 1, "log_level": 0}
        )
        number = 0

        def delivered(error: KafkaError | None, message: object) -> None:
            assert error is None, error
            with progress:
                acknowledged[message.partition()].append(int(message.value()))  # type: ignore[attr-defined]
                progress.notify()

        while not stop.is_set():
            if len(producer) < 500:
                producer.produce("t", str(number), partition=number % PARTITIONS, on_delivery=delivered)
                number += 1
            producer.poll(0 if number % 50 else 0.001)
        assert producer.flush(300) == 0

    loader = threading.Thread(target=load)
    loader.start()
    try:
        for _ in range(KILLS):
            await_more(source.randrange(200, 2_000))
            broker.end(signal.SIGKILL)
            broker = BrokerProcess(tmp_path, *options, port=port).wait_until_ready()
        await_more(200)
    finally:
        stop.set()
        loader.join(patient(30))
    kept = _read(broker.bootstrap)
    broker.stop()
    for partition in range(PARTITIONS):
        assert len(acknowledged[partition]) > 100
        assert kept[partition] == acknowledged[partition]


def _read(bootstrap: str) -> list[list[int]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    kept: list[list[int]] = []
    for partition in range(PARTITIONS):
        place = TopicPartition("t", partition, 0)
        _low, high = consumer.get_watermark_offsets(place, timeout=120)
        consumer.assign([place])
        values: list[int] = []
        deadline = time.monotonic() + patient(20)
        while len(values) < high and time.monotonic() < deadline:
            for message in consumer.consume(1_000, 1):
                value = message.value()
                assert message.error() is None and value is not None
                values.append(int(value))
        kept.append(values)
    consumer.close()
    return kept
