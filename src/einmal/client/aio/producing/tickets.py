"""Outcomes of batches, reported to the futures of their records.

A ticket is a future of its caller's own kind: it needs ``done``, ``set_result``, ``set_exception`` and ``exception``.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from einmal.client.cores.producer_core import BatchOutcome
from einmal.client.errors import KafkaError
from einmal.client.records import RecordMetadata


@dataclass(slots=True, eq=False)
class Flush:
    """Watches batches until each has its outcome."""

    remaining: int
    done: asyncio.Future[None]

    def batch_settled(self) -> None:
        self.remaining -= 1
        if not self.remaining:
            self.finish()

    def finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


def report(outcome: BatchOutcome) -> None:
    """Resolve or fail every record of a batch, and count it for whoever flushes."""
    if outcome.error is None:
        _resolve(outcome)
    else:
        for ticket in outcome.batch.tickets:
            fail(ticket, outcome.error)
    for flush in outcome.batch.watchers:
        flush.batch_settled()


def _resolve(outcome: BatchOutcome) -> None:
    (topic, partition), batch = outcome.batch.topic_partition, outcome.batch
    offset, append_time = outcome.base_offset, outcome.log_append_time
    for record, ticket in zip(batch.records, batch.tickets, strict=True):
        if not ticket.done():
            timestamp = record.timestamp if append_time < 0 else append_time
            try:
                ticket.set_result(RecordMetadata(topic, partition, offset, timestamp))
            except (SystemExit, KeyboardInterrupt):
                _callback_failed(ticket)
        if offset >= 0:
            offset += 1


def fail(ticket: Any, error: KafkaError) -> None:
    """Nobody has to ask this future: the error is reported elsewhere too, by the commit or by ``UnwrittenRecords``."""
    if not ticket.done():
        try:
            ticket.set_exception(error)
        except (SystemExit, KeyboardInterrupt):
            _callback_failed(ticket)
        ticket.exception()


def _callback_failed(ticket: Any) -> None:
    """Its future has its outcome, and so must those behind it: the exception of a thread's own ends no program.

    It is logged where Python logs the other exceptions of a future's callbacks.
    """
    logging.getLogger("concurrent.futures").exception("exception calling callback for %r", ticket)
