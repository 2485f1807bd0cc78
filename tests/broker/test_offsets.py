"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords, and descriptions of partitions, producers and log directories."""

from pathlib import Path
from typing import Any

import pytest

from einmal.log.producer_state import AppendOrigin
from einmal.types import ErrorCode, ProducerEpoch, ProducerId, ProducerIdAndEpoch
from einmal.wire.compression import Compression
from einmal.wire.record_batch import NewRecord, encode_batch
from tests.broker.good_client import LATENCY_SECONDS_MAX, Good
from tests.broker.nodes import Client, batch, running_node
from tests.log.malformed import good, resealed

LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH, DELETE_RECORDS = 2, 23, 21
DESCRIBE_CLUSTER, DESCRIBE_PRODUCERS, DESCRIBE_LOG_DIRS, DESCRIBE_TOPIC_PARTITIONS = 60, 61, 35, 75
TIMES = (1_000, 3_000, 2_000)


async def written_at(client: Client, times: tuple[int, ...]) -> None:
    await client.create_topic("t")
    for time in times:
        written = await client.produce("t", encode_batch([NewRecord(None, b"a", time)]))
        assert written.error_code is ErrorCode.none


async def offset_at(client: Client, timestamp: int, version: int = 11, **fields: Any) -> tuple[int, int]:
    partition = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
    topics = [{"name": "t", "partitions": [partition]}]
    answer = await client.call(LIST_OFFSETS, version, {"replica_id": -1, "topics": topics, "timeout": 1_000, **fields})
    found = answer.topics[0].partitions[0]
    assert found.error_code == ErrorCode.none
    return found.offset, found.timestamp


@pytest.mark.parametrize("version", range(1, 12))
async def test_offsets_are_found_by_time(tmp_path: Path, version: int) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await written_at(client, TIMES)
        assert await offset_at(client, -1, version) == (3, -1)
        assert await offset_at(client, -2, version) == (0, -1)
        assert await offset_at(client, 0, version) == (0, 1_000)
        assert await offset_at(client, 1_001, version) == (1, 3_000)
        assert await offset_at(client, 3_001, version) == (-1, -1)
        if version >= 7:
            assert await offset_at(client, -3, version) == (1, 3_000)
        if version >= 8:
            assert await offset_at(client, -4, version) == (0, -1)
        if version >= 9:
            assert await offset_at(client, -5, version) == (-1, -1)


