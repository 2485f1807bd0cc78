"""Claims about joining, syncing, staying and leaving (failures.md 39, 40, 45, 48)."""

from __future__ import annotations

import time

import pytest

from einmal.groups.classic.requests import LeaveGroup, MemberIdentity
from einmal.groups.config import GroupConfig
from einmal.groups.records import GroupRecord
from einmal.types import ErrorCode
from tests.groups.drive import GROUP, Consumer, GroupLog, leave, settle, stable_group
from tests.suite.patience import patient

NO_DELAY = GroupConfig(initial_rebalance_delay_ms=0)


def shard_at_once() -> GroupLog:
    return GroupLog(NO_DELAY)


# --- joining ---------------------------------------------------------------------------------------------------


def test_a_new_dynamic_member_gets_its_id_before_it_joins() -> None:
    shard = shard_at_once()
    consumer = Consumer(shard, "c")
    first = consumer._send_join()
    assert shard.answers[first].error_code is ErrorCode.member_id_required
    assert shard.answers[first].member_id == "c-c1"
    assert shard.state() == "Empty"
    consumer.member_id = "c-c1"
    consumer.join()
    assert consumer.joined().generation_id == 1


def test_an_old_client_joins_without_knowing_its_id() -> None:
    shard = shard_at_once()
    consumer = Consumer(shard, "c", knows_its_id_first=False)
    consumer.join()
    answer = consumer.joined()
    assert (answer.error_code, answer.leader, consumer.joins) == (ErrorCode.none, consumer.member_id, 1)


def test_an_id_that_is_never_joined_under_is_forgotten_with_its_group() -> None:
    shard = shard_at_once()
    consumer = Consumer(shard, "c")
    consumer._send_join()
    shard.pass_time(consumer.session_timeout_ms)
    assert shard.state() == "Dead"
    assert shard.log == []


def test_a_rebalance_waits_for_a_pending_member_id() -> None:
    shard = shard_at_once()
    first, second = Consumer(shard, "a"), Consumer(shard, "b")
    stable_group(shard, first)
    second._send_join()
    late = Consumer(shard, "c", knows_its_id_first=False)
    late.join()
    first.join()
    assert first.joining not in shard.answers
    shard.pass_time(second.session_timeout_ms)
    settle(first, late)


def test_the_first_members_of_a_group_gather_for_the_initial_delay() -> None:
    shard = GroupLog()
    consumers = [Consumer(shard, f"c{number}") for number in range(3)]
    for consumer in consumers:
        consumer.join()
        shard.pass_time(2_000)
    assert not any(consumer.joining in shard.answers for consumer in consumers)
    shard.pass_time(6_000)
    settle(*consumers)
    assert consumers[0].generation_id == 1


def test_the_initial_delay_ends_with_the_rebalance_timeout_however_many_come() -> None:
    shard = GroupLog()
    consumers = []
    for number in range(8):
        consumers.append(Consumer(shard, f"c{number}", rebalance_timeout_ms=8_000, session_timeout_ms=60_000))
        consumers[-1].join()
        shard.pass_time(1_000)
    settle(*consumers)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, ErrorCode.invalid_group_id),
        ({"session_timeout_ms": 5_999}, ErrorCode.invalid_session_timeout),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.invalid_session_timeout),
        ({"protocols": ()}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_type": ""}, ErrorCode.inconsistent_group_protocol),
        ({"member_id": "unknown"}, ErrorCode.unknown_member_id),
        ({"name": "x" * 32_001}, ErrorCode.invalid_request),
        ({"group_instance_id": "ü" * 16_001}, ErrorCode.invalid_request),
    ],
)
def test_a_join_that_cannot_be_is_refused_and_leaves_no_group(fields: dict[str, object], error: ErrorCode) -> None:
    shard = shard_at_once()
    consumer = Consumer(**({"shard": shard, "name": "c"} | fields))  # type: ignore[arg-type]
    consumer.join()
    assert consumer.joined().error_code is error
    assert shard.apply(shard.coordinator.list_groups([], [])).groups == ()


def test_a_member_without_a_common_protocol_is_refused() -> None:
    shard = shard_at_once()
    stable_group(shard, Consumer(shard, "a", protocols=(("range", b""), ("sticky", b""))))
    for fields in ({"protocols": (("roundrobin", b""),)}, {"protocol_type": "connect"}):
        stranger = Consumer(shard, "b", **fields)
        stranger.join()
        assert stranger.joined().error_code is ErrorCode.inconsistent_group_protocol
    assert shard.state() == "Stable"


