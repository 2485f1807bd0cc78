"""Pipelines under test by ``einmal verify --pipeline``: one that is right, and four that are subtly wrong.

Each doubles an amount, as its readers would write it: a program through confluent-kafka, and in ``with_aiokafka``.
"""

from __future__ import annotations

import json
import os
from typing import Any

import confluent_kafka

INPUT = os.environ.get("INPUT_TOPIC", "")
OUTPUT = os.environ.get("OUTPUT_TOPIC", "")


def doubled(value: bytes) -> bytes:
    record = json.loads(value)
    return json.dumps({"id": record["id"], "amount": 2 * record["amount"]}).encode()


def opened_consumer(isolation_level: str = "read_committed") -> confluent_kafka.Consumer:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": os.environ["BOOTSTRAP_SERVERS"],
            "group.id": INPUT,
            "isolation.level": isolation_level,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 500,
        }
    )
    consumer.subscribe([INPUT])
    return consumer


def opened_producer(**settings: object) -> confluent_kafka.Producer:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    connection = {"bootstrap.servers": os.environ["BOOTSTRAP_SERVERS"], "linger.ms": 0, "enable.idempotence": True}
    return confluent_kafka.Producer(connection | named)


def polled(consumer: confluent_kafka.Consumer) -> list[Any]:
    """A few messages without errors."""
    return [each for each in consumer.consume(20, 0.3) if each.error() is None]


def positions(messages: list[Any]) -> list[confluent_kafka.TopicPartition]:
    ends = {(each.topic(), each.partition()): each.offset() + 1 for each in messages}
    return [confluent_kafka.TopicPartition(*key, offset) for key, offset in ends.items()]
