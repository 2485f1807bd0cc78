import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from einmal.types import (
    ErrorCode,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)
from einmal.wire.fetch import FetchPartition
from einmal.wire.record_batch import iter_headers
from tests.broker.nodes import Client, batch, running_node, until_watched
from tests.suite.patience import patient


def offsets(records: object) -> list[int]:
    return [header.base_offset for _position, header in iter_headers(bytes(records))]  # type: ignore[call-overload]


@pytest.mark.parametrize("version", range(4, 19))
async def test_records_come_back_as_they_were_written(tmp_path: Path, version: int) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        written = batch(b"a", b"b")
        await client.produce("t", written)
        topic = node.metadata.image.topics["t"].topic_id if version >= 13 else "t"
        fetched = await client.fetch(topic, 0, version=version)
        assert fetched.error_code is ErrorCode.none
        assert (fetched.high_watermark, fetched.last_stable_offset) == (2, 2)
        assert bytes(fetched.records)[16:] == written[16:]
        assert fetched.aborted_transactions is None


async def test_a_fetch_waits_until_there_is_something(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as reader, Client.connect(node) as writer:
        await writer.create_topic("t")
        fetching = asyncio.create_task(reader.fetch("t", 0, max_wait_ms=1_000_000))
        await until_watched(node, "t")
        assert not fetching.done()
        await writer.produce("t", batch(b"a"))
        assert offsets((await asyncio.wait_for(fetching, patient(2))).records) == [0]


async def test_a_transaction_that_was_open_before_the_fetch_counts_when_it_is_committed(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as reader:
        await reader.create_topic("t")
        partition = node.partitions.get(TopicPartition("t", 0))
        assert partition is not None
        who = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(0))
        written = batch(bytes(300), producer=who, sequence=0, transactional=True)
        assert partition.append(bytearray(written), node.clock.now()).error is ErrorCode.none
        fetching = asyncio.create_task(reader.fetch("t", 0, max_wait_ms=1_000_000, min_bytes=100, isolation_level=1))
        await until_watched(node, "t")
        assert not fetching.done()
        partition.append_marker(
            who,
            node.clock.now(),
            committed=True,
            coordinator_epoch=0,
            transaction_version=TransactionVersion.TV_0,
        )
        assert offsets((await asyncio.wait_for(fetching, patient(5))).records)[0] == 0


async def test_a_fetch_waits_for_min_bytes_and_no_longer_than_max_wait(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as reader, Client.connect(node) as writer:
        await writer.create_topic("t")
        loop = asyncio.get_running_loop()
        fetching = asyncio.create_task(reader.fetch("t", 0, max_wait_ms=1_000_000, min_bytes=1_000))
        for _ in range(3):
            await writer.produce("t", batch(bytes(300)))
        assert offsets((await asyncio.wait_for(fetching, patient(20))).records) == [0, 1, 2]
        start = loop.time()
        assert offsets((await reader.fetch("t", 0, max_wait_ms=100, min_bytes=100_000)).records) == [0, 1, 2]
        assert loop.time() - start >= 0.09


@pytest.mark.parametrize("min_bytes", [2_600, 100_000, 2**31 - 1])
async def test_a_fetch_waits_for_no_more_than_its_answer_may_have(tmp_path: Path, min_bytes: int) -> None:
    """It waited for all of max_wait_ms, with records of more than max_bytes there."""
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        for _ in range(5):
            await client.produce("t", batch(bytes(1_000)))
        wanted = [("t", [FetchPartition(0, 0, 1_000_000)])]
        response = await asyncio.wait_for(
            client.fetch_all(wanted, max_bytes=2_600, min_bytes=min_bytes, max_wait_ms=2**31 - 1), patient(20)
        )
        assert offsets(response.topics[0][1][0].records) == [0, 1]


async def test_a_fetch_from_an_old_segment_does_not_wait_for_what_follows_it(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t", internal_segment_bytes="2600")
        for _ in range(5):
            await client.produce("t", batch(bytes(1_000)))
        fetching = client.fetch("t", 0, min_bytes=4_000, max_wait_ms=2**31 - 1)
        assert offsets((await asyncio.wait_for(fetching, patient(20))).records) == [0, 1]


async def test_a_fetch_that_waits_does_not_read_again_what_is_not_enough(tmp_path: Path) -> None:
    """What a transaction held back, and ended, had everything read again with each append from then on."""
    async with running_node(tmp_path) as node, Client.connect(node) as reader:
        await reader.create_topic("t", segment_ms=str(2**62))
        partition = node.partitions.get(TopicPartition("t", 0))
        assert partition is not None
        who = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(0))
        written = batch(bytes(300), producer=who, sequence=0, transactional=True)
        assert partition.append(bytearray(written), node.clock.now()).error is ErrorCode.none
        reads = 0
        read = partition.read

        def count(*arguments: Any, **options: Any) -> bytes:
            nonlocal reads
            reads += 1
            return read(*arguments, **options)

        partition.read = count  # type: ignore[method-assign]
        fetching = asyncio.create_task(reader.fetch("t", 0, max_wait_ms=1_000_000, min_bytes=10_000, isolation_level=1))
        await until_watched(node, "t")
        partition.append_marker(
            who, node.clock.now(), committed=True, coordinator_epoch=0, transaction_version=TransactionVersion.TV_0
        )
        while not fetching.done():
            partition.append(bytearray(batch(bytes(300))), node.clock.now())
            await asyncio.sleep(0)
        assert len(bytes((await fetching).records)) >= 10_000
        assert reads <= 3


async def test_limits_hold_except_for_the_first_batch(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t", partitions=2)
        for partition in (0, 1):
            for _ in range(5):
                await client.produce("t", batch(bytes(1_000)), partition=partition)
        wanted = [("t", [FetchPartition(0, 0, 10), FetchPartition(1, 0, 10)])]
        both = (await client.fetch_all(wanted)).topics[0][1]
        assert [offsets(item.records) for item in both] == [[0], []]
        wanted = [("t", [FetchPartition(0, 1, 2_500), FetchPartition(1, 0, 100_000)])]
        both = (await client.fetch_all(wanted, max_bytes=5_000)).topics[0][1]
        assert [offsets(item.records) for item in both] == [[1, 2], [0, 1]]


async def test_an_offset_that_the_log_does_not_have_is_out_of_range(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        await client.produce("t", batch(b"a"))
        assert (await client.fetch("t", 2, max_wait_ms=5_000)).error_code is ErrorCode.offset_out_of_range
        assert (await client.fetch("t", -1)).error_code is ErrorCode.offset_out_of_range
        at_end = await client.fetch("t", 1)
        assert (at_end.error_code, bytes(at_end.records)) == (ErrorCode.none, b"")


async def test_unknown_partitions_and_topic_ids_are_answered_at_once(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        unknown = await client.fetch("t", 0, max_wait_ms=1_000_000)
        assert unknown.error_code is ErrorCode.unknown_topic_or_partition
        unknown = await client.fetch(UUID(int=7), 0, version=13, max_wait_ms=1_000_000)
        assert unknown.error_code is ErrorCode.unknown_topic_id


async def test_leader_epochs_are_compared(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        epoch = node.metadata.image.topics["t"].partitions[0].leader_epoch
        assert epoch > 0, "a restart begins a new leader epoch"

        async def code(current: int) -> ErrorCode:
            wanted = [("t", [FetchPartition(0, 0, 1_000, current)])]
            return (await client.fetch_all(wanted)).topics[0][1][0].error_code

        assert await code(-1) is ErrorCode.none
        assert await code(epoch) is ErrorCode.none
        assert await code(epoch - 1) is ErrorCode.fenced_leader_epoch
        assert await code(epoch + 1) is ErrorCode.unknown_leader_epoch


async def test_a_deleted_topic_ends_the_wait_of_its_readers(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as reader, Client.connect(node) as other:
        await other.create_topic("t")
        fetching = asyncio.create_task(reader.fetch("t", 0, max_wait_ms=1_000_000))
        await until_watched(node, "t")
        await other.call(20, 6, {"topics": [{"name": "t"}], "timeout": 1_000})
        fetched = await asyncio.wait_for(fetching, patient(2))
        assert fetched.error_code is ErrorCode.not_leader_or_follower


async def test_a_session_answers_only_what_is_new(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t", partitions=3)
        wanted = [("t", [FetchPartition(index, 0, 10_000) for index in range(3)])]
        full = await client.fetch_all(wanted, session_epoch=0)
        assert full.session_id > 0
        assert len(full.topics[0][1]) == 3
        nothing = await client.fetch_all([], session_id=full.session_id, session_epoch=1)
        assert nothing.topics == []
        await client.produce("t", batch(b"a"), partition=2)
        some = await client.fetch_all([], session_id=full.session_id, session_epoch=2)
        assert [item.partition for item in some.topics[0][1]] == [2]
        moved = [("t", [FetchPartition(2, 1, 10_000)])]
        rest = await client.fetch_all(moved, session_id=full.session_id, session_epoch=3)
        assert rest.topics == []
        again = await client.fetch_all([], session_id=full.session_id, session_epoch=3)
        assert again.error_code is ErrorCode.invalid_fetch_session_epoch
        lost = await client.fetch_all([], session_id=full.session_id + 1, session_epoch=1)
        assert lost.error_code is ErrorCode.fetch_session_id_not_found


async def test_a_diverging_reader_gets_the_diverging_epoch(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        await client.produce("t", batch(b"a"))
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.produce("t", batch(b"b"))
        wanted = [("t", [FetchPartition(0, 2, 1_000, -1, 0)])]
        parted = (await client.fetch_all(wanted)).topics[0][1][0]
        assert parted.diverging_epoch is not None
        assert tuple(parted.diverging_epoch) == (0, 1)


async def test_a_reader_of_an_epoch_that_never_was_is_out_of_range(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        await client.produce("t", batch(b"a"))
        for offset in (0, 1, 7):
            wanted = [("t", [FetchPartition(0, offset, 1_000, -1, 5)])]
            parted = (await client.fetch_all(wanted)).topics[0][1][0]
            assert (parted.error_code, parted.diverging_epoch) == (ErrorCode.offset_out_of_range, None)
