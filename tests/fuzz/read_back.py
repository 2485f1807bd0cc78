"""Reads all records of the topics under attack with librdkafka: what the broker accepted must not stop a consumer."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.fuzz.observer import TOPIC
from tests.fuzz.requests import TOPICS


def main() -> None:
    port, report = sys.argv[1:]
    bootstrap = {"bootstrap.servers": f"127.0.0.1:{port}"}
    topics = AdminClient(bootstrap).list_topics(timeout=10).topics
    consumer = Consumer(
        {
            **bootstrap,
            "group.id": "read-back",
            "enable.partition.eof": True,
            "isolation.level": "read_uncommitted",
            "check.crcs": True,
        }
    )
    wanted = {(name, partition) for name in (*TOPICS, TOPIC) if name in topics for partition in topics[name].partitions}
    problems: list[str] = []
    count = 0
    consumer.assign([TopicPartition(*each, OFFSET_BEGINNING) for each in wanted])
    while wanted and not problems:
        for message in consumer.consume(1000, 0.5):
            error = message.error()
            if error is None:
                count += 1
            elif error.code() == KafkaError._PARTITION_EOF:
                wanted.discard((message.topic(), message.partition()))
            else:
                problems.append(f"librdkafka: {message.topic()}-{message.partition()}: {error}")
    consumer.close()
    Path(report).write_text(json.dumps({"records": count, "problems": problems}))


if __name__ == "__main__":
    main()
