"""A bank: orders come in, processors carry them out in transactions, auditors watch the sum.

Clerks write transfer orders (idempotent, each acknowledged or of unknown outcome). Processors of one consumer group
consume orders, write the debit and the credit of each into the accounts' partitions, and commit their positions in the
same transaction (KIP-447): each order is carried out once, whichever processes are killed, paused or replaced
meanwhile. Auditors read the accounts ``read_committed`` and never see half a transfer; see ``checker.bank``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from einmal.checker.bank import BankReader, TransferEntry
from einmal.checker.history import Anomaly, Send
from einmal.checker.log import find_anomalies
from einmal.client.errors import FatalError, KafkaError, RequestRefused
from einmal.client.records import ConsumerRecord, OffsetAndMetadata, RecordMetadata
from einmal.types import TopicPartition
from einmal.workloads.endings import Endings, Rollback, close_quietly, transact
from einmal.workloads.process import ClientProcess, Role, WorkloadConsumer, WorkloadProducer
from einmal.workloads.reading import Seen, follow, read_to_the_end
from einmal.workloads.recorder import OngoingOp, Recorder

ORDERS: Final = "orders"
ACCOUNTS: Final = "accounts"
GROUP: Final = "bank"
ORDER_PARTITIONS: Final = 2
ACCOUNT_PARTITIONS: Final = 3
ACCOUNT_COUNT: Final = 9
INITIAL: Final = 100
TRANSACTION_TIMEOUT_MS: Final = 6_000
SESSION_TIMEOUT_MS: Final = 3_000


@dataclass(frozen=True, slots=True)
class ProcessorTurn:
    """One turn of a processor: its clients, and the orders that it got. ``count``: of its turns.

    ``is_restless``: it may take longer than the transaction timeout, abort, or restart.
    """

    process: ClientProcess
    producer: WorkloadProducer
    consumer: WorkloadConsumer
    records: Sequence[ConsumerRecord]
    count: int
    is_restless: bool = True

    @property
    def attempt(self) -> str:
        """Unique, so that a repetition is another value."""
        return f"{self.process.number}.{self.count}"

    async def send_positions(self) -> None:
        """The positions after the orders, as a part of the producer's transaction."""
        await self.producer.send_offsets_to_transaction(positions_after(self.records), self.consumer.group_metadata())


