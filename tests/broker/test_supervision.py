"""No task of a node ends because something went wrong in it, and one bad partition does not hold up the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from einmal.broker.control.broker_lifecycle import BrokerLifecycle
from einmal.broker.control.quorum_follower import MetadataFollower
from einmal.broker.control.quorum_runtime import QuorumRuntime
from einmal.broker.replicas.isr_updates import IsrUpdates
from einmal.broker.replicas.log_cleaner import LogCleaner
from einmal.broker.replicas.partition import Partition
from einmal.broker.replicas.partitions import Partitions
from einmal.broker.replicas.replica_fetcher import _Fetcher
from einmal.broker.resources.supervision import Supervisor
from einmal.log.durability import Durability
from einmal.log.partition_log import PartitionLog
from einmal.log.producer_state import AppendOrigin
from einmal.types import ErrorCode, TopicPartition
from tests.broker.nodes import Client, batch, running_node, until
from tests.broker.test_log_cleaner import COMPACTED, SETTINGS, keyed, partition_of, until_clean
from tests.broker.three_nodes import ThreeNodes
from tests.log.malformed import good, resealed
from tests.virtual_time import running_loop, virtual_time

FAILURES = 3
T = TopicPartition("t", 0)


class Injected(Exception):
    """A defect that nobody has thought of."""


class Fault:
    """A method that fails a few times, from when it is armed, and counts how often it is called after that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.left = 0
        self.successes = 0
        original: Callable[..., Any] = getattr(owner, name)

        def failing(*args: Any, **kwargs: Any) -> Any:
            if self.left > 0:
                self.left -= 1
                raise Injected(name)
            self.successes += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, failing)

    def arm(self) -> None:
        self.left, self.successes = FAILURES, 0


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (BrokerLifecycle, "_beat"),
        (IsrUpdates, "look_at_all"),
        (IsrUpdates, "_proposals"),
        (LogCleaner, "clean"),
        (MetadataFollower, "_fetch"),
        (Partition, "checkpoint"),
        (PartitionLog, "retain"),
        (Partitions, "retain"),
        (QuorumRuntime, "step"),
        (_Fetcher, "_carry_out"),
        (_Fetcher, "_settle_changes"),
    ],
)
@virtual_time
async def test_a_task_continues_after_a_failure(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    fault = Fault(monkeypatch, owner, name)
    cluster = ThreeNodes(log_cleaner_backoff_ms=500, log_retention_check_interval_ms=500)
    await cluster.start()
    await cluster.make_topic("t")
    leader = await cluster.led(T)
    fault.arm()

    def write() -> None:
        partition = cluster.nodes[leader].partitions.get(T)
        assert partition is not None
        assert partition.append(bytearray(batch(b"v")), cluster.clock.now()).error is ErrorCode.none

    write()
    partition = cluster.nodes[leader].partitions.get(T)
    assert partition is not None
    cluster.nodes[leader].isr_updates.look_at(partition)
    await cluster.until(lambda: fault.left == 0 and fault.successes > 0, 120)
    leader = await cluster.led(T)
    write()
    await cluster.until(
        lambda: all(
            (partition := node.partitions.get(T)) is not None and partition.high_watermark >= 2
            for node in cluster.nodes.values()
        ),
        120,
    )
    assert cluster.loop.reported and all("Injected" in failure for failure in cluster.loop.reported)
    cluster.loop.reported.clear()


async def test_a_partition_that_cannot_be_retained_does_not_keep_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    retained: list[str] = []

    def retain(log: PartitionLog, _now: Any) -> int:
        if log.topic_partition.topic == "bad":
            raise OSError(5, "I/O error")
        retained.append(log.topic_partition.topic)
        return 0

    async with running_node(tmp_path, {"log.retention.check.interval.ms": 20}) as node:
        async with Client.connect(node) as client:
            await client.create_topic("bad")
            await client.create_topic("good")
        monkeypatch.setattr(PartitionLog, "retain", retain)
        await until(lambda: retained.count("good") > 5)
    assert sum("retention of bad-0" in record.message for record in caplog.records) == 1, "said once, not five times"


async def test_a_poison_batch_leaves_its_log_uncleaned_and_the_others_clean(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_node(tmp_path, SETTINGS) as node, Client.connect(node) as client:
        await client.create_topic("bad", **COMPACTED)
        await client.create_topic("good", **COMPACTED)
        poison = bytearray(good(1, 1_700_000_000_000))
        poison[61:70] = b"\xff" * 9
        # As an earlier version of the broker has let it in.
        bad = partition_of(node, "bad")
        assert bad.append(resealed(poison, {}), node.clock.now(), AppendOrigin.COORDINATOR).error is ErrorCode.none
        for number in range(300):
            await client.produce("bad", keyed(f"key {number % 5}", f"value {number}"))
        await until(lambda: any("uncleanable" in record.message for record in caplog.records))
        for number in range(300):
            await client.produce("good", keyed(f"key {number % 5}", f"value {number}"))
        await until_clean(partition_of(node, "good"), 250)
        assert bad.cleaned_offset == 0
    assert sum("bad-0 is uncleanable" in record.message for record in caplog.records) == 1


async def test_requests_waiting_for_a_failed_flush_are_answered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[Any] = []
    async with running_node(tmp_path, {"log.flush.interval.messages": 1}) as node, Client.connect(node) as client:
        await client.create_topic("t")
        fault = Fault(monkeypatch, Durability, "flush_now")
        fault.left = 1
        monkeypatch.setattr(asyncio.get_running_loop(), "call_exception_handler", told.append)
        assert (await client.produce("t", batch(b"a"))).error_code is ErrorCode.kafka_storage_error
        assert (await client.produce("t", batch(b"b"))).error_code is ErrorCode.none
    assert len(told) == 1


@virtual_time
async def test_what_keeps_failing_is_tried_after_growing_pauses_and_said_once_a_minute() -> None:
    tries: list[float] = []

    async def fail() -> None:
        tries.append(asyncio.get_running_loop().time())
        raise Injected("always the same")

    task = Supervisor().run("the task", fail)
    await asyncio.sleep(600)
    task.cancel()
    pauses = [later - earlier for earlier, later in zip(tries, tries[1:], strict=False)]
    assert pauses[0] == pytest.approx(0.1) and max(pauses) == pytest.approx(30)
    reported = running_loop().reported
    assert 9 <= len(reported) <= 11
    reported.clear()


@virtual_time
async def test_a_task_that_returns_is_over() -> None:
    calls = []

    async def work() -> None:
        calls.append(1)

    await Supervisor().run("the task", work)
    assert calls == [1]


@virtual_time
async def test_what_a_disk_refuses_is_a_line_and_no_defect(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        raise OSError(28, "no space left on device")

    with caplog.at_level(logging.ERROR):
        assert not await Supervisor().attempt("the checkpoint", work)
    assert [record.message for record in caplog.records] == [
        "the checkpoint failed: OSError: [Errno 28] no space left on device"
    ]
