"""Producer and consumer of aiokafka. Its transactions know the group's id only, not its generation (KIP-447)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import aiokafka
import aiokafka.errors as kinds

from einmal.client.errors import AbortableError, FatalError, KafkaError, ProducerFenced, RetriableError, UnknownOutcome
from einmal.client.records import ConsumerRecord, OffsetAndMetadata, RecordMetadata, positions_of
from einmal.types import TopicPartition

T = TypeVar("T")

_LOGGER: Final = logging.getLogger(__name__)

_CLOSE_S: Final = 10.0
_UNKNOWN: Final = ("max_block_ms", "delivery_timeout_ms", "bootstrap_timeout_ms")
"""Settings of the Java client that aiokafka has not."""
_RENAMED: Final = {"batch_size": "max_batch_size"}
_FENCED: Final = (kinds.ProducerFenced, kinds.InvalidProducerEpoch)
_ABORTABLE: Final = (
    kinds.CommitFailedError,
    kinds.IllegalGenerationError,
    kinds.UnknownMemberIdError,
    kinds.RebalanceInProgressError,
)


class WithoutLeftFutures:
    """An event loop's exception handler. After a fatal error aiokafka leaves futures with it that no user ever sees,
    and asyncio would report each with a traceback; they are logged at DEBUG. All else is passed on."""

    def __init__(self, passed_on: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None) -> None:
        self._passed_on = passed_on

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "future" in context and isinstance(error := context.get("exception"), kinds.KafkaError):
            _LOGGER.debug("aiokafka has left a future with %r", error)
        elif self._passed_on is not None:
            self._passed_on(loop, context)
        else:
            loop.default_exception_handler(context)

    @classmethod
    def install(cls) -> None:
        loop = asyncio.get_running_loop()
        if not isinstance(handler := loop.get_exception_handler(), cls):
            loop.set_exception_handler(cls(handler))


class AiokafkaProducer:
    def __init__(self, config: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        named = _named(settings) | {"enable_idempotence": True}
        self._is_transactional = "transactional_id" in named
        self._producer = aiokafka.AIOKafkaProducer(**config, **named)
        self._started: asyncio.Task[None] | None = None
        self._begun: asyncio.Task[None] | None = None
        self._order = asyncio.Lock()
        """Keeps the order of ``begin_transaction`` and ``send``, which wait for the library in tasks of their own."""
        self._pending: dict[asyncio.Task[RecordMetadata], None] = {}

    async def _start(self) -> None:
        """Starting acquires the transactional.id, too."""
        if self._started is None:
            WithoutLeftFutures.install()
            self._started = asyncio.create_task(_translated(self._producer.start()))
        await asyncio.shield(self._started)

    def send(self, topic: str, value: str, *, partition: int) -> asyncio.Future[RecordMetadata]:
        task = asyncio.create_task(self._send(topic, value, partition))
        self._pending[task] = None
        task.add_done_callback(self._ended)
        return task

    async def _send(self, topic: str, value: str, partition: int) -> RecordMetadata:
        async with self._order:
            await self._start()
            sent = await _translated(self._producer.send(topic, value.encode(), partition=partition))
        metadata = await _translated(sent)
        return RecordMetadata(topic, partition, metadata.offset, metadata.timestamp)

    def _ended(self, task: asyncio.Task[RecordMetadata]) -> None:
        self._pending.pop(task, None)
        if not task.cancelled():
            task.exception()

    async def init_transactions(self) -> None:
        await self._start()

    def begin_transaction(self) -> object:
        task = self._begun = asyncio.create_task(self._begin())
        return task

    async def _begin(self) -> None:
        async with self._order:
            await _translated(self._producer.begin_transaction())

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: Any, /
    ) -> None:
        if self._begun is not None:
            await self._begun
        await _translated(self._producer.send_offsets_to_transaction(_offsets(offsets), group))

    async def commit_transaction(self) -> None:
        # An error of a send is no doubt about the commit.
        await asyncio.gather(*self._pending)
        try:
            await _translated(self._producer.commit_transaction())
        except KafkaError as error:
            raise UnknownOutcome(detail=str(error)) from error

    async def abort_transaction(self) -> None:
        for task in self._pending:
            task.cancel()
        await _translated(self._producer.abort_transaction())

    async def close(self) -> None:
        await _closed(self._producer.stop())


class AiokafkaConsumer:
    def __init__(self, config: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        self._group = settings.get("group_id")
        self._consumer = aiokafka.AIOKafkaConsumer(**config, **_named(settings))
        self._started: asyncio.Task[None] | None = None

    async def _start(self) -> None:
        if self._started is None:
            self._started = asyncio.create_task(_translated(self._consumer.start()))
        await asyncio.shield(self._started)

    def assign(self, partitions: Sequence[TopicPartition], /) -> object:
        return self._consumer.assign([aiokafka.TopicPartition(*partition) for partition in partitions])

    def subscribe(self, topics: Sequence[str], /) -> object:
        return self._consumer.subscribe(list(topics))

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition(partition.topic, partition.partition) for partition in self._consumer.assignment()]

    def group_metadata(self) -> Any:
        return self._group

    async def poll(self, timeout_ms: int) -> Sequence[ConsumerRecord]:
        await self._start()
        polled = await _translated(self._consumer.getmany(timeout_ms=timeout_ms))
        return [
            ConsumerRecord(
                record.topic, record.partition, record.offset, record.timestamp, record.key, record.value, ()
            )
            for records in polled.values()
            for record in records
        ]

    def seek(self, topic_partition: TopicPartition, offset: int | OffsetAndMetadata, /) -> object:
        return self._consumer.seek(
            aiokafka.TopicPartition(*topic_partition), offset if isinstance(offset, int) else offset.offset
        )

    async def position(self, topic_partition: TopicPartition, /) -> int:
        await self._start()
        return int(await _translated(self._consumer.position(aiokafka.TopicPartition(*topic_partition))))

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], /) -> None:
        await _translated(self._consumer.commit(_offsets(offsets)))

    async def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, OffsetAndMetadata | None]:
        await self._start()
        offsets = {}
        for partition in partitions:
            offset = await _translated(self._consumer.committed(aiokafka.TopicPartition(*partition)))
            offsets[partition] = None if offset is None else OffsetAndMetadata(offset)
        return offsets

    async def end_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        await self._start()
        wanted = [aiokafka.TopicPartition(*partition) for partition in partitions]
        offsets = await _translated(self._consumer.end_offsets(wanted))
        return {TopicPartition(partition.topic, partition.partition): offset for partition, offset in offsets.items()}

    async def close(self) -> None:
        await _closed(self._consumer.stop())


def _named(settings: Mapping[str, Any]) -> dict[str, Any]:
    named = {_RENAMED.get(name, name): value for name, value in settings.items() if name not in _UNKNOWN}
    if named.get("compression_type") == "none":
        del named["compression_type"]
    if "group_id" in named:
        # It is the time in which a JoinGroup must be answered, too: a rebalance takes seconds.
        del named["request_timeout_ms"]
    return named


def _offsets(offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> dict[Any, Any]:
    return {
        aiokafka.TopicPartition(*key): aiokafka.structs.OffsetAndMetadata(position.offset, position.metadata)
        for key, position in positions_of(offsets).items()
    }


async def _closed(stopping: Awaitable[None]) -> None:
    try:
        await asyncio.wait_for(_translated(stopping), _CLOSE_S)
    except TimeoutError:
        return


async def _translated(call: Awaitable[T]) -> T:
    """Raises the errors of ``einmal.client``."""
    try:
        return await call
    except (kinds.KafkaError, AssertionError, ValueError, TimeoutError) as error:
        raise _kind_of(error)(detail=f"{type(error).__name__}: {error}") from error


def _kind_of(error: Exception) -> type[KafkaError]:
    if isinstance(error, _FENCED):
        return ProducerFenced
    if isinstance(error, _ABORTABLE):
        return AbortableError
    if isinstance(error, kinds.IllegalOperation | kinds.OutOfOrderSequenceNumber | kinds.ProducerClosed):
        return FatalError
    if getattr(error, "retriable", False):
        return RetriableError
    return UnknownOutcome
