"""What the simulation has found, each as a scenario of its own: seeds change their meaning, these do not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from einmal.client.aio import Producer
from einmal.client.descriptions import NewTopic
from einmal.client.errors import UnknownOutcome
from einmal.log.compaction import CleanedSegment, Cleaning
from einmal.log.durability import Durability
from einmal.simulation.disk import RELIABLE
from einmal.simulation.invariants import StoredRecord, last_values
from einmal.simulation.network import QUIET
from einmal.simulation.profile import Crash, cluster_profile_of, profile_of
from einmal.simulation.run import simulate
from einmal.simulation.world import World, name_of
from einmal.types import TopicPartition
from einmal.wire.control_batch import ABORT, COMMIT
from einmal.workloads.process import Process

Scenario = Callable[[World, Process], Coroutine[Any, Any, None]]
_TOPIC = TopicPartition("t", 0)


def _run(scenario: Scenario, *, flush_each: bool = False) -> World:
    profile = replace(
        profile_of(0), transaction_version=2, flush_each=flush_each, network=QUIET, disk=RELIABLE, crash=Crash.KILL
    )
    world = World(profile)

    async def main() -> None:
        await world.start()
        process, host = world.process("client")
        admin = process.admin()
        await world.run_on(host, admin.create_topics([NewTopic("t", num_partitions=1)]))
        await admin.close()
        await world.run_on(host, scenario(world, process))

    world.loop.run_until_complete(main())
    world.loop.close()
    assert world.reports == []
    return world


def _producer(process: Process) -> Producer:
    return process.producer(transactional_id="tx", max_block_ms=3_000, request_timeout_ms=1_000, linger_ms=0)


def _end(world: World) -> int:
    node = world.machines[1].node
    assert node is not None
    partition = node.partitions.get(_TOPIC)
    return 0 if partition is None else partition.log_end_offset


def test_a_commit_whose_coordinator_cannot_be_found_again_is_unknown_not_abortable() -> None:
    async def scenario(world: World, process: Process) -> None:
        producer = _producer(process)
        await producer.init_transactions()
        producer.begin_transaction()
        await producer.send("t", "value", partition=0)
        committing = asyncio.ensure_future(producer.commit_transaction())
        while _end(world) < 2:  # noqa: ASYNC110 - the world has no event for it, and virtual time is cheap.
            await asyncio.sleep(0.0001)
        # The marker is written, the answer is under way: it gets lost, and nobody is there to be asked again.
        world.network.cut(name_of(1), f"client#{process.number}")
        world.network.cut(f"client#{process.number}", name_of(1))
        world.crash(1, Crash.KILL)
        with pytest.raises(UnknownOutcome):
            await committing
        await producer.close()

    _run(scenario)


def test_records_of_an_aborted_transaction_may_fail_while_it_is_aborted() -> None:
    async def scenario(world: World, process: Process) -> None:
        producer = _producer(process)
        await producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", "never sent", partition=0)
        await producer.abort_transaction()
        producer.begin_transaction()
        await producer.send("t", "value", partition=0)
        await producer.commit_transaction()
        await producer.close()

    _run(scenario)


def test_a_restarted_broker_that_flushes_each_write_serves_what_it_has_at_once() -> None:
    async def scenario(world: World, process: Process) -> None:
        producer = _producer(process)
        await producer.init_transactions()
        producer.begin_transaction()
        await producer.send("t", "value", partition=0)
        await producer.commit_transaction()
        world.crash(1, Crash.KILL)
        await world.start()
        consumer = process.consumer(auto_offset_reset="earliest", enable_auto_commit=False)
        assert (await consumer.end_offsets(_TOPIC))[_TOPIC] == _end(world)
        await producer.close()
        await consumer.close()

    _run(scenario, flush_each=True)


def test_a_power_cut_right_after_the_first_start_does_not_take_the_data_folder() -> None:
    for seed in range(12):
        world = World(replace(profile_of(seed), flush_each=True, network=QUIET, disk=RELIABLE, crash=Crash.POWER))

        async def main(world: World) -> None:
            await world.start()
            process, host = world.process("client")
            admin = process.admin()
            await world.run_on(host, admin.create_topics([NewTopic("t", num_partitions=1)]))
            world.crash(1, Crash.POWER)
            await world.start()
            node = world.machines[1].node
            assert node is not None and node.partitions.get(_TOPIC) is not None

        world.loop.run_until_complete(main(world))
        world.loop.close()


def test_the_last_value_of_a_key_is_that_of_its_last_committed_record() -> None:
    def of(producer_id: int, value: bytes | None, control: int = -1) -> StoredRecord:
        return StoredRecord(b"key", value, producer_id, 0, 0, producer_id >= 0, control)

    written = {
        0: of(1, b"committed"),
        1: of(2, b"aborted"),
        2: of(1, b"", COMMIT),
        3: of(2, b"", ABORT),
        4: of(3, b"open"),
    }
    assert last_values(written) == {b"key": b"committed"}
    assert last_values({**written, 5: of(3, b"", COMMIT)}) == {b"key": b"open"}
    assert last_values({**written, 5: of(-1, None)}) == {}


def test_a_log_that_is_compacted_in_a_schedule_keeps_every_last_value(monkeypatch: pytest.MonkeyPatch) -> None:
    swapped = 0
    swap = Durability.swap

    async def counted(self: Durability, cleaning: Cleaning, cleaned: CleanedSegment) -> bool:
        nonlocal swapped
        swapped += 1
        return await swap(self, cleaning, cleaned)

    monkeypatch.setattr(Durability, "swap", counted)
    profile = replace(
        cluster_profile_of(0), workload="bank", transaction_version=2, may_lose=False, segment_bytes=2_000
    )
    quiet = replace(profile, faults=(), network=QUIET, disk=RELIABLE, duration=4.0)
    assert simulate(quiet).anomalies == ()
    assert swapped > 0
