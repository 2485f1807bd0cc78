"""Unique values into a few partitions: by transactional and by plain idempotent writers, watched by readers.

What must hold is in ``checker.log``: nothing acknowledged is lost, nothing is there twice, nothing aborted is seen,
transactions are whole, everybody's order is kept.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from einmal.checker.history import Anomaly, OpOutcome, Send
from einmal.checker.log import find_anomalies
from einmal.client.errors import FatalError, KafkaError, RequestRefused
from einmal.client.records import RecordMetadata
from einmal.types import TopicPartition
from einmal.workloads.endings import Endings, Rollback, close_quietly, transact
from einmal.workloads.process import ClientProcess, Role, WorkloadProducer
from einmal.workloads.reading import follow, read_to_the_end
from einmal.workloads.recorder import OngoingOp, Recorder

TOPIC: Final = "ledger"
PARTITIONS: Final = 3
TRANSACTION_TIMEOUT_MS: Final = 6_000
_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


class Ledger:
    """Two transactional writers, a plain one, a reader of each isolation level.

    ``prefix``: of its topic and its transactional.ids.
    """

    name = "ledger"
    mistake = ""
    """In words, of a negative control; see ``controls``."""

    def __init__(self, prefix: str = "") -> None:
        self.recorder = Recorder()
        self._prefix = prefix
        self._topic = prefix + TOPIC
        self.keys = tuple(TopicPartition(self._topic, partition) for partition in range(PARTITIONS))
        self.topics = {self._topic: PARTITIONS}
        self.groups: tuple[str, ...] = ()
        self._endings = Endings()
        self._is_read_to_the_end = False
        self.roles = (
            Role("transactional-1", self._write_transactions),
            Role("transactional-2", self._write_transactions),
            Role("plain", self._write_plainly),
            Role("committed-reader", self._read_committed),
            Role("uncommitted-reader", self._read_uncommitted),
        )

    def stop(self) -> None:
        self._endings.stop()

    async def finish(self, process: ClientProcess) -> None:
        """Read everything, after the faults are over."""
        await read_to_the_end(process, self.keys, self.recorder)
        self._is_read_to_the_end = True

    def anomalies(self) -> list[Anomaly]:
        return find_anomalies(self.recorder.history(is_read_to_the_end=self._is_read_to_the_end))

    # --- writers ---------------------------------------------------------------------------------------------------

    async def _write_transactions(self, process: ClientProcess) -> None:
        producer = process.producer(
            transactional_id=self._prefix + process.name,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            linger_ms=process.random.choice((0, 2)),
            compression_type=process.random.choice(_CODECS),
            max_block_ms=10_000,
            delivery_timeout_ms=8_000,
            request_timeout_ms=3_000,
        )
        count = 0
        try:
            await self._endings.retried(producer.init_transactions)
            while not self._endings.is_stopped:
                count += 1
                entry = self.recorder.begin(process.number, transactional=True)
                name = f"{process.name}.{process.number}.{count}"
                await transact(producer, entry, partial(self._one_transaction, process, producer, entry, name))
                await asyncio.sleep(process.random.uniform(0, 0.3))
        except FatalError:
            return
        finally:
            await close_quietly(producer)

    async def _one_transaction(
        self, process: ClientProcess, producer: WorkloadProducer, entry: OngoingOp, name: str
    ) -> list[asyncio.Future[RecordMetadata]]:
        source = process.random
        results = []
        for number in range(source.randint(1, 5)):
            key = source.choice(self.keys)
            entry.sends(Send(key, f"{name}/{number}"))
            results.append(producer.send(self._topic, f"{name}/{number}", partition=key.partition))
            if source.random() < 0.4:
                await asyncio.sleep(source.uniform(0, 0.05))
        if source.random() < 0.1:
            # Long enough, at times, for the coordinator to lose its patience.
            await asyncio.sleep(source.uniform(0, 1.5 * TRANSACTION_TIMEOUT_MS / 1000))
        if source.random() < 0.2:
            raise Rollback
        return results

    async def _write_plainly(self, process: ClientProcess) -> None:
        producer = process.producer(linger_ms=0, delivery_timeout_ms=8_000, request_timeout_ms=3_000)
        pending: list[asyncio.Task[None]] = []
        count = 0
        try:
            while not self._endings.is_stopped:
                for _ in range(process.random.randint(1, 6)):
                    count += 1
                    key = process.random.choice(self.keys)
                    entry = self.recorder.begin(process.number)
                    value = f"{process.name}.{process.number}.{count}"
                    entry.sends(Send(key, value))
                    result = producer.send(self._topic, value, partition=key.partition)
                    pending.append(asyncio.create_task(_note(result, entry)))
                await asyncio.sleep(process.random.uniform(0, 0.4))
            await asyncio.gather(*pending)
        finally:
            await close_quietly(producer)

    # --- readers ---------------------------------------------------------------------------------------------------

    async def _read_committed(self, process: ClientProcess) -> None:
        await follow(process, self.keys, self.recorder, self._endings, read_committed=True)

    async def _read_uncommitted(self, process: ClientProcess) -> None:
        await follow(process, self.keys, self.recorder, self._endings, read_committed=False)


async def _note(result: asyncio.Future[RecordMetadata], entry: OngoingOp) -> None:
    try:
        entry.ended(OpOutcome.OK, [(await result).offset])
    except RequestRefused:
        entry.ended(OpOutcome.FAIL)
    except KafkaError as error:
        entry.ended(OpOutcome.INFO, cause=type(error).__name__)
