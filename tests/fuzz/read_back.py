"""Reads all records of the topics under attack with librdkafka: what the broker accepted must not stop a consumer.

It follows the topics while they are attacked, for retention deletes, and DeleteRecords too; when its standard input has
ended it reads once more all that is there. An offset that is gone, or a topic, is no error.
"""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from tests.fuzz.observer import topic_of
from tests.fuzz.reports import replace_json
from tests.fuzz.values import OBSERVER, TOPICS

READ: Final = frozenset((*TOPICS, topic_of(""), topic_of(OBSERVER)))
_REFRESH_SECONDS: Final = 2.0
_PROGRESS_SECONDS: Final = 300.0
_GONE: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)


class Reader:
    def __init__(self, port: int) -> None:
        self.problems: list[str] = []
        self.followed = 0
        self.at_the_end = 0
        self._port = port
        self._consumer = self._new_consumer()

    def _new_consumer(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": f"127.0.0.1:{self._port}",
                "group.id": "read-back",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_uncommitted",
                "check.crcs": True,
                # It would log every topic that is deleted under it.
                "log_level": 2,
                # A few large answers rather than one for each batch.
                "fetch.min.bytes": 1_000_000,
                "fetch.wait.max.ms": 250,
            }
        )

    def follow(self) -> None:
        assigned: set[tuple[str, int]] = set()
        refreshed = -_REFRESH_SECONDS
        progressed = time.monotonic()
        while not _is_input_ended() and not self.problems:
            now = time.monotonic()
            if now - refreshed > _REFRESH_SECONDS:
                refreshed = now
                found = self._partitions()
                self._consumer.incremental_unassign([TopicPartition(*each) for each in assigned - found])
                self._consumer.incremental_assign(
                    [TopicPartition(*each, OFFSET_BEGINNING) for each in sorted(found - assigned)]
                )
                assigned = found
            read = sum(self._is_record(message) for message in self._consumer.consume(1000, 0.2))
            self.followed += read
            if read:
                progressed = now
            elif now - progressed > _PROGRESS_SECONDS:
                self.problems.append(f"librdkafka: no record for {_PROGRESS_SECONDS:.0f} s")

    def read_all(self) -> None:
        """With another consumer: one that has seen topics made anew may hold on to their former leader epochs."""
        self._consumer.close()
        self._consumer = self._new_consumer()
        wanted = self._partitions()
        self._consumer.assign([TopicPartition(*each, OFFSET_BEGINNING) for each in sorted(wanted)])
        while wanted and not self.problems:
            for message in self._consumer.consume(1000, 0.5):
                self.at_the_end += self._is_record(message)
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    wanted.discard((str(message.topic()), int(message.partition() or 0)))
        self._consumer.close()

    def figures(self) -> Mapping[str, Any]:
        return {"followed": self.followed, "at_the_end": self.at_the_end, "problems": self.problems}

    def _partitions(self) -> set[tuple[str, int]]:
        topics = self._consumer.list_topics(timeout=120).topics
        return {(name, partition) for name in READ if name in topics for partition in topics[name].partitions}

    def _is_record(self, message: Message) -> bool:
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF and error.code() not in _GONE:
            self.problems.append(f"librdkafka: {message.topic()}-{message.partition()}: {error}")
        return error is None


def _is_input_ended() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def main() -> None:
    reader = Reader(int(sys.argv[1]))
    try:
        reader.follow()
        reader.read_all()
    except KafkaException as error:
        reader.problems.append(f"librdkafka: {error}")
    replace_json(Path(sys.argv[2]), reader.figures())


if __name__ == "__main__":
    main()
