"""The runtime on a real partition, on virtual time and a disk in memory. The shard is a list of numbers."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from einmal.broker.coordinators.shard_runtime import ShardRuntime
from einmal.broker.replicas.partition import Partition
from einmal.log.config import LogConfig
from einmal.log.partition_log import PartitionLog
from einmal.shard.decision import Decision
from einmal.simulation.clock import SimulatedClock
from einmal.simulation.disk import DiskFaults, SimulatedDisk
from einmal.simulation.loop import Host
from einmal.simulation.trace import Trace
from einmal.types import (
    NO_SEQUENCE,
    BrokerId,
    ErrorCode,
    Instant,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)
from einmal.wire.record_batch import iter_headers
from tests.virtual_time import running_loop, virtual_time

TP = TopicPartition("__ledger", 0)
WHO = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(0))
TV_1 = TransactionVersion.TV_1


R = TypeVar("R")
LedgerDecision: TypeAlias = Decision[int, Any, R]


class Ledger:
    """A shard: numbers in their order, pending ones per producer, and one alarm."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.pending: list[int] = []
        self.alarm: int | None = None

    def write(self, *numbers: int, actions: tuple[Any, ...] = ()) -> LedgerDecision[int]:
        return Decision(records=numbers, response=len(self.numbers) + len(numbers), actions=actions)

    def write_pending(self, number: int) -> LedgerDecision[str]:
        return Decision(records=(-number,), response="pending", producer=WHO, is_pure=True)

    def write_apart(self, *numbers: int) -> LedgerDecision[int]:
        """Numbers of which each is right without the others."""
        return Decision(records=numbers, response=len(self.numbers) + len(numbers), is_atomic=False)

    def write_purely(self, *numbers: int) -> LedgerDecision[int]:
        return Decision(records=numbers, response=len(self.numbers) + len(numbers), is_pure=True)

    def total(self) -> LedgerDecision[int]:
        return Decision(response=sum(self.numbers))

    def set_alarm(self, at: int) -> LedgerDecision[None]:
        self.alarm = at
        return Decision(response=None)

    def replay(self, record: int) -> None:
        if record < 0:
            self.pending.append(-record)
        else:
            self.numbers.append(record)

    def replay_marker(self, producer: ProducerIdAndEpoch, committed: bool) -> None:
        assert producer.producer_id == WHO.producer_id
        if committed:
            self.numbers += self.pending
        self.pending.clear()

    def loaded(self, now: Instant) -> tuple[LedgerDecision[None], ...]:
        return (Decision(response=None, actions=("loaded",)),)

    def next_deadline(self) -> int | None:
        return self.alarm

    def tick(self, now: Instant) -> tuple[LedgerDecision[None], ...]:
        if self.alarm is None or now.monotonic_ms < self.alarm:
            return ()
        self.alarm = None
        return (Decision(records=(1_000,), response=None, actions=("rang",)),)


class LedgerRecords:
    def encode(self, record: int) -> tuple[bytes, bytes | None]:
        return b"n", str(record).encode()

    def decode(self, key: bytes | None, value: bytes | None, producer_id: ProducerId | None) -> int | None:
        assert value is not None
        assert (int(value) < 0) == (producer_id is not None)
        return int(value)


class Alone:
    """What the only replica has is committed."""

    def resign(self) -> None:
        """There is no other replica."""

    def local_end_moved(self, end: Offset) -> Offset:
        return end