def test_the_protocol_with_most_votes_among_the_common_ones_is_chosen() -> None:
    shard = GroupLog()
    consumers = [
        Consumer(shard, "a", protocols=(("range", b"a"), ("sticky", b"A"))),
        Consumer(shard, "b", protocols=(("sticky", b"B"), ("range", b"b"))),
        Consumer(shard, "c", protocols=(("mine", b"x"), ("sticky", b"C"), ("range", b"c"))),
    ]
    for consumer in consumers:
        consumer.join()
    shard.pass_time(6_000)
    assert consumers[0].joining is not None
    answer = shard.answers[consumers[0].joining]
    assert answer.protocol_name == "sticky"
    assert [member.metadata for member in answer.members] == [b"A", b"B", b"C"]


def test_a_protocol_that_is_named_twice_counts_once() -> None:
    shard = shard_at_once()
    twice = Consumer(shard, "a", protocols=(("range", b"1"), ("range", b"2")))
    stable_group(shard, twice)
    other = Consumer(shard, "b")
    other.join()
    twice.join()
    settle(twice, other)
    other.leave()
    assert twice.heartbeat() is ErrorCode.rebalance_in_progress


def test_only_the_leader_gets_the_members() -> None:
    shard = GroupLog()
    consumers = [Consumer(shard, f"c{number}") for number in range(3)]
    for consumer in consumers:
        consumer.join()
    shard.pass_time(6_000)
    answers = [consumer.joined() for consumer in consumers]
    leader = answers[0].leader
    for consumer, answer in zip(consumers, answers, strict=True):
        assert len(answer.members) == (3 if consumer.member_id == leader else 0)


def test_a_full_group_accepts_no_more_members() -> None:
    shard = GroupLog(GroupConfig(initial_rebalance_delay_ms=0, max_size=2))
    first, second, third = (Consumer(shard, name) for name in "abc")
    stable_group(shard, first)
    second.join()
    first.join()
    settle(first, second)
    third.join()
    assert third.joined().error_code is ErrorCode.group_max_size_reached
    assert shard.state() == "Stable"
    assert second.heartbeat() is ErrorCode.none


def test_a_group_that_is_larger_than_allowed_shrinks_at_its_next_rebalance() -> None:
    shard = shard_at_once()
    consumers = [Consumer(shard, name) for name in "abc"]
    stable_group(shard, consumers[0])
    for newcomer in consumers[1:]:
        newcomer.join()
    consumers[0].join()
    settle(*consumers)
    shard.config = GroupConfig(initial_rebalance_delay_ms=0, max_size=2)
    shard.fail_over()
    for consumer in consumers:
        consumer.join()
    assert consumers[2].joined().error_code is ErrorCode.group_max_size_reached
    settle(*consumers[:2])


def test_a_follower_that_rejoins_unchanged_gets_its_generation_again() -> None:
    shard = GroupLog()
    leader, follower = Consumer(shard, "a"), Consumer(shard, "b")
    stable_group(shard, leader, follower)
    follower.join()
    assert follower.joined().generation_id == 1
    assert shard.state() == "Stable"


def test_a_leader_that_rejoins_or_a_member_with_other_metadata_causes_a_rebalance() -> None:
    shard = GroupLog()
    leader, follower = Consumer(shard, "a"), Consumer(shard, "b")
    stable_group(shard, leader, follower)
    leader.join()
    assert follower.heartbeat() is ErrorCode.rebalance_in_progress
    follower.join()
    settle(leader, follower)
    follower.protocols = (("range", b"other"),)
    follower.join()
    assert leader.heartbeat() is ErrorCode.rebalance_in_progress
    leader.join()
    settle(leader, follower)
    assert leader.generation_id == 3


def test_a_lost_join_response_is_repeated_while_the_group_syncs() -> None:
    shard = GroupLog()
    leader, follower = Consumer(shard, "a"), Consumer(shard, "b")
    for consumer in (leader, follower):
        consumer.join()
    shard.pass_time(6_000)
    first = leader.joined()
    leader.join()
    assert leader.joined() == first
    follower.protocols = (("range", b"other"),)
    follower.member_id = shard.answers[follower.joining].member_id  # type: ignore[index]
    follower.join()
    assert shard.state() == "PreparingRebalance"


def test_a_second_join_of_a_waiting_member_answers_the_first() -> None:
    shard = GroupLog()
    consumer = Consumer(shard, "a")
    first = consumer.join()
    second = consumer.join()
    assert shard.answers[first].error_code is ErrorCode.rebalance_in_progress
    shard.pass_time(6_000)
    assert shard.answers[second].error_code is ErrorCode.none


