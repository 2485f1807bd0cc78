"""Readers that follow a few partitions, and the one that reads everything at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from einmal.client.errors import KafkaError
from einmal.client.records import ConsumerRecord
from einmal.types import TopicPartition
from einmal.workloads.endings import Endings, close_quietly
from einmal.workloads.process import ClientProcess
from einmal.workloads.recorder import Recorder

Seen = Callable[[Sequence[ConsumerRecord]], None]
_PATIENCE: Final = 60.0
"""Seconds without a record in which everything that was open must have been decided, once no fault happens any more."""

_FETCH_MAX: Final = 64 * 1024 * 1024


class NotFinished(Exception):
    """The end of the log could not be read in time: somebody still holds it back."""


def _settings(read_committed: bool) -> dict[str, object]:
    return {
        "isolation_level": "read_committed" if read_committed else "read_uncommitted",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "request_timeout_ms": 3_000,
        # One poll shows a partition as far as it can be read: a bank's auditor must not see the first half of that.
        "max_poll_records": 1_000_000,
        "max_partition_fetch_bytes": _FETCH_MAX,
        "fetch_max_bytes": _FETCH_MAX,
    }


async def follow(
    process: ClientProcess,
    keys: Sequence[TopicPartition],
    recorder: Recorder,
    endings: Endings,
    *,
    read_committed: bool,
    seen: Seen | None = None,
    behind_max: int | None = None,
) -> None:
    """Read until the workload ends; each poll goes into the history.

    From the beginning, or from at most ``behind_max`` offsets before the end that a partition has at first.
    """
    consumer = process.consumer(**_settings(read_committed))
    is_placed = behind_max is None
    try:
        consumer.assign(keys)
        while not endings.is_stopped:
            try:
                if not is_placed and behind_max is not None:
                    for key, end in (await consumer.end_offsets(*keys)).items():
                        consumer.seek(key, max(0, end - behind_max))
                    is_placed = True
                records = await consumer.poll(timeout_ms=500)
            except KafkaError:
                await asyncio.sleep(0.2)
                continue
            if records:
                recorder.polled(process.number, records, read_committed=read_committed)
                if seen is not None:
                    seen(records)
            await asyncio.sleep(process.random.uniform(0, 0.5))
    finally:
        await close_quietly(consumer)


async def read_to_the_end(
    process: ClientProcess, keys: Sequence[TopicPartition], recorder: Recorder, seen: Seen | None = None
) -> None:
    """Read every partition, ``read_committed``, up to the high watermark it has now. Raises NotFinished."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + _PATIENCE
    consumer = process.consumer(**_settings(True))
    uncommitted = process.consumer(**_settings(False))
    try:
        ends = await uncommitted.end_offsets(*keys)
        consumer.assign(keys)
        while behind := [key for key in keys if await consumer.position(key) < ends[key]]:
            if loop.time() > give_up_at:
                positions = [f"{key} at {await consumer.position(key)} of {ends[key]}" for key in behind]
                raise NotFinished(f"within {_PATIENCE:.0f} s: {', '.join(positions)}")
            records = await consumer.poll(timeout_ms=500)
            if records:
                give_up_at = loop.time() + _PATIENCE
                recorder.polled(process.number, records, read_committed=True)
                if seen is not None:
                    seen(records)
    finally:
        await close_quietly(uncommitted)
        await close_quietly(consumer)
