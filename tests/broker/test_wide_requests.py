"""Handlers work through a wide request in turns with other clients' requests, element by element."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from einmal.broker.front.apis import APIS
from einmal.broker.front.handlers.describe_producers import DescribeProducersHandler
from einmal.broker.resources import turns as turns_module
from einmal.broker.resources.turns import Turns
from einmal.broker.resources.unpacked_requests import UnpackedRequests
from einmal.types import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from einmal.wire import produce
from einmal.wire.fetch import FetchPartition
from einmal.wire.messages import api_name
from tests.broker.nodes import Client, batch, running_node, until

ELEMENTS = 1_000
INDEXES = list(range(ELEMENTS))
_PARTITIONS = [{"partition_index": index} for index in INDEXES]
_COMMITTED = [{"partition_index": index, "committed_offset": 1} for index in INDEXES]
_END = {"producer_id": 1, "producer_epoch": 0, "transaction_result": False, "coordinator_epoch": 0}

_ACL = {"resource_type": 2, "resource_pattern_type": 3, "principal": "User:a", "host": "*"}
_ACL |= {"operation": 3, "permission_type": 3}
_ACL_FILTER = {"resource_type_filter": 2, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}


def _of_topics(key: str, partitions: str, *partition: Any) -> list[dict[str, Any]]:
    """One partition in each of many topics."""
    return [{key: f"t{index}", partitions: list(partition)} for index in INDEXES]


_TRANSACTIONAL = {"transactional_id": "id", "group_id": "g", "producer_id": 1}

WIDE: Mapping[str, tuple[int, int, Mapping[str, Any]]] = {
    "AlterClientQuotas": (
        49,
        1,
        {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": f"u{index}"}],
                    "ops": [{"key": "request_percentage", "value": 1.0}],
                }
                for index in INDEXES
            ]
        },
    ),
    "AddPartitionsToTxn": (
        24,
        3,
        {
            "v3_and_below_transactional_id": "id",
            "v3_and_below_producer_id": 1,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": _of_topics("name", "partitions", 0),
        },
    ),
    "AlterConfigs": (33, 2, {"resources": [{"resource_type": 4, "resource_name": "1"}] * ELEMENTS}),
    "AlterPartitionReassignments": (45, 0, {"topics": [{"name": "t", "partitions": _PARTITIONS}]}),
    "AlterPartitionReassignments of topics": (
        45,
        0,
        {"topics": _of_topics("name", "partitions", {"partition_index": 0})},
    ),
    "AlterReplicaLogDirs": (34, 2, {"dirs": [{"path": "/x", "topics": [{"name": "t", "partitions": INDEXES}]}]}),
    "AlterReplicaLogDirs of topics": (34, 2, {"dirs": [{"path": "/x", "topics": _of_topics("name", "partitions", 0)}]}),
    "AlterReplicaLogDirs of directories": (
        34,
        2,
        {"dirs": [{"path": f"/{index}", "topics": [{"name": "t", "partitions": [0]}]} for index in INDEXES]},
    ),
    "CreatePartitions": (37, 3, {"topics": [{"name": f"t{index}", "count": 2} for index in INDEXES]}),
    "CreateTopics": (19, 7, {"topics": [{"name": f"n_{index}"} for index in INDEXES], "validate_only": True}),
    "CreateAcls": (30, 3, {"creations": [{**_ACL, "resource_name": f"t{index}"} for index in INDEXES]}),
    "DeleteGroups": (42, 2, {"groups_names": [f"g{index}" for index in INDEXES]}),
    "DeleteTopics": (20, 6, {"topics": [{"name": f"t{index}"} for index in INDEXES]}),
    "DeleteAcls": (31, 3, {"filters": [_ACL_FILTER] * ELEMENTS}),
    "AlterUserScramCredentials": (
        51,
        0,
        {"deletions": [{"name": f"u{index}", "mechanism": 1} for index in INDEXES], "upsertions": []},
    ),
    "AlterUserScramCredentials of one user": (
        51,
        0,
        {"deletions": [{"name": "u", "mechanism": 1}] * ELEMENTS, "upsertions": []},
    ),
    "DescribeUserScramCredentials": (50, 0, {"users": [{"name": f"u{index}"} for index in INDEXES]}),
    "DeleteRecords of topics": (
        21,
        2,
        {"topics": _of_topics("name", "partitions", {"partition_index": 0, "offset": 0})},
    ),
    "DescribeProducers": (61, 0, {"topics": [{"name": "t", "partition_indexes": INDEXES}]}),
    "DescribeProducers of topics": (61, 0, {"topics": _of_topics("name", "partition_indexes", 0)}),
    "DescribeConfigs": (
        32,
        4,
        {"resources": [{"resource_type": 2, "resource_name": f"t{index}"} for index in INDEXES]},
    ),
    "DescribeGroups": (15, 5, {"groups": [f"g{index}" for index in INDEXES]}),
    "DescribeTransactions": (65, 0, {"transactional_ids": [f"id{index}" for index in INDEXES]}),
    "FindCoordinator": (10, 4, {"key_type": 0, "coordinator_keys": [f"g{index}" for index in INDEXES]}),
    "Metadata": (3, 9, {"topics": [{"name": f"n{index}"} for index in INDEXES]}),
    "DescribeQuorum": (55, 2, {"topics": [{"topic_name": "t", "partitions": _PARTITIONS}]}),
    "DescribeQuorum of topics": (55, 2, {"topics": _of_topics("topic_name", "partitions", {"partition_index": 0})}),
    "DescribeTopicPartitions": (75, 0, {"topics": [{"name": f"n{index}"} for index in INDEXES]}),
    "ElectLeaders": (43, 2, {"topic_partitions": [{"topic": "t", "partitions": INDEXES}]}),
    "ElectLeaders of topics": (43, 2, {"topic_partitions": _of_topics("topic", "partitions", 0)}),
    "IncrementalAlterConfigs": (44, 1, {"resources": [{"resource_type": 4, "resource_name": "1"}] * ELEMENTS}),
    "ListOffsets of topics": (
        2,
        7,
        {"replica_id": -1, "topics": _of_topics("name", "partitions", {"partition_index": 0, "timestamp": -1})},
    ),
    "ListPartitionReassignments": (46, 0, {"topics": [{"name": "t", "partition_indexes": INDEXES}]}),
    "ListPartitionReassignments of topics": (46, 0, {"topics": _of_topics("name", "partition_indexes", 0)}),
    "OffsetCommit": (8, 8, {"group_id": "g", "topics": [{"name": "t", "partitions": _COMMITTED}]}),
    "OffsetCommit of topics": (8, 8, {"group_id": "g", "topics": _of_topics("name", "partitions", _COMMITTED[0])}),
    "OffsetDelete": (47, 0, {"group_id": "g", "topics": [{"name": "t", "partitions": _PARTITIONS}]}),
    "OffsetDelete of topics": (47, 0, {"group_id": "g", "topics": _of_topics("name", "partitions", _PARTITIONS[0])}),
    "OffsetFetch": (9, 8, {"groups": [{"group_id": "g", "topics": [{"name": "t", "partition_indexes": INDEXES}]}]}),
    "OffsetFetch of topics": (
        9,
        8,
        {"groups": [{"group_id": "g", "topics": _of_topics("name", "partition_indexes", 0)}]},
    ),
    "OffsetFetch of groups": (
        9,
        8,
        {
            "groups": [
                {"group_id": f"g{index}", "topics": [{"name": "t", "partition_indexes": [0]}]} for index in INDEXES
            ]
        },
    ),
    "OffsetForLeaderEpoch of topics": (
        23,
        4,
        {"replica_id": -1, "topics": _of_topics("topic", "partitions", {"partition": 0, "leader_epoch": 0})},
    ),
    "TxnOffsetCommit": (28, 3, _TRANSACTIONAL | {"topics": [{"name": "t", "partitions": _COMMITTED}]}),
    "TxnOffsetCommit of topics": (28, 3, _TRANSACTIONAL | {"topics": _of_topics("name", "partitions", _COMMITTED[0])}),
    "WriteTxnMarkers": (27, 1, {"markers": [_END | {"topics": [{"name": "t", "partition_indexes": [0]}]}] * ELEMENTS}),
}
"""Many elements in one; and where arrays are nested, one element in each of many."""

PASSES: Mapping[str, int] = {"CreatePartitions": 3, "CreateTopics": 3, "DeleteTopics": 2}
"""How often a handler goes through all elements, where more than once: before the decision, and for the answer."""


_SINGLE = "of one thing: no array that a client makes long"
_BY_RESULT = "grows with what exists, not with the request; handlers walk through it with `paced`"
_OF_NODES = "from nodes of the cluster alone"
_OTHER = "a test of its own in this file"
_ONE_STEP = "a decision of the group over all elements in one step"

NOT_WIDE: Mapping[str, str] = {
    "AddOffsetsToTxn": _SINGLE,
    "AllocateProducerIds": _OF_NODES,
    "AlterPartition": _OF_NODES,
    "ApiVersions": _SINGLE,
    "BeginQuorumEpoch": _OF_NODES,
    "BrokerHeartbeat": _OF_NODES,
    "BrokerRegistration": _OF_NODES,
    "DescribeAcls": _BY_RESULT,
    "DescribeClientQuotas": _BY_RESULT,
    "DescribeCluster": _SINGLE,
    "DescribeLogDirs": _BY_RESULT,
    "EndQuorumEpoch": _OF_NODES,
    "EndTxn": _SINGLE,
    "Envelope": _OF_NODES,
    "Fetch": _OTHER,
    "FetchSnapshot": _OF_NODES,
    "Heartbeat": _SINGLE,
    "InitProducerId": _SINGLE,
    "JoinGroup": _ONE_STEP,
    "LeaveGroup": _ONE_STEP,
    "ListGroups": _BY_RESULT,
    "ListTransactions": _BY_RESULT,
    "Produce": _OTHER,
    "SaslAuthenticate": _SINGLE,
    "SaslHandshake": _SINGLE,
    "SyncGroup": _ONE_STEP,
    "UnregisterBroker": _SINGLE,
    "UpdateFeatures": "at most the features that exist, by name",
    "Vote": _OF_NODES,
}
"""APIs without a row, and why."""


def test_every_api_has_a_row_or_a_reason() -> None:
    wide = {key for key, _version, _fields in WIDE.values()}
    # Whoever adds an API decides: what its request makes long takes turns.
    missing = [api_name(entry.key) for entry in APIS if entry.key not in wide]
    assert sorted(missing) == sorted(NOT_WIDE)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """The waits for a turn, of which there is one wherever it is allowed."""
    monkeypatch.setattr(turns_module, "FIRST_SLICE_MS", 0)
    monkeypatch.setattr(turns_module, "SLICE_MS", 0)
    waits: list[None] = []
    wait = Turns.next

    async def noted(self: Turns) -> None:
        waits.append(None)
        await wait(self)

    monkeypatch.setattr(Turns, "next", noted)
    return waits


@pytest.mark.parametrize("name", WIDE)
@pytest.mark.time_limit(60)
async def test_a_wide_request_yields_at_every_element(tmp_path: Path, name: str, taken: list[None]) -> None:
    api_key, version, fields = WIDE[name]
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        taken.clear()
        await client.call(api_key, version, fields)
        assert len(taken) >= PASSES.get(name, 1) * (ELEMENTS - 10)


@pytest.mark.parametrize("is_transactional", [False, True])
@pytest.mark.parametrize("of_topics", [False, True])
@pytest.mark.time_limit(60)
async def test_a_wide_produce_yields_at_every_batch(
    tmp_path: Path, of_topics: bool, is_transactional: bool, taken: list[None]
) -> None:
    """Twice where the batches are verified first: those of a transaction in partitions that exist."""
    verified = 50 if is_transactional and not of_topics else 0
    producer = ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(0)) if is_transactional else None
    records = batch(b"x", producer=producer, sequence=0, transactional=True) if is_transactional else batch(b"x")
    topics: list[Any] = [("t", [(index, records) for index in INDEXES])]
    if of_topics:
        topics = [(f"t{index}", [(0, records)]) for index in INDEXES]
    request = produce.ProduceRequest("id" if is_transactional else None, -1, 10_000, topics)
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t", 1 + verified)
        taken.clear()
        client.send(0, 9, b"".join(produce.encode_produce_request(9, request)))
        await client.receive()
        assert len(taken) >= ELEMENTS - 10 + verified


async def produce_as_many(client: Client, producers: int) -> None:
    """A batch of each producer to ``t``."""
    for number in range(producers):
        producer = ProducerIdAndEpoch(ProducerId(number), ProducerEpoch(0))
        await client.produce("t", batch(b"x", producer=producer, sequence=0))


async def test_a_description_of_many_producers_yields_at_every_one(tmp_path: Path, taken: list[None]) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        await produce_as_many(client, 50)
        taken.clear()
        answer = await client.call(61, 0, {"topics": [{"name": "t", "partition_indexes": [0]}]})
        assert len(answer.topics[0].partitions[0].active_producers) == 50
        assert len(taken) >= 49


async def test_retention_looks_at_many_producers_in_turns(tmp_path: Path, taken: list[None]) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        await produce_as_many(client, 250)
        taken.clear()
        await node._retain()
        assert len(taken) >= 3


async def test_one_long_description_is_made_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no limit but what the broker knows, and many may be asked for at once."""
    monkeypatch.setattr(turns_module, "FIRST_SLICE_MS", 0)
    monkeypatch.setattr(turns_module, "SLICE_MS", 0)
    making = most = 0
    handle = DescribeProducersHandler.handle

    async def counted(*arguments: Any) -> Any:
        nonlocal making, most
        making += 1
        most = max(most, making)
        try:
            return await handle(*arguments)
        finally:
            making -= 1

    monkeypatch.setattr(DescribeProducersHandler, "handle", counted)
    async with running_node(tmp_path) as node, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client.connect(node)) for _ in range(5)]
        await clients[0].create_topic("t")
        await produce_as_many(clients[0], 50)
        wanted = {"topics": [{"name": "t", "partition_indexes": [0]}]}
        for answer in await asyncio.gather(*(client.call(61, 0, wanted) for client in clients)):
            assert len(answer.topics[0].partitions[0].active_producers) == 50
    assert most == 1


