"""One atomic commit for a topic and a database (KIP-939): prepare, commit the database, then the topic.

The writer acquires the transactional.id and keeps what its predecessor left, acquires the database, which fences that
predecessor there, and ends the kept transaction as the database's state decides. Then it writes one transaction after
the other into both. Writers are killed, paused and replaced between any two steps. Readers (``read_committed``) never
see a record before the database has its transaction; at the end both have the same (``checker.agreement``).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, Final

from einmal.checker.agreement import find_disagreements
from einmal.checker.history import Anomaly, OpOutcome, Send
from einmal.checker.log import find_anomalies
from einmal.client.aio import Producer
from einmal.client.errors import FatalError, KafkaError
from einmal.client.prepared_txn_state import PreparedTxnState
from einmal.client.records import ConsumerRecord
from einmal.types import TopicPartition
from einmal.workloads.endings import Endings, Rollback, close_quietly
from einmal.workloads.process import Process, Role
from einmal.workloads.reading import follow, read_to_the_end
from einmal.workloads.recorder import OngoingOp, Recorder

TOPIC: Final = "transfers"
PARTITIONS: Final = 3
NAME: Final = "writer"
_SETTINGS: Final[dict[str, Any]] = {
    "transactional_id": NAME,
    "transaction_two_phase_commit_enable": True,
    "linger_ms": 0,
    "max_block_ms": 8_000,
    "delivery_timeout_ms": 6_000,
    "request_timeout_ms": 2_000,
}


class Replaced(Exception):
    """Another writer has acquired the database."""


class WrittenDatabase:
    """A durable database on a machine of its own that never fails. Requests and answers take time to travel."""

    def __init__(self) -> None:
        self.transactions: dict[str, tuple[str, ...]] = {}
        self.state = ""
        self.owner = 0

    async def acquire(self, source: random.Random) -> tuple[int, str]:
        """Fence every earlier writer. The new owner, and the state that was committed last."""
        await _travel(source)
        self.owner += 1
        answer = self.owner, self.state
        await _travel(source)
        return answer

    async def commit(self, owner: int, name: str, values: Sequence[str], state: str, source: random.Random) -> None:
        """The rows and the state of a transaction, in one commit. Raises Replaced."""
        await _travel(source)
        self.check(owner)
        self.transactions[name] = tuple(values)
        self.state = state
        await _travel(source)

    def check(self, owner: int) -> None:
        """Raises Replaced."""
        if owner != self.owner:
            raise Replaced


async def _travel(source: random.Random) -> None:
    await asyncio.sleep(source.choice((0.001, source.uniform(0, 0.2))))


class DualWrites:
    """One writer, replaced when it dies; a reader."""

    name = "dual-writes"

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.topics = {TOPIC: PARTITIONS}
        self.keys = tuple(TopicPartition(TOPIC, partition) for partition in range(PARTITIONS))
        self.database = WrittenDatabase()
        self._endings = Endings()
        self._early: list[Anomaly] = []
        self._final: list[str] | None = None
        self.roles = (Role(NAME, self._write), Role("reader", self._read))

    def stop(self) -> None:
        self._endings.stop()

    async def finish(self, process: Process) -> None:
        """A last writer ends what is open; then everything is read."""
        producer = process.producer(**_SETTINGS)
        await self._recover(process, producer)
        await producer.close()
        values: list[str] = []
        await read_to_the_end(
            process, self.keys, self.recorder, seen=lambda records: values.extend(_value(record) for record in records)
        )
        self._final = values

    def anomalies(self) -> list[Anomaly]:
        anomalies = [*find_anomalies(self.recorder.history(is_read_to_the_end=self._final is not None)), *self._early]
        if self._final is not None:
            anomalies += find_disagreements(self.database.transactions, self._final)
        return anomalies

    # --- the reader ------------------------------------------------------------------------------------------------

    async def _read(self, process: Process) -> None:
        await follow(process, self.keys, self.recorder, self._endings, read_committed=True, seen=self._seen)

    def _seen(self, records: Sequence[ConsumerRecord]) -> None:
        for record in records:
            if _value(record).split()[0] not in self.database.transactions:
                self._early.append(Anomaly("topic-only", f"{_value(record)!r} was read before the database had it"))

    # --- the writer ------------------------------------------------------------------------------------------------

    async def _write(self, process: Process) -> None:
        producer = process.producer(**_SETTINGS)
        count = 0
        try:
            owner = await self._recover(process, producer)
            while not self._endings.is_stopped:
                count += 1
                await self._transact(process, producer, owner, f"{process.number}.{count}")
                await asyncio.sleep(process.random.uniform(0, 0.3))
        except (FatalError, Replaced):
            return
        finally:
            await close_quietly(producer)

    async def _recover(self, process: Process, producer: Producer) -> int:
        await self._endings.retried(lambda: producer.init_transactions(keep_prepared_txn=True))
        owner, state = await self.database.acquire(process.random)
        await producer.complete_transaction(PreparedTxnState.parse(state))
        return owner

    async def _transact(self, process: Process, producer: Producer, owner: int, name: str) -> None:
        entry = self.recorder.begin(process.number, transactional=True)
        source = process.random
        try:
            values = self._send(source, producer, entry, name)
            await asyncio.sleep(source.choice((0.0, source.uniform(0, 0.3))))
            if source.random() < 0.1:
                raise Rollback
            state = await producer.prepare_transaction()
        except (KafkaError, Rollback) as error:
            # The database never commits it.
            entry.ended(OpOutcome.FAIL)
            if isinstance(error, FatalError):
                raise
            await _abort(producer)
            return
        # A prepared transaction waits for as long as it takes.
        await asyncio.sleep(source.choice((0.0, 0.0, source.uniform(0, 1.0), source.uniform(0, 5.0))))
        if source.random() < 0.1:
            entry.ended(OpOutcome.FAIL)
            await producer.abort_transaction()
            return
        try:
            await self.database.commit(owner, name, values, str(state), source)
        except Replaced:
            entry.ended(OpOutcome.FAIL)
            raise
        await asyncio.sleep(source.choice((0.0, 0.0, source.uniform(0, 1.0))))
        await producer.complete_transaction(state)
        entry.ended(OpOutcome.OK)

    def _send(self, source: random.Random, producer: Producer, entry: OngoingOp, name: str) -> list[str]:
        values = [f"{name} {number}" for number in range(source.randint(1, 4))]
        producer.begin_transaction()
        for value in values:
            key = source.choice(self.keys)
            entry.sends(Send(key, value))
            producer.send(key.topic, value, partition=key.partition)
        return values


async def _abort(producer: Producer) -> None:
    try:
        await producer.abort_transaction()
    except KafkaError as error:
        raise FatalError(detail="a transaction could not be aborted") from error


def _value(record: ConsumerRecord) -> str:
    return (record.value or b"").decode()
