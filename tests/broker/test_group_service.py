"""Claims about requests that wait at a group's coordinator."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

from einmal.broker.node import Node
from einmal.metadata.image import ImageDelta
from einmal.metadata.records import RemoveTopicRecord, TopicRecord
from einmal.types import ErrorCode
from tests.broker.nodes import Client, running_node, until

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, DELETE_TOPICS = 8, 9, 10, 11, 12, 20
SYNC_GROUP, DESCRIBE_GROUPS, LIST_GROUPS, DELETE_GROUPS = 14, 15, 16, 42
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


TOPICS = [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 5}], "partition_indexes": [0]}]
COMMIT = {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": TOPICS}


async def committed(client: Client) -> int:
    """The offset of group g in topic t, once its shard is loaded."""
    fetch = {"group_id": "g", "topics": TOPICS}
    while (answer := await client.call(OFFSET_FETCH, 5, fetch)).error_code is not ErrorCode.none:
        assert answer.error_code is ErrorCode.coordinator_load_in_progress
    return int(answer.topics[0].partitions[0].committed_offset)


async def test_positions_in_a_deleted_topic_are_not_those_in_a_new_one_of_its_name(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.call(FIND_COORDINATOR, 3, {"key": "g", "key_type": 0})
        await client.create_topic("t")
        await client.call(OFFSET_COMMIT, 8, COMMIT)
        assert await committed(client) == 5
        await client.call(DELETE_TOPICS, 5, {"topic_names": ["t"], "timeout": 10_000})
        await client.create_topic("t")
        assert await committed(client) == -1
        await client.call(OFFSET_COMMIT, 8, COMMIT)
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        assert await committed(client) == 5


async def test_positions_in_a_topic_that_is_deleted_and_created_again_in_one_step_are_forgotten(tmp_path: Path) -> None:
    """As after a pause of the broker, or in a snapshot of the metadata."""
    async with running_node(tmp_path) as node, Client.connect(node) as client, Client.connect(node) as other:
        await client.call(FIND_COORDINATOR, 3, {"key": "g", "key_type": 0})
        await client.create_topic("t")
        await client.call(OFFSET_COMMIT, 8, COMMIT)
        apply = node.metadata.committed
        behind: list[Any] = []

        def hold(*committed: Any) -> None:
            behind[:] = committed

        node.metadata.committed = hold  # type: ignore[assignment,method-assign]
        delete = {"topic_names": ["t"], "timeout": 10_000}
        deleted = asyncio.ensure_future(client.call(DELETE_TOPICS, 5, delete))
        await until(lambda: behind and any(isinstance(record, RemoveTopicRecord) for record in behind[0]))
        created = asyncio.ensure_future(other.create_topic("t"))
        await until(lambda: any(isinstance(record, TopicRecord) for record in behind[0]))
        node.metadata.committed = apply  # type: ignore[method-assign]
        apply(*behind)
        await asyncio.gather(deleted, created)
        assert await committed(client) == -1
        await client.call(OFFSET_COMMIT, 8, COMMIT)
        assert await committed(client) == 5


async def test_positions_in_a_topic_that_is_deleted_and_created_again_during_a_load_are_forgotten(
    tmp_path: Path,
) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.call(FIND_COORDINATOR, 3, {"key": "g", "key_type": 0})
        await client.create_topic("t")
        await client.call(OFFSET_COMMIT, 8, COMMIT)
        runtime = node.groups.runtime_of("g")
        assert not isinstance(runtime, ErrorCode)
        runtime.start()
        assert not runtime.is_loaded
        for deleted in ("another", "t"):
            node.groups.apply(ImageDelta(deleted=((deleted, UUID(int=1)),)))
        assert await committed(client) == -1
        await until(lambda: not any(each.is_behind for each in node.groups.runtimes()))
        await client.call(OFFSET_COMMIT, 8, COMMIT)
        node.groups.apply(ImageDelta(deleted=(("another", UUID(int=1)),)))
        assert await committed(client) == 5


async def test_members_stay_and_groups_are_shown_while_too_few_replicas_let_a_topic_be_forgotten(
    tmp_path: Path,
) -> None:
    settings = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 1}
    async with running_node(tmp_path, settings) as node, Client.connect(node) as client:
        joined = await (await start_join(client))
        member = {"group_id": "g", "generation_id": joined.generation_id, "member_id": joined.member_id}
        await client.call(SYNC_GROUP, 2, {**member, "assignments": [{**member, "assignment": b"x"}]})
        runtime = node.groups.runtime_of("g")
        assert not isinstance(runtime, ErrorCode) and runtime.shard is not None
        known = runtime.shard._classic.live["g"].members[joined.member_id]
        deadline = known.session_deadline
        await client.create_topic("t")
        await client.call(OFFSET_COMMIT, 8, {**COMMIT, "group_id": "h"})
        leader = runtime.partition.replication
        assert leader is not None
        leader.has_enough_replicas = False
        await client.call(DELETE_TOPICS, 5, {"topic_names": ["t"], "timeout": 10_000})
        await until(lambda: runtime.is_behind)
        assert (await client.call(HEARTBEAT, 3, member)).error_code is ErrorCode.none
        assert known.session_deadline > deadline
        described = await client.call(DESCRIBE_GROUPS, 5, {"groups": ["g"]})
        assert [(group.error_code, group.group_state) for group in described.groups] == [(ErrorCode.none, "Stable")]
        listed = await client.call(LIST_GROUPS, 4, {})
        assert listed.error_code is ErrorCode.none and "g" in [group.group_id for group in listed.groups]
        fetched = await client.call(OFFSET_FETCH, 5, {"group_id": "h", "topics": TOPICS})
        assert fetched.error_code is ErrorCode.coordinator_not_available
        leader.has_enough_replicas = True
        await until(lambda: not runtime.is_behind)
        assert (await client.call(HEARTBEAT, 3, member)).error_code is ErrorCode.none


async def test_a_commit_that_is_too_large_is_refused_and_its_coordinator_stays(tmp_path: Path) -> None:
    settings = {"offsets.topic.segment.bytes": 100_000, "offsets.topic.num.partitions": 1}
    async with running_node(tmp_path, settings) as node, Client.connect(node) as client:
        await client.call(FIND_COORDINATOR, 3, {"key": "g", "key_type": 0})
        await client.create_topic("t", 30)
        runtime = node.groups.runtime_of("g")
        assert not isinstance(runtime, ErrorCode)
        await until(lambda: runtime.is_loaded)
        shard = runtime.shard
        partitions = [
            {"partition_index": index, "committed_offset": 5, "committed_metadata": "\U0001f600" * 1_024}
            for index in range(30)
        ]
        commit = {"group_id": "g", "generation_id_or_member_epoch": -1}
        answer = await client.call(OFFSET_COMMIT, 8, {**commit, "topics": [{"name": "t", "partitions": partitions}]})
        errors = {partition.error_code for partition in answer.topics[0].partitions}
        assert errors == {ErrorCode.invalid_commit_offset_size}
        for start in range(0, 30, 10):
            some = [{"name": "t", "partitions": partitions[start : start + 10]}]
            answer = await client.call(OFFSET_COMMIT, 8, {**commit, "topics": some})
            assert {partition.error_code for partition in answer.topics[0].partitions} == {ErrorCode.none}
        answer = await client.call(DELETE_GROUPS, 2, {"groups_names": ["g"]})
        assert answer.results[0].error_code is ErrorCode.none
        assert runtime.shard is shard, "it was not dropped"