class World:
    """One process on one machine; ``restart`` is a new process on the same disk."""

    def __init__(self, *, flush_each: bool = False, segment_bytes: int = 1 << 30) -> None:
        self.loop = running_loop()
        self.clock = SimulatedClock(self.loop)
        self.disk = SimulatedDisk(self.loop, random.Random(1), Trace())
        self.flush_each = flush_each
        self.segment_bytes = segment_bytes
        self.done: list[tuple[float, Any]] = []
        self.drops = 0
        self.start()

    def start(self) -> None:
        self.host = Host("broker")
        view = self.disk.view(self.host)
        config = LogConfig(flush_each=self.flush_each, segment_bytes=self.segment_bytes)
        log = PartitionLog.open(view, PurePosixPath("/data/__ledger-0"), TP, config, self.clock.now())
        self.partition = Partition(log, UUID(int=1), self.clock, broker_id=BrokerId(1), flush_each=self.flush_each)
        self.partition.lead(Alone(), LeaderEpoch(0))
        self.runtime: ShardRuntime[Ledger, int, Any] = ShardRuntime(
            self.partition,
            Ledger,
            LedgerRecords(),
            clock=self.clock,
            perform=lambda action: self.done.append((self.loop.time(), action)),
            dropped=self._drop,
        )

    def _drop(self) -> None:
        self.drops += 1

    async def begin(self) -> None:
        """Load the shard. From here on the test runs in the host, as its process."""
        for variable, value in self.host.context.items():
            variable.set(value)
        await self.partition.flushed()
        self.runtime.start()
        await self.loaded()

    async def write(self, number: int) -> int | ErrorCode:
        return await self.runtime.submit(lambda shard, _: shard.write(number))

    async def loaded(self) -> None:
        for _ in range(1_000):
            if self.runtime.is_loaded:
                return
            await asyncio.sleep(0.001)
        raise AssertionError("the shard was never loaded")

    @property
    def actions(self) -> list[Any]:
        return [action for _, action in self.done]

    def batches(self) -> list[tuple[int, int]]:
        """(records, producer id) of each batch in the log."""
        log, offset = self.partition, self.partition.log_start_offset
        batches: list[tuple[int, int]] = []
        while offset < log.log_end_offset:
            for _, header in iter_headers(log.read(offset, 1 << 20, below=log.log_end_offset)):
                batches.append((header.record_count, header.producer_id))
                offset = header.next_offset
        return batches


@virtual_time
async def test_without_a_wait_for_the_disk_an_answer_is_there_at_once() -> None:
    world = World()
    await world.begin()
    assert await world.runtime.submit(lambda shard, _: shard.write(5, actions=("a",))) == 1
    assert world.actions == ["loaded", "a"]
    assert world.loop.time() < 0.01


@virtual_time
async def test_the_records_of_one_decision_are_one_batch() -> None:
    world = World()
    await world.begin()
    assert await world.runtime.submit(lambda shard, _: shard.write(1, 2, 3)) == 3
    assert world.batches() == [(3, -1)]


@virtual_time
async def test_answers_and_actions_wait_for_the_high_watermark_but_decisions_do_not() -> None:
    world = World(flush_each=True)
    await world.begin()
    answers: list[int | ErrorCode] = []

    async def ask(number: int) -> None:
        answers.append(await world.runtime.submit(lambda shard, _: shard.write(number, actions=(number,))))

    tasks = [asyncio.get_running_loop().create_task(ask(number)) for number in range(10)]
    await asyncio.sleep(0)
    assert world.partition.log_end_offset == 10, "all are appended in one turn"
    assert answers == []
    assert world.actions == ["loaded"]
    for task in tasks:
        await task
    assert answers == list(range(1, 11))
    assert world.actions == ["loaded", *range(10)]


@virtual_time
async def test_an_answer_without_records_waits_for_the_state_it_was_decided_on() -> None:
    world = World(flush_each=True)
    await world.begin()
    loop = asyncio.get_running_loop()
    write = loop.create_task(world.runtime.submit(lambda shard, _: shard.write(5)))
    read = loop.create_task(world.runtime.submit(lambda shard, _: shard.total()))
    await asyncio.sleep(0)
    assert not read.done()
    assert await read == 5
    assert write.done(), "answers keep their order"


@virtual_time
async def test_a_request_that_waits_too_long_gets_an_error_and_the_state_stays() -> None:
    world = World(flush_each=True)
    await world.begin()
    world.disk.faults = DiskFaults(sync_min=60.0, sync_max=60.0)
    before = world.loop.time()
    answer = await world.runtime.submit(lambda shard, _: shard.write(5, actions=("late",)))
    assert answer is ErrorCode.coordinator_not_available
    assert world.loop.time() - before < 6
    assert "late" not in world.actions
    await asyncio.sleep(61)
    assert world.actions == ["loaded", "late"]
    assert await world.runtime.submit(lambda shard, _: shard.total()) == 5


@virtual_time
async def test_an_alarm_rings_when_it_is_due_and_not_by_polling() -> None:
    world = World()
    await world.begin()
    await world.runtime.submit(lambda shard, now: shard.set_alarm(now.monotonic_ms + 3_600_000))
    since = world.loop.time()
    await asyncio.sleep(3_601)
    ((rang, _),) = [(at, action) for at, action in world.done if action == "rang"]
    assert 3_600 <= rang - since < 3_600.01
    assert await world.runtime.submit(lambda shard, _: shard.total()) == 1_000


