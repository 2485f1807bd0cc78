"""One group of the classic protocol: its members, its generation, and their transitions.

Soft state, changed by decisions; ``metadata`` is the part of it that is logged. Knows neither time nor records' bytes:
deadlines are fields that ``membership.py`` sets and enforces.

Invariants: counts and the instance ids agree with ``members``; only moves of ``VALID_MOVES`` are made; a group in
COMPLETING_REBALANCE or STABLE has a leader that is a member, and a protocol that every member supports.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from typing import Final

from einmal.groups.classic.member import Member, size_of_id
from einmal.groups.classic.states import VALID_MOVES, GroupState
from einmal.groups.classic.subscription import CONSUMER_PROTOCOL, subscribed_topics
from einmal.groups.records import GroupMetadata
from einmal.groups.requests import OffsetCommit, Ticket, TxnOffsetCommit
from einmal.types import ErrorCode
from einmal.wire.api.describe_groups import DescribedGroup, DescribedGroupMember
from einmal.wire.api.list_groups import ListedGroup

CLASSIC: Final = "classic"
"""The type of group that ListGroups may filter by (KIP-848)."""
_CAN_REBALANCE: Final = (GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE)


@dataclass(slots=True)
class ShardTotals:
    """Sums over the groups of a shard, which the groups keep."""

    size: int = 0
    """Bytes of the groups, with the members' assignments."""
    pending_members: int = 0


