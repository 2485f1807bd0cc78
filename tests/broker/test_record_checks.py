"""A client's records are checked before they are written, and nobody else waits for it."""

import asyncio
import resource
from collections.abc import Hashable
from pathlib import Path

import pytest

from einmal.broker.replicas.batch_checks import Check
from einmal.types import ErrorCode, LeaderEpoch, ProducerEpoch, ProducerId, ProducerIdAndEpoch
from einmal.wire import produce
from einmal.wire.compression import Compression
from einmal.wire.messages import response_body_position
from einmal.wire.record_batch import NewRecord, encode_batch
from tests.broker.good_client import LATENCY_SECONDS_MAX, Good
from tests.broker.nodes import Client, batch, running_node
from tests.log.malformed import MALFORMED

PRODUCER = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(0))
MANY = 20_000
NOW = 1_700_000_000_000


@pytest.mark.parametrize("version", range(3, 13))
async def test_the_answer_names_the_records_at_fault(tmp_path: Path, version: int) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t", cleanup_policy="compact")
        records = [NewRecord(None if number == 1 else b"k", b"v", NOW) for number in range(3)]
        answer = await client.produce("t", encode_batch(records), version=version)
        assert answer.error_code is ErrorCode.invalid_record
        if version >= 8:
            assert [number for number, _text in answer.record_errors] == [1]
            assert answer.error_message is not None and "without a key" in answer.error_message
        assert (await client.fetch("t", 0)).high_watermark == 0


async def _answers(client: Client, count: int) -> list[produce.ProducedPartition]:
    found = []
    for _ in range(count):
        answer = await client.receive()
        position = response_body_position(0, 9, answer)
        found.append(produce.decode_produce_response(9, answer, position).topics[0][1][0])
    return found


def _send(client: Client, topic: str, data: bytes) -> None:
    request = produce.ProduceRequest(None, -1, 10_000, [(topic, [(0, data)])])
    client.send(0, 9, b"".join(produce.encode_produce_request(9, request)))


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
async def test_what_follows_a_long_batch_on_its_connection_is_written_after_it(
    tmp_path: Path, codec: Compression
) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        long = [b"long"] * MANY
        _send(client, "t", batch(b"first", producer=PRODUCER, sequence=0))
        _send(client, "t", batch(*long, producer=PRODUCER, sequence=1, compression=codec))
        _send(client, "t", batch(b"last", producer=PRODUCER, sequence=1 + MANY))
        answers = await _answers(client, 3)
        assert [answer.error_code for answer in answers] == [ErrorCode.none] * 3
        assert [answer.base_offset for answer in answers] == [0, 1, 1 + MANY]


async def test_a_long_batch_of_a_former_leader_epoch_is_refused(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        partition = next(each for each in node.partitions if each.topic_partition.topic == "t")
        run_check = node.batch_checks.run

        async def run_and_elect(check: Check, sender: Hashable) -> None:
            await run_check(check, sender)
            partition.leader_epoch = LeaderEpoch(partition.leader_epoch + 1)

        node.batch_checks.run = run_and_elect  # type: ignore[method-assign]
        answer = await client.produce("t", batch(*[b"v"] * MANY))
        assert answer.error_code is ErrorCode.not_leader_or_follower
        assert partition.log_end_offset == 0


async def test_decompression_bombs_stall_no_client_and_use_bounded_memory(tmp_path: Path) -> None:
    async with running_node(tmp_path, {"message.max.bytes": 10_000_000}) as node:
        bombs = 2 * [each.make(NOW) for each in MALFORMED if each.verdict is ErrorCode.message_too_large]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        other = Good(node)
        async with Client.connect(node) as bomber, Client.connect(node) as second, other.working():
            await bomber.create_topic("t")
            for client in (bomber, second):
                for data in bombs:
                    _send(client, "t", data)
            count = len(bombs)
            for answers in await asyncio.gather(_answers(bomber, count), _answers(second, count)):
                assert {answer.error_code for answer in answers} == {ErrorCode.message_too_large}
        assert other.slowest < LATENCY_SECONDS_MAX
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 250_000, "KB, with the test's own copies"


async def test_a_false_count_costs_nothing(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        lying = [each.make(NOW) for each in MALFORMED if "count 2^31-1" in each.name]
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for data in lying * 20:
            _send(client, "t", data)
        answers = await _answers(client, len(lying) * 20)
        assert {answer.error_code for answer in answers} == {ErrorCode.invalid_record}
        assert loop.time() - begun < 2.0