@virtual_time
async def test_an_alarm_rings_although_it_failed_before() -> None:
    world = World()
    left = [ValueError("a defect")] * 2
    told: list[Any] = []

    class Failing(Ledger):
        def tick(self, now: Instant) -> tuple[LedgerDecision[None], ...]:
            if left:
                raise left.pop()
            return super().tick(now)

    world.runtime._new_shard = Failing
    await world.begin()
    asyncio.get_running_loop().call_exception_handler = told.append  # type: ignore[assignment,method-assign]
    await world.runtime.submit(lambda shard, now: shard.set_alarm(now.monotonic_ms + 1_000))
    await asyncio.sleep(30)
    assert "rang" in world.actions and len(told) == 1


@virtual_time
async def test_a_log_that_cannot_be_replayed_is_reported_and_requests_get_an_error() -> None:
    world = World()
    told: list[Any] = []
    await world.begin()
    asyncio.get_running_loop().call_exception_handler = told.append  # type: ignore[assignment,method-assign]
    await world.write(5)
    world.runtime._codec.decode = lambda *_: int("no number")  # type: ignore[method-assign]
    world.runtime.start()
    await world.runtime.loaded()
    assert await world.write(6) is ErrorCode.coordinator_not_available
    assert len(told) == 1


@virtual_time
async def test_an_earlier_alarm_replaces_a_later_one() -> None:
    world = World()
    await world.begin()
    await world.runtime.submit(lambda shard, now: shard.set_alarm(now.monotonic_ms + 60_000))
    await world.runtime.submit(lambda shard, now: shard.set_alarm(now.monotonic_ms + 1_000))
    await asyncio.sleep(1.1)
    assert "rang" in world.actions


@virtual_time
async def test_a_new_leader_loads_everything_from_the_log() -> None:
    world = World()
    await world.begin()
    await asyncio.gather(*(world.write(number) for number in range(100)))
    await world.runtime.submit(lambda shard, _: shard.write_pending(7))
    written = world.runtime.append_marker(WHO, committed=True, coordinator_epoch=0, transaction_version=TV_1)
    assert not isinstance(written, ErrorCode)
    assert await written is ErrorCode.none
    await world.runtime.submit(lambda shard, _: shard.write_pending(9))
    world.host.is_alive = False
    world.done.clear()
    world.start()
    await world.begin()
    assert await world.runtime.submit(lambda shard, _: shard.total()) == sum(range(100)) + 7
    assert await world.runtime.submit(lambda shard, _: Decision(response=shard.pending[:])) == [9]
    assert world.actions == ["loaded"]


@virtual_time
async def test_requests_during_a_load_get_a_retriable_error() -> None:
    world = World()
    await world.begin()
    await world.runtime.submit(lambda shard, _: shard.write(5))
    await world.begin()
    world.runtime.start()
    assert not world.runtime.is_loaded
    answer = await world.runtime.submit(lambda shard, _: shard.total())
    assert answer is ErrorCode.coordinator_load_in_progress
    marker = world.runtime.append_marker(WHO, committed=True, coordinator_epoch=0, transaction_version=TV_1)
    assert marker is ErrorCode.coordinator_load_in_progress
    await asyncio.sleep(0.01)
    assert await world.runtime.submit(lambda shard, _: shard.total()) == 5


@virtual_time
async def test_a_refused_append_is_not_replayed_and_the_shard_comes_back_from_the_log() -> None:
    world = World()
    await world.begin()
    await world.runtime.submit(lambda shard, _: shard.write(5))
    world.disk.faults = DiskFaults(full=1.0)
    assert await world.runtime.submit(lambda shard, _: shard.write(6)) is ErrorCode.not_coordinator
    assert world.drops == 1
    answer = await world.runtime.submit(lambda shard, _: shard.total())
    assert answer is ErrorCode.coordinator_load_in_progress
    world.disk.faults = DiskFaults()
    await asyncio.sleep(1.1)
    assert await world.runtime.submit(lambda shard, _: shard.total()) == 5


@virtual_time
async def test_a_refused_batch_of_a_client_leaves_the_shard_alone() -> None:
    world = World()
    await world.begin()
    newer = WHO._replace(producer_epoch=ProducerEpoch(1))
    world.runtime.append_marker(newer, committed=False, coordinator_epoch=0, transaction_version=TV_1)
    answer = await world.runtime.submit(lambda shard, _: shard.write_pending(5))
    assert answer is ErrorCode.invalid_producer_epoch
    assert world.drops == 0
    assert await world.runtime.submit(lambda shard, _: Decision(response=shard.pending[:])) == []


