"""The broker cleans the logs of compacted topics by itself, while they are written and read."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest

from einmal.broker.config import ConfigError, broker_config
from einmal.broker.node import Node
from einmal.broker.replicas.log_cleaner import FILE_NAME, encode_offsets
from einmal.broker.replicas.partition import Partition
from einmal.groups.records import CommittedOffset, OffsetRecord, encode
from einmal.log.producer_state import AppendOrigin
from einmal.metadata.image import CONSUMER_OFFSETS
from einmal.types import ErrorCode, Offset, TopicPartition
from einmal.wire.record_batch import NewRecord, Record, decode_records, encode_batch, iter_headers
from tests.broker.nodes import Client, running_node, until
from tests.suite.patience import patient

SETTINGS: Final = {"log.cleaner.backoff.ms": 10, "num.partitions": 1, "offsets.topic.num.partitions": 1}
COMPACTED: Final[dict[str, Any]] = {
    "cleanup_policy": "compact",
    "internal_segment_bytes": "2000",
    "min_cleanable_dirty_ratio": "0.1",
}


def keyed(key: str, value: str | None, **options: Any) -> bytes:
    data = None if value is None else value.encode()
    return encode_batch([NewRecord(key.encode(), data, 1_700_000_000_000)], **options)


def partition_of(node: Node, topic: str) -> Partition:
    partition = node.partitions.get(TopicPartition(topic, 0))
    assert partition is not None
    return partition


async def until_clean(partition: Partition, offset: int) -> None:
    """Wait until the log is clean up to an offset."""
    await until(lambda: partition.cleaned_offset >= offset)


async def read_all(client: Client, topic: str) -> list[Record]:
    found: list[Record] = []
    offset = 0
    while True:
        data = (await client.fetch(topic, offset)).records
        headers = list(iter_headers(data))
        if not headers:
            return found
        for position, header in headers:
            found += decode_records(data, position, header)
            offset = header.next_offset


async def test_a_compacted_topic_is_cleaned_and_stays_clean_over_a_restart(tmp_path: Path) -> None:
    async with running_node(tmp_path, SETTINGS) as node, Client.connect(node) as client:
        await client.create_topic("t", **COMPACTED)
        for number in range(300):
            await client.produce("t", keyed(f"key {number % 5}", f"value {number}"))
        partition = partition_of(node, "t")
        await until_clean(partition, 250)
        # Nothing moves any more while it is read and until it is closed.
        await until(lambda: partition.cleanable(node.clock.now()).dirty_bytes == 0)
        records = await read_all(client, "t")
        assert len(records) < 60
        last = {record.key: record.value for record in records}
        assert last == {b"key %d" % (number % 5): b"value %d" % number for number in range(295, 300)}
        assert partition.log_start_offset == 0
        await until((tmp_path / FILE_NAME).exists)
    async with running_node(tmp_path, {"log.cleaner.enable": "false"}) as node, Client.connect(node) as client:
        assert await read_all(client, "t") == records
        assert partition_of(node, "t").cleaned_offset >= 250


async def test_a_topic_that_is_not_compacted_is_left_alone(tmp_path: Path) -> None:
    async with running_node(tmp_path, SETTINGS) as node, Client.connect(node) as client:
        await client.create_topic("t", internal_segment_bytes="2000")
        await client.create_topic("compacted", **COMPACTED)
        for number in range(200):
            await client.produce("t", keyed("key", str(number)))
            await client.produce("compacted", keyed("key", str(number)))
        await until_clean(partition_of(node, "compacted"), 100)
        assert len(await read_all(client, "t")) == 200


@pytest.mark.long
@pytest.mark.time_limit(120)
async def test_writing_reading_and_checkpoints_continue_while_a_log_is_cleaned(tmp_path: Path) -> None:
    settings = {**SETTINGS, "log.cleaner.backoff.ms": 1, "log.flush.interval.messages": 1}
    async with running_node(tmp_path, settings) as node, Client.connect(node) as client:
        await client.create_topic("t", **COMPACTED)
        partition = partition_of(node, "t")
        done = False

        async def check_point() -> None:
            while not done:
                partition._log.durability.marks_moved()
                await partition.checkpoint()
                await asyncio.sleep(0.003)

        async def reader() -> None:
            async with Client.connect(node) as other:
                while not done:
                    records = await read_all(other, "t")
                    offsets = [record.offset for record in records]
                    assert offsets == sorted(set(offsets))
                    assert all(record.value == b"%d" % record.offset for record in records)

        tasks = [asyncio.create_task(check_point()), asyncio.create_task(reader())]
        for number in range(600):
            answer = await client.produce("t", keyed(f"key {number % 7}", str(number)))
            assert (answer.error_code, answer.base_offset) == (0, number)
        await until_clean(partition, 500)
        done = True
        await asyncio.gather(*tasks)
        assert {record.value for record in await read_all(client, "t")} >= {b"%d" % n for n in range(593, 600)}


async def test_a_topic_may_be_deleted_and_made_again_while_it_is_cleaned(tmp_path: Path) -> None:
    settings = {**SETTINGS, "log.cleaner.backoff.ms": 1}
    async with running_node(tmp_path, settings) as node, Client.connect(node) as client:
        for life in range(5):
            await client.create_topic("t", **COMPACTED)
            for number in range(150):
                await client.produce("t", keyed(f"key {number % 5}", f"{life} {number}"))
            records = await read_all(client, "t")
            assert {record.value for record in records} >= {b"%d %d" % (life, n) for n in range(145, 150)}
            assert all((record.value or b"").startswith(b"%d " % life) for record in records)
            await client.call(20, 6, {"topics": [{"name": "t", "topic_id": None}], "timeout_ms": 5_000})


async def test_a_coordinator_has_to_load_what_is_alive_and_one_segment(tmp_path: Path) -> None:
    commits, alive, segment_bytes = 20_000, 40, 20_000
    settings = {**SETTINGS, "offsets.topic.segment.bytes": segment_bytes}
    async with running_node(tmp_path, settings) as node, Client.connect(node) as client:
        await client.call(10, 3, {"key": "group", "key_type": 0})
        await until(lambda: node.partitions.get(TopicPartition(CONSUMER_OFFSETS, 0)) is not None)
        partition = partition_of(node, CONSUMER_OFFSETS)
        now = node.clock.now()
        for first in range(0, commits, 10):
            commit = [
                NewRecord(*encode(OffsetRecord("group", "t", number % alive, offset_of(number))), now.wall_ms)
                for number in range(first, first + 10)
            ]
            result = partition.append(bytearray(encode_batch(commit)), now, AppendOrigin.COORDINATOR)
            assert result.error is ErrorCode.none
        await client.create_topic("t", alive)
        active = partition._log.segments.active
        await until_clean(partition, active.base_offset)
        to_load = partition.log_size
        assert to_load < segment_bytes + alive * 100
    async with running_node(tmp_path, settings) as node, Client.connect(node) as client:
        request = {
            "group_id": "group",
            "topics": [{"name": "t", "partition_indexes": list(range(alive))}],
            "require_stable": False,
        }

        async def fetched() -> Any:
            while True:
                answer = await client.call(9, 7, request)
                if answer.error_code != ErrorCode.coordinator_load_in_progress:
                    return answer

        answer = await asyncio.wait_for(fetched(), patient(10))
        offsets = {each.partition_index: each.committed_offset for each in answer.topics[0].partitions}
        assert offsets == {number % alive: number for number in range(commits - alive, commits)}


def offset_of(number: int) -> CommittedOffset:
    return CommittedOffset(number, -1, "", 1_700_000_000_000)


async def test_a_node_stops_at_once_while_it_cleans(tmp_path: Path) -> None:
    async with running_node(tmp_path, SETTINGS) as node, Client.connect(node) as client:
        await client.create_topic("t", **{**COMPACTED, "internal_segment_bytes": "1000000"})
        batch = encode_batch([NewRecord(b"%d" % n, bytes(500), 1_700_000_000_000) for n in range(1_000)])
        for _ in range(30):
            await client.produce("t", batch)
    left = [path.name for path in (tmp_path / "t-0").iterdir()]
    async with running_node(tmp_path, SETTINGS) as node, Client.connect(node) as client:
        await until_clean(partition_of(node, "t"), 20_000)
        assert {record.key for record in await read_all(client, "t")} == {b"%d" % n for n in range(1_000)}
    assert not [name for name in left if name.endswith((".swap", ".deleted"))]


def test_the_file_for_others_is_in_apache_kafkas_format() -> None:
    offsets = {TopicPartition("a", 0): Offset(7), TopicPartition("__consumer_offsets", 12): Offset(1 << 40)}
    assert encode_offsets(offsets) == b"0\n2\na 0 7\n__consumer_offsets 12 1099511627776\n"


async def test_a_topics_settings_fall_back_to_the_brokers(tmp_path: Path) -> None:
    settings = {**SETTINGS, "log.cleaner.delete.retention.ms": 5, "log.cleaner.min.cleanable.ratio": 0.25}
    async with running_node(tmp_path, settings) as node, Client.connect(node) as client:
        await client.create_topic("t", cleanup_policy="compact", max_compaction_lag_ms="7000")
        config = partition_of(node, "t").config
        assert (config.delete_retention_ms, config.min_cleanable_dirty_ratio) == (5, 0.25)
        assert (config.max_compaction_lag_ms, config.segment_ms) == (7_000, 7_000)


@pytest.mark.parametrize("ratio", ["1.5", "-0.1", "half"])
def test_a_ratio_is_between_0_and_1(ratio: str) -> None:
    with pytest.raises(ConfigError, match="between 0 and 1"):
        broker_config({"log.cleaner.min.cleanable.ratio": ratio})
