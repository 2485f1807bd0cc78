"""A member of a consumer group, classic protocol, without I/O: join, sync, heartbeat, and the handling of answers.

The member's partitions are those of its *generation*. With eager assignors it revokes all of them before it joins
again; when every configured assignor is cooperative (KIP-429) it keeps them, revokes only those that the new assignment
lacks, and joins once more so that others can get these. Times are monotonic ms. Knows no connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Final

from einmal.client.config import ConsumerSettings
from einmal.client.cores.assignors import ASSIGNORS
from einmal.client.cores.consumer_protocol import (
    PROTOCOL_TYPE,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from einmal.client.errors import ConfigError, KafkaError, error_for
from einmal.client.records import GroupMetadata
from einmal.types import ErrorCode, TopicPartition
from einmal.wire.api.heartbeat import HeartbeatRequest
from einmal.wire.api.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from einmal.wire.api.leave_group import LeaveGroupRequest, MemberIdentity
from einmal.wire.api.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from einmal.wire.errors import WireError

NO_GENERATION: Final = -1


class MemberStep(Enum):
    """The next step after an answer of the group's coordinator."""

    GO_ON = auto()
    REJOIN = auto()
    """Join again as the same member."""
    REJOIN_AS_NEW = auto()
    """The group has forgotten this member: others may own its partitions already."""
    FIND_COORDINATOR = auto()
    RETRY = auto()
    FAIL = auto()


_STEPS: Final[Mapping[ErrorCode, MemberStep]] = {
    ErrorCode.none: MemberStep.GO_ON,
    ErrorCode.rebalance_in_progress: MemberStep.REJOIN,
    ErrorCode.member_id_required: MemberStep.REJOIN,
    ErrorCode.illegal_generation: MemberStep.REJOIN_AS_NEW,
    ErrorCode.unknown_member_id: MemberStep.REJOIN_AS_NEW,
    ErrorCode.not_coordinator: MemberStep.FIND_COORDINATOR,
    ErrorCode.coordinator_not_available: MemberStep.FIND_COORDINATOR,
    ErrorCode.request_timed_out: MemberStep.RETRY,
    ErrorCode.coordinator_load_in_progress: MemberStep.RETRY,
}


def step_after(code: ErrorCode) -> MemberStep:
    return _STEPS.get(code, MemberStep.RETRY if code.retriable else MemberStep.FAIL)


