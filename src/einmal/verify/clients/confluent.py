"""Producer and consumer of confluent-kafka (librdkafka)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import confluent_kafka
from confluent_kafka import KafkaException

from einmal.client.errors import (
    AbortableError,
    FatalError,
    KafkaError,
    ProducerFenced,
    RequestRefused,
    RetriableError,
    UnknownOutcome,
)
from einmal.client.records import ConsumerRecord, OffsetAndMetadata, RecordMetadata, positions_of
from einmal.types import TopicPartition
from einmal.verify.clients.own_thread import OwnThread, PendingSends

_LOGGER: Final = logging.getLogger(__name__)
_LOGGER.addHandler(logging.NullHandler())
_LOGGER.propagate = False
_CALL_S: Final = 10.0
_COMMIT_S: Final = 30.0
_OTHER_NAMES: Final = {"max.partition.fetch.bytes": "fetch.message.max.bytes", "fetch.max.wait.ms": "fetch.wait.max.ms"}
_UNKNOWN: Final = ("max.block.ms", "max.poll.records", "request.timeout.ms", "bootstrap.timeout.ms")
"""Settings of the Java client that librdkafka has no counterpart of, or one of another meaning."""


class ConfluentProducer:
    def __init__(self, config: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        self._settings = _named(settings) | {"enable.idempotence": True}
        # librdkafka wants a delivery to end within its transaction.
        if limit := self._settings.get("transaction.timeout.ms"):
            self._settings["delivery.timeout.ms"] = min(limit, self._settings.get("delivery.timeout.ms", limit))
        self._producer = confluent_kafka.Producer(_quiet(config) | self._settings, logger=_LOGGER)
        self._thread = OwnThread(_translated, self._serve)
        self._pending = PendingSends()

    def _serve(self) -> None:
        # A fatal error is raised here, too, and by every call after it.
        with contextlib.suppress(KafkaException):
            self._producer.poll(0.05)

    def send(self, topic: str, value: str, *, partition: int) -> asyncio.Future[RecordMetadata]:
        future = self._pending.add()

        def delivered(error: confluent_kafka.KafkaError | None, message: Any) -> None:
            if error is not None:
                self._thread.report(future, error=KafkaException(error))
            else:
                self._thread.report(future, RecordMetadata(topic, partition, message.offset(), message.timestamp()[1]))

        def produce() -> None:
            try:
                self._producer.produce(topic, value.encode(), partition=partition, on_delivery=delivered)
            except (KafkaException, BufferError) as error:
                self._thread.report(future, error=error)

        self._thread.submit(produce)
        return future

    async def init_transactions(self) -> None:
        await self._thread.submit(lambda: self._producer.init_transactions(_CALL_S))

    def begin_transaction(self) -> object:
        return self._thread.submit(self._producer.begin_transaction)

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: Any, /
    ) -> None:
        positions = [_position(key, position.offset) for key, position in positions_of(offsets).items()]
        await self._insist(lambda: self._producer.send_offsets_to_transaction(positions, group, _CALL_S), _CALL_S)

    async def commit_transaction(self) -> None:
        await self._pending.commit(lambda: self._insist(lambda: self._producer.commit_transaction(_CALL_S), _COMMIT_S))

    async def abort_transaction(self) -> None:
        await self._insist(lambda: self._producer.abort_transaction(_CALL_S), _COMMIT_S)

    async def _insist(self, call: Callable[[], object], seconds: float) -> None:
        """Repeat as the library advises: a call that has timed out continues where it was."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                await self._thread.submit(call)
                return
            except RetriableError:
                if time.monotonic() > deadline:
                    raise

    async def close(self) -> None:
        if "transactional.id" in self._settings:
            self._thread.submit(self._producer.purge)
        closed = self._thread.submit(lambda: self._producer.flush(_CALL_S))
        self._thread.end()
        await asyncio.wait([closed], timeout=_CALL_S)


