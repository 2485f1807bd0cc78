"""Claims about requests that wait at a group's coordinator."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from einmal.broker.node import Node
from einmal.types import ErrorCode
from tests.broker.nodes import Client, running_node, until

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, DELETE_TOPICS = 8, 9, 10, 11, 12, 20
PATIENT = {"group.initial.rebalance.delay.ms": 60_000, "offsets.topic.num.partitions": 3}


async def start_join(client: Client) -> asyncio.Task[Any]:
    """A join that will wait: the group's first member gathers others for a minute."""
    await client.call(FIND_COORDINATOR, 3, {"key": "g", "key_type": 0})
    fields = {
        "group_id": "g",
        "session_timeout": 10_000,
        "rebalance_timeout": 90_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    return asyncio.ensure_future(client.call(JOIN_GROUP, 2, fields))


def waiting(node: Node) -> int:
    return len(node.groups._waiting)


async def test_a_client_that_hangs_up_waits_no_longer(tmp_path: Path) -> None:
    async with running_node(tmp_path, PATIENT) as node:
        async with Client.connect(node) as client:
            join = await start_join(client)
            await until(lambda: waiting(node) == 1)
            join.cancel()
        await until(lambda: waiting(node) == 0)


async def test_requests_waiting_on_a_dropped_shard_get_not_coordinator(tmp_path: Path) -> None:
    async with running_node(tmp_path, PATIENT) as node, Client.connect(node) as client:
        join = await start_join(client)
        await until(lambda: waiting(node) == 1)
        runtime = node.groups.runtime_of("g")
        assert not isinstance(runtime, ErrorCode)
        runtime.start()
        assert (await join).error_code is ErrorCode.not_coordinator
        assert waiting(node) == 0


async def test_a_node_stops_while_a_request_waits(tmp_path: Path) -> None:
    async with running_node(tmp_path, PATIENT) as node:
        async with Client.connect(node) as client:
            join = await start_join(client)
            await until(lambda: waiting(node) == 1)
            await node.stop()
            join.cancel()
        await until(lambda: waiting(node) == 0)


async def test_a_group_before_its_topic_exists_has_no_coordinator(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        me = {"group_id": "g", "generation_id": 1, "member_id": "m"}
        answer = await client.call(HEARTBEAT, 4, me)
        assert answer.error_code is ErrorCode.coordinator_not_available
        found = await client.call(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["g", "h"]})
        assert [(each.key, each.node_id) for each in found.coordinators] == [("g", 1), ("h", 1)]
        refused = await client.call(FIND_COORDINATOR, 6, {"key_type": 2, "coordinator_keys": ["g:t:0"]})
        assert refused.coordinators[0].error_code is ErrorCode.invalid_request
        answer = await client.call(HEARTBEAT, 4, me)
        assert answer.error_code is ErrorCode.unknown_member_id


async def test_positions_in_a_deleted_topic_are_not_those_in_a_new_one_of_its_name(tmp_path: Path) -> None:
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 5}], "partition_indexes": [0]}]
    commit = {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": topics}
    fetch = {"group_id": "g", "topics": topics}

    async def committed(client: Client) -> int:
        answer = await client.call(OFFSET_FETCH, 5, fetch)
        return int(answer.topics[0].partitions[0].committed_offset)

    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.call(FIND_COORDINATOR, 3, {"key": "g", "key_type": 0})
        await client.create_topic("t")
        await client.call(OFFSET_COMMIT, 8, commit)
        assert await committed(client) == 5
        await client.call(DELETE_TOPICS, 5, {"topic_names": ["t"], "timeout": 10_000})
        await client.create_topic("t")
        assert await committed(client) == -1
        await client.call(OFFSET_COMMIT, 8, commit)
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        while (answer := await client.call(OFFSET_FETCH, 5, fetch)).error_code is not ErrorCode.none:
            assert answer.error_code is ErrorCode.coordinator_load_in_progress
        assert await committed(client) == 5
