"""Transactional producers and committed readers of three independent clients, behind one face each.

Every call returns when the client is done with it. What a client raises comes out as ``Refused``.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, Self, TypeVar

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors

T = TypeVar("T")

_PATIENCE_S: Final = 120.0


class Refused(Exception):
    """The client's own error; its text is the client's."""


class Read(NamedTuple):
    partition: int
    offset: int
    value: str


class Writer(ABC):
    """A producer with a transactional id. Each ``send`` waits until the record is acknowledged."""

    def __init__(self, bootstrap: str, transactional_id: str, *, timeout_ms: int = 60_000) -> None:
        self.bootstrap = bootstrap
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms

    def __enter__(self) -> Self:
        self._try(self._init)
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def begin(self) -> None:
        self._try(self._begin)

    def send(self, topic: str, partition: int, *values: str) -> None:
        self._try(lambda: self._send(topic, partition, values))

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        """The next offset of a simple group, inside the transaction."""
        self._try(lambda: self._send_offset(group, topic, partition, offset))

    def commit(self) -> None:
        self._try(self._commit)

    def abort(self) -> None:
        self._try(self._abort)

    def _try(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except (confluent_kafka.KafkaException, kafka.errors.KafkaError, aiokafka.errors.KafkaError) as error:
            raise Refused(repr(error)) from error
        except SystemError as error:
            # confluent-kafka raises a fatal error and calls the report's callback all the same, which is this error.
            if not isinstance(error.__cause__, confluent_kafka.KafkaException):
                raise
            raise Refused(repr(error.__cause__)) from error

    @abstractmethod
    def _init(self) -> None: ...

    @abstractmethod
    def _begin(self) -> None: ...

    @abstractmethod
    def _send(self, topic: str, partition: int, values: tuple[str, ...]) -> None: ...

    @abstractmethod
    def _send_offset(self, group: str, topic: str, partition: int, offset: int) -> None: ...

    @abstractmethod
    def _commit(self) -> None: ...

    @abstractmethod
    def _abort(self) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...

    @staticmethod
    @abstractmethod
    def read_committed(bootstrap: str, topic: str, partition: int) -> list[Read]:
        """Everything of the partition that a committed reader of the same client gets now."""


class ConfluentWriter(Writer):
    """librdkafka."""

    def _init(self) -> None:
        self.producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": self.transactional_id,
                "transaction.timeout.ms": self.timeout_ms,
                # No error of a test's own making is to wait for a longer timeout than the test does.
                "message.timeout.ms": min(self.timeout_ms, 60_000),
                "reconnect.backoff.max.ms": 200,
                "linger.ms": 0,
            }
        )
        self.producer.init_transactions(_PATIENCE_S)

    def _begin(self) -> None:
        self.producer.begin_transaction()

    def _send(self, topic: str, partition: int, values: tuple[str, ...]) -> None:
        errors: list[confluent_kafka.KafkaError] = []

        def delivered(error: confluent_kafka.KafkaError | None, _: Any) -> None:
            if error is not None:
                errors.append(error)

        for value in values:
            self.producer.produce(topic, value.encode(), partition=partition, on_delivery=delivered)
        assert self.producer.flush(_PATIENCE_S) == 0
        if errors:
            raise confluent_kafka.KafkaException(errors[0])

    def _send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        try:
            offsets = [confluent_kafka.TopicPartition(topic, partition, offset)]
            self.producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), _PATIENCE_S)
        finally:
            consumer.close()

    def _commit(self) -> None:
        self.producer.commit_transaction(_PATIENCE_S)

    def _abort(self) -> None:
        self.producer.abort_transaction(_PATIENCE_S)

    def _close(self) -> None:
        # Lets librdkafka drop what it still has; a fenced producer reports it again.
        self.producer.purge()
        with contextlib.suppress(confluent_kafka.KafkaException):
            self.producer.flush(0)

    @staticmethod
    def read_committed(bootstrap: str, topic: str, partition: int) -> list[Read]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "reconnect.backoff.max.ms": 200,
            }
        )
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
            read: list[Read] = []
            while True:
                message = consumer.poll(_PATIENCE_S)
                assert message is not None, "neither a record nor the end"
                if (error := message.error()) is not None:
                    assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                    return read
                value = message.value()
                offset = message.offset()
                assert value is not None
                assert offset is not None
                read.append(Read(partition, offset, value.decode()))
        finally:
            consumer.close()


class KafkaPythonWriter(Writer):
    def _init(self) -> None:
        self.producer = kafka.KafkaProducer(
            bootstrap_servers=self.bootstrap,
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            linger_ms=0,
        )
        self.producer.init_transactions()

    def _begin(self) -> None:
        self.producer.begin_transaction()

    def _send(self, topic: str, partition: int, values: tuple[str, ...]) -> None:
        sent = [self.producer.send(topic, value.encode(), partition=partition) for value in values]
        for future in sent:
            future.get(_PATIENCE_S)

    def _send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        offsets = {kafka.TopicPartition(topic, partition): kafka.OffsetAndMetadata(offset, "", -1)}
        self.producer.send_offsets_to_transaction(offsets, group)

    def _commit(self) -> None:
        self.producer.commit_transaction()

    def _abort(self) -> None:
        self.producer.abort_transaction()

    def _close(self) -> None:
        self.producer.close(timeout=1)

    @staticmethod
    def read_committed(bootstrap: str, topic: str, partition: int) -> list[Read]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap, isolation_level="read_committed", enable_auto_commit=False, group_id=None
        )
        try:
            place = kafka.TopicPartition(topic, partition)
            consumer.assign([place])
            consumer.seek(place, 0)
            end = consumer.end_offsets([place])[place]
            read: list[Read] = []
            deadline = time.monotonic() + _PATIENCE_S
            while consumer.position(place) < end:
                assert time.monotonic() < deadline, "the end is never reached"
                for records in consumer.poll(timeout_ms=100).values():
                    read += [Read(partition, record.offset, record.value.decode()) for record in records]
            return read
        finally:
            consumer.close()


class AiokafkaWriter(Writer):
    """Its event loop runs while a call runs."""

    def _init(self) -> None:
        self.loop = asyncio.new_event_loop()

        async def start() -> None:
            self.producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                transactional_id=self.transactional_id,
                transaction_timeout_ms=self.timeout_ms,
            )
            await self.producer.start()

        self._run(start())

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(call, _PATIENCE_S))

    def _begin(self) -> None:
        self._run(self.producer.begin_transaction())

    def _send(self, topic: str, partition: int, values: tuple[str, ...]) -> None:
        async def send() -> None:
            for future in [await self.producer.send(topic, value.encode(), partition=partition) for value in values]:
                await future

        self._run(send())

    def _send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        offsets = {aiokafka.TopicPartition(topic, partition): offset}
        self._run(self.producer.send_offsets_to_transaction(offsets, group))

    def _commit(self) -> None:
        self._run(self.producer.commit_transaction())

    def _abort(self) -> None:
        self._run(self.producer.abort_transaction())

    def _close(self) -> None:
        with contextlib.suppress(aiokafka.errors.KafkaError, TimeoutError):
            self._run(self.producer.stop())
        self.loop.close()

    @staticmethod
    def read_committed(bootstrap: str, topic: str, partition: int) -> list[Read]:
        async def read_all() -> list[Read]:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=bootstrap, isolation_level="read_committed", enable_auto_commit=False, group_id=None
            )
            await consumer.start()
            try:
                place = aiokafka.TopicPartition(topic, partition)
                consumer.assign([place])
                consumer.seek(place, 0)
                end = (await consumer.end_offsets([place]))[place]
                read: list[Read] = []
                while await consumer.position(place) < end:
                    for records in (await consumer.getmany(timeout_ms=100)).values():
                        read += [Read(partition, record.offset, record.value.decode()) for record in records]
                return read
            finally:
                await consumer.stop()

        return asyncio.run(asyncio.wait_for(read_all(), _PATIENCE_S))