async def all_led(client: Client, count: int) -> None:
    """Wait until the broker leads this many partitions of "t"."""
    wanted = [("t", [FetchPartition(index, 0, 1) for index in range(count)])]
    while any(each.error_code for each in (await client.fetch_all(wanted)).topics[0][1]):
        pass


@pytest.mark.representatives(2)
@pytest.mark.parametrize("min_bytes", [0, 1, 10_000])
@pytest.mark.parametrize("topics", [["t"], ["unknown"]])
@pytest.mark.time_limit(60)
async def test_a_wide_fetch_yields_as_it_finds_reads_and_encodes_every_partition(
    tmp_path: Path, topics: list[str], min_bytes: int, taken: list[None]
) -> None:
    """And once more in each look when data has come, or the time is over."""
    wanted = [(topic, [FetchPartition(index, 0, 100_000) for index in INDEXES]) for topic in topics]
    async with running_node(tmp_path) as node, Client.connect(node) as client, Client.connect(node) as other:
        await client.create_topic("t", ELEMENTS)
        await all_led(client, ELEMENTS)
        is_waiting = topics == ["t"] and min_bytes > 0
        taken.clear()
        answer = asyncio.ensure_future(client.fetch_all(wanted, min_bytes=min_bytes, max_wait_ms=600_000))
        if is_waiting:
            await until(lambda: node.parked_fetches.held > 0)
            looks = 3 if min_bytes > 1 else 2
            await until(lambda: len(taken) >= looks * (ELEMENTS - 10))
            await other.produce("t", batch(b"x" * 20_000), partition=5)
        response = await answer
        assert [each.partition for _topic, found in response.topics for each in found] == INDEXES
        assert sum(len(each.records) > 0 for _topic, found in response.topics for each in found) == is_waiting
        assert len(taken) >= (looks + 2 if is_waiting else 3) * (ELEMENTS - 10)
        assert node.parked_fetches.held == 0


