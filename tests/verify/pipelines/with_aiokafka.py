"""The same five through aiokafka: ``python -m tests.verify.pipelines.with_aiokafka right``, or a mistake's name."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError

from tests.verify.pipelines import INPUT, OUTPUT, doubled

_TRANSACTIONAL = {"transactional_id": INPUT, "transaction_timeout_ms": 6_000}


async def run(mistake: str) -> None:
    consumer = AIOKafkaConsumer(
        INPUT,
        bootstrap_servers=os.environ["BOOTSTRAP_SERVERS"],
        group_id=INPUT,
        isolation_level="read_uncommitted" if mistake == "uncommitted" else "read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=6_000,
        heartbeat_interval_ms=500,
    )
    plain, transactional = _producer(), _producer(**_TRANSACTIONAL)
    for client in (consumer, plain, transactional):
        await client.start()
    while True:
        batches = await consumer.getmany(timeout_ms=300, max_records=20)
        records = [record for batch in batches.values() for record in batch]
        ends = {partition: batch[-1].offset + 1 for partition, batch in batches.items() if batch}
        if not records:
            continue
        if mistake == "positions_first":
            await consumer.commit(ends)
            await _write(plain, records)
        elif mistake == "without_transaction":
            await _write(plain, records)
            await consumer.commit(ends)
        else:
            try:
                async with transactional.transaction():
                    await _write(plain if mistake == "side_effect" else transactional, records)
                    await transactional.send_offsets_to_transaction(ends, INPUT)
            except KafkaError:
                # The transaction was aborted, unless the producer cannot continue: then the next one raises the cause.
                await consumer.seek_to_committed()


def _producer(**settings: object) -> Any:
    connection = {"bootstrap_servers": os.environ["BOOTSTRAP_SERVERS"], "enable_idempotence": True}
    return AIOKafkaProducer(**connection | settings)


async def _write(producer: Any, records: Sequence[Any]) -> None:
    for record in records:
        await asyncio.sleep(0.01)  # as a transformation that takes a while
        await producer.send_and_wait(OUTPUT, doubled(record.value), record.key)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1]))
