"""Whether a member may join: what JoinGroup is refused for, and how large a group and its assignments may become."""

from __future__ import annotations

from typing import Final

from einmal.groups.classic.group import ClassicGroup, ShardTotals
from einmal.groups.classic.member import Member, size_of, size_of_id
from einmal.groups.classic.requests import JoinGroup, SyncGroup
from einmal.groups.classic.states import GroupState
from einmal.groups.config import GroupConfig
from einmal.groups.records import TEXT_BYTES_MAX
from einmal.types import ErrorCode

NO_MEMBER_ID: Final = ""
_SMALL_BYTES: Final = 4 * 1024
_ASSIGNED_FACTOR: Final = 2
"""How many times as many bytes of all groups an assignment may lead to as a join may come upon."""


class JoinChecks:
    """``totals``: of the shard, which its groups keep."""

    def __init__(self, config: GroupConfig, totals: ShardTotals) -> None:
        self._config = config
        self._totals = totals

    def refusal(self, request: JoinGroup, group: ClassicGroup | None) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.invalid_group_id
        if _is_too_long(request):
            return ErrorCode.invalid_request
        if not self._config.min_session_timeout_ms <= request.session_timeout_ms <= self._config.max_session_timeout_ms:
            return ErrorCode.invalid_session_timeout
        if group is None:
            if request.member_id != NO_MEMBER_ID:
                return ErrorCode.unknown_member_id
            group = ClassicGroup(request.group_id)
        if not group.supports(request.protocol_type, request.protocols):
            return ErrorCode.inconsistent_group_protocol
        return self._size_refusal(request, group)

    def _size_refusal(self, request: JoinGroup, group: ClassicGroup) -> ErrorCode:
        """The error for a member whose metadata is too large: it is kept in memory, and sent to the leader."""
        added = size_of(request.client_id, request.group_instance_id, request.protocols) - _replaced(request, group)
        if group.size + added > self._config.max_bytes:
            return ErrorCode.group_max_size_reached
        if not self._has_room(added):
            return ErrorCode.coordinator_not_available
        needs_id = (
            request.requires_known_member_id and request.member_id == NO_MEMBER_ID and request.group_instance_id is None
        )
        if needs_id and len(group.pending_members) >= self._config.max_pending_members:
            return ErrorCode.group_max_size_reached
        if needs_id and self._totals.pending_members >= self._config.max_shard_pending_members:
            return ErrorCode.coordinator_not_available
        return ErrorCode.none

    def assignment_refusal(self, request: SyncGroup, group: ClassicGroup) -> ErrorCode:
        """The error for an assignment that is too large: it is kept, and written as one record with the metadata."""
        size = sum(len(assignment) for _member_id, assignment in request.assignments)
        if size > self._config.max_bytes:
            return ErrorCode.group_max_size_reached
        is_kept = request.member_id == group.leader and group.state is not GroupState.STABLE
        added = size - sum(len(member.assignment) for member in group.members.values())
        # Joins stop first: the groups that are there need space for what they assign, also after a rebalance that has
        # dropped what they had.
        fits = added <= 0 or self._totals.size + added <= _ASSIGNED_FACTOR * self._config.max_shard_bytes
        is_accepted = size <= _SMALL_BYTES or fits
        return ErrorCode.coordinator_not_available if is_kept and not is_accepted else ErrorCode.none

    def _has_room(self, added: int) -> bool:
        """Whether the shard may have as many bytes more; a little is always accepted."""
        return added <= _SMALL_BYTES or self._totals.size <= self._config.max_shard_bytes

    def accepts(self, group: ClassicGroup, member_id: str) -> bool:
        """Whether the group may grow. While it rebalances, those that have rejoined count, so that a group
        which is larger than allowed (the limit was lowered) shrinks.
        """
        member = group.members.get(member_id)
        if group.state is GroupState.EMPTY:
            return True
        if group.state is GroupState.PREPARING_REBALANCE:
            is_waiting = member is not None and member.join_ticket is not None
            return is_waiting or group.waiting_joins < self._config.max_size
        return member is not None or len(group.members) < self._config.max_size


def _replaced(request: JoinGroup, group: ClassicGroup) -> int:
    """Bytes of what the join would replace: the member's metadata, its static predecessor's, or its pending id."""
    if request.member_id in group.pending_members:
        return size_of_id(request.member_id)
    member_id = request.member_id
    if member_id == NO_MEMBER_ID and request.group_instance_id is not None:
        member_id = group.static_members.get(request.group_instance_id, NO_MEMBER_ID)
    member = group.members.get(member_id)
    return 0 if member is None else member.size


def is_up_to_date(group: ClassicGroup, member: Member, request: JoinGroup) -> bool:
    """Whether a join of a member needs no rebalance: it lost our answer, or asks for nothing new."""
    has_changed = member.protocols != distinct(request.protocols)
    if group.state is GroupState.COMPLETING_REBALANCE:
        return not has_changed
    # A leader rejoins when what it assigns has changed (partitions were added), its own metadata or not.
    return group.state is GroupState.STABLE and not has_changed and member.member_id != group.leader


def distinct(protocols: tuple[tuple[str, bytes], ...]) -> tuple[tuple[str, bytes], ...]:
    """The first mention of each protocol: a name that is repeated must not count as two speakers."""
    distinct: dict[str, bytes] = {}
    for name, metadata in protocols:
        distinct.setdefault(name, metadata)
    return tuple(distinct.items())


def _is_too_long(request: JoinGroup) -> bool:
    """Whether a text could not be written into a record, where lengths have 16 bits."""
    names = (name for name, _metadata in request.protocols)
    texts = (request.group_id, request.client_id, request.group_instance_id or "", request.protocol_type, *names)
    return any(len(text.encode()) > TEXT_BYTES_MAX for text in texts)
