"""The data of members are bounded: they are kept, sent to leaders, and written as one record."""

from dataclasses import replace
from typing import Any

from einmal.groups.classic.requests import MemberIdentity
from einmal.groups.config import GroupConfig
from einmal.types import ErrorCode
from tests.groups.drive import GROUP, Consumer, GroupLog, leave, stable_group

SMALL = GroupConfig(
    initial_rebalance_delay_ms=0,
    max_bytes=20_000,
    max_shard_bytes=30_000,
    max_pending_members=3,
    max_shard_pending_members=5,
)


def large(shard: GroupLog, name: str, size: int, group_id: str = GROUP, **fields: Any) -> Consumer:
    protocols = (("range", bytes(size)),)
    return Consumer(shard, name, knows_its_id_first=False, protocols=protocols, group_id=group_id, **fields)


def error_of(consumer: Consumer) -> ErrorCode:
    answer = consumer.shard.answers.get(consumer._send_join())
    return ErrorCode.none if answer is None else ErrorCode(answer.error_code)


def assigned(leader: Consumer, size: int) -> ErrorCode:
    """The answer to an assignment of that size, in a new generation."""
    leader.join()
    leader.joined()
    leader.sync({leader.member_id: bytes(size)})
    return ErrorCode(leader.assignment().error_code)


def test_a_group_takes_no_more_than_fits_into_its_record() -> None:
    shard = GroupLog(SMALL)
    assert error_of(large(shard, "a", 15_000)) is ErrorCode.none
    assert error_of(large(shard, "b", 15_000)) is ErrorCode.group_max_size_reached


def test_what_a_member_that_leaves_has_said_is_given_back() -> None:
    shard = GroupLog(SMALL)
    first = large(shard, "a", 15_000)
    stable_group(shard, first)
    leave(shard, GROUP, MemberIdentity(first.member_id, None))
    assert error_of(large(shard, "b", 15_000)) is ErrorCode.none


def test_a_coordinator_takes_no_more_than_its_share_of_all_groups() -> None:
    shard = GroupLog(SMALL)
    assert error_of(large(shard, "a", 15_000, "g1")) is ErrorCode.none
    assert error_of(large(shard, "b", 17_000, "g2")) is ErrorCode.none
    assert error_of(large(shard, "c", 10_000, "g3")) is ErrorCode.coordinator_not_available
    assert error_of(large(shard, "d", 10, "g3")) is ErrorCode.none


def test_pending_member_ids_are_bounded() -> None:
    shard = GroupLog(SMALL)
    answers = [shard.answers[Consumer(shard, f"c{number}")._send_join()] for number in range(4)]
    assert [answer.error_code for answer in answers] == [ErrorCode.member_id_required] * 3 + [
        ErrorCode.group_max_size_reached
    ]


def test_pending_member_ids_of_all_groups_are_bounded_and_given_back() -> None:
    shard = GroupLog(SMALL)

    def ask(number: int) -> ErrorCode:
        return error_of(Consumer(shard, f"c{number}", group_id=f"g{number}"))

    assert [ask(number) for number in range(6)] == [ErrorCode.member_id_required] * 5 + [
        ErrorCode.coordinator_not_available
    ]
    assert shard.delete("g0") is ErrorCode.none
    assert ask(6) is ErrorCode.member_id_required
    shard.pass_time(10_000)
    assert [ask(number) for number in range(7, 12)] == [ErrorCode.member_id_required] * 5


def test_ids_that_are_never_used_take_bytes_of_the_group_and_of_the_shard() -> None:
    shard = GroupLog(replace(SMALL, max_shard_bytes=20_000))
    assert error_of(Consumer(shard, "x" * 9_000)) is ErrorCode.member_id_required
    assert error_of(Consumer(shard, "y" * 9_000)) is ErrorCode.group_max_size_reached
    assert error_of(Consumer(shard, "x" * 9_000, group_id="g2")) is ErrorCode.member_id_required
    assert error_of(Consumer(shard, "x" * 9_000, group_id="g3")) is ErrorCode.coordinator_not_available
    assert error_of(Consumer(shard, "x", group_id="g3")) is ErrorCode.member_id_required


