"""Claims about a member of a group: what it gives up when, and what an answer does to its membership."""

from __future__ import annotations

from typing import Any

import pytest

from einmal.client.config import ConsumerSettings, parse
from einmal.client.cores.consumer_protocol import (
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from einmal.client.cores.group_core import GroupCore, MemberStep
from einmal.client.errors import ConfigError
from einmal.types import ErrorCode, TopicPartition
from einmal.wire.api.join_group import JoinGroupResponse, JoinGroupResponseMember
from einmal.wire.api.sync_group import SyncGroupResponse

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


def member(strategy: str = "range") -> GroupCore:
    config = {"bootstrap.servers": "x:1", "group.id": "g", "partition.assignment.strategy": strategy}
    core = GroupCore(parse(ConsumerSettings, config, {}))
    core.subscribe(["t"])
    return core


def joined(core: GroupCore, **changes: Any) -> JoinGroupResponse:
    answer = JoinGroupResponse(
        member_id="me",
        generation_id=1,
        protocol_name=core.join_request().protocols[0].name,
        leader="me",
        members=[JoinGroupResponseMember("me", metadata=encode_subscription(Subscription(("t",))))],
    )
    return answer._replace(**changes)


def synced(*partitions: TopicPartition, code: ErrorCode = ErrorCode.none) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=code, assignment=encode_assignment(partitions))


def stable(strategy: str = "range") -> GroupCore:
    """A member that owns t-0 and t-1."""
    core = member(strategy)
    answer = joined(core)
    assert core.joined(answer) is MemberStep.GO_ON
    core.sync_request(answer, {"t": 2})
    step, assignment = core.synced(synced(T0, T1))
    assert step is MemberStep.GO_ON
    core.assigned(assignment)
    assert not core.must_join
    return core


def test_the_leader_divides_and_the_others_send_nothing() -> None:
    core = member()
    answer = joined(core)
    core.joined(answer)
    (mine,) = core.sync_request(answer, {"t": 2}).assignments
    assert decode_assignment(mine.assignment) == (T0, T1)
    assert core.sync_request(answer._replace(leader="another"), {"t": 2}).assignments == ()


def test_a_first_join_is_repeated_with_the_returned_member_id() -> None:
    core = member()
    answer = joined(core, error_code=ErrorCode.member_id_required, member_id="given")
    assert core.joined(answer) is MemberStep.REJOIN
    assert core.join_request().member_id == "given"


def test_an_eager_member_gives_up_everything_before_it_joins_again() -> None:
    core = stable()
    assert core.answered(ErrorCode.rebalance_in_progress) is MemberStep.REJOIN
    assert core.must_join
    assert core.to_revoke() == (T0, T1)
    core.revoked(core.to_revoke())
    assert core.owned == ()


def test_a_cooperative_member_keeps_and_reports_its_owned_partitions() -> None:
    core = stable("cooperative-sticky")
    core.answered(ErrorCode.rebalance_in_progress)
    assert core.to_revoke() == ()
    assert core.join_request().protocols[0].metadata == encode_subscription(Subscription(("t",), (T0, T1)))


def test_a_cooperative_member_that_gave_something_up_joins_once_more() -> None:
    core = stable("cooperative-sticky")
    core.assigned([T0])
    assert core.must_join
    assert core.owned == (T0,)


def test_one_eager_strategy_makes_the_member_eager() -> None:
    assert not member("range,cooperative-sticky").is_cooperative
    assert member("cooperative-sticky").is_cooperative


@pytest.mark.parametrize("code", [ErrorCode.unknown_member_id, ErrorCode.illegal_generation])
def test_a_member_that_was_forgotten_has_lost_its_partitions(code: ErrorCode) -> None:
    core = stable("cooperative-sticky")
    assert core.answered(code) is MemberStep.REJOIN_AS_NEW
    assert not core.is_member
    assert core.has_lost_partitions
    assert core.to_revoke() == (T0, T1)
    assert core.join_request().member_id == ("me" if code is ErrorCode.illegal_generation else "")


@pytest.mark.parametrize(
    ("code", "step"),
    [
        (ErrorCode.not_coordinator, MemberStep.FIND_COORDINATOR),
        (ErrorCode.coordinator_not_available, MemberStep.FIND_COORDINATOR),
        (ErrorCode.coordinator_load_in_progress, MemberStep.RETRY),
        (ErrorCode.fenced_instance_id, MemberStep.FAIL),
        (ErrorCode.inconsistent_group_protocol, MemberStep.FAIL),
        (ErrorCode.group_authorization_failed, MemberStep.FAIL),
    ],
)
def test_what_an_answer_asks_for(code: ErrorCode, step: MemberStep) -> None:
    core = stable()
    assert core.answered(code) is step
    assert core.is_member


def test_more_partitions_mean_a_rebalance() -> None:
    core = stable()
    core.topics_changed({"t": 2})
    core.topics_changed({})
    assert not core.must_join
    core.topics_changed({"t": 3})
    assert core.must_join


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(ConfigError, match="choose from range, roundrobin, cooperative-sticky|Choose from"):
        member("lucky")
