"""Operations that must work within ten virtual seconds after the last fault: a write, a transaction, a group.

Each is tried by a client of its own, again and again as an application would. And when all clients have ended, whatever
they have left open must be decided: soon after its timeout, no transaction holds a last stable offset back any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from einmal.broker.node import Node
from einmal.client.errors import KafkaError
from einmal.simulation.invariants import replicas
from einmal.types import TopicPartition
from einmal.workloads.endings import close_quietly
from einmal.workloads.process import Process

TOPIC: Final = "probes"
SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 0.1


async def write(process: Process) -> None:
    producer = process.producer(linger_ms=0, request_timeout_ms=2_000, delivery_timeout_ms=6_000, max_block_ms=4_000)
    try:
        await producer.send(TOPIC, "written", partition=0)
    finally:
        await close_quietly(producer)


async def commit(process: Process) -> None:
    producer = process.producer(
        transactional_id="probe", linger_ms=0, request_timeout_ms=2_000, delivery_timeout_ms=6_000, max_block_ms=4_000
    )
    try:
        await producer.init_transactions()
        producer.begin_transaction()
        producer.send(TOPIC, "committed", partition=0)
        await producer.commit_transaction()
    finally:
        await close_quietly(producer)


async def join(process: Process) -> None:
    """A group: a member, its assignment, a committed position."""
    consumer = process.consumer(
        group_id="probe",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        request_timeout_ms=2_000,
        session_timeout_ms=2_000,
        heartbeat_interval_ms=300,
    )
    try:
        consumer.subscribe([TOPIC])
        while not consumer.assignment():
            await consumer.poll(timeout_ms=100)
        await consumer.commit({TopicPartition(TOPIC, 0): 0})
    finally:
        await close_quietly(consumer)


PROBES: Final[dict[str, Callable[[Process], Awaitable[None]]]] = {
    "write with acks=all": write,
    "transaction": commit,
    "group": join,
}


async def until_it_works(probe: Callable[[Process], Awaitable[None]], process: Process) -> None:
    """Try until it has worked once."""
    while True:
        try:
            return await probe(process)
        except KafkaError:
            await asyncio.sleep(_RETRY_SECONDS)


def undecided(nodes: list[Node]) -> list[TopicPartition]:
    """Where a transaction is open still."""
    return [
        partition.topic_partition
        for node in nodes
        for partition in replicas(node)
        if partition.is_leader and partition.last_stable_offset < partition.log_end_offset
    ]