# --- the end of joining ----------------------------------------------------------------------------------------


def test_members_that_do_not_rejoin_in_time_are_expelled() -> None:
    shard = GroupLog()
    present, absent = Consumer(shard, "a"), Consumer(shard, "b", session_timeout_ms=600_000)
    stable_group(shard, present, absent)
    present.join()
    shard.pass_time(present.rebalance_timeout_ms)
    settle(present)
    assert absent.heartbeat() is ErrorCode.unknown_member_id


def test_a_leader_that_does_not_rejoin_loses_the_lead() -> None:
    shard = GroupLog()
    leader, follower = Consumer(shard, "a"), Consumer(shard, "b")
    stable_group(shard, leader, follower)
    follower.protocols = (("range", b"other"),)
    follower.join()
    shard.pass_time(leader.session_timeout_ms)
    assert follower.joined().leader == follower.member_id


def test_a_group_of_absent_static_members_waits_for_them() -> None:
    shard = GroupLog()
    leader = Consumer(shard, "a", group_instance_id="A", session_timeout_ms=600_000)
    other = Consumer(shard, "b", session_timeout_ms=600_000)
    stable_group(shard, leader, other)
    assert other.leave() is ErrorCode.none
    shard.pass_time(leader.rebalance_timeout_ms * 2)
    assert shard.state() == "PreparingRebalance"
    leader.join()
    settle(leader)


@pytest.mark.parametrize("timeout_ms", [1, 0, -1, -(2**31)])
def test_absent_static_members_without_time_to_rejoin_cause_no_rebalance_loop(timeout_ms: int) -> None:
    """A member that joined with such a timeout and went away held the broker in one tick for ever."""
    shard = GroupLog()
    leader = Consumer(shard, "a", group_instance_id="A", session_timeout_ms=600_000)
    other = Consumer(shard, "b", session_timeout_ms=600_000)
    stable_group(shard, leader, other)
    assert other.leave() is ErrorCode.none
    leader.rebalance_timeout_ms = timeout_ms
    leader.join()
    settle(leader)
    newcomer = Consumer(shard, "c", session_timeout_ms=600_000, rebalance_timeout_ms=timeout_ms)
    newcomer.join()
    assert newcomer.leave() is ErrorCode.none
    assert shard.pass_time(60_000) <= 100
    assert shard.state() == "PreparingRebalance"
    leader.join()
    settle(leader)


# --- syncing ---------------------------------------------------------------------------------------------------


def test_followers_wait_for_the_leaders_assignment() -> None:
    shard = GroupLog()
    leader, follower = Consumer(shard, "a"), Consumer(shard, "b")
    for consumer in (leader, follower):
        consumer.join()
    shard.pass_time(6_000)
    leader.joined(), follower.joined()
    follower.sync()
    assert follower.syncing not in shard.answers
    assert shard.state() == "CompletingRebalance"
    leader.sync({follower.member_id: b"all"})
    assert follower.assignment().assignment == b"all"
    assert leader.assignment().assignment == b""
    assert shard.state() == "Stable"


def test_a_stable_group_answers_a_late_sync_at_once() -> None:
    shard = shard_at_once()
    consumer = Consumer(shard, "a")
    stable_group(shard, consumer)
    consumer.sync()
    assert consumer.assignment().assignment == consumer.member_id.encode()


def test_a_member_that_does_not_sync_in_time_is_expelled() -> None:
    shard = GroupLog()
    leader, follower = (Consumer(shard, name, session_timeout_ms=600_000) for name in "ab")
    for consumer in (leader, follower):
        consumer.join()
    shard.pass_time(6_000)
    leader.joined(), follower.joined()
    leader.sync()
    shard.pass_time(leader.rebalance_timeout_ms)
    assert leader.heartbeat() is ErrorCode.rebalance_in_progress
    leader.join()
    settle(leader)
    assert follower.heartbeat() is ErrorCode.unknown_member_id


def test_waiting_syncs_are_sent_back_to_join_when_the_group_rebalances_again() -> None:
    shard = GroupLog()
    leader, follower = Consumer(shard, "a"), Consumer(shard, "b")
    for consumer in (leader, follower):
        consumer.join()
    shard.pass_time(6_000)
    leader.joined(), follower.joined()
    follower.sync()
    leader.leave()
    assert follower.assignment().error_code is ErrorCode.rebalance_in_progress
    follower.join()
    settle(follower)


