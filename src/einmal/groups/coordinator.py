"""The group coordinator: one partition of ``__consumer_offsets`` as a machine.

Theory of operation. *Hard state* is in the log: each group's last written generation, the committed offsets, the
offsets pending in transactions. ``replay`` and ``replay_marker`` alone change it, live and while loading alike. *Soft
state* is what a live group needs in addition: sessions, waiting joins and syncs, the phase of a rebalance
(``membership.py``). The decisions change it, and it dies with the coordinator; ``loaded`` gives every member in the
log a whole session in which to return.

A generation begins with the joins' answers but is written only with the leader's assignment: a new coordinator that
knows only the previous one refuses its members' syncs and commits, and they join again. No member can have read in a
generation whose assignment was not committed, as the answers with it wait for the record.

Knows no sockets, clocks or randomness: ``now``, tickets for answers that come later, and the random tail of new member
ids are arguments. Answers are version-independent.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Final

from einmal.groups.config import GroupConfig
from einmal.groups.group import Group
from einmal.groups.membership import Membership
from einmal.groups.offset_commits import OffsetCommits
from einmal.groups.offsets import Offsets
from einmal.groups.records import GroupMetadata, GroupRecord, OffsetRecord, Record
from einmal.groups.requests import (
    GroupDecision,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    OffsetFetchGroup,
    SyncGroup,
    Ticket,
    TxnOffsetCommit,
)
from einmal.groups.states import GroupState
from einmal.shard.decision import Decision
from einmal.types import ErrorCode, Instant, ProducerIdAndEpoch, TopicPartition
from einmal.wire.api.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from einmal.wire.api.describe_groups import DescribedGroup, DescribedGroupMember, DescribeGroupsResponse
from einmal.wire.api.heartbeat import HeartbeatResponse
from einmal.wire.api.join_group import JoinGroupResponse
from einmal.wire.api.leave_group import LeaveGroupResponse
from einmal.wire.api.list_groups import ListedGroup, ListGroupsResponse
from einmal.wire.api.offset_commit import OffsetCommitResponse
from einmal.wire.api.offset_delete import OffsetDeleteResponse
from einmal.wire.api.offset_fetch import OffsetFetchResponseGroup
from einmal.wire.api.sync_group import SyncGroupResponse

CLASSIC: Final = "classic"
"""The type of group that ListGroups may filter by (KIP-848)."""


class GroupCoordinator:
    def __init__(self, config: GroupConfig) -> None:
        self._config = config
        self._groups: dict[str, Group] = {}
        self._generations: dict[str, GroupMetadata] = {}
        self._offsets = Offsets()
        self._membership = Membership(config, self._groups)
        self._commits = OffsetCommits(config, self._groups, self._offsets)
        self._next_expiry: int | None = None

    # --- membership ---------------------------------------------------------------------------------------------

    def join_group(self, request: JoinGroup, ticket: Ticket, now: Instant) -> GroupDecision[JoinGroupResponse | None]:
        """No response: it comes later, by the action ``Respond(ticket, ...)``."""
        return self._membership.join_group(request, ticket, now)

    def sync_group(self, request: SyncGroup, ticket: Ticket, now: Instant) -> GroupDecision[SyncGroupResponse | None]:
        """No response: it comes later, by the action ``Respond(ticket, ...)``."""
        return self._membership.sync_group(request, ticket, now)

    def heartbeat(self, request: Heartbeat, now: Instant) -> GroupDecision[HeartbeatResponse]:
        return self._membership.heartbeat(request, now)

    def leave_group(self, request: LeaveGroup, now: Instant) -> GroupDecision[LeaveGroupResponse]:
        return self._membership.leave_group(request, now)

    # --- offsets ------------------------------------------------------------------------------------------------

    def offset_commit(self, request: OffsetCommit, now: Instant) -> GroupDecision[OffsetCommitResponse]:
        decision = self._commits.offset_commit(request, now)
        if decision.records and self._commits.is_from_member(request):
            self._membership.extend_session(self._groups[request.group_id], request.member_id, now)
        return decision

    def txn_offset_commit(self, request: TxnOffsetCommit, now: Instant) -> GroupDecision[OffsetCommitResponse]:
        decision = self._commits.txn_offset_commit(request, now)
        if decision.records and self._commits.is_from_member(request):
            self._membership.extend_session(self._groups[request.group_id], request.member_id, now)
        return decision

    def offset_fetch(
        self, request: OffsetFetchGroup, *, require_stable: bool
    ) -> GroupDecision[OffsetFetchResponseGroup]:
        """The answer for one group."""
        return Decision(response=self._commits.offset_fetch(request, require_stable=require_stable))

    def offset_delete(
        self, group_id: str, partitions: tuple[TopicPartition, ...]
    ) -> GroupDecision[OffsetDeleteResponse]:
        return self._commits.offset_delete(group_id, partitions)

    def forget_other_topics(self, topics: Container[str]) -> GroupDecision[None]:
        """Only these topics exist."""
        return Decision(records=self._commits.forget_other_topics(topics), response=None)

    # --- groups -------------------------------------------------------------------------------------------------

    def describe_groups(self, group_ids: Sequence[str]) -> GroupDecision[DescribeGroupsResponse]:
        return Decision(
            response=DescribeGroupsResponse(groups=tuple(self._describe(group_id) for group_id in group_ids))
        )

    def list_groups(
        self, states_filter: Sequence[str], types_filter: Sequence[str]
    ) -> GroupDecision[ListGroupsResponse]:
        """Empty filters match everything; filters ignore case."""
        states = {state.lower() for state in states_filter}
        types = {group_type.lower() for group_type in types_filter}
        groups = []
        if not types or CLASSIC in types:
            for group_id in self._group_ids():
                group = self._view(group_id)
                if not states or group.state.value.lower() in states:
                    groups.append(ListedGroup(group_id, group.protocol_type or "", group.state.value, CLASSIC))
        return Decision(response=ListGroupsResponse(groups=tuple(groups)))

    def delete_groups(self, group_ids: Sequence[str]) -> GroupDecision[DeleteGroupsResponse]:
        """A group with members, or with offsets that an open transaction would commit, is kept."""
        records: list[Record] = []
        results = []
        for group_id in dict.fromkeys(group_ids):
            error = self._delete_refusal(group_id)
            if error is ErrorCode.none:
                records += self._delete(group_id)
            results.append(DeletableGroupResult(group_id, error))
        return Decision(records=tuple(records), response=DeleteGroupsResponse(results=tuple(results)))

    # --- log ----------------------------------------------------------------------------------------------------

    def replay(self, record: Record) -> None:
        """Apply one record: the only mutator of hard state, with ``replay_marker``."""
        if isinstance(record, OffsetRecord):
            self._offsets.replay(record)
        elif record.value is None:
            self._generations.pop(record.group_id, None)
        else:
            self._generations[record.group_id] = record.value

    def replay_marker(self, producer: ProducerIdAndEpoch, committed: bool) -> None:
        """The transaction's offsets become the groups' offsets, or are dropped."""
        self._offsets.replay_marker(producer.producer_id, committed)

    def loaded(self, now: Instant) -> tuple[GroupDecision[None], ...]:
        """The whole log was replayed: start the groups' soft state."""
        assert not self._groups
        for group_id, metadata in self._generations.items():
            group = Group.restore(group_id, metadata, now.monotonic_ms)
            self._groups[group_id] = group
            self._membership.restore(group)
        self._next_expiry = now.monotonic_ms + self._config.offsets_retention_check_interval_ms
        return ()

    # --- time ---------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        deadlines = [due for due in (self._membership.next_deadline(), self._next_expiry) if due is not None]
        return min(deadlines, default=None)

    def tick(self, now: Instant) -> tuple[GroupDecision[None], ...]:
        decisions = self._membership.tick(now)
        if self._next_expiry is None or self._next_expiry > now.monotonic_ms:
            return decisions
        self._next_expiry = now.monotonic_ms + self._config.offsets_retention_check_interval_ms
        expired = tuple(record for group_id in list(self._group_ids()) for record in self._expire(group_id, now))
        return (*decisions, Decision(records=expired, response=None)) if expired else decisions

    # --- inside -------------------------------------------------------------------------------------------------

    def _group_ids(self) -> Iterator[str]:
        """Groups with members or generations first, then simple ones."""
        yield from self._groups
        for group_id in self._offsets.groups():
            if group_id not in self._groups:
                yield group_id

    def _view(self, group_id: str) -> Group:
        """The group to be shown: a simple one is empty, an unknown one is dead."""
        group = self._groups.get(group_id)
        if group is not None:
            return group
        return Group(group_id, GroupState.EMPTY if self._offsets.has_any(group_id) else GroupState.DEAD)

    def _describe(self, group_id: str) -> DescribedGroup:
        group = self._view(group_id)
        # Subscriptions and assignments are consistent only when every member has its own.
        is_stable = group.state is GroupState.STABLE
        is_dead = group.state is GroupState.DEAD
        return DescribedGroup(
            error_code=ErrorCode.group_id_not_found if is_dead else ErrorCode.none,
            error_message=f"Group {group_id} not found." if is_dead else None,
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=(group.protocol_name or "") if is_stable else "",
            members=tuple(
                DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.metadata_for(group.protocol_name) if is_stable else b"",
                    member_assignment=member.assignment if is_stable else b"",
                )
                for member in group.members.values()
            ),
        )

    def _delete_refusal(self, group_id: str) -> ErrorCode:
        group = self._view(group_id)
        if group.state is GroupState.DEAD:
            return ErrorCode.group_id_not_found
        if group.state is not GroupState.EMPTY or self._offsets.has_pending(group_id):
            return ErrorCode.non_empty_group
        return ErrorCode.none

    def _delete(self, group_id: str) -> Iterator[Record]:
        yield from self._commits.tombstones(group_id)
        yield from self._forget(group_id)

    def _expire(self, group_id: str, now: Instant) -> Iterator[Record]:
        generation = self._generations.get(group_id)
        if generation is not None and generation.members:
            # The removal of its last member may be decided (in this tick) and not written yet.
            return
        empty_since = None if generation is None else generation.current_state_timestamp
        expired = tuple(self._commits.expired(group_id, empty_since, now))
        yield from expired
        group = self._view(group_id)
        keeps_offsets = self._offsets.has_pending(group_id) or len(expired) < self._offsets.count(group_id)
        if group.state is GroupState.EMPTY and not group.pending_members and not keeps_offsets:
            yield from self._forget(group_id)

    def _forget(self, group_id: str) -> Iterator[Record]:
        group = self._groups.pop(group_id, None)
        if group is not None:
            group.move_to(GroupState.DEAD)
        if group_id in self._generations:
            yield GroupRecord(group_id, None)
