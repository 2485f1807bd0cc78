"""Handlers work through a wide request in turns with other clients' requests, element by element."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from einmal.broker.resources import turns as turns_module
from einmal.broker.resources.turns import Turns
from tests.broker.nodes import Client, running_node

ELEMENTS = 3_000
INDEXES = list(range(ELEMENTS))
_PARTITIONS = [{"partition_index": index} for index in INDEXES]
_COMMITTED = [{"partition_index": index, "committed_offset": 1} for index in INDEXES]

WIDE: Mapping[str, tuple[int, int, Mapping[str, Any]]] = {
    "AlterConfigs": (33, 2, {"resources": [{"resource_type": 4, "resource_name": "1"}] * ELEMENTS}),
    "AlterPartitionReassignments": (45, 0, {"topics": [{"name": "t", "partitions": _PARTITIONS}]}),
    "AlterReplicaLogDirs": (34, 2, {"dirs": [{"path": "/x", "topics": [{"name": "t", "partitions": INDEXES}]}]}),
    "DescribeQuorum": (55, 2, {"topics": [{"topic_name": "t", "partitions": _PARTITIONS}]}),
    "DescribeTopicPartitions": (75, 0, {"topics": [{"name": f"n{index}"} for index in INDEXES]}),
    "ElectLeaders": (43, 2, {"topic_partitions": [{"topic": "t", "partitions": INDEXES}]}),
    "IncrementalAlterConfigs": (44, 1, {"resources": [{"resource_type": 4, "resource_name": "1"}] * ELEMENTS}),
    "ListPartitionReassignments": (46, 0, {"topics": [{"name": "t", "partition_indexes": INDEXES}]}),
    "OffsetCommit": (8, 8, {"group_id": "g", "topics": [{"name": "t", "partitions": _COMMITTED}]}),
    "OffsetDelete": (47, 0, {"group_id": "g", "topics": [{"name": "t", "partitions": _PARTITIONS}]}),
    "OffsetFetch": (9, 8, {"groups": [{"group_id": "g", "topics": [{"name": "t", "partition_indexes": INDEXES}]}]}),
    "TxnOffsetCommit": (
        28,
        3,
        {
            "transactional_id": "id",
            "group_id": "g",
            "producer_id": 1,
            "topics": [{"name": "t", "partitions": _COMMITTED}],
        },
    ),
}


@pytest.mark.parametrize("name", WIDE)
@pytest.mark.time_limit(60)
async def test_a_wide_request_yields_at_every_element(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns_module, "FIRST_SLICE_MS", 0)
    monkeypatch.setattr(turns_module, "SLICE_MS", 0)
    taken = 0
    wait = Turns.next

    async def counted(self: Turns) -> None:
        nonlocal taken
        taken += 1
        await wait(self)

    monkeypatch.setattr(Turns, "next", counted)
    api_key, version, fields = WIDE[name]
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        before = taken
        await client.call(api_key, version, fields)
        assert taken - before >= ELEMENTS - 10
