"""Input of a pipeline under test: unique records, a part of them in transactions, some of which are aborted."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Mapping
from typing import Any, Final

from einmal.checker.history import OpOutcome, Send
from einmal.client.aio import Consumer, Producer
from einmal.client.errors import KafkaError, RequestRefused
from einmal.client.records import RecordMetadata
from einmal.types import TopicPartition
from einmal.verify.pipeline.mapping import InputRecord, InputRecords
from einmal.workloads.endings import close_quietly
from einmal.workloads.recorder import OngoingOp, Recorder, text_of

PARTITIONS: Final = 3
_WRITE_S: Final = (0.0, 0.05)
_KEYS: Final = 10
_WRITER: Final = 1
_TRANSACTIONS: Final = 0.1
"""Instead of so many single records there is a transaction."""
_TRANSACTION_RECORDS: Final = (1, 5)
_ABORTED: Final = 0.4
_TIMEOUT_MS: Final = 10_000


class PipelineInput:
    """``transactional_id``: of its transactions. ``recorder``: gets an operation for each record."""

    def __init__(
        self,
        config: Mapping[str, Any],
        topic: str,
        transactional_id: str,
        chance: random.Random,
        recorder: Recorder,
    ) -> None:
        self._config = dict(config)
        self._topic = topic
        self._transactional_id = transactional_id
        self._chance = chance
        self._recorder = recorder
        self._number = 0
        self._is_stopped = False
        self._pending: list[asyncio.Task[None]] = []

    async def make(self) -> None:
        """Topics are made with those of the output."""

    async def remove(self) -> list[str]:
        return []

    def without_secrets(self, text: str) -> str:
        return text

    def locate(self, record: InputRecord) -> str:
        return f"{self._topic}-{record.partition} {record.offset}"

    def stop(self) -> None:
        self._is_stopped = True

    async def write(self) -> None:
        """Write until stopped; no transaction is open at the end. Raises KafkaError."""
        single = Producer(self._config, linger_ms=0)
        transactional = self._transactional()
        try:
            while not self._is_stopped:
                if self._chance.random() >= _TRANSACTIONS:
                    self._pending.append(self._send(single))
                elif not await self._transaction(transactional):
                    await close_quietly(transactional)
                    transactional = self._transactional()
                await asyncio.sleep(self._chance.uniform(*_WRITE_S))
            await asyncio.gather(*self._pending)
            await close_quietly(transactional)
            # What the last one has left open would hold back the readers.
            transactional = self._transactional()
            await transactional.init_transactions()
        finally:
            await close_quietly(single)
            await close_quietly(transactional)

    def _transactional(self) -> Producer:
        name = self._transactional_id
        return Producer(self._config, linger_ms=0, transactional_id=name, transaction_timeout_ms=_TIMEOUT_MS)

    async def _transaction(self, producer: Producer) -> bool:
        """Whether the producer can be used again. How a transaction has ended, the log decides."""
        is_aborted = self._chance.random() < _ABORTED
        count = self._chance.randint(*_TRANSACTION_RECORDS)
        try:
            await producer.init_transactions_once()
            producer.begin_transaction()
            await asyncio.gather(*(self._send(producer) for _ in range(count)))
            await (producer.abort_transaction() if is_aborted else producer.commit_transaction())
        except KafkaError:
            return False
        return True

    def _send(self, producer: Producer) -> asyncio.Task[None]:
        self._number += 1
        value = json.dumps({"id": self._number, "amount": self._chance.randint(1, 100)}, separators=(",", ":"))
        partition = self._chance.randrange(PARTITIONS)
        entry = self._recorder.begin(_WRITER)
        entry.sends(Send(TopicPartition(self._topic, partition), value))
        sent = producer.send(self._topic, value, key=str(self._number % _KEYS), partition=partition)
        return asyncio.create_task(_noted(entry, sent))

    async def records(self) -> InputRecords:
        """All that is in the input, whatever was acknowledged. Raises KafkaError."""
        committed, written = [await self._read(isolation) for isolation in ("read_committed", "read_uncommitted")]
        there = {(record.partition, record.offset) for record in committed}
        return InputRecords(committed, [record for record in written if (record.partition, record.offset) not in there])

    async def _read(self, isolation: str) -> list[InputRecord]:
        keys = [TopicPartition(self._topic, partition) for partition in range(PARTITIONS)]
        records = []
        async with Consumer(self._config, isolation_level=isolation, enable_auto_commit=False) as consumer:
            ends = await consumer.end_offsets(*keys)
            consumer.assign(keys)
            for key in keys:
                consumer.seek(key, 0)
            while any([await consumer.position(key) < ends[key] for key in keys]):
                records += await consumer.poll(timeout_ms=500)
        return [
            InputRecord(record.partition, record.offset, text_of(record.key), text_of(record.value))
            for record in records
        ]


async def _noted(entry: OngoingOp, sent: Awaitable[RecordMetadata]) -> None:
    try:
        metadata = await sent
    except RequestRefused as error:
        entry.ended(OpOutcome.FAIL, cause=str(error))
    except KafkaError as error:
        entry.ended(OpOutcome.INFO, cause=str(error))
    else:
        entry.ended(OpOutcome.OK, [metadata.offset])
