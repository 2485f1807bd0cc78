"""Who is in a group, and in which generation: the classic rebalance protocol (KIP-62, 134, 345, 394, 559, 814).

A rebalance has two phases. *Joining* ends when all members have (re)joined, or the rebalance timeout has passed for
those that have not; every waiting join is answered with the new generation, its leader's with all members. *Syncing*
ends when the leader brings the assignment, which becomes a record; waiting syncs are answered once that is committed.
An empty group's first joining lasts a while longer for each newcomer (KIP-134), so that a group of many starts once.

Soft state only: the group objects are changed here by decisions; what must outlive the coordinator is in the records.
Answers that wait are tickets in the members; each ticket is answered once. Knows nothing of offsets. Times are
monotonic ms, but for the timestamp in a record.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from einmal.groups.answers import assignment_answer, generation_answer, join_error, sync_error
from einmal.groups.config import GroupConfig
from einmal.groups.group import Group
from einmal.groups.member import Member, size_of
from einmal.groups.records import TEXT_BYTES_MAX, GroupRecord
from einmal.groups.requests import (
    Effects,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    MemberIdentity,
    Respond,
    Response,
    SyncGroup,
    Ticket,
)
from einmal.groups.states import GroupState
from einmal.groups.timers import Timers
from einmal.shard.decision import Decision
from einmal.types import ErrorCode, Instant

NO_MEMBER_ID: Final = ""
_SMALL_BYTES: Final = 4 * 1024
_ABSENT_MS_MIN: Final = 1000


class _Kind(IntEnum):
    SESSION = 0
    PENDING_MEMBER = 1
    REBALANCE = 2


class _Watch(NamedTuple):
    kind: _Kind
    group_id: str
    member_id: str = NO_MEMBER_ID


class Membership:
    """The rebalance protocol over ``groups``, which the coordinator owns."""

    def __init__(self, config: GroupConfig, groups: dict[str, Group]) -> None:
        self._config = config
        self._groups = groups
        self._timers: Timers[_Watch] = Timers()

    # --- requests -----------------------------------------------------------------------------------------------

    def join_group(self, request: JoinGroup, ticket: Ticket, now: Instant) -> Decision[Response | None]:
        """Answers at once, or later under ``ticket``."""
        effects = Effects()
        group = self._groups.get(request.group_id)
        error = self._refusal(request, group)
        if error is not ErrorCode.none:
            return effects.decide(join_error(request.member_id, error))
        if group is None:
            group = self._groups[request.group_id] = Group(request.group_id)
        if not self._accepts(group, request.member_id):
            self._turn_away(group, request.member_id, now, effects)
            response: Response | None = join_error(NO_MEMBER_ID, ErrorCode.group_max_size_reached)
        elif request.member_id == NO_MEMBER_ID:
            response = self._join_newcomer(group, request, ticket, now, effects)
        else:
            response = self._join_known(group, request, ticket, now, effects)
        return effects.decide(response)

    def sync_group(self, request: SyncGroup, ticket: Ticket, now: Instant) -> Decision[Response | None]:
        """Answers at once, or later under ``ticket``: when the leader has brought the assignment."""
        effects = Effects()
        group = self._groups.get(request.group_id)
        error = _sync_refusal(request, group)
        if sum(len(assignment) for _member_id, assignment in request.assignments) > self._config.max_bytes:
            error = ErrorCode.group_max_size_reached
        if error is not ErrorCode.none:
            return effects.decide(sync_error(error))
        assert group is not None
        member = group.members[request.member_id]
        group.pending_sync.pop(member.member_id, None)
        if not group.pending_sync:
            group.rebalance_deadline = None
        if group.state is GroupState.STABLE:
            self._extend_session(group, member, now)
            return effects.decide(assignment_answer(group, member))
        if member.sync_ticket is not None:
            effects.actions.append(Respond(member.sync_ticket, sync_error(ErrorCode.rebalance_in_progress)))
        member.sync_ticket = ticket
        if member.member_id == group.leader:
            self._assign(group, request, now, effects)
        return effects.decide(None)

    def heartbeat(self, request: Heartbeat, now: Instant) -> Decision[Response]:
        effects = Effects()
        group = self._groups.get(request.group_id)
        if group is None:
            return effects.decide({"error_code": _unknown(request.group_id)})
        error = group.check_member(request.member_id, request.group_instance_id)
        if error is ErrorCode.none and request.generation_id != group.generation_id:
            error = ErrorCode.illegal_generation
        if error is ErrorCode.none:
            self.extend_session(group, request.member_id, now)
            if group.state is GroupState.PREPARING_REBALANCE:
                error = ErrorCode.rebalance_in_progress
        return effects.decide({"error_code": error})

    def leave_group(self, request: LeaveGroup, now: Instant) -> Decision[Response]:
        effects = Effects()
        if not request.group_id:
            return effects.decide({"error_code": ErrorCode.invalid_group_id, "members": ()})
        group = self._groups.get(request.group_id)
        members = [
            {
                "member_id": identity.member_id,
                "group_instance_id": identity.group_instance_id,
                "error_code": self._leave(group, identity, now, effects),
            }
            for identity in request.members
        ]
        if group is not None:
            self._forget_if_unused(group)
        return effects.decide({"error_code": ErrorCode.none, "members": members})

    # --- time ---------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        return self._timers.next_deadline()

    def tick(self, now: Instant) -> tuple[Decision[None], ...]:
        """What is due: sessions that ran out, ids never joined under, phases of a rebalance that last too long."""
        effects = Effects()
        for watch in self._timers.pop_due(now.monotonic_ms):
            group = self._groups.get(watch.group_id)
            if group is None:
                continue
            if watch.kind is _Kind.SESSION:
                self._check_session(group, watch.member_id, now, effects)
            elif watch.kind is _Kind.PENDING_MEMBER:
                self._check_pending_member(group, watch.member_id, now, effects)
            else:
                self._check_rebalance(group, now, effects)
            self._forget_if_unused(group)
        if not effects.records and not effects.actions:
            return ()
        return (Decision(records=tuple(effects.records), response=None, actions=tuple(effects.actions)),)

    def restore(self, group: Group) -> None:
        """Watch over a group that was read from the log."""
        for member in group.members.values():
            self._watch_session(group, member)

    def extend_session(self, group: Group, member_id: str, now: Instant) -> None:
        """The member was heard of."""
        self._extend_session(group, group.members[member_id], now)

    def _extend_session(self, group: Group, member: Member, now: Instant) -> None:
        member.session_deadline = now.monotonic_ms + member.session_timeout_ms
        self._watch_session(group, member)

    def _watch_session(self, group: Group, member: Member) -> None:
        self._timers.watch(_Watch(_Kind.SESSION, group.group_id, member.member_id), member.session_deadline)

    def _await_phase(self, group: Group, duration_ms: int, now: Instant) -> None:
        group.rebalance_deadline = now.monotonic_ms + duration_ms
        self._timers.watch(_Watch(_Kind.REBALANCE, group.group_id), group.rebalance_deadline)

    def _check_session(self, group: Group, member_id: str, now: Instant, effects: Effects) -> None:
        member = group.members.get(member_id)
        if member is None:
            return
        is_heard_of = member.session_deadline > now.monotonic_ms
        if is_heard_of:
            self._watch_session(group, member)
        elif not member.is_new and (member.join_ticket is not None or member.sync_ticket is not None):
            # It waits for us, so it cannot send a heartbeat.
            self._extend_session(group, member, now)
        else:
            self._remove(group, member, now, effects)

    def _check_pending_member(self, group: Group, member_id: str, now: Instant, effects: Effects) -> None:
        deadline = group.pending_members.get(member_id)
        if deadline is None:
            return
        if deadline > now.monotonic_ms:
            self._timers.watch(_Watch(_Kind.PENDING_MEMBER, group.group_id, member_id), deadline)
            return
        del group.pending_members[member_id]
        self._complete_join_if_all_joined(group, now, effects)

    def _check_rebalance(self, group: Group, now: Instant, effects: Effects) -> None:
        deadline = group.rebalance_deadline
        if deadline is None:
            return
        if deadline > now.monotonic_ms:
            self._timers.watch(_Watch(_Kind.REBALANCE, group.group_id), deadline)
        elif group.state is GroupState.PREPARING_REBALANCE:
            if group.has_newcomers and group.initial_delay_left_ms:
                self._prolong_initial_delay(group, group.initial_delay_left_ms, now)
            else:
                self._complete_join(group, now, effects)
        else:
            self._expel_unsynced(group, now, effects)

    # --- joining ------------------------------------------------------------------------------------------------

    def _refusal(self, request: JoinGroup, group: Group | None) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.invalid_group_id
        if _is_too_long(request):
            return ErrorCode.invalid_request
        if not self._config.min_session_timeout_ms <= request.session_timeout_ms <= self._config.max_session_timeout_ms:
            return ErrorCode.invalid_session_timeout
        if group is None:
            if request.member_id != NO_MEMBER_ID:
                return ErrorCode.unknown_member_id
            group = Group(request.group_id)
        if not group.supports(request.protocol_type, request.protocols):
            return ErrorCode.inconsistent_group_protocol
        return self._size_refusal(request, group)

    def _size_refusal(self, request: JoinGroup, group: Group) -> ErrorCode:
        """Whether the member says more than there is room for: what it says is kept, and sent to the leader."""
        member = group.members.get(request.member_id)
        added = size_of(request.client_id, request.group_instance_id, request.protocols) - (
            0 if member is None else member.size
        )
        if group.size + added > self._config.max_bytes:
            return ErrorCode.group_max_size_reached
        if added > _SMALL_BYTES and sum(each.size for each in self._groups.values()) > self._config.max_shard_bytes:
            return ErrorCode.coordinator_not_available
        is_newcomer = member is None and request.member_id == NO_MEMBER_ID
        if is_newcomer and len(group.pending_members) >= self._config.max_pending_members:
            return ErrorCode.group_max_size_reached
        return ErrorCode.none

    def _accepts(self, group: Group, member_id: str) -> bool:
        """Whether the group has room. While it rebalances, those that have rejoined count, so that a group
        which is larger than allowed (the limit was lowered) shrinks.
        """
        member = group.members.get(member_id)
        if group.state is GroupState.EMPTY:
            return True
        if group.state is GroupState.PREPARING_REBALANCE:
            is_waiting = member is not None and member.join_ticket is not None
            return is_waiting or group.waiting_joins < self._config.max_size
        return member is not None or len(group.members) < self._config.max_size

    def _turn_away(self, group: Group, member_id: str, now: Instant, effects: Effects) -> None:
        member = group.members.get(member_id)
        if member is not None:
            self._remove(group, member, now, effects)
        group.pending_members.pop(member_id, None)

    def _join_newcomer(
        self, group: Group, request: JoinGroup, ticket: Ticket, now: Instant, effects: Effects
    ) -> Response | None:
        if request.group_instance_id is not None:
            member_id = f"{request.group_instance_id}-{request.fresh_id}"
            old_id = group.static_members.get(request.group_instance_id)
            if old_id is not None:
                return self._rejoin_static(group, group.members[old_id], member_id, request, ticket, now, effects)
            self._admit(group, member_id, request, ticket, now, effects)
            return None
        member_id = f"{request.client_id}-{request.fresh_id}"
        if request.requires_known_member_id:
            # A client that gives up and asks anew must not leave a member behind each time (KIP-394).
            deadline = now.monotonic_ms + request.session_timeout_ms
            group.pending_members[member_id] = deadline
            self._timers.watch(_Watch(_Kind.PENDING_MEMBER, group.group_id, member_id), deadline)
            return join_error(member_id, ErrorCode.member_id_required)
        self._admit(group, member_id, request, ticket, now, effects)
        return None

    def _join_known(
        self, group: Group, request: JoinGroup, ticket: Ticket, now: Instant, effects: Effects
    ) -> Response | None:
        if request.member_id in group.pending_members:
            if request.group_instance_id is not None:
                return join_error(request.member_id, ErrorCode.unknown_member_id)
            self._admit(group, request.member_id, request, ticket, now, effects)
            return None
        error = group.check_member(request.member_id, request.group_instance_id)
        if error is not ErrorCode.none:
            return join_error(request.member_id, error)
        member = group.members[request.member_id]
        if self._is_up_to_date(group, member, request):
            self._extend_session(group, member, now)
            return generation_answer(group, member)
        self._rejoin(group, member, request, ticket, effects)
        self._rebalance(group, now, effects)
        return None

    def _is_up_to_date(self, group: Group, member: Member, request: JoinGroup) -> bool:
        """Whether a join of a member needs no rebalance: it lost our answer, or asks for nothing new."""
        has_changed = member.protocols != _distinct(request.protocols)
        if group.state is GroupState.COMPLETING_REBALANCE:
            return not has_changed
        # A leader rejoins when what it assigns has changed (partitions were added, say), its own metadata or not.
        return group.state is GroupState.STABLE and not has_changed and member.member_id != group.leader

    def _admit(
        self, group: Group, member_id: str, request: JoinGroup, ticket: Ticket, now: Instant, effects: Effects
    ) -> None:
        member = Member(
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=_distinct(request.protocols),
            session_deadline=now.monotonic_ms + self._config.new_member_join_timeout_ms,
            is_new=True,
        )
        group.has_newcomers = True
        group.add(member, request.protocol_type)
        group.park_join(member, ticket)
        self._watch_session(group, member)
        self._rebalance(group, now, effects)

    def _rejoin(self, group: Group, member: Member, request: JoinGroup, ticket: Ticket, effects: Effects) -> None:
        group.set_protocols(member, _distinct(request.protocols))
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        member.client_id, member.client_host = request.client_id, request.client_host
        waited = group.park_join(member, ticket)
        if waited is not None:
            effects.actions.append(Respond(waited, join_error(member.member_id, ErrorCode.rebalance_in_progress)))

    def _rejoin_static(
        self,
        group: Group,
        old: Member,
        member_id: str,
        request: JoinGroup,
        ticket: Ticket,
        now: Instant,
        effects: Effects,
    ) -> Response | None:
        """A static member has restarted: the old instance is fenced, and a stable group stays as it is (KIP-345)."""
        self._answer_waiting(group, old, ErrorCode.fenced_instance_id, effects)
        old_leader = group.leader
        member = group.replace_static(old, member_id)
        self._rejoin(group, member, request, ticket, effects)
        self._extend_session(group, member, now)
        if group.state is not GroupState.STABLE or group.select_protocol() != group.protocol_name:
            self._rebalance(group, now, effects)
            return None
        group.park_join(member, None)
        effects.records.append(GroupRecord(group.group_id, group.metadata(now.wall_ms)))
        if request.supports_skipping_assignment:
            return {**generation_answer(group, member), "skip_assignment": group.leader == member_id}
        # An older client would assign if it were told that it leads: it is shown its predecessor as leader.
        return {**generation_answer(group, member), "leader": old_leader or "", "members": ()}

    # --- rebalances ---------------------------------------------------------------------------------------------

    def _rebalance(self, group: Group, now: Instant, effects: Effects) -> None:
        """Start a rebalance, or go on with the one that runs."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._cancel_syncs(group, effects)
        if not group.can_rebalance:
            self._complete_join_if_all_joined(group, now, effects)
            return
        is_first = group.state is GroupState.EMPTY
        group.move_to(GroupState.PREPARING_REBALANCE)
        group.pending_sync.clear()
        if is_first and self._config.initial_rebalance_delay_ms > 0:
            self._prolong_initial_delay(group, group.rebalance_timeout_ms, now)
            return
        group.initial_delay_left_ms = None
        self._await_phase(group, group.rebalance_timeout_ms, now)
        self._complete_join_if_all_joined(group, now, effects)

    def _prolong_initial_delay(self, group: Group, left_ms: int, now: Instant) -> None:
        delay_ms = min(self._config.initial_rebalance_delay_ms, left_ms)
        group.initial_delay_left_ms = left_ms - delay_ms
        group.has_newcomers = False
        self._await_phase(group, delay_ms, now)

    def _complete_join_if_all_joined(self, group: Group, now: Instant, effects: Effects) -> None:
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group.initial_delay_left_ms is None
            and group.has_all_members_joined
        ):
            self._complete_join(group, now, effects)

    def _complete_join(self, group: Group, now: Instant, effects: Effects) -> None:
        """End the joining: expel dynamic members that did not rejoin, begin the generation, answer those that did."""
        group.rebalance_deadline = None
        absent = [member for member in group.members.values() if member.join_ticket is None]
        for member in absent:
            if member.group_instance_id is None:
                group.remove(member)
        if group.members and not group.elect_leader():
            # Only static members, all of them away: wait until they return or their sessions end. Not for their time
            # alone, which may be none: that would be asked for again and again.
            self._await_phase(group, max(group.rebalance_timeout_ms, _ABSENT_MS_MIN), now)
            return
        group.initial_delay_left_ms = None
        group.begin_generation()
        if not group.members:
            effects.records.append(GroupRecord(group.group_id, group.metadata(now.wall_ms)))
            return
        for member in list(group.members.values()):
            ticket = group.park_join(member, None)
            if ticket is not None:
                effects.actions.append(Respond(ticket, generation_answer(group, member)))
                member.is_new = False
                group.pending_sync[member.member_id] = None
                self._extend_session(group, member, now)
        self._await_phase(group, group.rebalance_timeout_ms, now)

    def _assign(self, group: Group, request: SyncGroup, now: Instant, effects: Effects) -> None:
        """The leader's assignment: the generation is complete once its record is committed."""
        assignments = dict(request.assignments)
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        group.move_to(GroupState.STABLE)
        effects.records.append(GroupRecord(group.group_id, group.metadata(now.wall_ms)))
        for member in group.members.values():
            if member.sync_ticket is not None:
                effects.actions.append(Respond(member.sync_ticket, assignment_answer(group, member)))
                member.sync_ticket = None
                self._extend_session(group, member, now)

    def _cancel_syncs(self, group: Group, effects: Effects) -> None:
        for member in group.members.values():
            member.assignment = b""
            if member.sync_ticket is not None:
                effects.actions.append(Respond(member.sync_ticket, sync_error(ErrorCode.rebalance_in_progress)))
                member.sync_ticket = None

    def _expel_unsynced(self, group: Group, now: Instant, effects: Effects) -> None:
        group.rebalance_deadline = None
        for member_id in list(group.pending_sync):
            member = group.members[member_id]
            self._answer_waiting(group, member, ErrorCode.unknown_member_id, effects)
            group.remove(member)
        self._rebalance(group, now, effects)

    # --- leaving ------------------------------------------------------------------------------------------------

    def _leave(self, group: Group | None, identity: MemberIdentity, now: Instant, effects: Effects) -> ErrorCode:
        if group is None:
            return ErrorCode.unknown_member_id
        member_id, group_instance_id = identity.member_id, identity.group_instance_id
        if member_id == NO_MEMBER_ID and group_instance_id is not None:
            member_id = group.static_members.get(group_instance_id, NO_MEMBER_ID)
        elif member_id in group.pending_members:
            if group_instance_id is not None:
                return ErrorCode.unknown_member_id
            del group.pending_members[member_id]
            self._complete_join_if_all_joined(group, now, effects)
            return ErrorCode.none
        error = group.check_member(member_id, group_instance_id)
        if error is ErrorCode.none:
            self._remove(group, group.members[member_id], now, effects)
        return error

    def _remove(self, group: Group, member: Member, now: Instant, effects: Effects) -> None:
        self._answer_waiting(group, member, ErrorCode.unknown_member_id, effects)
        group.remove(member)
        self._rebalance(group, now, effects)

    def _answer_waiting(self, group: Group, member: Member, error: ErrorCode, effects: Effects) -> None:
        ticket = group.park_join(member, None)
        if ticket is not None:
            effects.actions.append(Respond(ticket, join_error(member.member_id, error)))
        if member.sync_ticket is not None:
            effects.actions.append(Respond(member.sync_ticket, sync_error(error)))
            member.sync_ticket = None

    def _forget_if_unused(self, group: Group) -> None:
        if group.is_unused and self._groups.get(group.group_id) is group:
            del self._groups[group.group_id]


def _sync_refusal(request: SyncGroup, group: Group | None) -> ErrorCode:
    if group is None:
        return _unknown(request.group_id)
    error = group.check_member(request.member_id, request.group_instance_id)
    if error is not ErrorCode.none:
        return error
    if request.generation_id != group.generation_id:
        return ErrorCode.illegal_generation
    is_other_protocol = (request.protocol_type is not None and request.protocol_type != group.protocol_type) or (
        request.protocol_name is not None and request.protocol_name != group.protocol_name
    )
    if is_other_protocol:
        return ErrorCode.inconsistent_group_protocol
    return ErrorCode.rebalance_in_progress if group.state is GroupState.PREPARING_REBALANCE else ErrorCode.none


def _unknown(group_id: str) -> ErrorCode:
    """What a member of a group that is not there is told."""
    return ErrorCode.unknown_member_id if group_id else ErrorCode.invalid_group_id


def _distinct(protocols: tuple[tuple[str, bytes], ...]) -> tuple[tuple[str, bytes], ...]:
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
