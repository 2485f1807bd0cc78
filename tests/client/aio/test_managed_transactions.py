"""Claims about the list of transactions that coordinators will end: it is complete, or there is none.

What is missing from it is taken for hanging, and aborted in one partition: a prepared transaction would be torn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from einmal.client.aio import Admin
from einmal.client.apis import ApiKey
from einmal.client.descriptions import (
    ProducerDescription,
    TransactionDescription,
    TransactionListing,
)
from einmal.client.errors import KafkaError, RetriableError
from einmal.types import ErrorCode, TopicPartition
from einmal.wire.messages import RequestHeader
from tests.client.aio.scripted_broker import ScriptedBroker, Session
from tests.suite.patience import patient

LED, LED_ANEW, LEADERLESS = (1, 5), (1, 6), (-1, 5)


class Coordinators:
    """The leader and the epoch of a coordinator's partition, look by look. None: there is no such topic."""

    def __init__(self, *looks: tuple[int, int] | None) -> None:
        self._looks: Iterator[tuple[int, int] | None] = iter(looks)
        self.broker: ScriptedBroker | None = None

    def __call__(self, session: Session, header: RequestHeader, request: bytes) -> None:
        assert self.broker is not None
        if header.api_key == ApiKey.LIST_TRANSACTIONS:
            session.answer(header, {"transaction_states": []})
            return
        metadata = self.broker.metadata()
        if b"__transaction_state" in request:
            metadata["topics"] = [self._topic(next(self._looks))]
        session.answer(header, metadata)

    def _topic(self, led: tuple[int, int] | None) -> dict[str, Any]:
        name = "__transaction_state"
        if led is None:
            return {"name": name, "error_code": ErrorCode.unknown_topic_or_partition, "partitions": []}
        leader, epoch = led
        partition = {
            "partition_index": 0,
            "leader_id": leader,
            "leader_epoch": epoch,
            "replica_nodes": [1],
            "isr_nodes": [1],
            "error_code": ErrorCode.none if leader >= 0 else ErrorCode.leader_not_available,
        }
        return {"name": name, "partitions": [partition]}


async def listed(*looks: tuple[int, int] | None) -> list[Any]:
    script = Coordinators(*looks)
    async with asyncio.timeout(patient(20)), ScriptedBroker(script) as broker:
        script.broker = broker
        async with Admin({"bootstrap.servers": broker.bootstrap, "default.api.timeout.ms": 2_000}) as admin:
            return list(await admin.list_managed_transactions([7]))


@pytest.mark.parametrize("looks", [(LED, LED), (None, None)])
async def test_where_every_coordinator_answers_the_list_is_complete(looks: tuple[tuple[int, int] | None, ...]) -> None:
    assert await listed(*looks) == []


@pytest.mark.parametrize("looks", [(LEADERLESS, LEADERLESS), (LEADERLESS, LED), (LED, LED_ANEW), (LED, LEADERLESS)])
async def test_where_a_coordinator_is_missing_or_moves_there_is_no_list(looks: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(RetriableError, match="nobody knows all open transactions"):
        await listed(*looks)


OWNED, ORPHANED = TopicPartition("t", 0), TopicPartition("t", 1)
ANSWERS = {
    "open": ErrorCode.none,
    "expired": ErrorCode.transactional_id_not_found,
    "refused": ErrorCode.transactional_id_authorization_failed,
}


class AfterTheList(Admin):
    """Each transactional id has a producer id, and a transaction in both partitions, of which its coordinator knows
    one; it answers for the id as ``ANSWERS`` has it."""

    names: tuple[str, ...] = ()

    async def describe_topics(self, names: Any = None) -> dict[str, Any]:
        return {}

    async def describe_producers_each(
        self, partitions: Any
    ) -> tuple[list[ProducerDescription], dict[TopicPartition, KafkaError]]:
        ids = range(len(self.names))
        return [ProducerDescription(at, each, 0, 0, 0, 0, 5) for each in ids for at in (OWNED, ORPHANED)], {}

    async def list_managed_transactions(self, producer_ids: Any) -> list[TransactionListing]:
        return [TransactionListing(name, number, "Ongoing", 1) for number, name in enumerate(self.names)]

    async def _describe_transaction(self, transactional_id: str) -> TransactionDescription:
        number = self.names.index(transactional_id)
        code = ANSWERS[transactional_id]
        return TransactionDescription(transactional_id, "Ongoing", number, 0, 1, 1, (OWNED,), 1, code)


async def hanging(*names: str) -> list[tuple[int, TopicPartition]]:
    async with AfterTheList({"bootstrap.servers": "127.0.0.1:1"}) as admin:
        admin.names = names
        found = await admin.find_hanging_transactions(last_timestamp_before=1)
    return [(each.producer_id, each.topic_partition) for each in found.producers]


async def test_a_transactional_id_that_vanished_after_the_list_hides_only_its_own_transaction() -> None:
    assert await hanging("expired", "open") == [(1, ORPHANED)]


async def test_a_transactional_id_that_must_not_be_described_any_more_is_an_error() -> None:
    with pytest.raises(KafkaError, match="refused"):
        await hanging("open", "refused")