@virtual_time
async def test_a_marker_between_verification_and_append_makes_the_guard_void() -> None:
    world = World()
    await world.begin()
    guard = world.partition.producers.begin_verification(WHO, NO_SEQUENCE, TV_1)
    assert guard is not None
    world.runtime.append_marker(WHO, committed=False, coordinator_epoch=0, transaction_version=TV_1)
    answer = await world.runtime.submit(lambda shard, _: shard.write_pending(5), verification=guard)
    assert answer is ErrorCode.invalid_txn_state


@virtual_time
async def test_pending_records_go_out_as_a_batch_of_their_producer() -> None:
    world = World()
    await world.begin()
    assert await world.runtime.submit(lambda shard, _: shard.write_pending(5)) == "pending"
    assert world.batches() == [(1, WHO.producer_id)]
    assert world.partition.producers.has_open_transaction(WHO)


@virtual_time
async def test_stopping_answers_all_waiting_requests_and_performs_no_more_actions() -> None:
    world = World(flush_each=True)
    await world.begin()
    await world.runtime.submit(lambda shard, now: shard.set_alarm(now.monotonic_ms + 1_000))
    waiting = asyncio.get_running_loop().create_task(
        world.runtime.submit(lambda shard, _: shard.write(5, actions=("never",)))
    )
    await asyncio.sleep(0)
    world.runtime.stop()
    assert await waiting is ErrorCode.not_coordinator
    assert await world.runtime.submit(lambda shard, _: shard.total()) is ErrorCode.not_coordinator
    await asyncio.sleep(10)
    assert world.actions == ["loaded"]


@virtual_time
async def test_when_the_disk_fails_no_response_depends_on_records_that_may_be_lost() -> None:
    world = World(flush_each=True)
    await world.begin()
    world.disk.faults = DiskFaults(sync_error=1.0)
    answer = await world.runtime.submit(lambda shard, _: shard.write(5, actions=("never",)))
    assert answer is ErrorCode.not_coordinator
    assert world.actions == ["loaded"]


@virtual_time
async def test_no_request_waits_for_a_log_that_will_never_be_flushed_again() -> None:
    """The failure met a marker only, so that nothing was parked when it happened."""
    world = World(flush_each=True)
    await world.begin()
    world.disk.faults = DiskFaults(sync_error=1.0)
    marker = world.runtime.append_marker(WHO, committed=True, coordinator_epoch=0, transaction_version=TV_1)
    assert isinstance(marker, asyncio.Future)
    assert await marker is ErrorCode.kafka_storage_error
    before = world.loop.time()
    assert await world.runtime.submit(lambda shard, _: shard.total()) is ErrorCode.not_coordinator
    assert world.loop.time() - before < 0.1


# --- the size of a decision ----------------------------------------------------------------------------------------


@virtual_time
async def test_records_that_may_be_separated_are_as_many_batches_as_segments_need() -> None:
    world = World(segment_bytes=1_000)
    await world.begin()
    numbers = tuple(range(10**99, 10**99 + 100))
    assert await world.runtime.submit(lambda shard, _: shard.write_apart(*numbers)) == 100
    batches = world.batches()
    assert len(batches) > 10 and sum(count for count, _producer in batches) == 100
    assert await world.runtime.submit(lambda shard, _: Decision(response=tuple(shard.numbers))) == numbers
    assert world.drops == 0


@virtual_time
async def test_few_records_that_may_be_separated_are_one_batch() -> None:
    world = World()
    await world.begin()
    await world.runtime.submit(lambda shard, _: shard.write_apart(*range(100)))
    assert world.batches() == [(100, -1)]


@virtual_time
async def test_a_decision_that_fits_into_no_segment_is_refused_and_a_pure_one_leaves_the_shard_alone() -> None:
    world = World(segment_bytes=1_000)
    await world.begin()
    await world.write(5)
    numbers = range(10**99, 10**99 + 100)
    answer = await world.runtime.submit(lambda shard, _: shard.write_purely(*numbers))
    assert answer is ErrorCode.record_list_too_large
    assert world.drops == 0
    assert await world.runtime.submit(lambda shard, _: shard.total()) == 5
    assert await world.runtime.submit(lambda shard, _: shard.write(*numbers)) is ErrorCode.record_list_too_large
    assert world.drops == 1