class Bank:
    """A clerk, two processors, an auditor.

    ``prefix``: of its topics, its group and its transactional.ids. ``session_timeout_ms``: of its group's members.
    """

    name = "bank"
    mistake = ""
    """In words, of a negative control; see ``controls``."""

    def __init__(self, prefix: str = "", session_timeout_ms: int = SESSION_TIMEOUT_MS) -> None:
        self.recorder = Recorder()
        self._prefix = prefix
        self._session_timeout_ms = session_timeout_ms
        self._orders_topic, self._accounts_topic = prefix + ORDERS, prefix + ACCOUNTS
        self.topics = {self._orders_topic: ORDER_PARTITIONS, self._accounts_topic: ACCOUNT_PARTITIONS}
        self.groups: tuple[str, ...] = (prefix + GROUP,)
        self.accounts = tuple(
            TopicPartition(self._accounts_topic, partition) for partition in range(ACCOUNT_PARTITIONS)
        )
        self._endings = Endings()
        self._auditors: dict[int, BankReader] = {}
        self._acknowledged: dict[str, str] = {}
        """Orders, and where they are in the log."""
        self._refused: list[str] = []
        self._final: BankReader | None = None
        self.roles = (
            Role("clerk", self._take_orders),
            Role("processor-1", self._process),
            Role("processor-2", self._process),
            Role("auditor", self._audit),
        )

    def stop(self) -> None:
        self._endings.stop()

    async def finish(self, process: ClientProcess) -> None:
        """The faults are over: a last processor makes the remaining transfers, a last auditor reads everything."""
        await self._carry_out_the_rest(process)
        auditor = _auditor(process)
        await read_to_the_end(process, self.accounts, self.recorder, seen=self._audited(auditor))
        self._final = auditor

    def anomalies(self) -> list[Anomaly]:
        anomalies = find_anomalies(self.recorder.history(is_read_to_the_end=self._final is not None))
        for auditor in self._auditors.values():
            anomalies += auditor.anomalies
        if self._final is not None:
            anomalies += self._final.finish(self._acknowledged, self._refused)
        return anomalies

    # --- clerks ----------------------------------------------------------------------------------------------------

    async def _take_orders(self, process: ClientProcess) -> None:
        producer = process.producer(linger_ms=0, delivery_timeout_ms=8_000, request_timeout_ms=3_000)
        source = process.random
        pending: list[asyncio.Task[None]] = []
        count = 0
        try:
            while not self._endings.is_stopped:
                count += 1
                order = f"order-{process.number}-{count}"
                debtor, creditor = source.sample(range(ACCOUNT_COUNT), 2)
                text = f"{order} {debtor} {creditor} {source.randint(1, 50)}"
                result = producer.send(self._orders_topic, text, partition=source.randrange(ORDER_PARTITIONS))
                pending.append(asyncio.create_task(self._note(order, result)))
                await asyncio.sleep(source.uniform(0, 0.3))
            await asyncio.gather(*pending)
        finally:
            await close_quietly(producer)

    async def _note(self, order: str, result: asyncio.Future[RecordMetadata]) -> None:
        try:
            written = await result
        except RequestRefused:
            self._refused.append(order)
        except KafkaError:
            return
        else:
            where = TopicPartition(written.topic, written.partition)
            self._acknowledged[order] = f"{order} at offset {written.offset} of {where}"

    # --- processors ------------------------------------------------------------------------------------------------

    async def _process(self, process: ClientProcess) -> None:
        producer, consumer = self.processor(process)
        count = 0
        try:
            await self._endings.retried(partial(self.prepare, producer))
            consumer.subscribe([self._orders_topic])
            while not self._endings.is_stopped:
                records = await _poll(consumer)
                if records:
                    count += 1
                    # A process that is paused here resumes with orders that another one owns by then.
                    await asyncio.sleep(process.random.choice((0.0, process.random.uniform(0, 2.0))))
                    await self.carry_out(ProcessorTurn(process, producer, consumer, records, count))
        except FatalError:
            return
        finally:
            await close_quietly(producer)
            await close_quietly(consumer)

    def processor(self, process: ClientProcess) -> tuple[WorkloadProducer, WorkloadConsumer]:
        """The clients of a processor."""
        producer = process.producer(
            transactional_id=self._prefix + process.name,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            linger_ms=0,
            max_block_ms=10_000,
            delivery_timeout_ms=8_000,
            request_timeout_ms=3_000,
        )
        consumer = process.consumer(
            group_id=self._prefix + GROUP,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=self._session_timeout_ms,
            heartbeat_interval_ms=500,
            max_poll_records=20,
            request_timeout_ms=3_000,
        )
        return producer, consumer

    async def prepare(self, producer: WorkloadProducer) -> None:
        await producer.init_transactions()

    async def carry_out(self, turn: ProcessorTurn) -> None:
        """Make the transfers of these orders, and commit the group's positions after them, in one transaction."""
        entry = self.recorder.begin(turn.process.number, transactional=True)
        chance = turn.process.random

        async def write() -> list[asyncio.Future[RecordMetadata]]:
            results = self.send(turn.producer, entry, transfers(turn.records), turn.attempt)
            if turn.is_restless and chance.random() < 0.1:
                await asyncio.sleep(chance.uniform(0, 1.5 * TRANSACTION_TIMEOUT_MS / 1000))
            await turn.send_positions()
            if turn.is_restless and chance.random() < 0.1:
                raise Rollback
            return results

        if not await transact(turn.producer, entry, write):
            await rewind(turn.consumer)

    def send(
        self, producer: WorkloadProducer, entry: OngoingOp, sides: Iterable[TransferEntry], attempt: str
    ) -> list[asyncio.Future[RecordMetadata]]:
        """Send sides of transfers, and record it. ``attempt``: unique, so that a repetition is another value."""
        results = []
        for side in sides:
            value = f"{side.transfer} {side.account} {side.delta} {side.partner} {attempt}"
            entry.sends(Send(TopicPartition(self._accounts_topic, side.partition), value))
            results.append(producer.send(self._accounts_topic, value, partition=side.partition))
        return results

    async def _carry_out_the_rest(self, process: ClientProcess) -> None:
        producer, consumer = self.processor(process)
        uncommitted = process.consumer(isolation_level="read_uncommitted", enable_auto_commit=False)
        keys = [TopicPartition(self._orders_topic, partition) for partition in range(ORDER_PARTITIONS)]
        count = 0
        try:
            await self.prepare(producer)
            consumer.subscribe([self._orders_topic])
            ends = await uncommitted.end_offsets(*keys)
            while await _is_behind(consumer, keys, ends):
                records = await _poll(consumer)
                if records:
                    count += 1
                    await self.carry_out(ProcessorTurn(process, producer, consumer, records, count, is_restless=False))
        finally:
            await close_quietly(uncommitted)
            await close_quietly(producer)
            await close_quietly(consumer)

    # --- auditors --------------------------------------------------------------------------------------------------

    async def _audit(self, process: ClientProcess) -> None:
        auditor = self._auditors[process.number] = _auditor(process)
        await follow(
            process, self.accounts, self.recorder, self._endings, read_committed=True, seen=self._audited(auditor)
        )

    @staticmethod
    def _audited(auditor: BankReader) -> Seen:
        def seen(records: Sequence[ConsumerRecord]) -> None:
            by_partition: dict[int, list[TransferEntry]] = {}
            for record in records:
                by_partition.setdefault(record.partition, []).append(_read(record))
            for partition, entries in by_partition.items():
                auditor.read(partition, entries)

        return seen


