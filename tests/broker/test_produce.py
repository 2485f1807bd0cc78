import asyncio
import struct
from pathlib import Path
from uuid import UUID

import pytest

from einmal.types import ErrorCode, ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tests.broker.nodes import Client, batch, running_node

PRODUCER = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(0))


@pytest.mark.parametrize("version", range(3, 14))
async def test_a_batch_is_appended_and_its_offset_answered(tmp_path: Path, version: int) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        topic = node.metadata.image.topics["t"].topic_id if version >= 13 else "t"
        first = await client.produce(topic, batch(b"a", b"b"), version=version)
        second = await client.produce(topic, batch(b"c"), version=version)
        assert (first.error_code, first.base_offset) == (ErrorCode.none, 0)
        assert (second.error_code, second.base_offset) == (ErrorCode.none, 2)


async def test_each_partition_is_decided_alone(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t", partitions=2)
        good = await client.produce("t", batch(b"a"), partition=1)
        missing = await client.produce("t", batch(b"a"), partition=2)
        nowhere = await client.produce("unknown", batch(b"a"))
        by_id = await client.produce(UUID(int=99), batch(b"a"), version=13)
        corrupt = await client.produce("t", batch(b"a")[:-1] + b"x")
        assert good.error_code is ErrorCode.none
        assert missing.error_code is ErrorCode.unknown_topic_or_partition
        assert nowhere.error_code is ErrorCode.unknown_topic_or_partition
        assert by_id.error_code is ErrorCode.unknown_topic_id
        assert corrupt.error_code is ErrorCode.corrupt_message


@pytest.mark.parametrize(
    ("records", "partition"),
    [(batch(b"a" * 2_000_000), 0), (batch(b"a")[:-1], 0), (batch(b"a"), 7)],
    ids=["too large", "cut off", "no such partition"],
)
async def test_a_batch_refused_under_acks_0_closes_the_connection(
    tmp_path: Path, records: bytes, partition: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.produce("t", records, acks=0, partition=partition)
    assert f"acks=0: t-{partition}: " in caplog.text


async def test_acks_0_is_written_and_not_answered(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.produce("t", batch(b"a"), acks=0), 0.1)
        second = client.send(18, 0, b"")
        assert struct.unpack_from(">i", await client.receive()) == (second,)
        fetched = await client.fetch("t", 0)
        assert fetched.high_watermark == 1


async def test_an_unknown_acks_is_refused(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        refused = await client.produce("t", batch(b"a"), acks=2)
        assert refused.error_code is ErrorCode.invalid_required_acks


async def test_a_topic_with_fewer_replicas_than_min_insync_replicas_takes_acks_all(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t", min_insync_replicas="2")
        assert (await client.produce("t", batch(b"a"))).error_code is ErrorCode.none


async def test_a_batch_behind_a_refused_one_is_refused_like_that_one_until_the_producer_begins_again(
    tmp_path: Path,
) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client, Client.connect(node) as other:

        async def produce(on: Client, sequence: int) -> tuple[ErrorCode, int]:
            answer = await on.produce("t", batch(b"a", producer=PRODUCER, sequence=sequence))
            return answer.error_code, answer.base_offset

        unknown = (ErrorCode.unknown_topic_or_partition, -1)
        assert await produce(client, 0) == unknown
        await other.create_topic("t")
        # Alone it would be taken: its producer is not known here.
        assert await produce(client, 1) == unknown
        assert await produce(client, 2) == unknown
        assert [await produce(client, sequence) for sequence in range(3)] == [
            (ErrorCode.none, offset) for offset in range(3)
        ]
        # It answers for what came on the same connection only.
        gap = (ErrorCode.out_of_order_sequence_number, -1)
        assert (await produce(client, 4), await produce(client, 5), await produce(other, 6)) == (gap, gap, gap)


async def test_only_coordinators_write_to_internal_topics(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await node.topic_creation.ensure("__consumer_offsets")
        refused = await client.produce("__consumer_offsets", batch(b"a"))
        assert refused.error_code is ErrorCode.invalid_topic_exception
        refused = await client.produce("__cluster_metadata", batch(b"a"))
        assert refused.error_code is not ErrorCode.none


async def test_a_repeated_batch_is_acknowledged_once_written(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        first = await client.produce("t", batch(b"a", producer=PRODUCER, sequence=0))
        again = await client.produce("t", batch(b"a", producer=PRODUCER, sequence=0))
        gap = await client.produce("t", batch(b"c", producer=PRODUCER, sequence=2))
        assert (again.error_code, again.base_offset) == (ErrorCode.none, first.base_offset)
        assert gap.error_code is ErrorCode.out_of_order_sequence_number
        assert (await client.fetch("t", 0)).high_watermark == 1


async def test_a_transactional_batch_that_no_coordinator_knows_is_refused(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        unsigned = batch(b"a", producer=PRODUCER, sequence=0, transactional=True)
        anonymous = await client.produce("t", unsigned, version=11)
        assert anonymous.error_code is ErrorCode.transactional_id_authorization_failed
        stranger = await client.produce("t", unsigned, version=11, name="stranger")
        assert stranger.error_code is not ErrorCode.none
        assert (await client.fetch("t", 0)).high_watermark == 0


async def test_a_topic_with_its_own_limit_refuses_larger_batches(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t", max_message_bytes="1000")
        assert (await client.produce("t", batch(bytes(900)))).error_code is ErrorCode.none
        assert (await client.produce("t", batch(bytes(1000)))).error_code is ErrorCode.message_too_large