@virtual_time
async def test_an_insisted_decision_is_written_once_segments_are_large_enough() -> None:
    world = World(segment_bytes=1_000)
    await world.begin()
    numbers = range(10**99, 10**99 + 100)
    insisting = asyncio.get_running_loop().create_task(
        world.runtime.insist(lambda shard, _: shard.write_purely(*numbers))
    )
    await asyncio.sleep(10)
    assert not insisting.done()
    world.partition.configure(LogConfig(segment_bytes=1 << 20))
    await insisting
    assert await world.runtime.submit(lambda shard, _: Decision(response=len(shard.numbers))) == 100


@virtual_time
async def test_an_insisted_decision_is_written_once_the_disk_has_space_again() -> None:
    world = World()
    await world.begin()
    world.disk.faults = DiskFaults(full=1.0)
    insisting = asyncio.get_running_loop().create_task(world.runtime.insist(lambda shard, _: shard.write_purely(5)))
    await asyncio.sleep(10)
    assert not insisting.done() and world.drops == 0
    world.disk.faults = DiskFaults()
    await asyncio.sleep(1)
    assert insisting.done()
    assert await world.runtime.submit(lambda shard, _: shard.total()) == 5


@virtual_time
async def test_an_insisted_decision_ends_with_the_shard_that_it_was_for() -> None:
    world = World()
    await world.begin()
    world.disk.faults = DiskFaults(full=1.0)
    insisting = asyncio.get_running_loop().create_task(world.runtime.insist(lambda shard, _: shard.write_purely(5)))
    await asyncio.sleep(0)
    world.disk.faults = DiskFaults()
    world.runtime.start()
    await world.loaded()
    await asyncio.sleep(1)
    assert insisting.done()
    assert await world.runtime.submit(lambda shard, _: shard.total()) == 0


# --- what is decided first -----------------------------------------------------------------------------------------


@virtual_time
async def test_what_comes_first_is_decided_before_any_request_also_of_a_shard_that_loads() -> None:
    world = World()
    await world.begin()
    await world.write(5)
    world.runtime.start()
    world.runtime.decide_first(lambda shard, _: shard.write_purely(sum(shard.numbers)))
    assert await world.write(6) is ErrorCode.coordinator_load_in_progress
    await world.loaded()
    assert await world.write(7) == 3
    assert await world.runtime.submit(lambda shard, _: Decision(response=shard.numbers[:])) == [5, 5, 7]
    assert not world.runtime.is_behind


@virtual_time
async def test_what_comes_first_is_not_lost_with_a_shard_that_is_dropped() -> None:
    world = World()
    await world.begin()
    world.disk.faults = DiskFaults(full=1.0)
    world.runtime.decide_first(lambda shard, _: shard.write(1))
    world.runtime.catch_up()
    assert world.drops == 1
    world.disk.faults = DiskFaults()
    await asyncio.sleep(1.1)
    assert await world.write(2) == 2
    assert await world.runtime.submit(lambda shard, _: Decision(response=shard.numbers[:])) == [1, 2]


@virtual_time
async def test_what_comes_first_is_not_decided_for_every_request_while_the_disk_is_full() -> None:
    world = World(segment_bytes=1_000)
    await world.begin()
    encode = LedgerRecords().encode
    decided, encoded = 0, 0

    def first(shard: Ledger, _now: Instant) -> LedgerDecision[int]:
        nonlocal decided
        decided += 1
        return replace(shard.write_apart(*range(10_000)), is_pure=True)

    def count(record: int) -> tuple[bytes, bytes | None]:
        nonlocal encoded
        encoded += 1
        return encode(record)

    world.runtime._codec.encode = count  # type: ignore[method-assign]
    world.disk.faults = DiskFaults(full=1.0)
    world.runtime.decide_first(first)
    for _ in range(100):
        assert await world.write(1) is ErrorCode.coordinator_not_available
    assert decided == 1
    assert encoded < 100, "what is in no batch yet is not encoded"
    await asyncio.sleep(1)
    world.runtime.catch_up()
    assert decided == 2
    world.disk.faults = DiskFaults()
    await asyncio.sleep(1)
    assert await world.write(1) == 10_001
    assert world.drops == 0


@virtual_time
async def test_what_comes_first_is_nothing_to_the_next_leadership() -> None:
    world = World()
    await world.begin()
    world.partition.lead(Alone(), LeaderEpoch(1))
    world.runtime.decide_first(lambda shard, _: shard.write(1))
    world.runtime.catch_up()
    assert not world.runtime.is_behind
    assert world.batches() == []
