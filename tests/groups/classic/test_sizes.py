"""The data of members are bounded: they are kept, sent to leaders, and written as one record."""

from einmal.groups.classic.requests import MemberIdentity
from einmal.groups.config import GroupConfig
from einmal.types import ErrorCode
from tests.groups.drive import GROUP, Consumer, GroupLog, leave, stable_group

SMALL = GroupConfig(
    initial_rebalance_delay_ms=0,
    max_bytes=20_000,
    max_shard_bytes=30_000,
    max_pending_members=3,
)


def large(shard: GroupLog, name: str, size: int, group_id: str = GROUP) -> Consumer:
    return Consumer(shard, name, knows_its_id_first=False, protocols=(("range", bytes(size)),), group_id=group_id)


def error_of(consumer: Consumer) -> ErrorCode:
    answer = consumer.shard.answers.get(consumer._send_join())
    return ErrorCode.none if answer is None else ErrorCode(answer.error_code)


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
