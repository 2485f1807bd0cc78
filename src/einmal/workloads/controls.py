"""Negative controls: each workload with one mistake that programs make, which its verdict must detect.

A control is the right workload in all but the mistake. The one with at-least-once processing has no fault of the
cluster: its processors restart between their output and the commit of their positions, as any process may.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from einmal.checker.history import OpOutcome
from einmal.client.errors import KafkaError
from einmal.client.records import RecordMetadata
from einmal.workloads.bank import Bank, ProcessorTurn, positions_after, rewind, transfers
from einmal.workloads.endings import Rollback, transact
from einmal.workloads.ledger import Ledger
from einmal.workloads.process import ClientProcess, WorkloadConsumer, WorkloadProducer

_MISHAP: Final = 0.25
"""Share of the transactions in which a processor restarts, or aborts, at the wrong moment."""


class AtLeastOnceBank(Bank):
    """Processors write without a transaction, then commit their positions; a restart in between repeats the output."""

    mistake = "processors write their output without a transaction, and commit their positions after it"

    def processor(self, process: ClientProcess) -> tuple[WorkloadProducer, WorkloadConsumer]:
        _, consumer = super().processor(process)
        return process.producer(linger_ms=0, delivery_timeout_ms=8_000, request_timeout_ms=3_000), consumer

    async def prepare(self, producer: WorkloadProducer) -> None:
        """There is nothing to prepare."""

    async def carry_out(self, turn: ProcessorTurn) -> None:
        entry = self.recorder.begin(turn.process.number)
        try:
            results = self.send(turn.producer, entry, transfers(turn.records), turn.attempt)
            entry.ended(OpOutcome.OK, [(await result).offset for result in results])
            if turn.is_restless and turn.process.random.random() < _MISHAP:
                await rewind(turn.consumer)
            else:
                await turn.consumer.commit(positions_after(turn.records))
        except KafkaError:
            await rewind(turn.consumer)


class OffsetsFirstBank(Bank):
    """Processors commit their positions, then write in a transaction; a restart in between loses the output."""

    mistake = "processors commit their positions before the transaction with their output"

    async def carry_out(self, turn: ProcessorTurn) -> None:
        try:
            await turn.consumer.commit(positions_after(turn.records))
        except KafkaError:
            return await rewind(turn.consumer)
        if turn.is_restless and turn.process.random.random() < _MISHAP:
            return None
        entry = self.recorder.begin(turn.process.number, transactional=True)

        async def write() -> list[asyncio.Future[RecordMetadata]]:
            return self.send(turn.producer, entry, transfers(turn.records), turn.attempt)

        await transact(turn.producer, entry, write)
        return None


class TwoTransactionsBank(Bank):
    """Processors write the debits in one transaction, and the credits, with their positions, in a second one."""

    mistake = "processors write debits and credits in two transactions"

    async def carry_out(self, turn: ProcessorTurn) -> None:
        sides, attempt = transfers(turn.records), turn.attempt
        debits = self.recorder.begin(turn.process.number, transactional=True)

        async def write_debits() -> list[asyncio.Future[RecordMetadata]]:
            return self.send(turn.producer, debits, sides[::2], attempt)

        if not await transact(turn.producer, debits, write_debits):
            return await rewind(turn.consumer)
        credits = self.recorder.begin(turn.process.number, transactional=True)

        async def write_credits() -> list[asyncio.Future[RecordMetadata]]:
            results = self.send(turn.producer, credits, sides[1::2], attempt)
            await turn.send_positions()
            if turn.is_restless and turn.process.random.random() < _MISHAP:
                raise Rollback
            return results

        if not await transact(turn.producer, credits, write_credits):
            await rewind(turn.consumer)
        return None


class ReadUncommittedLedger(Ledger):
    """Readers trust what they read with isolation.level=read_uncommitted."""

    mistake = "readers use isolation.level=read_uncommitted"

    async def _read_committed(self, process: ClientProcess) -> None:
        await super()._read_committed(_Uncommitted(process))


@dataclass(frozen=True, slots=True)
class _Uncommitted:
    """A process whose consumers read everything."""

    process: ClientProcess

    @property
    def name(self) -> str:
        return self.process.name

    @property
    def number(self) -> int:
        return self.process.number

    @property
    def random(self) -> random.Random:
        return self.process.random

    def producer(self, **settings: Any) -> WorkloadProducer:
        return self.process.producer(**settings)

    def consumer(self, **settings: Any) -> WorkloadConsumer:
        return self.process.consumer(**settings | {"isolation_level": "read_uncommitted"})


CONTROLS: Final[Mapping[str, type[Bank] | type[Ledger]]] = {
    "at-least-once": AtLeastOnceBank,
    "offsets-first": OffsetsFirstBank,
    "two-transactions": TwoTransactionsBank,
    "read-uncommitted": ReadUncommittedLedger,
}
