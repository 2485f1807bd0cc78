"""Claims about answers that are well-formed and make no sense: they end in an error, and not in a busy loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from einmal.client.aio import Admin, Consumer, Producer
from einmal.client.apis import ApiKey
from einmal.client.errors import FatalError, KafkaError, RequestRefused
from einmal.types import ErrorCode, TopicPartition
from einmal.wire.messages import RequestHeader
from tests.client.aio.scripted_broker import ScriptedBroker, Session
from tests.suite.patience import patient

T0 = TopicPartition("t", 0)


class StrangeBroker(ScriptedBroker):
    """One that leads topic ``t`` and coordinates everything; ``answers`` to other requests, else empty ones."""

    def __init__(self, answers: Mapping[ApiKey, dict[str, Any]]) -> None:
        super().__init__(self._answer_one)
        self._answers = answers

    def _answer_one(self, session: Session, header: RequestHeader, _request: bytes) -> None:
        host, port = self.bootstrap.split(":")
        here = {"node_id": 1, "host": host, "port": int(port)}
        partition = {"partition_index": 0, "leader_id": 1, "replica_nodes": [1], "isr_nodes": [1]}
        known: dict[int, dict[str, Any]] = {
            ApiKey.METADATA: {"brokers": [here], "topics": [{"name": "t", "partitions": [partition]}]},
            ApiKey.FIND_COORDINATOR: {"coordinators": [here], **here},
        }
        fields = self._answers.get(ApiKey(header.api_key), known.get(header.api_key, {}))
        session.answer(header, fields)


async def send(config: dict[str, Any]) -> None:
    async with Producer(config, delivery_timeout_ms=600_000) as producer:
        await producer.send("t", b"v")


async def join(config: dict[str, Any]) -> None:
    async with Consumer(config, group_id="g") as consumer:
        consumer.subscribe(["t"])
        while True:
            await consumer.poll(100)


def with_admin(use: Callable[[Admin], Awaitable[Any]]) -> Callable[[dict[str, Any]], Awaitable[None]]:
    async def run(config: dict[str, Any]) -> None:
        async with Admin(config) as admin:
            await use(admin)

    return run


async def error_of(
    broker: StrangeBroker, use: Callable[[dict[str, Any]], Awaitable[None]], call_ms: int = 600_000
) -> KafkaError:
    """``call_ms``: what a call may take where it is its deadline that ends it."""
    async with asyncio.timeout(patient(20)), broker:
        config = {"bootstrap.servers": broker.bootstrap, "default.api.timeout.ms": call_ms}
        with pytest.raises(KafkaError) as caught:
            await use(config)
        # A loop without a pause would have asked thousands of times.
        assert len(broker.requests) < 500
        return caught.value


async def test_a_broker_without_producer_ids_refuses_records_instead_of_freezing_the_client() -> None:
    broker = StrangeBroker({})
    broker.without = ApiKey.INIT_PRODUCER_ID
    error = await error_of(broker, send)
    assert isinstance(error, RequestRefused)
    assert error.code is ErrorCode.unsupported_version


@pytest.mark.parametrize(
    "use",
    [
        with_admin(lambda admin: admin.list_offsets({T0: -1})),
        with_admin(lambda admin: admin.describe_producers([T0])),
        with_admin(lambda admin: admin.delete_records({T0: 0})),
        with_admin(lambda admin: admin.describe_configs(["t"])),
        with_admin(lambda admin: admin.describe_groups(["g"])),
        with_admin(lambda admin: admin.delete_groups(["g"])),
        with_admin(lambda admin: admin.list_group_offsets("g")),
        with_admin(lambda admin: admin.describe_transactions(["x"])),
    ],
)
async def test_an_incomplete_response_fails_the_call_at_the_deadline(
    use: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    await error_of(StrangeBroker({}), use, call_ms=600)


@pytest.mark.parametrize(
    "joined",
    [
        {"protocol_name": "range", "members": [{"member_id": "other", "metadata": b"\xff\xff\xff"}]},
        {"protocol_name": "unheard of", "members": []},
        {"protocol_name": None, "members": []},
    ],
)
async def test_a_group_with_malformed_members_is_a_fatal_error(joined: dict[str, Any]) -> None:
    answer = {"generation_id": 1, "leader": "me", "member_id": "me", **joined}
    error = await error_of(StrangeBroker({ApiKey.JOIN_GROUP: answer}), join)
    assert isinstance(error, FatalError)
    assert error.code is ErrorCode.inconsistent_group_protocol


async def test_a_member_with_a_broken_assignment_does_not_hide_its_group(caplog: pytest.LogCaptureFixture) -> None:
    members = [{"member_id": "m", "member_assignment": b"\x00"}]
    group = {"group_id": "g", "protocol_type": "consumer", "group_state": "Stable", "members": members}

    async with (
        asyncio.timeout(patient(20)),
        StrangeBroker({ApiKey.DESCRIBE_GROUPS: {"groups": [group]}}) as broker,
        Admin(bootstrap_servers=broker.bootstrap) as admin,
    ):
        (member,) = (await admin.describe_groups(["g"]))["g"].members
        assert (member.member_id, member.partitions) == ("m", ())
    assert "the assignment of member 'm' cannot be read" in caplog.text