@pytest.mark.parametrize("version", range(1, 12))
async def test_a_special_timestamp_that_a_version_does_not_have_is_refused(tmp_path: Path, version: int) -> None:
    first_versions = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11, -7: 12, -(2**63): 12}
    asked = [{"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1} for timestamp in first_versions]
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await written_at(client, TIMES)
        answer = await client.call(LIST_OFFSETS, version, {"topics": [{"name": "t", "partitions": asked}]})
    for first, found in zip(first_versions.values(), answer.topics[0].partitions, strict=True):
        expected = ErrorCode.none if version >= first else ErrorCode.unsupported_version
        assert found.error_code == expected, first
        if expected:
            assert found.offset == -1


async def test_a_batch_that_cannot_be_read_is_an_error_of_its_partition(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await written_at(client, (1_000,))
        partition = next(iter(node.partitions))
        poison = bytearray(good(1, 2_000))
        poison[61:70] = b"\xff" * 9
        appended = partition.append(resealed(poison, {}), node.clock.now(), AppendOrigin.COORDINATOR)
        assert appended.error is ErrorCode.none
        asked = {"partition_index": 0, "timestamp": 1_500, "current_leader_epoch": -1}
        topics = [{"name": "t", "partitions": [asked, {**asked, "timestamp": 1_000}]}]
        answer = await client.call(LIST_OFFSETS, 9, {"replica_id": -1, "topics": topics, "isolation_level": 0})
        bad, well = answer.topics[0].partitions
        assert bad.error_code == ErrorCode.corrupt_message
        assert (well.error_code, well.offset) == (ErrorCode.none, 0)


async def test_a_batch_of_very_many_records_is_searched_while_others_are_served(tmp_path: Path) -> None:
    count = 300_000
    records = [NewRecord(None, None, 1_000)] * (count - 1) + [NewRecord(None, None, 2_000)]
    data = encode_batch(records, compression=Compression.ZSTD)
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        assert (await client.produce("t", data)).error_code is ErrorCode.none
        other = Good(node)
        async with other.working():
            assert await offset_at(client, 1_500) == (count - 1, 2_000)
        assert other.slowest < LATENCY_SECONDS_MAX


async def test_what_an_open_transaction_hides_is_not_found_by_readers_of_committed_data(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await written_at(client, (1_000,))
        partition = next(iter(node.partitions))
        producer = ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(0))
        guard = partition.producers.begin_verification(producer, 0, 2)  # type: ignore[arg-type]
        open_batch = batch(b"open", producer=producer, sequence=0, transactional=True)
        assert partition.append(bytearray(open_batch), node.clock.now(), verification=guard).error == 0
        assert await offset_at(client, -1, isolation_level=0) == (2, -1)
        assert await offset_at(client, -1, isolation_level=1) == (1, -1)
        assert (await offset_at(client, 1_001, isolation_level=0))[0] == 1
        assert await offset_at(client, 1_001, isolation_level=1) == (-1, -1)
        fetched = await client.fetch("t", 0, isolation_level=1)
        assert (fetched.last_stable_offset, fetched.high_watermark) == (1, 2)
        assert fetched.aborted_transactions == []
        partition.append_marker(
            producer,
            node.clock.now(),
            committed=False,
            coordinator_epoch=0,
            transaction_version=1,  # type: ignore[arg-type]
        )
        # The marker, years younger than its batch, begins another segment; the reader must see the abort all the same.
        fetched = await client.fetch("t", 1, isolation_level=1)
        assert fetched.last_stable_offset == 3
        assert [tuple(item) for item in fetched.aborted_transactions or ()] == [(1, 1)]
        after = await client.fetch("t", 3, isolation_level=1)
        assert after.aborted_transactions == []

        answer = await client.call(DESCRIBE_PRODUCERS, 0, {"topics": [{"name": "t", "partition_indexes": [0, 7]}]})
        known, unknown = answer.topics[0].partitions
        assert unknown.error_code == ErrorCode.unknown_topic_or_partition
        told = known.active_producers[0]
        assert (told.producer_id, told.last_sequence, told.current_txn_start_offset) == (1, 0, -1)


async def test_an_epoch_ends_where_the_next_one_begins(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await written_at(client, TIMES)
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.produce("t", batch(b"b"))

        async def end_of(epoch: int, current: int = -1) -> tuple[ErrorCode, int, int]:
            asked = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
            topics = [{"topic": "t", "partitions": [asked]}]
            answer = await client.call(OFFSET_FOR_LEADER_EPOCH, 4, {"replica_id": -1, "topics": topics})
            found = answer.topics[0].partitions[0]
            return found.error_code, found.leader_epoch, found.end_offset

        assert await end_of(0) == (ErrorCode.none, 0, 3)
        # Nobody leads while the broker is away: that is an epoch, too.
        assert await end_of(1) == (ErrorCode.none, 0, 3)
        assert await end_of(2) == (ErrorCode.none, 2, 4)
        assert await end_of(3) == (ErrorCode.none, -1, -1)
        assert await end_of(0, current=0) == (ErrorCode.fenced_leader_epoch, -1, -1)


async def test_deleted_records_are_gone_and_their_offsets_stay_used(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await written_at(client, TIMES)

        async def delete(offset: int) -> tuple[ErrorCode, int]:
            topics = [{"name": "t", "partitions": [{"partition_index": 0, "offset": offset}]}]
            answer = await client.call(DELETE_RECORDS, 2, {"topics": topics, "timeout": 1_000})
            result = answer.topics[0].partitions[0]
            return result.error_code, result.low_watermark

        assert await delete(2) == (ErrorCode.none, 2)
        assert await delete(1) == (ErrorCode.none, 2)
        assert await delete(4) == (ErrorCode.offset_out_of_range, -1)
        assert (await client.fetch("t", 1)).error_code is ErrorCode.offset_out_of_range
        assert await offset_at(client, -2) == (2, -1)
        assert await delete(-1) == (ErrorCode.none, 3)
        assert (await client.produce("t", batch(b"a"))).base_offset == 3


@pytest.mark.parametrize(
    "policy, refusal",
    [("compact", ErrorCode.policy_violation), ("compact,delete", ErrorCode.none), ("", ErrorCode.none)],
)
async def test_the_last_values_of_a_topic_that_is_only_compacted_cannot_be_deleted(
    tmp_path: Path, policy: str, refusal: ErrorCode
) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t", cleanup_policy=policy)
        await client.produce("t", encode_batch([NewRecord(b"k", b"a", 1_700_000_000_000)]))
        topics = [{"name": "t", "partitions": [{"partition_index": 0, "offset": -1}]}]
        answer = await client.call(DELETE_RECORDS, 2, {"topics": topics, "timeout": 1_000})
        assert answer.topics[0].partitions[0].error_code is refusal
        assert (await offset_at(client, -2))[0] == (0 if refusal else 1)


async def test_describe_apis_return_the_cluster_its_log_dirs_and_partitions(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("a", partitions=3)
        await client.create_topic("b")
        await client.produce("b", batch(bytes(100)))
        cluster = await client.call(DESCRIBE_CLUSTER, 2, {"endpoint_type": 1})
        assert (cluster.cluster_id, cluster.controller_id) == (node.identity.cluster_id, 1)
        assert [(item.broker_id, item.port) for item in cluster.brokers] == [(1, node.port)]
        controllers = await client.call(DESCRIBE_CLUSTER, 2, {"endpoint_type": 2})
        assert controllers.error_code == ErrorCode.mismatched_endpoint_type

        folders = await client.call(DESCRIBE_LOG_DIRS, 4, {"topics": None})
        assert [topic.name for topic in folders.results[0].topics] == ["a", "b"]
        assert folders.results[0].topics[1].partitions[0].partition_size > 100
        wanted = [{"topic": "a", "partitions": [1]}]
        one = await client.call(DESCRIBE_LOG_DIRS, 4, {"topics": wanted})
        assert [item.partition_index for item in one.results[0].topics[0].partitions] == [1]

        fields: dict[str, Any] = {"topics": [], "response_partition_limit": 2, "cursor": None}
        seen = []
        while True:
            page = await client.call(DESCRIBE_TOPIC_PARTITIONS, 0, fields)
            seen += [(topic.name, item.partition_index) for topic in page.topics for item in topic.partitions]
            if page.next_cursor is None:
                break
            cursor = page.next_cursor
            fields["cursor"] = {"topic_name": cursor.topic_name, "partition_index": cursor.partition_index}
        assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0)]


@pytest.mark.parametrize("level", [0, 1, 2])
async def test_the_transaction_version_is_reported_as_configured(tmp_path: Path, level: int) -> None:
    async with running_node(tmp_path, {"transaction.version": level}) as node, Client.connect(node) as client:
        answer = await client.call(18, 4, {"client_software_name": "a", "client_software_version": "1"})
        told = {item.name: item.max_version_level for item in answer.finalized_features}
        assert told.get("transaction.version", 0) == level
        supported = {item.name: item.max_version for item in answer.supported_features}
        assert supported["transaction.version"] == 2
        assert await client.call(18, 3, {"client_software_name": "a", "client_software_version": "1"})
    async with running_node(tmp_path, {"transaction.version": 2}) as node:
        assert node.metadata.image.features["transaction.version"] == 2
