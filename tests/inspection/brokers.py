"""Clusters whose transactions can be left hanging: the leaders do not verify a write at its coordinator (KIP-890)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.interop.apache_kafka import ApacheKafka, KafkaUnavailable
from tests.interop.einmal_broker import EinmalBroker
from tests.interop.topics import Broker, create_topic
from tests.interop.transaction_driver import TV1, TransactionDriver

UNVERIFIED = {"transaction.partition.verification.enable": "false"}
SLOW_SWEEP = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "3600000"}
"""Nobody aborts what is past its time-out."""

Node = ApacheKafka | EinmalBroker


@contextmanager
def running(kind: str, directory: Path) -> Iterator[Node]:
    """A broker of a kind, "einmal" or "apache". Skips where Apache Kafka cannot be run."""
    settings = UNVERIFIED | SLOW_SWEEP
    try:
        node: Node = (
            EinmalBroker(directory, settings) if kind == "einmal" else ApacheKafka(directory, settings=settings)
        )
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    node.start()
    try:
        yield node
    finally:
        node.stop()


def leave_hanging(node: Node, topic: str, values: list[str]) -> int:
    """Write records of a transaction of which its coordinator never hears; returns the producer's id."""
    broker = Broker(node.host, node.port)
    create_topic(broker, topic, 1)
    with TransactionDriver(broker, f"lost-{topic}", topic, TV1) as driver, driver.writer() as writer:
        identity = driver.init_at_last()
        written = writer.write_at_last(identity, 0, 0, values)
        assert written.error == 0, written
        return identity.producer_id