def test_no_timer_holds_the_id_of_a_member_that_is_gone() -> None:
    shard = GroupLog(SMALL)
    for number in range(500):
        consumer = Consumer(shard, f"c{number}", session_timeout_ms=1_800_000)
        assert error_of(consumer) is ErrorCode.member_id_required
        consumer.member_id = f"c{number}-c{number}1"
        consumer.join()
        consumer.leave()
        assert len(shard.coordinator._classic.membership._timers._heap) < 300


def test_text_counts_with_its_bytes() -> None:
    emoji = "\U0001f600"
    assert error_of(large(GroupLog(SMALL), emoji * 1_200, 10_000)) is ErrorCode.none
    assert error_of(large(GroupLog(SMALL), emoji * 1_300, 10_000)) is ErrorCode.group_max_size_reached
    shard = GroupLog(SMALL)
    consumer = large(shard, "a", 0)
    consumer.protocols = ((emoji * 5_000, b""),)
    assert error_of(consumer) is ErrorCode.group_max_size_reached


def test_a_static_member_that_restarts_counts_instead_of_its_predecessor() -> None:
    shard = GroupLog(SMALL)
    stable_group(shard, large(shard, "a", 15_000, group_instance_id="A"))
    assert error_of(large(shard, "b", 15_000, group_instance_id="A")) is ErrorCode.none


def test_a_member_that_takes_another_client_id_leaves_nothing_behind() -> None:
    shard = GroupLog(SMALL)
    for number in range(10):
        consumer = large(shard, "x" * 5_000, 10)
        stable_group(shard, consumer)
        consumer.name, consumer.protocols = "", (("range", b"%d" % number),)
        stable_group(shard, consumer)
        assert consumer.leave() is ErrorCode.none
    assert shard.coordinator._classic.live[GROUP].size == 0
    assert error_of(large(shard, "honest", 15_000)) is ErrorCode.none


def test_assignments_take_their_share_of_all_groups() -> None:
    shard = GroupLog(SMALL)
    for number in range(3):
        leader = large(shard, "a", 10, f"g{number}")
        assert assigned(leader, 18_000) is ErrorCode.none
    leader = large(shard, "a", 10, "g3")
    assert assigned(leader, 18_000) is ErrorCode.coordinator_not_available
    leader.sync({leader.member_id: bytes(1_000)})
    assert leader.assignment().error_code is ErrorCode.none


def test_groups_of_a_full_coordinator_assign_again_as_much_as_before() -> None:
    shard = GroupLog(replace(SMALL, max_shard_bytes=25_000))
    leaders = [large(shard, "a", 10, f"g{number}") for number in range(2)]
    for leader in leaders:
        assert assigned(leader, 18_000) is ErrorCode.none
    assert error_of(large(shard, "b", 10_000, "g2")) is ErrorCode.coordinator_not_available, "joins stop first"
    for leader in leaders:
        assert assigned(leader, 18_000) is ErrorCode.none, "it replaces as much"
        assert assigned(leader, 19_000) is ErrorCode.none


def test_groups_of_a_full_coordinator_assign_although_a_rebalance_has_dropped_what_they_had() -> None:
    shard = GroupLog(SMALL)
    leaders = [large(shard, "a", 10, f"g{number}") for number in range(2)]
    for leader in leaders:
        assert assigned(leader, 18_000) is ErrorCode.none
    before = shard.coordinator._classic._totals.size
    leaders[0].join()
    leaders[0].joined()
    leaders[0].protocols = (("range", bytes(11)),)
    leaders[0].join()
    assert shard.coordinator._classic._totals.size < before - 17_000
    assert assigned(large(shard, "a", 10, "g2"), 18_000) is ErrorCode.none, "another group takes its place"
    leaders[0].joined()
    leaders[0].sync({leaders[0].member_id: bytes(18_000)})
    assert leaders[0].assignment().error_code is ErrorCode.none
