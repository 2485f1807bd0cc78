"""Both sides of the group protocol without a network: a shard's runtime in miniature, and members that speak to it.

``GroupLog`` does what a runtime does with decisions: replays the records in order, keeps them, hands out the answers.
``Consumer`` is a member in the way a client library is one: it joins, learns its id, assigns if it leads, syncs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from einmal.groups.classic.requests import Heartbeat, JoinGroup, LeaveGroup, MemberIdentity, SyncGroup
from einmal.groups.config import GroupConfig
from einmal.groups.coordinator import GroupCoordinator
from einmal.groups.records import Record, decode, encode
from einmal.groups.requests import (
    GroupDecision,
    OffsetCommit,
    OffsetFetchGroup,
    OffsetToCommit,
    Respond,
    Ticket,
    TxnOffsetCommit,
)
from einmal.types import ErrorCode, Instant, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition

Response = Any
GROUP = "group"
TOPIC = TopicPartition("topic", 0)
Marker = tuple[ProducerIdAndEpoch, bool]


def producer(producer_id: int = 7, epoch: int = 0) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))


@dataclass
class GroupLog:
    """One shard with its log, its clock and the answers that it gave."""

    config: GroupConfig = field(default_factory=GroupConfig)
    now_ms: int = 1_000_000
    log: list[Record | Marker] = field(default_factory=list)
    answers: dict[Ticket, Response] = field(default_factory=dict)
    tickets: int = 0

    def __post_init__(self) -> None:
        self.coordinator = self.load()

    @property
    def now(self) -> Instant:
        # Two clocks that cannot be taken for one another.
        return Instant(wall_ms=1_700_000_000_000 + self.now_ms, monotonic_ms=self.now_ms)

    def load(self) -> GroupCoordinator:
        """A new coordinator, from the bytes of the log alone."""
        coordinator = GroupCoordinator(self.config)
        for entry in self.log:
            if isinstance(entry, tuple):
                coordinator.replay_marker(*entry)
            else:
                key, value = encode(entry)
                record = decode(key, value, getattr(entry, "producer_id", None))
                assert record == entry
                coordinator.replay(record)
        assert coordinator.loaded(self.now) == ()
        return coordinator

    def fail_over(self) -> None:
        self.coordinator = self.load()

    def apply(self, decision: GroupDecision[Any]) -> Any:
        for record in decision.records:
            self.log.append(record)
            self.coordinator.replay(record)
        for action in decision.actions:
            assert isinstance(action, Respond)
            assert action.ticket not in self.answers, "a ticket is answered once"
            self.answers[action.ticket] = action.response
        return decision.response

    def mark(self, identity: ProducerIdAndEpoch, committed: bool) -> None:
        self.log.append((identity, committed))
        self.coordinator.replay_marker(identity, committed)

    def ticket(self) -> Ticket:
        self.tickets += 1
        return Ticket(self.tickets)

    def wait(self, decide: Callable[[Ticket], GroupDecision[Any]]) -> Ticket:
        """Ask something that may be answered later."""
        ticket = self.ticket()
        response = self.apply(decide(ticket))
        if response is not None:
            assert ticket not in self.answers
            self.answers[ticket] = response
        return ticket

    def pass_time(self, duration_ms: int) -> int:
        """Let time pass, stopping wherever the coordinator wants to be woken; how often that was."""
        end = self.now_ms + duration_ms
        wakes = 0
        while True:
            deadline = self.coordinator.next_deadline()
            if deadline is None or deadline > end:
                break
            self.now_ms = max(self.now_ms, deadline)
            for decision in self.coordinator.tick(self.now):
                self.apply(decision)
            wakes += 1
            assert wakes < 100_000, "the coordinator wakes up for nothing"
        self.now_ms = end
        return wakes

    # --- requests of nobody in particular -----------------------------------------------------------------------

    def commit(self, offset: int, **fields: Any) -> ErrorCode:
        defaults: dict[str, Any] = {
            "group_id": GROUP,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "offsets": {TOPIC: OffsetToCommit(offset, 3, "note")},
        }
        request = OffsetCommit(**(defaults | fields))
        return only_error(self.apply(self.coordinator.offset_commit(request, self.now)))

    def txn_commit(self, offset: int, identity: ProducerIdAndEpoch, **fields: Any) -> ErrorCode:
        defaults: dict[str, Any] = {
            "group_id": GROUP,
            "producer": identity,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "offsets": {TOPIC: OffsetToCommit(offset, 3, "note")},
        }
        request = TxnOffsetCommit(**(defaults | fields))
        decision = self.coordinator.txn_offset_commit(request, self.now)
        assert decision.producer == (identity if decision.records else None)
        return only_error(self.apply(decision))

    def fetch(self, group_id: str = GROUP, *, require_stable: bool = False) -> int | ErrorCode:
        """The committed offset of TOPIC, or why there is none to be had."""
        request = OffsetFetchGroup(group_id, (TOPIC,))
        response = self.apply(self.coordinator.offset_fetch(request, require_stable=require_stable))
        ((partition,),) = [topic.partitions for topic in response.topics]
        error = partition.error_code
        assert isinstance(error, ErrorCode)
        return int(partition.committed_offset) if error is ErrorCode.none else error

    def state(self, group_id: str = GROUP) -> str:
        (group,) = self.apply(self.coordinator.describe_groups([group_id])).groups
        return str(group.group_state)

    def delete(self, group_id: str = GROUP) -> ErrorCode:
        (result,) = self.apply(self.coordinator.delete_groups([group_id])).results
        error = result.error_code
        assert isinstance(error, ErrorCode)
        return error


def only_error(response: Response) -> ErrorCode:
    """The one error of a commit of one partition."""
    ((partition,),) = [topic.partitions for topic in response.topics]
    error = partition.error_code
    assert isinstance(error, ErrorCode)
    return error


@dataclass
class Consumer:
    """A member's side. ``joining``, ``syncing``: the ticket under which it waits."""

    shard: GroupLog
    name: str
    group_instance_id: str | None = None
    group_id: str = GROUP
    session_timeout_ms: int = 10_000
    rebalance_timeout_ms: int = 60_000
    protocols: tuple[tuple[str, bytes], ...] = (("range", b"sub"),)
    protocol_type: str = "consumer"
    knows_its_id_first: bool = True
    supports_skipping_assignment: bool = True
    member_id: str = ""
    generation_id: int = -1
    joining: Ticket | None = None
    syncing: Ticket | None = None
    joins: int = 0

    def join(self) -> Ticket:
        """Send a join; a member id that is required is learnt and used at once."""
        ticket = self._send_join()
        answer = self.shard.answers.get(ticket)
        if answer is not None and answer.error_code is ErrorCode.member_id_required:
            self.member_id = answer.member_id
            ticket = self._send_join()
        self.joining = ticket
        return ticket

    def _send_join(self) -> Ticket:
        self.joins += 1
        request = JoinGroup(
            group_id=self.group_id,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            protocol_type=self.protocol_type,
            protocols=self.protocols,
            client_id=self.name,
            client_host="/127.0.0.1",
            fresh_id=f"{self.name}{self.joins}",
            requires_known_member_id=self.knows_its_id_first,
            supports_skipping_assignment=self.supports_skipping_assignment,
        )
        return self.shard.wait(lambda ticket: self.shard.coordinator.join_group(request, ticket, self.shard.now))

    def joined(self) -> Response:
        """Take the answer to the join."""
        assert self.joining is not None
        answer = self.shard.answers[self.joining]
        self.joining = None
        if answer.error_code is ErrorCode.none:
            self.member_id = answer.member_id
            self.generation_id = answer.generation_id
        return answer

    def sync(self, assignments: Mapping[str, bytes] | None = None, **fields: Any) -> Ticket:
        defaults: dict[str, Any] = {
            "group_id": self.group_id,
            "generation_id": self.generation_id,
            "member_id": self.member_id,
            "group_instance_id": self.group_instance_id,
            "protocol_type": self.protocol_type,
            "protocol_name": None,
            "assignments": tuple((assignments or {}).items()),
        }
        request = SyncGroup(**(defaults | fields))
        self.syncing = self.shard.wait(
            lambda ticket: self.shard.coordinator.sync_group(request, ticket, self.shard.now)
        )
        return self.syncing

    def assignment(self) -> Response:
        """Take the answer to the sync."""
        assert self.syncing is not None
        answer = self.shard.answers[self.syncing]
        self.syncing = None
        return answer

    def heartbeat(self) -> ErrorCode:
        request = Heartbeat(
            group_id=self.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
        )
        error = self.shard.apply(self.shard.coordinator.heartbeat(request, self.shard.now)).error_code
        assert isinstance(error, ErrorCode)
        return error

    def leave(self) -> ErrorCode:
        return leave(self.shard, self.group_id, MemberIdentity(self.member_id, self.group_instance_id))[0]

    @property
    def identity(self) -> dict[str, Any]:
        return {
            "group_id": self.group_id,
            "generation_id": self.generation_id,
            "member_id": self.member_id,
            "group_instance_id": self.group_instance_id,
        }

    def commit(self, offset: int) -> ErrorCode:
        return self.shard.commit(offset, **self.identity)

    def txn_commit(self, offset: int, identity: ProducerIdAndEpoch) -> ErrorCode:
        return self.shard.txn_commit(offset, identity, **self.identity)


def leave(shard: GroupLog, group_id: str, *identities: MemberIdentity) -> list[ErrorCode]:
    request = LeaveGroup(group_id, identities)
    response = shard.apply(shard.coordinator.leave_group(request, shard.now))
    return [member.error_code for member in response.members]


def settle(*consumers: Consumer) -> None:
    """Let members whose joins were answered sync: the leader assigns each its own name."""
    leader = None
    members = []
    for consumer in consumers:
        answer = consumer.joined()
        assert answer.error_code is ErrorCode.none, answer
        if answer.leader == consumer.member_id:
            leader = consumer
            members = [member.member_id for member in answer.members]
        else:
            consumer.sync()
    assert leader is not None
    assert sorted(members) == sorted(consumer.member_id for consumer in consumers)
    leader.sync({member_id: member_id.encode() for member_id in members})
    for consumer in consumers:
        answer = consumer.assignment()
        assert (answer.error_code, answer.assignment) == (ErrorCode.none, consumer.member_id.encode())


def stable_group(shard: GroupLog, *consumers: Consumer) -> None:
    """Let all join and settle, from an empty group."""
    for consumer in consumers:
        consumer.join()
    shard.pass_time(shard.config.initial_rebalance_delay_ms * 2)
    settle(*consumers)
