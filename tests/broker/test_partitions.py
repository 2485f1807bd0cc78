"""What is visible, and when, as the disk is fast, slow or broken."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TypeVar

import pytest

from einmal.broker.node import Node
from einmal.broker.replicas.partition import Partition
from einmal.log.disk import OsDisk
from einmal.types import ErrorCode, TopicPartition
from tests.broker.nodes import Client, batch, running_node, until

T = TypeVar("T")
FLUSH = {"log.flush.interval.messages": 1}
PLACE = TopicPartition("t", 0)


class GatedDisk(OsDisk):
    """Work in the background waits for ``gate``, then may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.fails = False
        self.works = 0

    async def in_background(self, work: Callable[[], T]) -> T:
        await self.gate.wait()
        self.works += 1
        if self.fails:
            raise OSError(5, "input/output error")
        return await super().in_background(work)


async def new_partition(node: Node, client: Client) -> Partition:
    await client.create_topic("t")
    partition = node.partitions.get(PLACE)
    assert partition is not None
    return partition


async def test_nothing_is_visible_or_acknowledged_before_it_is_flushed(tmp_path: Path) -> None:
    async with (
        running_node(tmp_path, FLUSH) as node,
        Client.connect(node) as writer,
        Client.connect(node) as reader,
    ):
        partition = await new_partition(node, writer)
        disk = partition._log.durability._disk = GatedDisk()
        disk.gate.clear()
        producing = asyncio.create_task(writer.produce("t", batch(b"a")))
        await until(lambda: partition.log_end_offset == 1)
        assert (await reader.fetch("t", 0)).high_watermark == 0
        assert not producing.done()
        fetching = asyncio.create_task(reader.fetch("t", 0, max_wait_ms=10_000))
        disk.gate.set()
        assert (await producing).error_code is ErrorCode.none
        assert (await fetching).high_watermark == 1


async def test_one_flush_covers_all_that_wait(tmp_path: Path) -> None:
    async with running_node(tmp_path, FLUSH) as node, Client.connect(node) as admin:
        partition = await new_partition(node, admin)
        disk = partition._log.durability._disk = GatedDisk()
        disk.gate.clear()
        results = [partition.append(bytearray(batch(b"a")), node.clock.now()) for _ in range(50)]
        waiting = [partition.when_committed(result.last_offset) for result in results]
        disk.gate.set()
        assert [await item for item in waiting] == [ErrorCode.none] * 50
        assert disk.works <= 2


async def test_a_flush_that_fails_is_a_storage_error_and_the_partition_goes_offline(tmp_path: Path) -> None:
    async with running_node(tmp_path, FLUSH) as node, Client.connect(node) as client:
        partition = await new_partition(node, client)

        def broken() -> None:
            raise OSError(5, "input/output error")

        partition._log.durability.sync = broken  # type: ignore[method-assign]
        assert (await client.produce("t", batch(b"a"))).error_code is ErrorCode.kafka_storage_error
        assert (await client.produce("t", batch(b"b"))).error_code is ErrorCode.kafka_storage_error
        assert partition.high_watermark == 0


async def test_a_produce_that_waits_too_long_times_out(tmp_path: Path) -> None:
    async with running_node(tmp_path, FLUSH) as node, Client.connect(node) as client:
        partition = await new_partition(node, client)
        disk = partition._log.durability._disk = GatedDisk()
        disk.gate.clear()
        from einmal.wire.messages import response_body_position
        from einmal.wire.produce import ProduceRequest, decode_produce_response, encode_produce_request

        request = ProduceRequest(None, -1, 100, [("t", [(0, batch(b"a"))])])
        client.send(0, 9, b"".join(encode_produce_request(9, request)))
        answer = await client.receive()
        late = decode_produce_response(9, answer, response_body_position(0, 9, answer)).topics[0][1][0]
        assert late.error_code is ErrorCode.request_timed_out
        disk.gate.set()
        assert (await client.produce("t", batch(b"b"))).base_offset == 1


async def test_a_closed_partition_answers_waiting_requests(tmp_path: Path) -> None:
    async with running_node(tmp_path, FLUSH) as node, Client.connect(node) as client:
        partition = await new_partition(node, client)
        disk = partition._log.durability._disk = GatedDisk()
        disk.gate.clear()
        result = partition.append(bytearray(batch(b"a")), node.clock.now())
        waiting = partition.when_committed(result.last_offset)
        partition.retire()
        assert await waiting is ErrorCode.not_leader_or_follower
        refused = partition.append(bytearray(batch(b"a")), node.clock.now())
        assert refused.error is ErrorCode.not_leader_or_follower
        disk.gate.set()


async def test_files_are_worked_on_by_one_at_a_time(tmp_path: Path) -> None:
    """A checkpoint, a flush and the closing of a log all touch its files."""
    async with running_node(tmp_path, FLUSH) as node, Client.connect(node) as client:
        partition = await new_partition(node, client)
        busy = threading.Lock()
        flush = partition._log.durability.flush_now

        def alone() -> None:
            assert busy.acquire(blocking=False)
            try:
                flush()
            finally:
                busy.release()

        partition._log.durability.flush_now = alone  # type: ignore[method-assign]
        for _ in range(20):
            partition.append(bytearray(batch(b"a")), node.clock.now())
            await asyncio.gather(partition.flushed(), partition.checkpoint(), partition.flushed())


async def test_directories_have_kafkas_names(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("a.b-c", partitions=2)
        await client.produce("a.b-c", batch(b"a"), partition=1)
    names = OsDisk().list_directory(PurePosixPath(tmp_path / "a.b-c-1"))
    assert {"00000000000000000000.log", "partition.metadata"} <= set(names)


async def test_clients_do_not_wait_while_the_files_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy disk took seconds to answer for one of them."""
    answers = threading.Event()
    asked = threading.Event()
    look = OsDisk.exists

    def exists(disk: OsDisk, path: PurePosixPath) -> bool:
        if path.name.endswith(".log"):
            asked.set()
            assert answers.wait(60)
        return look(disk, path)

    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        monkeypatch.setattr(OsDisk, "exists", exists)
        looking = asyncio.create_task(node.partitions.checkpoint())
        try:
            await until(asked.is_set)
            assert (await client.produce("t", batch(b"a"))).error_code == ErrorCode.none
            assert not looking.done()
        finally:
            answers.set()
        await looking


@pytest.mark.parametrize("disk_fails", [False, True])
async def test_a_topic_that_is_deleted_during_a_flush_is_no_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, disk_fails: bool
) -> None:
    """Neither the flush under way nor a look at the files that comes late takes the partition for a broken one."""
    async with running_node(tmp_path, FLUSH) as node, Client.connect(node) as client:
        partition = await new_partition(node, client)
        disk = partition._log.durability._disk = GatedDisk()
        disk.gate.clear()
        producing = asyncio.create_task(client.produce("t", batch(b"a")))
        await until(lambda: partition.log_end_offset == 1)
        node.partitions.delete("t", partition.topic_id)
        disk.fails = disk_fails
        disk.gate.set()
        await producing
        await until(lambda: not list(tmp_path.glob("**/t-0*")))
        partition.check_directory()
        await partition.checkpoint()
    assert [each.getMessage() for each in caplog.records if each.levelname == "ERROR"] == []
