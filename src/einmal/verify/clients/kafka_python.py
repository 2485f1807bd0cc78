"""Producer and consumer of kafka-python."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import kafka
import kafka.errors as kinds

from einmal.client.errors import AbortableError, FatalError, KafkaError, ProducerFenced, RetriableError, UnknownOutcome
from einmal.client.records import ConsumerRecord, OffsetAndMetadata, RecordMetadata, positions_of
from einmal.types import TopicPartition
from einmal.verify.clients.own_thread import OwnThread, PendingSends

_FENCED: Final = (kinds.ProducerFencedError, kinds.InvalidProducerEpochError)
_ABORTABLE: Final = (
    kinds.TransactionAbortableError,
    kinds.TransactionAbortedError,
    kinds.CommitFailedError,
    kinds.IllegalGenerationError,
    kinds.UnknownMemberIdError,
    kinds.RebalanceInProgressError,
    kinds.StaleMemberEpochError,
)
_CLOSE_S: Final = 10.0


class KafkaPythonProducer:
    def __init__(self, config: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        # The library looks for a broker when it is made.
        self._thread = OwnThread(_translated)
        self._producer: Any = None
        self._ready = self._thread.submit(lambda: self._open({**config, **settings, "enable_idempotence": True}))
        self._pending = PendingSends()

    def _open(self, settings: Mapping[str, Any]) -> None:
        self._producer = kafka.KafkaProducer(**settings)

    def send(self, topic: str, value: str, *, partition: int) -> asyncio.Future[RecordMetadata]:
        future = self._pending.add()

        def acknowledged(metadata: Any) -> None:
            self._thread.report(future, RecordMetadata(topic, partition, metadata.offset, metadata.timestamp))

        def send() -> None:
            try:
                sent = self._producer.send(topic, value.encode(), partition=partition)
            except Exception as error:  # noqa: BLE001 - the library raises errors of its own and Python's
                self._thread.report(future, error=error)
                return
            sent.add_callback(acknowledged)
            sent.add_errback(lambda error: self._thread.report(future, error=error))

        self._thread.submit(send)
        return future

    async def init_transactions(self) -> None:
        await self._ready
        await self._call("init_transactions")

    def begin_transaction(self) -> object:
        return self._call("begin_transaction")

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: Any, /
    ) -> None:
        converted = _offsets(offsets)
        await self._call("send_offsets_to_transaction", converted, group)

    async def commit_transaction(self) -> None:
        await self._pending.commit(lambda: self._call("commit_transaction"))

    async def abort_transaction(self) -> None:
        await self._call("abort_transaction")

    def _call(self, name: str, *arguments: object) -> asyncio.Future[Any]:
        return self._thread.submit(lambda: getattr(self._producer, name)(*arguments))

    async def close(self) -> None:
        closed = self._thread.submit(lambda: self._producer and self._producer.close(_CLOSE_S))
        self._thread.end()
        await asyncio.wait([closed], timeout=_CLOSE_S)


class KafkaPythonConsumer:
    def __init__(self, config: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        self._thread = OwnThread(_translated)
        self._consumer: Any = None
        self._is_read_committed = settings.get("isolation_level") == "read_committed"
        self._seeks: dict[TopicPartition, int] = {}
        self._ready = self._thread.submit(lambda: self._open({**config, **settings}))

    def _open(self, settings: Mapping[str, Any]) -> None:
        self._consumer = kafka.KafkaConsumer(**settings)

    def assign(self, partitions: Sequence[TopicPartition], /) -> object:
        return self._thread.submit(
            lambda: self._consumer.assign([kafka.TopicPartition(*partition) for partition in partitions])
        )

    def subscribe(self, topics: Sequence[str], /) -> object:
        return self._thread.submit(lambda: self._consumer.subscribe(list(topics)))

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition(partition.topic, partition.partition) for partition in self._consumer.assignment()]

    def group_metadata(self) -> Any:
        return self._consumer.group_metadata()

    async def poll(self, timeout_ms: int) -> Sequence[ConsumerRecord]:
        await self._ready
        return await self._thread.submit(lambda: self._poll(timeout_ms))

    def _poll(self, timeout_ms: int) -> list[ConsumerRecord]:
        while self._seeks:
            key, offset = next(iter(self._seeks.items()))
            if key in self.assignment():
                self._consumer.seek(kafka.TopicPartition(*key), offset)
            del self._seeks[key]
        polled = self._consumer.poll(timeout_ms=timeout_ms)
        return [record_of(record) for records in polled.values() for record in records]

    def seek(self, topic_partition: TopicPartition, offset: int | OffsetAndMetadata, /) -> object:
        self._seeks[topic_partition] = offset if isinstance(offset, int) else offset.offset
        return None

    async def position(self, topic_partition: TopicPartition, /) -> int:
        position = await self._thread.submit(lambda: self._consumer.position(kafka.TopicPartition(*topic_partition)))
        return int(position or 0)

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], /) -> None:
        converted = _offsets(offsets)
        await self._thread.submit(lambda: self._consumer.commit(converted))

    async def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, OffsetAndMetadata | None]:
        def committed() -> dict[TopicPartition, OffsetAndMetadata | None]:
            offsets = {
                partition: self._consumer.committed(kafka.TopicPartition(*partition)) for partition in partitions
            }
            return {
                partition: None if offset is None else OffsetAndMetadata(offset)
                for partition, offset in offsets.items()
            }

        return await self._thread.submit(committed)

    async def end_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        await self._ready
        wanted = [kafka.TopicPartition(*partition) for partition in partitions]
        offsets = await self._thread.submit(lambda: self._consumer.end_offsets(wanted))
        return {TopicPartition(partition.topic, partition.partition): offset for partition, offset in offsets.items()}

    async def close(self) -> None:
        closed = self._thread.submit(lambda: self._consumer and self._consumer.close(autocommit=False))
        self._thread.end()
        await asyncio.wait([closed], timeout=_CLOSE_S)


def record_of(record: Any) -> ConsumerRecord:
    return ConsumerRecord(record.topic, record.partition, record.offset, record.timestamp, record.key, record.value, ())


def _offsets(offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> dict[Any, Any]:
    return {
        kafka.TopicPartition(*key): kafka.OffsetAndMetadata(position.offset, position.metadata, position.leader_epoch)
        for key, position in positions_of(offsets).items()
    }


def _translated(error: Exception) -> KafkaError:
    detail = f"{type(error).__name__}: {error}"
    if isinstance(error, KafkaError):
        return error
    if isinstance(error, _FENCED):
        return ProducerFenced(detail=detail)
    if isinstance(error, _ABORTABLE):
        return AbortableError(detail=detail)
    if isinstance(error, kinds.IllegalStateError | kinds.OutOfOrderSequenceNumberError):
        return FatalError(detail=detail)
    if getattr(error, "retriable", False):
        return RetriableError(detail=detail)
    return UnknownOutcome(detail=detail)