@dataclass(slots=True)
class ClassicGroup:
    group_id: str
    state: GroupState = GroupState.EMPTY
    generation_id: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    pending_members: dict[str, int] = field(default_factory=dict)
    """Member ids that were assigned and not yet used in a join, with their deadlines (monotonic ms)."""
    static_members: dict[str, str] = field(default_factory=dict)
    """Member id by group instance id."""
    pending_sync: dict[str, None] = field(default_factory=dict)
    """Members that have this generation's JoinGroup response and have not asked for their assignment."""
    rebalance_deadline: int | None = None
    """End of the current phase: the initial delay, the joining, or the syncing (monotonic ms)."""
    initial_delay_left_ms: int | None = None
    """While an empty group's first members join: by how much the delay may still be extended; else None."""
    has_newcomers: bool = False
    """A member joined since the initial delay began or was extended."""
    waiting_joins: int = 0
    size: int = 0
    """Bytes of its members' metadata, and of the pending member ids."""
    speakers: dict[str, int] = field(default_factory=dict)
    """How many members support each protocol."""
    totals: ShardTotals = field(default_factory=ShardTotals)

    # --- claims -------------------------------------------------------------------------------------------------

    @property
    def can_rebalance(self) -> bool:
        return self.state in _CAN_REBALANCE

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def is_dead(self) -> bool:
        return self.state is GroupState.DEAD

    @property
    def is_awaited(self) -> bool:
        return bool(self.pending_members)

    @property
    def is_unused(self) -> bool:
        """Nothing would be lost by forgetting it."""
        return self.is_empty and self.generation_id == 0 and not self.is_awaited

    @property
    def has_known_subscriptions(self) -> bool:
        return not self.members or self.protocol_type == CONSUMER_PROTOCOL

    @property
    def has_all_members_joined(self) -> bool:
        return self.waiting_joins == len(self.members) and not self.pending_members

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def supports(self, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]) -> bool:
        """Whether a member with these protocols has one in common with all others."""
        if not self.members:
            return bool(protocol_type and protocols)
        count = len(self.members)
        return protocol_type == self.protocol_type and any(
            self.speakers.get(name) == count for name, _metadata in protocols
        )

    def wanted(self, topics: Set[str]) -> Set[str]:
        """Those of the topics that a member is, or may be, subscribed to: all where a subscription is unreadable."""
        wanted: set[str] = set()
        for member in self.members.values():
            for _name, metadata in member.protocols:
                subscribed = subscribed_topics(metadata)
                if subscribed is None:
                    return topics
                wanted |= topics & subscribed
        return wanted

    def kept(self, topics: Set[str]) -> Set[str]:
        """Those that a member wants; all while members join, and where subscriptions are not known."""
        is_known = self.state is GroupState.STABLE and self.has_known_subscriptions
        return self.wanted(topics) if is_known else topics

    def check_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """The error for a request as this member (KIP-345 for instance ids)."""
        if group_instance_id is not None:
            known = self.static_members.get(group_instance_id)
            if known is None:
                return ErrorCode.unknown_member_id
            if known != member_id:
                return ErrorCode.fenced_instance_id
        return ErrorCode.none if member_id in self.members else ErrorCode.unknown_member_id

    def commit_refusal(self, request: OffsetCommit | TxnOffsetCommit, *, is_transactional: bool) -> ErrorCode:
        """The error for a commit as this member, in this generation (KIP-447)."""
        if request.generation_id < 0 and self.is_empty:
            return ErrorCode.none
        if request.generation_id >= 0 or request.member_id != "" or request.group_instance_id is not None:
            error = self.check_member(request.member_id, request.group_instance_id)
            if error is not ErrorCode.none:
                return error
            if request.generation_id != self.generation_id:
                return ErrorCode.illegal_generation
        elif not is_transactional:
            # Transactional clients from before KIP-447 cannot send their member id; others can.
            return ErrorCode.unknown_member_id
        if not is_transactional and self.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    # --- answers ------------------------------------------------------------------------------------------------

    def describe(self) -> DescribedGroup:
        # Subscriptions and assignments are consistent only when every member has its own.
        is_stable = self.state is GroupState.STABLE
        return DescribedGroup(
            error_code=ErrorCode.group_id_not_found if self.is_dead else ErrorCode.none,
            error_message=f"Group {self.group_id} not found." if self.is_dead else None,
            group_id=self.group_id,
            group_state=self.state.value,
            protocol_type=self.protocol_type or "",
            protocol_data=(self.protocol_name or "") if is_stable else "",
            members=tuple(
                DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.metadata_for(self.protocol_name) if is_stable else b"",
                    member_assignment=member.assignment if is_stable else b"",
                )
                for member in self.members.values()
            ),
        )

    def entry(self) -> ListedGroup:
        return ListedGroup(self.group_id, self.protocol_type or "", self.state.value, CLASSIC)

    # --- members ------------------------------------------------------------------------------------------------

    def add(self, member: Member, protocol_type: str) -> None:
        assert member.member_id not in self.members
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        self._count_protocols(member, 1)
        self._grow(member.size)
        self.totals.size += len(member.assignment)
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        self.forget_pending(member.member_id)

    def await_member(self, member_id: str, deadline: int) -> None:
        """A member id is handed out, to be used in a join before ``deadline``."""
        self.forget_pending(member_id)
        self.pending_members[member_id] = deadline
        self._grow(size_of_id(member_id))
        self.totals.pending_members += 1

    def forget_pending(self, member_id: str) -> None:
        """A member id is used by now, or never will be; nothing for one that is not pending."""
        if self.pending_members.pop(member_id, None) is not None:
            self._grow(-size_of_id(member_id))
            self.totals.pending_members -= 1

    def remove(self, member: Member) -> None:
        del self.members[member.member_id]
        self.park_join(member, None)
        self._count_protocols(member, -1)
        self._grow(-member.size)
        self.totals.size -= len(member.assignment)
        self.pending_sync.pop(member.member_id, None)
        if member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def replace_static(self, old: Member, member_id: str) -> Member:
        """Let a restarted static member replace its predecessor, under a new id. Returns it."""
        assert old.group_instance_id is not None
        was_leader = self.leader == old.member_id
        self.remove(old)
        member = Member(
            member_id=member_id,
            group_instance_id=old.group_instance_id,
            client_id=old.client_id,
            client_host=old.client_host,
            rebalance_timeout_ms=old.rebalance_timeout_ms,
            session_timeout_ms=old.session_timeout_ms,
            protocols=old.protocols,
            session_deadline=old.session_deadline,
            assignment=old.assignment,
        )
        self.add(member, self.protocol_type or "")
        if was_leader:
            self.leader = member_id
        return member

    def set_metadata(self, member: Member, client_id: str, protocols: tuple[tuple[str, bytes], ...]) -> None:
        """Take what a member has sent with another join."""
        self._count_protocols(member, -1)
        self._grow(-member.size)
        member.client_id, member.protocols = client_id, protocols
        self._grow(member.size)
        self._count_protocols(member, 1)

    def assign(self, member: Member, assignment: bytes) -> None:
        self.totals.size += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def park_join(self, member: Member, ticket: Ticket | None) -> Ticket | None:
        """Let the member's join wait under ``ticket`` (None: no longer); returns the one that waited before."""
        waited = member.join_ticket
        self.waiting_joins += (ticket is not None) - (waited is not None)
        member.join_ticket = ticket
        return waited

    # --- generations --------------------------------------------------------------------------------------------

    def move_to(self, state: GroupState) -> None:
        assert state in VALID_MOVES[self.state], f"group {self.group_id}: {self.state} to {state}"
        self.state = state

    def elect_leader(self) -> bool:
        """Keep the leader if it has joined, else choose the first member that has. False: none has."""
        if self.leader is not None and self.members[self.leader].join_ticket is not None:
            return True
        self.leader = next(
            (member.member_id for member in self.members.values() if member.join_ticket is not None), self.leader
        )
        return self.leader is not None and self.members[self.leader].join_ticket is not None

    def begin_generation(self) -> None:
        """The next generation, of the present members."""
        self.generation_id += 1
        self.pending_sync.clear()
        if self.members:
            self.protocol_name = self.select_protocol()
            self.move_to(GroupState.COMPLETING_REBALANCE)
        else:
            self.protocol_name = None
            self.leader = None
            self.move_to(GroupState.EMPTY)

    def select_protocol(self) -> str:
        """The protocol with the most votes among those that every member supports; the first one wins a draw."""
        count = len(self.members)
        candidates = {name: speakers for name, speakers in self.speakers.items() if speakers == count}
        assert candidates, f"group {self.group_id}: members without a common protocol"
        votes: dict[str, int] = {}
        for member in self.members.values():
            name = member.vote(candidates)
            votes[name] = votes.get(name, 0) + 1
        return max(votes, key=votes.__getitem__)

    def metadata(self, now: int) -> GroupMetadata:
        """This generation as it is logged at ``now`` (wall clock)."""
        return GroupMetadata(
            protocol_type=self.protocol_type or "",
            generation_id=self.generation_id,
            protocol_name=self.protocol_name,
            leader=self.leader,
            current_state_timestamp=now,
            members=tuple(member.describe(self.protocol_name) for member in self.members.values()),
        )

    @classmethod
    def restore(cls, group_id: str, metadata: GroupMetadata, now: int, totals: ShardTotals) -> ClassicGroup:
        """A group as a new coordinator finds it in the log. ``now`` is monotonic ms."""
        group = cls(group_id, generation_id=metadata.generation_id, protocol_type=metadata.protocol_type, totals=totals)
        for member in metadata.members:
            group.add(Member.restore(member, metadata.protocol_name, now), metadata.protocol_type)
        if group.members:
            group.state = GroupState.STABLE
            group.protocol_name = metadata.protocol_name
            group.leader = metadata.leader if metadata.leader in group.members else next(iter(group.members))
        return group

    def _grow(self, change: int) -> None:
        self.size += change
        self.totals.size += change

    def _count_protocols(self, member: Member, change: int) -> None:
        for name, _metadata in member.protocols:
            speakers = self.speakers.get(name, 0) + change
            if speakers:
                self.speakers[name] = speakers
            else:
                del self.speakers[name]
