"""A request that waits on the broker does not outlast the permission by which it began."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from einmal.security.acl import WILDCARD, AclOperation, PatternType, Permission, ResourceType
from einmal.security.principal import ANONYMOUS
from einmal.types import ErrorCode
from einmal.wire import produce
from einmal.wire.messages import encode_request_header
from tests.broker.acl_side import NodeItself, secured_node
from tests.broker.nodes import Client, batch, until_watched
from tests.suite.patience import patient

CREATE_ACLS, DELETE_ACLS = 30, 31
READ = {
    "resource_type": ResourceType.TOPIC,
    "resource_name": "plans",
    "resource_pattern_type": PatternType.LITERAL,
    "principal": str(ANONYMOUS),
    "host": WILDCARD,
    "operation": AclOperation.READ,
    "permission_type": Permission.ALLOW,
}
EVERY = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}


async def error_of_fetch(client: Client) -> ErrorCode:
    return (await client.fetch("plans", 0)).error_code


@pytest.mark.parametrize("ends_by", ["records", pytest.param("time", marks=pytest.mark.slow)])
async def test_a_fetch_that_waits_while_its_acl_is_removed_returns_nothing(tmp_path: Path, ends_by: str) -> None:
    async with (
        secured_node(tmp_path) as node,
        Client.connect(node) as client,
        Client.connect(node) as other,
    ):
        admin = NodeItself(node)
        topic = {"name": "plans", "num_partitions": 1, "replication_factor": 1, "configs": []}
        await admin.call(19, 7, {"topics": [topic], "timeout": 60_000, "validate_only": False})
        await admin.call(CREATE_ACLS, 2, {"creations": [READ]})
        async with asyncio.timeout(patient(10)):
            while await error_of_fetch(other) is not ErrorCode.none:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        wait_ms = 1_000_000 if ends_by == "records" else 20_000
        waiting = asyncio.ensure_future(client.fetch("plans", 0, max_wait_ms=wait_ms))
        await until_watched(node, "plans")
        await admin.call(DELETE_ACLS, 2, {"filters": [EVERY]})
        async with asyncio.timeout(patient(10)):
            while await error_of_fetch(other) is ErrorCode.none:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        if ends_by == "records":
            request = produce.ProduceRequest(None, -1, 10_000, [("plans", [(0, batch(b"what nobody may know"))])])
            frame = encode_request_header(0, 9, 0, "admin") + b"".join(produce.encode_produce_request(9, request))
            assert not waiting.done()
            await node.servers["PLAINTEXT"].router.answer(bytearray(frame), "itself")
        fetched = await waiting
        assert fetched.error_code is ErrorCode.topic_authorization_failed
        assert not len(fetched.records) and fetched.high_watermark == -1
