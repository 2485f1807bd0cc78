"""The ledger with as many records as clients and brokers take: transactions of hundreds to thousands of them."""

from __future__ import annotations

import asyncio
from typing import Final

from einmal.checker.history import Send
from einmal.client.records import RecordMetadata
from einmal.workloads.endings import Rollback
from einmal.workloads.ledger import Ledger
from einmal.workloads.process import ClientProcess, WorkloadProducer
from einmal.workloads.reading import follow
from einmal.workloads.recorder import OngoingOp

_RECORDS: Final = (200, 4_000)
_READ_BEHIND_MAX: Final = 10_000
"""Records of a partition before its end, from which a new reader follows: from the beginning it would never arrive."""


class Bulk(Ledger):
    """Writers and readers as of the ledger; each transaction is written at once."""

    def __init__(self, prefix: str = "") -> None:
        super().__init__(f"{prefix}bulk-")

    async def _one_transaction(
        self, process: ClientProcess, producer: WorkloadProducer, entry: OngoingOp, name: str
    ) -> list[asyncio.Future[RecordMetadata]]:
        source = process.random
        sends = [Send(source.choice(self.keys), f"{name}/{number}") for number in range(source.randint(*_RECORDS))]
        entry.sends(*sends)
        results = [producer.send(send.key.topic, send.value, partition=send.key.partition) for send in sends]
        if source.random() < 0.1:
            raise Rollback
        return results

    async def _read_committed(self, process: ClientProcess) -> None:
        await follow(process, self.keys, self.recorder, self._endings, read_committed=True, behind_max=_READ_BEHIND_MAX)

    async def _read_uncommitted(self, process: ClientProcess) -> None:
        await follow(
            process, self.keys, self.recorder, self._endings, read_committed=False, behind_max=_READ_BEHIND_MAX
        )
