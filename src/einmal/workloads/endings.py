"""How operations end: what each kind of the client's errors means for a transaction, and when a workload stops.

The promise under test is in ``transact``: after an *abort* or *fatal* error no part of the transaction may ever be
visible; only ``UnknownOutcome`` of the commit leaves it open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from einmal.checker.history import OpOutcome
from einmal.client.errors import FatalError, KafkaError, UnknownOutcome
from einmal.client.records import RecordMetadata
from einmal.workloads.process import WorkloadProducer
from einmal.workloads.recorder import OngoingOp


class Rollback(Exception):
    """The workload wants this transaction aborted."""


class Endings:
    """Whether the workload continues."""

    def __init__(self) -> None:
        self.is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True

    async def retried(self, call: Callable[[], Awaitable[None]]) -> None:
        """Call until it succeeds or fails permanently. Raises FatalError."""
        while True:
            try:
                return await call()
            except FatalError:
                raise
            except KafkaError:
                if self.is_stopped:
                    raise FatalError(detail="stopped") from None
                await asyncio.sleep(0.2)


async def transact(
    producer: WorkloadProducer,
    entry: OngoingOp,
    write: Callable[[], Awaitable[Sequence[asyncio.Future[RecordMetadata]]]],
) -> bool:
    """One transaction, recorded in ``entry``; returns whether it was committed. Raises FatalError when it was the
    last."""
    is_committing = False
    try:
        producer.begin_transaction()
        results = await write()
        is_committing = True
        await producer.commit_transaction()
    except UnknownOutcome as error:
        entry.ended(OpOutcome.INFO if is_committing else OpOutcome.FAIL, cause=type(error).__name__)
        raise FatalError(detail="the outcome of a transaction is unknown") from error
    except (KafkaError, Rollback) as error:
        entry.ended(OpOutcome.FAIL)
        if isinstance(error, FatalError):
            raise
        await _abort(producer)
        return False
    entry.ended(OpOutcome.OK, [result.result().offset for result in results])
    return True


async def _abort(producer: WorkloadProducer) -> None:
    try:
        await producer.abort_transaction()
    except KafkaError as error:
        raise FatalError(detail="a transaction could not be aborted") from error


class _Closable(Protocol):
    async def close(self) -> None: ...


async def close_quietly(client: _Closable) -> None:
    """Close it, whatever state it is in."""
    try:
        await client.close()
    except KafkaError:
        return