def _auditor(process: ClientProcess) -> BankReader:
    return BankReader(f"{process.name} {process.number}", dict.fromkeys(range(ACCOUNT_COUNT), INITIAL))


async def _poll(consumer: WorkloadConsumer) -> Sequence[ConsumerRecord]:
    try:
        return await consumer.poll(timeout_ms=300)
    except FatalError:
        raise
    except KafkaError:
        await asyncio.sleep(0.2)
        return ()


async def rewind(consumer: WorkloadConsumer) -> None:
    """After an abort, or a restart: read again from the committed positions."""
    keys = sorted(consumer.assignment())
    while keys:
        try:
            committed = await consumer.committed(*keys)
        except FatalError:
            raise
        except KafkaError:
            await asyncio.sleep(0.2)
            keys = sorted(consumer.assignment())
            continue
        for key in keys:
            position = committed.get(key)
            if key in consumer.assignment():
                consumer.seek(key, 0 if position is None else position)
        return


async def _is_behind(
    consumer: WorkloadConsumer, keys: Sequence[TopicPartition], ends: dict[TopicPartition, int]
) -> bool:
    committed = await consumer.committed(*keys)
    return any((0 if (position := committed.get(key)) is None else position.offset) < ends[key] for key in keys)


def positions_after(records: Iterable[ConsumerRecord]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {record.topic_partition: OffsetAndMetadata(record.offset + 1, record.leader_epoch) for record in records}


def transfers(records: Iterable[ConsumerRecord]) -> list[TransferEntry]:
    """Both sides of each order, the debit first."""
    return [side for record in records for side in _transfer(record)]


def _transfer(record: ConsumerRecord) -> tuple[TransferEntry, TransferEntry]:
    order, debtor, creditor, amount = (record.value or b"").decode().split()
    debit, credit = int(debtor) % ACCOUNT_PARTITIONS, int(creditor) % ACCOUNT_PARTITIONS
    return (
        TransferEntry(order, int(debtor), -int(amount), debit, credit),
        TransferEntry(order, int(creditor), int(amount), credit, debit),
    )


def _read(record: ConsumerRecord) -> TransferEntry:
    order, account, delta, partner, _attempt = (record.value or b"").decode().split()
    return TransferEntry(order, int(account), int(delta), record.partition, int(partner))
