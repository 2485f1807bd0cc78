"""Claims about the coordinator as a whole: its lists, its failovers, its log."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from einmal.groups.classic.group import ShardTotals
from einmal.groups.classic.member import size_of_id
from einmal.groups.config import GroupConfig
from einmal.groups.coordinator import GroupCoordinator
from einmal.groups.requests import OffsetFetchGroup
from einmal.types import ErrorCode, TopicPartition
from einmal.wire.api.describe_groups import DescribedGroupMember
from tests.groups.drive import GROUP, Consumer, GroupLog, producer, settle, stable_group

NO_DELAY = GroupConfig(initial_rebalance_delay_ms=0)


def listed(shard: GroupLog, states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    response = shard.apply(shard.coordinator.list_groups(states, types))
    return [(group.group_id, group.group_state) for group in response.groups]


def test_groups_are_listed_by_state_and_type() -> None:
    shard = GroupLog(NO_DELAY)
    stable_group(shard, Consumer(shard, "a", group_id="living"))
    shard.commit(5, group_id="simple")
    shard.txn_commit(5, producer(), group_id="pending")
    everything = [("living", "Stable"), ("simple", "Empty"), ("pending", "Empty")]
    assert listed(shard) == everything
    assert listed(shard, states=("stable",)) == everything[:1]
    assert listed(shard, states=("Empty", "Dead")) == everything[1:]
    assert listed(shard, types=("Classic",)) == everything
    assert listed(shard, types=("consumer",)) == []


def test_a_group_is_described_with_its_members_once_it_is_stable() -> None:
    shard = GroupLog(NO_DELAY)
    consumer = Consumer(shard, "a", group_instance_id="A")
    consumer.join()
    (group,) = shard.apply(shard.coordinator.describe_groups([GROUP])).groups
    assert (group.group_state, group.protocol_data) == ("CompletingRebalance", "")
    assert [member.member_metadata for member in group.members] == [b""]
    settle(consumer)
    (group,) = shard.apply(shard.coordinator.describe_groups([GROUP])).groups
    assert (group.error_code, group.protocol_type, group.protocol_data) == (
        ErrorCode.none,
        "consumer",
        "range",
    )
    assert group.members == (
        DescribedGroupMember(
            member_id=consumer.member_id,
            group_instance_id="A",
            client_id="a",
            client_host="/127.0.0.1",
            member_metadata=b"sub",
            member_assignment=consumer.member_id.encode(),
        ),
    )


def test_an_unknown_group_is_described_as_dead() -> None:
    shard = GroupLog(NO_DELAY)
    (group,) = shard.apply(shard.coordinator.describe_groups(["nobody"])).groups
    assert (group.group_state, group.error_code) == ("Dead", ErrorCode.group_id_not_found)


def test_a_new_coordinator_gives_every_member_a_whole_session() -> None:
    shard = GroupLog(NO_DELAY)
    consumer = Consumer(shard, "a")
    stable_group(shard, consumer)
    consumer.commit(5)
    shard.now_ms += 10 * consumer.session_timeout_ms
    shard.fail_over()
    shard.pass_time(consumer.session_timeout_ms - 1)
    assert consumer.heartbeat() is ErrorCode.none
    assert consumer.commit(6) is ErrorCode.none
    shard.pass_time(consumer.session_timeout_ms)
    assert consumer.heartbeat() is ErrorCode.unknown_member_id
    assert shard.fetch() == 6


def test_members_of_a_generation_that_was_not_written_join_again() -> None:
    shard = GroupLog(NO_DELAY)
    old, new = Consumer(shard, "a"), Consumer(shard, "b")
    stable_group(shard, old)
    new.join()
    old.join()
    old.joined(), new.joined()
    shard.fail_over()
    assert old.heartbeat() is ErrorCode.illegal_generation
    assert new.heartbeat() is ErrorCode.unknown_member_id
    old.sync()
    assert old.assignment().error_code is ErrorCode.illegal_generation
    new.member_id = ""
    new.join()
    old.join()
    settle(old, new)
    assert shard.state() == "Stable"


def hard_state(coordinator: GroupCoordinator) -> dict[str, Any]:
    """All that must be the same whether it was lived or read."""
    return {
        "generations": coordinator._classic._generations,
        "committed": coordinator._offsets._committed,
        "pending": coordinator._offsets._pending,
        "unstable": coordinator._offsets._unstable,
    }


class Machine(RuleBasedStateMachine):
    """Members, transactions and operators do what they like; the log yields the coordinator's state."""

    def __init__(self) -> None:
        super().__init__()
        self.shard = GroupLog(GroupConfig(initial_rebalance_delay_ms=100, offsets_retention_ms=60_000_000))
        self.consumers = [
            Consumer(self.shard, "a"),
            Consumer(self.shard, "b", protocols=(("sticky", b"1"), ("range", b"2"))),
            Consumer(self.shard, "c", group_instance_id="C"),
            Consumer(self.shard, "d", group_instance_id="C", supports_skipping_assignment=False),
            Consumer(self.shard, "e", group_id="other", knows_its_id_first=False),
        ]
        self.committed: dict[str, int] = {}
        self.pending: dict[tuple[int, str], int] = {}

    @rule(number=st.integers(0, 4))
    def join(self, number: int) -> None:
        self.consumers[number].join()

    @rule(number=st.integers(0, 4), name=st.sampled_from(["a", "a long name", "ü"]), size=st.integers(0, 9))
    def change_metadata(self, number: int, name: str, size: int) -> None:
        consumer = self.consumers[number]
        # Two of one name would get the same member id.
        consumer.name, consumer.protocols = f"{name}-{number}-", (("range", bytes(size)), *consumer.protocols[1:])

    @rule(number=st.integers(0, 4))
    def ask_for_an_id_and_forget_it(self, number: int) -> None:
        consumer = self.consumers[number]
        Consumer(self.shard, f"new-{len(self.shard.answers)}", group_id=consumer.group_id)._send_join()

    @rule(number=st.integers(0, 4), assigns=st.booleans())
    def go_on(self, number: int, assigns: bool) -> None:
        consumer = self.consumers[number]
        if consumer.joining in self.shard.answers:
            answer = consumer.joined()
            if answer.error_code is ErrorCode.unknown_member_id:
                consumer.member_id = ""
            members = [member.member_id for member in answer.members]
            consumer.sync(dict.fromkeys(members, b"x") if assigns else None)

    @rule(number=st.integers(0, 4))
    def heartbeat(self, number: int) -> None:
        if self.consumers[number].heartbeat() is ErrorCode.unknown_member_id:
            self.consumers[number].member_id = ""

    @rule(number=st.integers(0, 4))
    def leave(self, number: int) -> None:
        self.consumers[number].leave()

    @rule(number=st.integers(0, 4), offset=st.integers(0, 99))
    def commit(self, number: int, offset: int) -> None:
        consumer = self.consumers[number]
        if consumer.commit(offset) is ErrorCode.none:
            self.committed[consumer.group_id] = offset
            # What is later in the log stays, so older pending offsets cannot win any more.
            for producer_id, group_id in list(self.pending):
                if group_id == consumer.group_id:
                    self.pending[producer_id, group_id] = -1

    @rule(number=st.integers(0, 4), offset=st.integers(0, 99), producer_id=st.integers(0, 1))
    def commit_in_transaction(self, number: int, offset: int, producer_id: int) -> None:
        consumer = self.consumers[number]
        if consumer.txn_commit(offset, producer(producer_id)) is ErrorCode.none:
            self.pending[producer_id, consumer.group_id] = offset

    @rule(producer_id=st.integers(0, 1))
    def abort(self, producer_id: int) -> None:
        self.shard.mark(producer(producer_id), False)
        for group_id in (GROUP, "other"):
            self.pending.pop((producer_id, group_id), None)

    @precondition(lambda self: len({producer_id for producer_id, _group in self.pending}) == 1)
    @rule()
    def end_the_only_transaction(self) -> None:
        for (producer_id, group_id), offset in list(self.pending.items()):
            self.shard.mark(producer(producer_id), True)
            if offset >= 0:
                self.committed[group_id] = offset
        self.pending.clear()

    @rule(group_id=st.sampled_from([GROUP, "other"]))
    def delete(self, group_id: str) -> None:
        error = self.shard.delete(group_id)
        if error is ErrorCode.none:
            assert not any(pending_in == group_id for _producer_id, pending_in in self.pending)
            self.committed.pop(group_id, None)

    @rule(duration_ms=st.sampled_from([50, 1_000, 11_000, 70_000]))
    def pass_time(self, duration_ms: int) -> None:
        self.shard.pass_time(duration_ms)

    @rule()
    def fail_over(self) -> None:
        self.shard.fail_over()
        for consumer in self.consumers:
            if consumer.joining not in self.shard.answers:
                consumer.joining = None

    @invariant()
    def what_was_lived_is_what_can_be_read(self) -> None:
        assert hard_state(self.shard.load()) == hard_state(self.shard.coordinator)

    @invariant()
    def offsets_are_the_last_committed_ones(self) -> None:
        for group_id in (GROUP, "other"):
            request = OffsetFetchGroup(group_id, None)
            response = self.shard.apply(self.shard.coordinator.offset_fetch(request, require_stable=False))
            offsets = [item.committed_offset for topic in response.topics for item in topic.partitions]
            known = self.committed.get(group_id)
            assert offsets == ([] if known is None else [known])

    @invariant()
    def counts_agree_with_members(self) -> None:
        for group in self.shard.coordinator._classic.live.values():
            waiting = [member for member in group.members.values() if member.join_ticket is not None]
            assert group.waiting_joins == len(waiting)
            assert group.leader is None or group.leader in group.members
            assert sum(group.speakers.values()) == sum(len(member.protocols) for member in group.members.values())
            assert all(member_id in group.members for member_id in group.pending_sync)
            assert all(member_id in group.members for member_id in group.static_members.values())

    @invariant()
    def sizes_are_those_of_what_is_there(self) -> None:
        classic = self.shard.coordinator._classic
        sizes = assignments = pending = 0
        for group in classic.live.values():
            pending += len(group.pending_members)
            members = sum(member.size for member in group.members.values())
            assert group.size == members + sum(size_of_id(member_id) for member_id in group.pending_members)
            sizes += group.size
            assignments += sum(len(member.assignment) for member in group.members.values())
        assert classic._totals == ShardTotals(sizes + assignments, pending)

    @invariant()
    def partitions_are_unstable_by_the_transactions_that_are_open(self) -> None:
        offsets = self.shard.coordinator._offsets
        unstable: dict[str, Counter[TopicPartition]] = {}
        for of_producer in offsets._pending.values():
            for group_id, partitions in of_producer.items():
                unstable.setdefault(group_id, Counter()).update(partitions.keys())
        assert {group_id: counts for group_id, counts in unstable.items() if counts} == offsets._unstable

    @invariant()
    def timers_hold_nobody_that_is_gone(self) -> None:
        classic = self.shard.coordinator._classic
        for watch in classic.membership._timers._due:
            group = classic.live[watch.group_id]
            assert not watch.member_id or watch.member_id in {**group.members, **group.pending_members}


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestWhateverHappensTheLogIsTheState = Machine.TestCase