def test_a_sync_of_another_generation_protocol_or_member_is_refused() -> None:
    shard = shard_at_once()
    consumer = Consumer(shard, "a")
    consumer.join()
    consumer.joined()
    for fields, error in (
        ({"generation_id": 0}, ErrorCode.illegal_generation),
        ({"member_id": "x"}, ErrorCode.unknown_member_id),
        ({"group_id": "x"}, ErrorCode.unknown_member_id),
        ({"group_id": ""}, ErrorCode.invalid_group_id),
        ({"protocol_type": "connect"}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_name": "sticky"}, ErrorCode.inconsistent_group_protocol),
    ):
        consumer.sync(**fields)
        assert consumer.assignment().error_code is error


# --- staying and leaving ---------------------------------------------------------------------------------------


def test_heartbeats_keep_a_member_and_their_absence_expels_it() -> None:
    shard = GroupLog()
    lively, silent = Consumer(shard, "a"), Consumer(shard, "b")
    stable_group(shard, lively, silent)
    for _ in range(4):
        shard.pass_time(lively.session_timeout_ms // 2)
        lively.heartbeat()
    assert silent.heartbeat() is ErrorCode.unknown_member_id
    assert lively.heartbeat() is ErrorCode.rebalance_in_progress
    lively.join()
    settle(lively)


def test_a_commit_keeps_a_member_as_a_heartbeat_does() -> None:
    shard = shard_at_once()
    consumer = Consumer(shard, "a")
    stable_group(shard, consumer)
    for _ in range(4):
        shard.pass_time(consumer.session_timeout_ms // 2)
        assert consumer.commit(1) is ErrorCode.none


def test_a_group_without_a_name_has_no_members() -> None:
    shard = shard_at_once()
    stranger = Consumer(shard, "a", group_id="", member_id="m")
    assert stranger.heartbeat() is ErrorCode.invalid_group_id
    request = LeaveGroup("", (MemberIdentity("m", None),))
    assert shard.apply(shard.coordinator.leave_group(request, shard.now)).error_code is ErrorCode.invalid_group_id


def test_a_heartbeat_of_another_generation_is_refused() -> None:
    shard = shard_at_once()
    consumer = Consumer(shard, "a")
    stable_group(shard, consumer)
    consumer.generation_id -= 1
    assert consumer.heartbeat() is ErrorCode.illegal_generation


def test_waiting_for_an_answer_is_as_good_as_a_heartbeat() -> None:
    shard = GroupLog()
    waiting, slow = Consumer(shard, "a"), Consumer(shard, "b")
    stable_group(shard, waiting, slow)
    waiting.join()
    for _ in range(5):
        shard.pass_time(slow.session_timeout_ms // 2)
        assert slow.heartbeat() is ErrorCode.rebalance_in_progress
    slow.join()
    settle(waiting, slow)


def test_a_newcomer_whose_join_waits_too_long_is_answered_and_dropped() -> None:
    shard = shard_at_once()
    member = Consumer(shard, "a", rebalance_timeout_ms=900_000, session_timeout_ms=1_000_000)
    newcomer = Consumer(shard, "b", rebalance_timeout_ms=900_000)
    stable_group(shard, member)
    newcomer.join()
    shard.pass_time(shard.config.new_member_join_timeout_ms)
    assert newcomer.joined().error_code is ErrorCode.unknown_member_id
    member.join()
    settle(member)


def test_the_last_member_that_leaves_leaves_an_empty_group_of_the_next_generation() -> None:
    shard = shard_at_once()
    consumer = Consumer(shard, "a")
    stable_group(shard, consumer)
    assert consumer.leave() is ErrorCode.none
    assert shard.state() == "Empty"
    last = shard.log[-1]
    assert isinstance(last, GroupRecord)
    assert last.value is not None
    assert (last.value.generation_id, last.value.members) == (2, ())


def test_many_leave_at_once_and_each_is_answered() -> None:
    shard = GroupLog()
    dynamic, static = Consumer(shard, "a"), Consumer(shard, "b", group_instance_id="B")
    stable_group(shard, dynamic, static)
    pending = Consumer(shard, "c")
    learnt = pending._send_join()
    errors = leave(
        shard,
        GROUP,
        MemberIdentity(dynamic.member_id, None),
        MemberIdentity("", "B"),
        MemberIdentity("stranger", None),
        MemberIdentity("", "stranger"),
        MemberIdentity(shard.answers[learnt].member_id, None),
    )
    none, unknown = ErrorCode.none, ErrorCode.unknown_member_id
    assert errors == [none, none, unknown, unknown, none]
    assert shard.state() == "Empty"


# --- static members (45) ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("supports_skipping", [True, False])
@pytest.mark.parametrize("restarts_leader", [True, False])
def test_a_restarted_static_member_rejoins_without_a_rebalance(supports_skipping: bool, restarts_leader: bool) -> None:
    shard = GroupLog()
    leader, follower = Consumer(shard, "a", group_instance_id="A"), Consumer(shard, "b", group_instance_id="B")
    stable_group(shard, leader, follower)
    old = leader if restarts_leader else follower
    restarted = Consumer(
        shard, "new", group_instance_id=old.group_instance_id, supports_skipping_assignment=supports_skipping
    )
    restarted.join()
    answer = restarted.joined()
    assert (answer.error_code, answer.generation_id, shard.state()) == (ErrorCode.none, 1, "Stable")
    assert answer.skip_assignment is (supports_skipping and restarts_leader)
    if supports_skipping:
        assert (answer.leader == restarted.member_id) is restarts_leader
    else:
        # It must not think that it leads: nobody is to assign anything.
        assert answer.leader == leader.member_id
    restarted.sync()
    assert restarted.assignment().assignment == old.member_id.encode()
    shard.fail_over()
    assert restarted.heartbeat() is ErrorCode.none


def test_the_instance_that_was_replaced_is_fenced_at_every_call() -> None:
    shard = shard_at_once()
    old = Consumer(shard, "a", group_instance_id="A")
    stable_group(shard, old)
    new = Consumer(shard, "b", group_instance_id="A")
    new.join()
    new.joined()
    fenced = ErrorCode.fenced_instance_id
    assert old.heartbeat() is fenced
    assert old.commit(1) is fenced
    assert old.leave() is fenced
    old.sync()
    assert old.assignment().error_code is fenced
    old.join()
    assert old.joined().error_code is fenced
    assert new.heartbeat() is ErrorCode.none


def test_the_waiting_calls_of_the_instance_that_was_replaced_are_fenced() -> None:
    shard = GroupLog()
    old = Consumer(shard, "a", group_instance_id="A")
    old.join()
    new = Consumer(shard, "b", group_instance_id="A")
    new.join()
    assert old.joined().error_code is ErrorCode.fenced_instance_id
    shard.pass_time(6_000)
    settle(new)


def test_a_static_member_that_restarts_while_the_group_syncs_causes_a_rebalance() -> None:
    shard = GroupLog()
    leader, old = Consumer(shard, "a"), Consumer(shard, "b", group_instance_id="B")
    for consumer in (leader, old):
        consumer.join()
    shard.pass_time(6_000)
    leader.joined(), old.joined()
    old.sync()
    new = Consumer(shard, "c", group_instance_id="B")
    new.join()
    assert old.assignment().error_code is ErrorCode.fenced_instance_id
    assert shard.state() == "PreparingRebalance"
    leader.join()
    settle(leader, new)


def test_a_static_member_that_restarts_with_another_protocol_causes_a_rebalance() -> None:
    shard = shard_at_once()
    both = (("range", b""), ("sticky", b""))
    old = Consumer(shard, "a", group_instance_id="A", protocols=both)
    stable_group(shard, old)
    new = Consumer(shard, "b", group_instance_id="A", protocols=both[::-1])
    new.join()
    answer = new.joined()
    assert (answer.generation_id, answer.protocol_name) == (2, "sticky")


def test_a_static_member_that_stays_away_is_expelled_when_its_session_ends() -> None:
    shard = shard_at_once()
    consumer = Consumer(shard, "a", group_instance_id="A")
    stable_group(shard, consumer)
    shard.pass_time(consumer.session_timeout_ms)
    assert shard.state() == "Empty"
    assert consumer.heartbeat() is ErrorCode.unknown_member_id


# --- size (48) -------------------------------------------------------------------------------------------------


def test_a_thousand_members_get_one_stable_generation_in_bounded_time() -> None:
    began = time.thread_time()
    shard = GroupLog()
    consumers = [Consumer(shard, f"c{number}") for number in range(1_000)]
    stable_group(shard, *consumers)
    assert {consumer.generation_id for consumer in consumers} == {1}
    for _ in range(10):
        shard.pass_time(3_000)
        assert {consumer.heartbeat() for consumer in consumers} == {ErrorCode.none}
    assert sum(isinstance(record, GroupRecord) for record in shard.log) == 1
    assert time.thread_time() - began < patient(20)


def test_a_thousand_members_without_an_initial_delay_end_in_one_stable_generation() -> None:
    shard = shard_at_once()
    consumers = [Consumer(shard, f"c{number}") for number in range(1_000)]
    for consumer in consumers:
        consumer.join()
    first = consumers[0]
    first.joined()
    first.join()
    settle(*consumers)
    assert {consumer.generation_id for consumer in consumers} == {2}
