"""Group members of three independent clients behind one face, each on a thread of its own.

A member polls all the time, as its client wants, and does what a test asks between two polls. It remembers what it was
assigned, what it read, and how often its assignment changed.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final, Self, TypeVar

import aiokafka
import confluent_kafka
import kafka

T = TypeVar("T")
Partition = tuple[str, int]

_POLL_S: Final = 0.05
_PATIENCE_S: Final = 120.0
_SESSION_MS: Final = 30_000
_HEARTBEAT_MS: Final = 300


class Member(ABC):
    """A member of ``group``, subscribed to ``topic``."""

    def __init__(self, bootstrap: str, group: str, topic: str, *, instance_id: str | None = None) -> None:
        self.bootstrap = bootstrap
        self.group = group
        self.topic = topic
        self.instance_id = instance_id
        self.assignments: list[frozenset[Partition]] = []
        self.read: list[tuple[Partition, int, bytes]] = []
        self.error: BaseException | None = None
        self._asked: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._is_leaving = True
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{type(self).__name__}-{group}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __str__(self) -> str:
        assigned = [[f"{topic}-{index}" for topic, index in sorted(each)] for each in self.assignments]
        return f"{type(self).__name__} {self.instance_id or ''}: assigned {assigned}, {len(self.read)} records read"

    @property
    def assignment(self) -> frozenset[Partition]:
        return self.assignments[-1] if self.assignments else frozenset()

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Commit now. Raises the client's exception."""
        self._ask(lambda: self._commit(offsets))

    def committed(self, partition: Partition) -> int | None:
        return self._ask(lambda: self._committed(partition))

    def close(self) -> None:
        """Leave the group (a static member stays in it) and end the thread."""
        self._is_closing.set()
        self._thread.join(_PATIENCE_S)
        assert not self._thread.is_alive(), "the client does not close"

    def _ask(self, work: Callable[[], T]) -> T:
        future: Future[T] = Future()
        self._asked.put((work, future))
        return future.result(_PATIENCE_S)

    def _run(self) -> None:
        try:
            self._open()
            while not self._is_closing.is_set():
                self._poll()
                while not self._asked.empty():
                    work, future = self._asked.get()
                    try:
                        future.set_result(work())
                    except Exception as error:  # noqa: BLE001 -- whatever the client raises is the test's to check
                        future.set_exception(error)
            self._shut()
        except BaseException as error:
            self.error = error
            raise

    def _was_assigned(self, partitions: frozenset[Partition]) -> None:
        if not self.assignments or self.assignments[-1] != partitions:
            self.assignments.append(partitions)

    @abstractmethod
    def _open(self) -> None: ...

    @abstractmethod
    def _poll(self) -> None: ...

    @abstractmethod
    def _commit(self, offsets: Mapping[Partition, int]) -> None: ...

    @abstractmethod
    def _committed(self, partition: Partition) -> int | None: ...

    @abstractmethod
    def _shut(self) -> None: ...


class ConfluentMember(Member):
    """librdkafka. ``fatal``: the error after which this client can do nothing any more."""

    fatal: str | None = None

    def _open(self) -> None:
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "session.timeout.ms": _SESSION_MS,
                "heartbeat.interval.ms": _HEARTBEAT_MS,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "reconnect.backoff.max.ms": 200,
            }
            | ({} if self.instance_id is None else {"group.instance.id": self.instance_id})
        )
        self.consumer.subscribe([self.topic], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        self._was_assigned(frozenset((each.topic, each.partition) for each in partitions))

    def _on_revoke(self, consumer: Any, partitions: list[Any]) -> None:
        self._was_assigned(frozenset())

    def _poll(self) -> None:
        message = self.consumer.poll(_POLL_S)
        if message is None:
            return
        if error := message.error():
            if error.code() == confluent_kafka.KafkaError._FATAL:
                self.fatal = error.str()
            return
        topic, partition, offset, value = message.topic(), message.partition(), message.offset(), message.value()
        assert topic is not None and partition is not None and offset is not None and value is not None
        self.read.append(((topic, partition), offset, value))

    def _commit(self, offsets: Mapping[Partition, int]) -> None:
        wanted = [confluent_kafka.TopicPartition(*partition, offset) for partition, offset in offsets.items()]
        self.consumer.commit(offsets=wanted, asynchronous=False)

    def _committed(self, partition: Partition) -> int | None:
        (found,) = self.consumer.committed([confluent_kafka.TopicPartition(*partition)], timeout=_PATIENCE_S)
        return None if found.offset < 0 else int(found.offset)

    def group_metadata(self) -> Any:
        return self._ask(self.consumer.consumer_group_metadata)

    def _shut(self) -> None:
        self.consumer.close()


class KafkaPythonMember(Member):
    """kafka-python."""

    def _open(self) -> None:
        self.consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            group_instance_id=self.instance_id,
            session_timeout_ms=_SESSION_MS,
            heartbeat_interval_ms=_HEARTBEAT_MS,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
        )
        self.consumer.subscribe([self.topic])
        # A leader whose metadata arrives just behind its join assigns nothing or joins again; and if its poll ends
        # before that is done, it waits for ever and does not even send heartbeats (on any broker).
        self.consumer.topics()

    def _poll(self) -> None:
        polled = self.consumer.poll(timeout_ms=int(_POLL_S * 1000))
        self._was_assigned(frozenset((each.topic, each.partition) for each in self.consumer.assignment()))
        for partition, records in polled.items():
            self.read += [((partition.topic, partition.partition), each.offset, each.value) for each in records]

    def _commit(self, offsets: Mapping[Partition, int]) -> None:
        self.consumer.commit(
            {
                kafka.TopicPartition(*partition): kafka.structs.OffsetAndMetadata(offset, "", -1)
                for partition, offset in offsets.items()
            }
        )

    def _committed(self, partition: Partition) -> int | None:
        found = self.consumer.committed(kafka.TopicPartition(*partition))
        return None if found is None else int(found)

    def _shut(self) -> None:
        self.consumer.close()


class AiokafkaMember(Member):
    """aiokafka, on an event loop that runs while this thread polls."""

    def _open(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._start())

    async def _start(self) -> None:
        self.consumer = aiokafka.AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            group_instance_id=self.instance_id,
            session_timeout_ms=_SESSION_MS,
            heartbeat_interval_ms=_HEARTBEAT_MS,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
        )
        await self.consumer.start()

    def _poll(self) -> None:
        polled = self._loop.run_until_complete(self.consumer.getmany(timeout_ms=int(_POLL_S * 1000)))
        self._was_assigned(frozenset((each.topic, each.partition) for each in self.consumer.assignment()))
        for partition, records in polled.items():
            self.read += [((partition.topic, partition.partition), each.offset, each.value) for each in records]

    def _commit(self, offsets: Mapping[Partition, int]) -> None:
        wanted = {aiokafka.TopicPartition(*partition): offset for partition, offset in offsets.items()}
        self._loop.run_until_complete(self.consumer.commit(wanted))

    def _committed(self, partition: Partition) -> int | None:
        found: int | None = self._loop.run_until_complete(self.consumer.committed(aiokafka.TopicPartition(*partition)))
        return found

    def _shut(self) -> None:
        self._loop.run_until_complete(self.consumer.stop())
        self._loop.close()
