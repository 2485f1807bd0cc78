"""The group coordinator: one partition of ``__consumer_offsets`` as a machine.

Theory of operation. *Hard state* is in the log: each group's last written generation, the committed offsets, the
offsets pending in transactions. ``replay`` and ``replay_marker`` alone change it, live and while loading alike. *Soft
state* is what a live group needs in addition: sessions, waiting joins and syncs, the phase of a rebalance
(``classic/membership.py``). The decisions change it, and it dies with the coordinator; ``loaded`` gives every member in
the log a whole session in which to return.

What all groups have (offsets, lists, deletion, expiry) is decided here, on groups of whatever protocol (``Group``); the
requests of a protocol go to its package.

A generation begins with the joins' answers but is written only with the leader's assignment: a new coordinator that
knows only the previous one refuses its members' syncs and commits, and they join again. No member can have read in a
generation whose assignment was not committed, as the answers with it wait for the record.

Knows no sockets, clocks or randomness: ``now``, tickets for answers that come later, and the random tail of new member
ids are arguments. Answers are version-independent.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence

from einmal.groups.classic.group import ClassicGroup
from einmal.groups.classic.groups import ClassicGroups
from einmal.groups.classic.requests import Heartbeat, JoinGroup, LeaveGroup, SyncGroup
from einmal.groups.classic.states import GroupState
from einmal.groups.config import GroupConfig
from einmal.groups.group import Group
from einmal.groups.offset_commits import OffsetCommits
from einmal.groups.offsets import Offsets
from einmal.groups.records import OffsetRecord, Record
from einmal.groups.requests import (
    CommittedPosition,
    GroupDecision,
    OffsetCommit,
    OffsetFetchGroup,
    Ticket,
    TxnOffsetCommit,
)
from einmal.shard.decision import Decision
from einmal.types import ErrorCode, Instant, ProducerIdAndEpoch, TopicPartition
from einmal.wire.api.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from einmal.wire.api.describe_groups import DescribeGroupsResponse
from einmal.wire.api.heartbeat import HeartbeatResponse
from einmal.wire.api.join_group import JoinGroupResponse
from einmal.wire.api.leave_group import LeaveGroupResponse
from einmal.wire.api.list_groups import ListGroupsResponse
from einmal.wire.api.offset_commit import OffsetCommitResponse
from einmal.wire.api.offset_delete import OffsetDeleteResponse
from einmal.wire.api.offset_fetch import OffsetFetchResponseGroup
from einmal.wire.api.sync_group import SyncGroupResponse


class GroupCoordinator:
    def __init__(self, config: GroupConfig) -> None:
        self._config = config
        self._classic = ClassicGroups(config)
        self._groups: Mapping[str, Group] = self._classic.live
        """The groups that live, by id."""
        self._offsets = Offsets()
        self._commits = OffsetCommits(config, self._groups, self._offsets)
        self._next_expiry: int | None = None

    # --- the classic protocol ------------------------------------------------------------------------------------

    def join_group(self, request: JoinGroup, ticket: Ticket, now: Instant) -> GroupDecision[JoinGroupResponse | None]:
        """No response: it comes later, by the action ``Respond(ticket, ...)``."""
        return self._classic.membership.join_group(request, ticket, now)

    def sync_group(self, request: SyncGroup, ticket: Ticket, now: Instant) -> GroupDecision[SyncGroupResponse | None]:
        """No response: it comes later, by the action ``Respond(ticket, ...)``."""
        return self._classic.membership.sync_group(request, ticket, now)

    def heartbeat(self, request: Heartbeat, now: Instant) -> GroupDecision[HeartbeatResponse]:
        return self._classic.membership.heartbeat(request, now)

    def leave_group(self, request: LeaveGroup, now: Instant) -> GroupDecision[LeaveGroupResponse]:
        return self._classic.membership.leave_group(request, now)

    # --- offsets ------------------------------------------------------------------------------------------------

    def offset_commit(self, request: OffsetCommit, now: Instant) -> GroupDecision[OffsetCommitResponse]:
        decision = self._commits.offset_commit(request, now)
        if decision.records:
            self._classic.membership.committed(request, now)
        return decision

    def txn_offset_commit(self, request: TxnOffsetCommit, now: Instant) -> GroupDecision[OffsetCommitResponse]:
        decision = self._commits.txn_offset_commit(request, now)
        if decision.records:
            self._classic.membership.committed(request, now)
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

    def forget_other_topics(self, topics: Container[str], deleted: Collection[str] = ()) -> GroupDecision[None]:
        """Only these topics exist, and whatever has the name of a deleted one is new."""
        records = self._commits.forget_other_topics(topics, deleted)
        return Decision(records=records, response=None, is_atomic=False, is_pure=True)

    # --- groups -------------------------------------------------------------------------------------------------

    def describe_groups(self, group_ids: Sequence[str]) -> GroupDecision[DescribeGroupsResponse]:
        return Decision(
            response=DescribeGroupsResponse(groups=tuple(self._view(group_id).describe() for group_id in group_ids))
        )

    def list_groups(
        self, states_filter: Sequence[str], types_filter: Sequence[str]
    ) -> GroupDecision[ListGroupsResponse]:
        """Empty filters match everything; filters ignore case."""
        states = {state.lower() for state in states_filter}
        types = {group_type.lower() for group_type in types_filter}
        entries = (self._view(group_id).entry() for group_id in self._group_ids())
        groups = tuple(
            entry
            for entry in entries
            if (not states or entry.group_state.lower() in states) and (not types or entry.group_type in types)
        )
        return Decision(response=ListGroupsResponse(groups=groups))

    def group_ids(self) -> list[str]:
        return list(self._group_ids())

    def position(self, group_id: str) -> CommittedPosition:
        """The committed offsets of a group, whether it is there or not."""
        group = self._classic.live.get(group_id)
        offsets = {partition: committed.offset for partition, committed in self._offsets.committed_by(group_id)}
        return CommittedPosition(0 if group is None else len(group.members), offsets)

    def delete_groups(self, group_ids: Sequence[str]) -> GroupDecision[DeleteGroupsResponse]:
        """A group with members, or with offsets that an open transaction would commit, is kept."""
        records: list[Record] = []
        results = []
        for group_id in dict.fromkeys(group_ids):
            error = self._delete_refusal(group_id)
            if error is ErrorCode.none:
                records += self._delete(group_id)
            results.append(DeletableGroupResult(group_id, error))
        response = DeleteGroupsResponse(results=tuple(results))
        return Decision(records=tuple(records), response=response, is_atomic=False)

    # --- log ----------------------------------------------------------------------------------------------------

    def replay(self, record: Record) -> None:
        """Apply one record: the only mutator of hard state, with ``replay_marker``."""
        if isinstance(record, OffsetRecord):
            self._offsets.replay(record)
        else:
            self._classic.replay(record)

    def replay_marker(self, producer: ProducerIdAndEpoch, committed: bool) -> None:
        """The transaction's offsets become the groups' offsets, or are dropped."""
        self._offsets.replay_marker(producer.producer_id, committed)

    def loaded(self, now: Instant) -> tuple[GroupDecision[None], ...]:
        """The whole log was replayed: start the groups' soft state."""
        self._classic.loaded(now)
        self._next_expiry = now.monotonic_ms + self._config.offsets_retention_check_interval_ms
        return ()

    # --- time ---------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        deadlines = [due for due in (self._classic.membership.next_deadline(), self._next_expiry) if due is not None]
        return min(deadlines, default=None)

    def tick(self, now: Instant) -> tuple[GroupDecision[None], ...]:
        decisions = self._classic.membership.tick(now)
        if self._next_expiry is None or self._next_expiry > now.monotonic_ms:
            return decisions
        self._next_expiry = now.monotonic_ms + self._config.offsets_retention_check_interval_ms
        expired = tuple(record for group_id in list(self._group_ids()) for record in self._expire(group_id, now))
        return (*decisions, Decision(records=expired, response=None, is_atomic=False)) if expired else decisions

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
        return ClassicGroup(group_id, GroupState.EMPTY if self._offsets.has_any(group_id) else GroupState.DEAD)

    def _delete_refusal(self, group_id: str) -> ErrorCode:
        group = self._view(group_id)
        if group.is_dead:
            return ErrorCode.group_id_not_found
        if not group.is_empty or self._offsets.has_pending(group_id):
            return ErrorCode.non_empty_group
        return ErrorCode.none

    def _delete(self, group_id: str) -> Iterator[Record]:
        yield from self._commits.tombstones(group_id)
        yield from self._classic.forget(group_id)

    def _expire(self, group_id: str, now: Instant) -> Iterator[Record]:
        group = self._view(group_id)
        if group.is_empty and self._classic.has_logged_members(group_id):
            return
        expired = tuple(self._commits.expired(group_id, self._classic.empty_since(group_id), now))
        yield from expired
        keeps_offsets = self._offsets.has_pending(group_id) or len(expired) < self._offsets.count(group_id)
        if group.is_empty and not group.is_awaited and not keeps_offsets:
            yield from self._classic.forget(group_id)
