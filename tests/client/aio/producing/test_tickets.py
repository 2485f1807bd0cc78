"""Futures of records have their outcomes whatever the callbacks of other ones do."""

from __future__ import annotations

import sys
from concurrent.futures import Future

import pytest

from einmal.client.aio.producing.tickets import report
from einmal.client.cores.producer_batch import ProducerBatch
from einmal.client.cores.producer_core import BatchOutcome
from einmal.client.errors import ClientClosed, KafkaError
from einmal.client.records import RecordMetadata
from einmal.types import TopicPartition
from einmal.wire.record_batch import NewRecord


@pytest.mark.parametrize("error", [None, ClientClosed()])
def test_a_callback_that_ends_the_program_takes_no_outcome_from_other_records(
    error: KafkaError | None, caplog: pytest.LogCaptureFixture
) -> None:
    tickets: list[Future[RecordMetadata]] = [Future(), Future()]
    for ticket in tickets:
        ticket.set_running_or_notify_cancel()
    tickets[0].add_done_callback(lambda _: sys.exit(3))
    record = NewRecord(None, b"v", 0, ())
    batch = ProducerBatch(TopicPartition("t", 0), 0, 0, records=[record, record], tickets=list(tickets))
    report(BatchOutcome(batch, 7, error=error))
    assert [ticket.exception() for ticket in tickets] == [error, error]
    assert "SystemExit: 3" in caplog.text
