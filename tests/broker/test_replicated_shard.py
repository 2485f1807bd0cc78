"""The shard runtime on a partition with followers: a high watermark that lags, too few replicas, changes of leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from einmal.broker.coordinators.shard_runtime import ShardRuntime
from einmal.replication.leader import Leader, Membership
from einmal.types import BrokerId, ErrorCode, LeaderEpoch, Offset
from tests.broker.test_shard_runtime import TV_1, WHO, Ledger, LedgerRecords, World
from tests.virtual_time import virtual_time

ME, FOLLOWER = BrokerId(1), BrokerId(2)


class Replicated(World):
    """This broker leads, one follower fetches when a test makes it. Two replicas must be in sync."""

    def start(self) -> None:
        super().start()
        self.partition_epoch = 0
        self.lead(0)

    def lead(self, epoch: int, *isr: BrokerId) -> None:
        leader = Leader(
            ME,
            LeaderEpoch(epoch),
            Membership((ME, FOLLOWER), isr or (ME, FOLLOWER), self.partition_epoch),
            epoch_start=self.partition.log_end_offset,
            high_watermark=self.partition.high_watermark,
            min_insync_replicas=2,
            lag_max_ms=30_000,
            now_ms=0,
            eligible={FOLLOWER: 0},
        )
        self.partition.lead(leader, LeaderEpoch(epoch))
        self.elect()

    def elect(self) -> None:
        self.runtime: ShardRuntime[Ledger, int, Any] = ShardRuntime(
            self.partition,
            Ledger,
            LedgerRecords(),
            clock=self.clock,
            perform=lambda action: self.done.append((self.loop.time(), action)),
            dropped=self._drop,
        )

    @property
    def leader(self) -> Leader:
        assert self.partition.replication is not None
        return self.partition.replication

    def follower_has(self, offset: int) -> None:
        self.leader.fetched(FOLLOWER, 0, Offset(offset), self.partition.log_end_offset, 0)
        self.partition.advance(self.leader.high_watermark)

    def catch_up(self) -> None:
        self.follower_has(self.partition.log_end_offset)

    def isr(self, *isr: BrokerId) -> None:
        self.partition_epoch += 1
        self.partition.advance(self.leader.membership_changed(Membership((ME, FOLLOWER), isr, self.partition_epoch), 0))

    def lose(self) -> None:
        """Another broker leads, and this one has learned of it."""
        self.partition.follow(FOLLOWER, LeaderEpoch(self.partition.leader_epoch + 1))
        self.runtime.stop()

    def ask(self, decide: Callable[[Ledger], Any], **options: Any) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(self.runtime.submit(lambda shard, _: decide(shard), **options))

    def write_later(self, number: int, actions: tuple[int, ...] = ()) -> asyncio.Task[Any]:
        return self.ask(lambda shard: shard.write(number, actions=actions))


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# --- the high watermark lags behind --------------------------------------------------------------------------------


@virtual_time
async def test_answers_and_actions_come_as_far_as_the_followers_have_followed() -> None:
    world = Replicated()
    await world.begin()
    asked = [world.write_later(n, actions=(n,)) for n in range(5)]
    await turns()
    assert world.partition.log_end_offset == 5, "nobody waits for the one before"
    assert not any(each.done() for each in asked)
    world.follower_has(3)
    await turns()
    assert [each.done() for each in asked] == [True] * 3 + [False] * 2
    assert world.actions == ["loaded", 0, 1, 2]
    world.catch_up()
    assert [await each for each in asked] == [1, 2, 3, 4, 5]


@virtual_time
async def test_a_question_waits_for_what_its_answer_was_made_of_and_no_longer() -> None:
    world = Replicated()
    await world.begin()
    write = world.ask(lambda shard: shard.write(5))
    read = world.ask(Ledger.total, reads_only=True)
    await turns()
    assert not read.done()
    world.catch_up()
    assert (await write, await read) == (1, 5)
    assert await world.ask(Ledger.total, reads_only=True) == 5


@virtual_time
async def test_a_request_that_waits_too_long_gets_an_error_and_its_decision_stands() -> None:
    world = Replicated()
    await world.begin()
    assert await world.ask(lambda shard: shard.write(5, actions=("late",))) is ErrorCode.coordinator_not_available
    assert world.runtime.is_loaded
    world.catch_up()
    assert await world.ask(Ledger.total) == 5
    assert world.actions == ["loaded", "late"]


# --- too few replicas in sync --------------------------------------------------------------------------------------


@virtual_time
async def test_while_too_few_replicas_are_in_sync_nothing_is_decided_and_the_shard_stays_loaded() -> None:
    world = Replicated()
    await world.begin()
    first = world.ask(lambda shard: shard.write(5))
    await turns()
    world.catch_up()
    await first
    world.isr(ME)
    for _ in range(10):
        assert await world.ask(lambda shard: shard.write(6)) is ErrorCode.coordinator_not_available
        assert await world.ask(Ledger.total, reads_only=True) == 5, "questions are answered"
        await asyncio.sleep(1)
    assert (world.drops, world.partition.log_end_offset) == (0, 1)
    world.isr(ME, FOLLOWER)
    again = world.ask(lambda shard: shard.write(6))
    await turns()
    world.catch_up()
    assert await again == 2


@virtual_time
async def test_no_marker_is_appended_while_too_few_replicas_are_in_sync() -> None:
    world = Replicated()
    await world.begin()
    world.isr(ME)
    refused = world.runtime.append_marker(WHO, committed=True, coordinator_epoch=0, transaction_version=TV_1)
    assert refused is ErrorCode.not_enough_replicas
    assert world.partition.log_end_offset == 0


@virtual_time
async def test_what_is_due_waits_for_the_replicas() -> None:
    world = Replicated()
    await world.begin()
    await world.runtime.submit(lambda shard, now: shard.set_alarm(now.monotonic_ms + 1_000))
    world.isr(ME)
    await asyncio.sleep(10)
    assert world.partition.log_end_offset == 0
    world.isr(ME, FOLLOWER)
    await asyncio.sleep(1)
    assert world.partition.log_end_offset == 1, "the alarm is in the log"
    assert "rang" not in world.actions
    world.catch_up()
    await turns()
    assert "rang" in world.actions


@virtual_time
async def test_an_insisted_request_is_decided_once_enough_replicas_are_in_sync() -> None:
    world = Replicated()
    await world.begin()
    world.isr(ME)
    insisting = asyncio.get_running_loop().create_task(world.runtime.insist(lambda shard, _: shard.write(5)))
    await asyncio.sleep(10)
    assert world.partition.log_end_offset == 0
    world.isr(ME, FOLLOWER)
    await asyncio.sleep(1)
    world.catch_up()
    await insisting
    assert await world.ask(Ledger.total) == 5


@virtual_time
async def test_questions_wait_for_what_comes_first_unless_it_has_nothing_to_write() -> None:
    world = Replicated()
    await world.begin()
    world.isr(ME)
    world.runtime.decide_first(lambda shard, _: shard.write())
    assert await world.ask(Ledger.total, reads_only=True) == 0
    world.runtime.decide_first(lambda shard, _: shard.write(5))
    assert await world.ask(Ledger.total, reads_only=True) is ErrorCode.coordinator_not_available
    assert await world.ask(Ledger.total, reads_only=True, awaits_first=False) == 0, "it is nothing to this one"
    assert world.runtime.is_loaded and world.partition.log_end_offset == 0
    world.isr(ME, FOLLOWER)
    total = world.ask(Ledger.total, reads_only=True)
    await turns()
    world.catch_up()
    assert await total == 5


# --- leaders change ------------------------------------------------------------------------------------------------


@virtual_time
async def test_requests_pending_when_leadership_is_lost_get_not_coordinator_and_perform_no_action() -> None:
    world = Replicated()
    await world.begin()
    asked = [world.ask(lambda shard: shard.write(5, actions=("never",))) for _ in range(3)]
    await turns()
    world.follower_has(1)
    await turns()
    world.lose()
    assert [await each for each in asked] == [1, ErrorCode.not_coordinator, ErrorCode.not_coordinator]
    assert await world.ask(Ledger.total) is ErrorCode.not_coordinator
    await asyncio.sleep(10)
    assert world.actions == ["loaded", "never"], "that of what was committed"


@virtual_time
async def test_a_runtime_unaware_of_its_deposition_decides_nothing_for_a_later_leadership() -> None:
    world = Replicated()
    await world.begin()
    old = world.runtime
    await old.submit(lambda shard, now: shard.set_alarm(now.monotonic_ms + 1_000))
    world.partition.follow(FOLLOWER, LeaderEpoch(1))
    world.lead(2)
    assert await old.submit(lambda shard, _: shard.write(5)) is ErrorCode.not_coordinator
    marker = old.append_marker(WHO, committed=True, coordinator_epoch=0, transaction_version=TV_1)
    assert marker is ErrorCode.not_coordinator
    await asyncio.sleep(2)
    assert world.partition.log_end_offset == 0
    assert old.leader_epoch == 0
    assert world.runtime.leader_epoch == 2


@pytest.mark.parametrize("between", [False, True], ids=["at once", "after another"])
@virtual_time
async def test_a_leadership_that_comes_back_begins_with_the_log_and_acts_again_only_when_it_is_committed(
    between: bool,
) -> None:
    world = Replicated()
    await world.begin()
    asked = world.ask(lambda shard: shard.write(5, actions=("old",)))
    await turns()
    if between:
        world.lose()
    else:
        world.runtime.stop()
    world.lead(2)
    world.runtime.start()
    assert await asked is ErrorCode.not_coordinator
    await world.loaded()
    total = world.ask(Ledger.total)
    await turns()
    assert not total.done(), "what the last leadership appended is read, but may not survive yet"
    assert world.actions == ["loaded"]
    world.catch_up()
    assert await total == 5
    assert world.actions == ["loaded", "loaded"]


@virtual_time
async def test_a_load_that_is_under_way_ends_with_the_leadership() -> None:
    world = Replicated()
    await world.begin()
    for number in range(3):
        world.write_later(number)
    await turns()
    world.catch_up()
    await turns()
    world.runtime.stop()
    world.lead(2)
    loading = world.runtime
    loading.start()
    assert not loading.is_loaded
    loading.stop()
    world.lead(4)
    world.runtime.start()
    await world.loaded()
    await asyncio.sleep(1)
    assert not loading.is_loaded
    assert await loading.submit(lambda shard, _: shard.total()) is ErrorCode.not_coordinator
    assert await world.ask(Ledger.total) == 3


@virtual_time
async def test_a_reload_in_the_same_leadership_answers_requests_that_waited_for_a_commit() -> None:
    world = Replicated()
    await world.begin()
    asked = world.ask(lambda shard: shard.write(5))
    await turns()
    world.runtime.start()
    await world.loaded()
    world.catch_up()
    assert await asked == 1
    assert await world.ask(Ledger.total) == 5
