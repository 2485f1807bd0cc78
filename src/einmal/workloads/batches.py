"""Batches as the pipeline writes them: many writers under one producer id and epoch, one driver that opens and ends.

The driver acquires its transactional.id, reads the commit record, and then writes batch after batch: each partition by
a writer with connections of its own, then the commit record, then the end of the transaction. Sometimes a writer is
abandoned while it still writes (a task that its scheduler has lost): the transaction is aborted, the batch rewritten
under the next epoch, and the lost writer's requests must be refused. An unknown outcome ends the driver, and the next
one finds it in the commit record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from einmal.checker.batches import WrittenRecord, find_batch_anomalies
from einmal.checker.history import Anomaly, OpOutcome, Send
from einmal.checker.log import find_anomalies
from einmal.client.aio import PartitionWriter, TransactionDriver
from einmal.client.errors import AbortableError, FatalError, KafkaError, UnknownOutcome
from einmal.client.records import ConsumerRecord
from einmal.types import ErrorCode, ProducerIdAndEpoch, TopicPartition, TransactionVersion
from einmal.wire.record_batch import NewRecord, encode_batch
from einmal.workloads.endings import Endings, close_quietly
from einmal.workloads.process import Process, Role
from einmal.workloads.reading import follow, read_to_the_end
from einmal.workloads.recorder import Recorder

OUTPUT: Final = "output"
COMMITS: Final = TopicPartition("commits", 0)
PARTITIONS: Final = 4
NAME: Final = "pipeline"
TRANSACTION_TIMEOUT_MS: Final = 6_000
_SETTINGS: Final[dict[str, Any]] = {
    "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS,
    "request_timeout_ms": 2_000,
    "delivery_timeout_ms": 5_000,
    "max_block_ms": 8_000,
}


class Batches:
    """One driver, replaced when it dies; a reader."""

    name = "batches"

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.keys = tuple(TopicPartition(OUTPUT, partition) for partition in range(PARTITIONS))
        self.topics = {OUTPUT: PARTITIONS, COMMITS.topic: 1}
        self._endings = Endings()
        self._final: list[ConsumerRecord] | None = None
        self.roles = (Role(NAME, self._drive), Role("reader", self._read))

    def stop(self) -> None:
        self._endings.stop()

    async def finish(self, process: Process) -> None:
        """Acquire the transactional.id once more, so that no transaction is open; then read everything."""
        driver = _driver(process)
        await driver.init_producer_id()
        await driver.close()
        records: list[ConsumerRecord] = []
        await read_to_the_end(process, (*self.keys, COMMITS), self.recorder, seen=records.extend)
        self._final = records

    def anomalies(self) -> list[Anomaly]:
        anomalies = find_anomalies(self.recorder.history(is_read_to_the_end=self._final is not None))
        if self._final is not None:
            committed = [_batch(record) for record in self._final if record.topic == COMMITS.topic]
            written = [
                WrittenRecord(_batch(record), _attempt(record)) for record in self._final if record.topic == OUTPUT
            ]
            anomalies += find_batch_anomalies(committed, written)
        return anomalies

    async def _read(self, process: Process) -> None:
        await follow(process, (*self.keys, COMMITS), self.recorder, self._endings, read_committed=True)

    # --- the driver ------------------------------------------------------------------------------------------------

    async def _drive(self, process: Process) -> None:
        driver = _driver(process)
        lost: list[asyncio.Task[None]] = []
        try:
            identity: ProducerIdAndEpoch | None = await self._taken_over(driver)
            batch = await self._last_committed(process) + 1
            attempts = 0
            while not self._endings.is_stopped:
                identity = identity or await driver.init_producer_id()
                attempts += 1
                attempt = _Attempt(process, driver, identity, batch, f"{process.number}.{attempts}", self.recorder)
                has_committed, following = await attempt.run(self.keys)
                lost += attempt.lost
                batch += has_committed
                if following is None:
                    # Below version 2 every transaction asks for its epoch (KIP-360).
                    following = await driver.init_producer_id(identity)
                identity = following
                await asyncio.sleep(process.random.uniform(0, 0.3))
        except KafkaError:
            # Fenced, or an unknown outcome: the next driver reads the commit record.
            return
        finally:
            await asyncio.gather(*lost)
            await close_quietly(driver)

    async def _taken_over(self, driver: TransactionDriver) -> ProducerIdAndEpoch:
        while True:
            try:
                return await driver.init_producer_id()
            except FatalError:
                raise
            except KafkaError:
                if self._endings.is_stopped:
                    raise

    async def _last_committed(self, process: Process) -> int:
        """The commit record for certain: this driver owns the transactional.id, so all below the high watermark will be
        decided."""
        records: list[ConsumerRecord] = []
        await read_to_the_end(process, [COMMITS], Recorder(), seen=records.extend)
        return max((_batch(record) for record in records), default=0)


class _Attempt:
    """One transaction: a batch, written by several writers under one identity."""

    def __init__(
        self,
        process: Process,
        driver: TransactionDriver,
        identity: ProducerIdAndEpoch,
        batch: int,
        name: str,
        recorder: Recorder,
    ) -> None:
        self.lost: list[asyncio.Task[None]] = []
        self._process = process
        self._driver = driver
        self._identity = identity
        self._batch = batch
        self._name = name
        self._entry = recorder.begin(process.number, transactional=True)

    async def run(self, keys: Sequence[TopicPartition]) -> tuple[bool, ProducerIdAndEpoch | None]:
        """Whether it was committed, and the next identity if the broker returned one. Raises the error that ends the
        driver."""
        source = self._process.random
        chosen = source.sample(keys, source.randint(1, len(keys)))
        try:
            await self._driver.add_partitions(self._identity, (*chosen, COMMITS))
            version = await self._driver.transaction_version()
            has_all = await self._write_all(chosen, version)
            if has_all:
                self._entry.sends(Send(COMMITS, self._value(COMMITS, 0)))
                await self._write(COMMITS, 1, version)
        except KafkaError:
            has_all = False
        if not has_all:
            self._entry.ended(OpOutcome.FAIL)
            return False, await self._abort()
        return True, await self._commit()

    async def _write_all(self, keys: Sequence[TopicPartition], version: TransactionVersion) -> bool:
        """Every writer has all its answers; False: one of them was abandoned, and still writes."""
        source = self._process.random
        writers = []
        for key in keys:
            count = source.randint(1, 3)
            for number in range(count):
                self._entry.sends(Send(key, self._value(key, number)))
            writers.append(asyncio.ensure_future(self._write(key, count, version)))
        if source.random() < 0.2:
            await asyncio.sleep(source.uniform(0, 0.1))
            self.lost = [asyncio.ensure_future(_ignored(writer)) for writer in writers]
            return False
        results = await asyncio.gather(*writers, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, KafkaError):
                raise result
        return not any(isinstance(result, KafkaError) for result in results)

    async def _write(self, key: TopicPartition, count: int, version: TransactionVersion) -> None:
        source = self._process.random
        process = self._process
        writer = PartitionWriter(
            {"bootstrap.servers": process.bootstrap_servers},
            self._identity,
            NAME,
            version,
            network=process.network,
            clock=process.clock,
            random=source,
            **_SETTINGS,
        )
        try:
            for number in range(count):
                await asyncio.sleep(source.choice((0.0, source.uniform(0, 0.2))))
                await writer.append(key, self._encoded(key, number))
            await writer.flush()
        finally:
            await close_quietly(writer)

    def _encoded(self, key: TopicPartition, number: int) -> bytes:
        record = NewRecord(None, self._value(key, number).encode(), self._process.clock.now().wall_ms)
        producer_id, producer_epoch = self._identity
        return encode_batch(
            [record],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=number,
            transactional=True,
        )

    def _value(self, key: TopicPartition, number: int) -> str:
        return f"{self._batch} {self._name} {key.partition} {number}"

    async def _abort(self) -> ProducerIdAndEpoch | None:
        try:
            return await self._driver.end_txn(self._identity, committed=False)
        except AbortableError as error:
            # Below version 2 there is nothing to abort where nothing was added.
            if error.code is ErrorCode.invalid_txn_state:
                return None
            raise

    async def _commit(self) -> ProducerIdAndEpoch | None:
        try:
            following = await self._driver.end_txn(self._identity, committed=True)
        except UnknownOutcome:
            raise
        except KafkaError:
            self._entry.ended(OpOutcome.FAIL)
            raise
        self._entry.ended(OpOutcome.OK)
        return following


async def _ignored(writer: asyncio.Future[None]) -> None:
    try:
        await writer
    except KafkaError:
        return


def _driver(process: Process) -> TransactionDriver:
    return TransactionDriver(
        bootstrap_servers=process.bootstrap_servers,
        transactional_id=NAME,
        network=process.network,
        clock=process.clock,
        random=process.random,
        **_SETTINGS,
    )


def _batch(record: ConsumerRecord) -> int:
    return int((record.value or b"").decode().split()[0])


def _attempt(record: ConsumerRecord) -> str:
    return (record.value or b"").decode().split()[1]
