"""Transactions right after another, by clients that are refused, or pause, where the previous one lacks markers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from tests.interop.apache_kafka import JVM, KafkaUnavailable, java, java_program
from tests.interop.einmal_broker import EinmalBroker
from tests.interop.topics import Broker, create_topic
from tests.interop.transactional_clients import ConfluentWriter
from tests.suite.patience import patient
from tests.suite.shared import unique

pytestmark = pytest.mark.interop

PARTITIONS: Final = 20
"""Enough for markers that take longer than the next request of the client."""
WRITERS: Final = 3


@pytest.fixture(scope="module")
def patient_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EinmalBroker]:
    """A broker whose requests wait for markers also on a busy machine."""
    broker = EinmalBroker(tmp_path_factory.mktemp("patient"), {"add.partitions.to.txn.retry.backoff.max.ms": "30000"})
    broker.start()
    yield broker
    broker.stop()


def new_topic(broker: EinmalBroker) -> str:
    name = unique("next")
    create_topic(Broker(broker.host, broker.port), name, PARTITIONS)
    return name


def test_librdkafka_aborts_transactions_at_once_without_a_fatal_error(patient_broker: EinmalBroker) -> None:
    topic = new_topic(patient_broker)

    def write(number: int) -> None:
        """Raises Refused, for a fatal error too."""
        with ConfluentWriter(patient_broker.bootstrap, f"{topic}-{number}") as writer:
            for turn in range(300 // WRITERS):
                writer.begin()
                for partition in range(PARTITIONS):
                    writer.producer.produce(topic, b"x", partition=partition)
                writer.abort() if turn % 2 else writer.commit()

    with ThreadPoolExecutor(WRITERS) as threads:
        list(threads.map(write, range(WRITERS)))


def test_the_java_client_is_never_refused_between_transactions(patient_broker: EinmalBroker) -> None:
    try:
        program = [java(), "-Xmx256m", *JVM, *java_program("Transactions")]
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    topic = new_topic(patient_broker)
    command = [*program, patient_broker.bootstrap, topic, str(PARTITIONS), topic, "100"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(60))
    assert done.returncode == 0, done.stderr[-3000:]
    retried, _median_ms = done.stdout.split()
    assert retried == "0", "after a refusal it sleeps 100 ms"
