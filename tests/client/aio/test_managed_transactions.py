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
from einmal.client.errors import RetriableError
from einmal.types import ErrorCode
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