class GroupCore:
    def __init__(self, settings: ConsumerSettings) -> None:
        assert settings.group_id is not None
        self.group_id = settings.group_id
        self.member_id = ""
        self.generation_id = NO_GENERATION
        self.owned: tuple[TopicPartition, ...] = ()
        self.topics: tuple[str, ...] = ()
        self.must_join = False
        self.has_lost_partitions = False
        """Set when the group forgot this member: others may own its partitions, so nothing may be committed."""
        self._settings = settings
        self._strategies = _strategies(settings.partition_assignment_strategy)
        self._protocol: str | None = None
        self._counts: dict[str, int] = {}

    @property
    def is_cooperative(self) -> bool:
        return all(ASSIGNORS[name].is_cooperative for name in self._strategies)

    @property
    def is_member(self) -> bool:
        return self.generation_id >= 0

    def metadata(self) -> GroupMetadata:
        return GroupMetadata(self.group_id, self.generation_id, self.member_id, self._settings.group_instance_id)

    def subscribe(self, topics: Iterable[str]) -> None:
        self.topics = tuple(sorted(dict.fromkeys(topics)))
        self.must_join = True

    def topics_changed(self, counts: Mapping[str, int]) -> None:
        """The present partition counts of metadata: a change since the assignment means a rebalance.

        A missing topic does not: its metadata may only be late.
        """
        if self.is_member and any(self._counts.get(topic) != count for topic, count in counts.items()):
            self.must_join = True

    # --- joining --------------------------------------------------------------------------------------------------

    def to_revoke(self) -> tuple[TopicPartition, ...]:
        """The partitions to revoke before joining again."""
        if self.has_lost_partitions or not self.is_cooperative:
            return self.owned
        return tuple(partition for partition in self.owned if partition.topic not in self.topics)

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        gone = dict.fromkeys(partitions)
        self.owned = tuple(partition for partition in self.owned if partition not in gone)

    def join_request(self) -> JoinGroupRequest:
        self.must_join = False
        self.has_lost_partitions = False
        subscription = encode_subscription(Subscription(self.topics, self.owned if self.is_cooperative else ()))
        return JoinGroupRequest(
            group_id=self.group_id,
            session_timeout=self._settings.session_timeout_ms,
            rebalance_timeout=self._settings.max_poll_interval_ms,
            member_id=self.member_id,
            group_instance_id=self._settings.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=tuple(JoinGroupRequestProtocol(name, subscription) for name in self._strategies),
        )

    def joined(self, response: JoinGroupResponse) -> MemberStep:
        """JoinGroup's answer. After GO_ON, ``sync_request`` is next."""
        step = self.answered(response.error_code)
        if response.error_code is ErrorCode.member_id_required:
            self.member_id = response.member_id
        if step is MemberStep.GO_ON and response.protocol_name not in self._strategies:
            raise error_for(
                ErrorCode.inconsistent_group_protocol,
                f"group {self.group_id!r} chose {response.protocol_name!r}, which this member did not offer",
            )
        if step is MemberStep.GO_ON:
            self.member_id = response.member_id
            self.generation_id = response.generation_id
            self._protocol = response.protocol_name
        return step

    def sync_request(self, response: JoinGroupResponse, counts: Mapping[str, int]) -> SyncGroupRequest:
        """SyncGroup after this JoinGroup; the leader divides the partitions (``counts`` by topic) among the members."""
        self._counts = {topic: counts[topic] for topic in self.topics if topic in counts}
        assignments: tuple[SyncGroupRequestAssignment, ...] = ()
        if response.leader == self.member_id and not response.skip_assignment:
            assert self._protocol is not None
            subscriptions = {member.member_id: self._subscription_of(member) for member in response.members}
            divided = ASSIGNORS[self._protocol].assign(subscriptions, counts)
            assignments = tuple(
                SyncGroupRequestAssignment(member, encode_assignment(partitions))
                for member, partitions in divided.items()
            )
        return SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self._settings.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self._protocol,
            assignments=assignments,
        )

    def subscribed_by_all(self, response: JoinGroupResponse) -> list[str]:
        """Topics whose partition counts the leader needs."""
        topics: dict[str, None] = {}
        for member in response.members:
            topics.update(dict.fromkeys(self._subscription_of(member).topics))
        return sorted(topics)

    def _subscription_of(self, member: JoinGroupResponseMember) -> Subscription:
        try:
            return decode_subscription(member.metadata)
        except WireError as error:
            detail = f"subscription of member {member.member_id!r} in group {self.group_id!r}: {error}"
            raise error_for(ErrorCode.inconsistent_group_protocol, detail) from error

    def synced(self, response: SyncGroupResponse) -> tuple[MemberStep, tuple[TopicPartition, ...]]:
        """SyncGroup's answer: the partitions of this generation. Cooperative: missing partitions must be revoked."""
        step = self.answered(response.error_code)
        if step is not MemberStep.GO_ON:
            return step, ()
        try:
            return step, decode_assignment(response.assignment)
        except WireError as error:
            detail = f"assignment of this member in group {self.group_id!r}: {error}"
            raise error_for(ErrorCode.inconsistent_group_protocol, detail) from error

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """These are owned now. A cooperative member that had to revoke partitions joins once more."""
        gave_up = [partition for partition in self.owned if partition not in dict.fromkeys(partitions)]
        self.owned = tuple(partitions)
        if self.is_cooperative and gave_up:
            self.must_join = True

    # --- membership -----------------------------------------------------------------------------------------------

    def heartbeat_request(self) -> HeartbeatRequest:
        instance_id = self._settings.group_instance_id
        return HeartbeatRequest(self.group_id, self.generation_id, self.member_id, instance_id)

    def leave_request(self) -> LeaveGroupRequest:
        member = MemberIdentity(self.member_id, self._settings.group_instance_id)
        return LeaveGroupRequest(self.group_id, (member,), self.member_id)

    def answered(self, code: ErrorCode) -> MemberStep:
        """Apply a code's meaning for the membership."""
        step = step_after(code)
        if step is MemberStep.REJOIN:
            self.must_join = True
        elif step is MemberStep.REJOIN_AS_NEW:
            self.lost(keep_member_id=code is ErrorCode.illegal_generation)
        return step

    def lost(self, *, keep_member_id: bool = False) -> None:
        """The membership is lost: without a generation nothing can be committed any more."""
        if not keep_member_id:
            self.member_id = ""
        self.has_lost_partitions = self.has_lost_partitions or self.is_member
        self.generation_id = NO_GENERATION
        self.must_join = True

    def left(self) -> None:
        """LeaveGroup was sent: the member has lost its partitions."""
        self.lost()

    def error_of(self, code: ErrorCode, what: str) -> KafkaError:
        return error_for(code, f"{what} of group {self.group_id!r}")


def _strategies(configured: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in configured.split(",") if name.strip()))
    unknown = [name for name in names if name not in ASSIGNORS]
    if unknown or not names:
        raise ConfigError(
            meaning=f"partition.assignment.strategy cannot be {configured!r}",
            what_to_do=f"choose from {', '.join(ASSIGNORS)}",
        )
    return names