async def test_the_widest_of_too_many_waiting_fetches_is_answered_early(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as narrow, Client.connect(node) as wide:
        await narrow.create_topic("t", 1_000)
        await all_led(narrow, 1_000)
        node.parked_fetches.limit = 1_000_000
        forever = {"max_wait_ms": 2**31 - 1}
        waits_on = asyncio.ensure_future(narrow.fetch("t", 0, partition=999, **forever))
        await until(lambda: node.parked_fetches.held > 0)
        wanted = [[("t", [FetchPartition(index, 0, 1) for index in range(count)])] for count in (800, 900)]
        first = asyncio.ensure_future(wide.fetch_all(wanted[0], **forever))
        await until(lambda: node.parked_fetches.held > 500_000)
        async with Client.connect(node) as other:
            # It has more partitions than the one before it: both do not fit.
            response = await other.fetch_all(wanted[1], **forever)
        assert len(response.topics[0][1]) == 900
        assert not waits_on.done() and not first.done()
        for each in (waits_on, first):
            each.cancel()
    await until(lambda: node.parked_fetches.held == 0)


async def test_wide_fetches_and_produces_wait_for_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As every other request whose bytes become many objects."""
    admitted: list[int] = []
    admit = UnpackedRequests.admitted

    def noted(self: UnpackedRequests, frame_bytes: int) -> Any:
        admitted.append(frame_bytes)
        return admit(self, frame_bytes)

    monkeypatch.setattr(UnpackedRequests, "admitted", noted)
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        request = produce.ProduceRequest(None, 1, 10_000, [("t", [(index, None) for index in range(2_000)])])
        body = b"".join(produce.encode_produce_request(9, request))
        client.send(0, 9, body)
        await client.receive()
        assert len(admitted) == 1 and admitted[0] >= len(body)
        await client.fetch_all([("t", [FetchPartition(index, 0, 1) for index in range(2_000)])])
        assert len(admitted) == 2