class ConfluentConsumer:
    """Positions are kept here: librdkafka's do not pass markers of transactions, its reports of the end do."""

    def __init__(self, config: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        self._records_max = min(10_000, settings.get("max_poll_records", 500))
        named = {"group.id": f"unused-{id(self)}"} | _named(settings) | {"enable.partition.eof": True}
        self._consumer = confluent_kafka.Consumer(_quiet(config) | named, logger=_LOGGER)
        self._thread = OwnThread(_translated)
        self._positions: dict[TopicPartition, int] = {}
        self._seeks: dict[TopicPartition, int] = {}
        self._error: KafkaException | None = None
        """Came among records, which are returned first."""

    def assign(self, partitions: Sequence[TopicPartition], /) -> object:
        self._positions = dict.fromkeys(partitions, 0)
        wanted = [_position(partition, confluent_kafka.OFFSET_BEGINNING) for partition in partitions]
        return self._thread.submit(lambda: self._consumer.assign(wanted))

    def subscribe(self, topics: Sequence[str], /) -> object:
        return self._thread.submit(lambda: self._consumer.subscribe(list(topics)))

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition(partition.topic, partition.partition) for partition in self._consumer.assignment()]

    def group_metadata(self) -> Any:
        return self._consumer.consumer_group_metadata()

    async def poll(self, timeout_ms: int) -> Sequence[ConsumerRecord]:
        return await self._thread.submit(lambda: self._poll(timeout_ms / 1000))

    def _poll(self, seconds: float) -> list[ConsumerRecord]:
        while self._seeks:
            key, offset = next(iter(self._seeks.items()))
            if key in self.assignment():
                self._consumer.seek(_position(key, offset))
            del self._seeks[key]
        if (error_before := self._error) is not None:
            self._error = None
            raise error_before
        records = []
        for message in self._messages(seconds):
            key = TopicPartition(message.topic(), message.partition())
            error = message.error()
            if error is None:
                self._positions[key] = message.offset() + 1
                records.append(
                    ConsumerRecord(
                        *key,
                        message.offset(),
                        message.timestamp()[1],
                        message.key(),
                        message.value(),
                        (),
                    )
                )
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                self._positions[key] = message.offset()
            else:
                # Messages behind it are not delivered a second time.
                self._error = KafkaException(error)
        if not records and (error_now := self._error) is not None:
            self._error = None
            raise error_now
        return records

    def _messages(self, seconds: float) -> list[Any]:
        """Everything that has been fetched: a reader must not see the first half of it."""
        first = self._consumer.poll(seconds)
        messages: list[Any] = [] if first is None else [first]
        while messages:
            more = self._consumer.consume(self._records_max, 0)
            messages += more
            if len(more) < self._records_max:
                break
        return messages

    def seek(self, topic_partition: TopicPartition, offset: int | OffsetAndMetadata, /) -> object:
        self._seeks[topic_partition] = offset if isinstance(offset, int) else offset.offset
        return None

    async def position(self, topic_partition: TopicPartition, /) -> int:
        return self._positions[topic_partition]

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], /) -> None:
        positions = [_position(key, position.offset) for key, position in positions_of(offsets).items()]
        await self._thread.submit(lambda: self._consumer.commit(offsets=positions, asynchronous=False))

    async def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, OffsetAndMetadata | None]:
        wanted = [_position(partition) for partition in partitions]
        positions = await self._thread.submit(lambda: self._consumer.committed(wanted, _CALL_S))
        return {
            TopicPartition(position.topic, position.partition): OffsetAndMetadata(position.offset)
            if position.offset >= 0
            else None
            for position in positions
        }

    async def end_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        def ends() -> dict[TopicPartition, int]:
            return {
                partition: self._consumer.get_watermark_offsets(_position(partition), _CALL_S, cached=False)[1]
                for partition in partitions
            }

        return await self._thread.submit(ends)

    async def close(self) -> None:
        # It may wait for ever for a coordinator that has left (librdkafka's issues 5511 and 5456).
        closed = self._thread.submit(self._consumer.close)
        self._thread.end()
        await asyncio.wait([closed], timeout=_CALL_S)


def _named(settings: Mapping[str, Any]) -> dict[str, Any]:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return {_OTHER_NAMES.get(name, name): value for name, value in named.items() if name not in _UNKNOWN}


def _quiet(config: Mapping[str, Any]) -> dict[str, Any]:
    return dict(config) | {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}


def _position(key: TopicPartition, offset: int = -1001) -> Any:
    return confluent_kafka.TopicPartition(key.topic, key.partition, offset)


def _translated(error: Exception) -> KafkaError:
    if isinstance(error, KafkaError):
        return error
    if not isinstance(error, KafkaException):
        return UnknownOutcome(detail=f"{type(error).__name__}: {error}")
    cause: confluent_kafka.KafkaError = error.args[0]
    detail = f"{cause.name()}: {cause.str()}"
    kinds = confluent_kafka.KafkaError
    if cause.code() in (kinds._FENCED, kinds.PRODUCER_FENCED, kinds.INVALID_PRODUCER_EPOCH):
        return ProducerFenced(detail=detail)
    if cause.fatal() or cause.code() == kinds._FATAL:
        return FatalError(detail=detail)
    if cause.txn_requires_abort():
        return AbortableError(detail=detail)
    if cause.retriable() or cause.code() in (kinds._TIMED_OUT, kinds._TRANSPORT, kinds.NOT_COORDINATOR):
        return RetriableError(detail=detail)
    if cause.code() in (kinds.MSG_SIZE_TOO_LARGE, kinds.TOPIC_AUTHORIZATION_FAILED, kinds.INVALID_REQUIRED_ACKS):
        return RequestRefused(detail=detail)
    return UnknownOutcome(detail=detail)
