"""A program that a trace looks at: a transaction of confluent-kafka or of the Java client, and a committed reader.

Usage: python -m tests.trace.program confluent|java|abort|open BOOTSTRAP TOPIC TRANSACTIONAL_ID

The topic has two partitions. Reads from the environment: nothing.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Final

import confluent_kafka

from tests.interop.apache_kafka import JVM, java, java_program

PARTITIONS: Final = 2
_PATIENCE_S: Final = 60.0


def main(kind: str, bootstrap: str, topic: str, transactional_id: str) -> None:
    reader = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "client.id": "ledger",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    reader.assign([confluent_kafka.TopicPartition(topic, each, 0) for each in range(PARTITIONS)])
    reader.poll(0.5)
    if kind == "java":
        _java(bootstrap, topic, transactional_id)
    else:
        _confluent(kind, bootstrap, topic, transactional_id)
    if kind in ("java", "confluent"):
        _read(reader)
    reader.close()


def _java(bootstrap: str, topic: str, transactional_id: str) -> None:
    program = [java(), "-Xmx256m", *JVM, *java_program("Transactions")]
    subprocess.run([*program, bootstrap, topic, str(PARTITIONS), transactional_id, "1"], check=True)


def _confluent(kind: str, bootstrap: str, topic: str, transactional_id: str) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "client.id": "billing"}
    )
    producer.init_transactions(_PATIENCE_S)
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce(topic, b"one record", partition=partition)
    producer.flush(_PATIENCE_S)
    if kind == "abort":
        producer.abort_transaction(_PATIENCE_S)
    elif kind == "confluent":
        producer.commit_transaction(_PATIENCE_S)


def _read(reader: confluent_kafka.Consumer) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    read = 0
    while read < PARTITIONS and time.monotonic() < deadline:
        message = reader.poll(0.2)
        read += message is not None and not message.error()


if __name__ == "__main__":
    main(*sys.argv[1:])
