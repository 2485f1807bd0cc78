"""Who is in a group, and in which generation: the classic rebalance protocol (KIP-62, 134, 345, 394, 559, 814).

Soft state only: the group objects are changed here by decisions; what must outlive the coordinator is in the records.
Of offsets it knows only that a commit shows a living member. Times are monotonic ms, but for the timestamp in a record.
"""

# Theory of operation
# ===================
#
# A *generation* is a set of members and what each of them is assigned. Within a generation nothing changes; whatever
# would change it (a member joins, leaves, is lost, or subscribes differently) starts a rebalance that ends in the next.
# The coordinator does not understand assignments: one member, the *leader*, computes them, and the coordinator hands
# them out as bytes. The states are drawn in ``states.py``:
#
#     EMPTY <--> PREPARING_REBALANCE ---> COMPLETING_REBALANCE ---> STABLE
#                        ^                         |                   |
#                        +-------------------------+-------------------+
#                          a member joins, leaves, is lost, or subscribes differently
#
#   - *Joining* (PREPARING_REBALANCE). Members learn of it from the answer to their next heartbeat, and send
#     JoinGroup, which is not answered yet. The phase ends when all members have rejoined, or at the rebalance
#     deadline; dynamic members that are absent then are expelled, static ones (KIP-345) stay until their session
#     ends. Every waiting join is answered with the new generation; the leader's answer has all members and their
#     subscriptions.
#   - *Syncing* (COMPLETING_REBALANCE). Every member sends SyncGroup and waits; the leader's carries the assignment,
#     which becomes a record. Members that have not synced by the deadline are expelled, and the group rebalances
#     without them.
#   - STABLE. Answers to waiting syncs carry each member's assignment. They leave only once the record is committed,
#     so no member works on an assignment that the next coordinator does not know.
#
# Invariants:
#
#   - the generation grows with every completed join, and requests of another one are refused (ILLEGAL_GENERATION).
#     That is the fence: a member that was expelled while it was paused cannot commit offsets over its successor's
#     (``commit_refusal``);
#   - each ticket (a join or sync that waits) is answered exactly once: whoever takes a ticket out of a member answers
#     it, and a request that replaces another answers the older one first (`_answer_waiting`, `_cancel_syncs`);
#   - a member that waits for the coordinator cannot send heartbeats, so its session is prolonged while it does
#     (`_check_session`). A newcomer's is not: it may have gone before it ever belonged to the group;
#   - a member is in `members` under one id; a static member that restarts gets a new id, and the old one is fenced
#     (`_rejoin_static`). If the group was stable it stays stable: that a restart causes no rebalance is the purpose
#     of static membership. With KIP-814 its leader learns not to assign again.
#
# Limits on what clients can cause. An empty group's first joining lasts a while longer for each newcomer (KIP-134),
# so that a group of many members starts with one rebalance. A client that cannot keep its first answer would leave a
# member behind with every attempt, so it gets an id first and becomes a member when it returns with it (KIP-394); ids
# that are never used expire like sessions. Bytes per group and per shard are bounded, as all that a member sends is
# kept, and sent to the leader.
#
# Time. There is one timer per member, per pending id and per rebalance (`Timers`). A heartbeat does not move its timer
# but the member's own deadline; the timer fires at the old time, finds the deadline later, and is set again.

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from einmal.groups.classic.answers import assignment_answer, generation_answer, join_error, sync_error
from einmal.groups.classic.group import ClassicGroup, ShardTotals
from einmal.groups.classic.join_checks import NO_MEMBER_ID, JoinChecks, distinct, is_up_to_date
from einmal.groups.classic.member import Member
from einmal.groups.classic.requests import Heartbeat, JoinGroup, LeaveGroup, MemberIdentity, SyncGroup
from einmal.groups.classic.states import GroupState
from einmal.groups.config import GroupConfig
from einmal.groups.records import GroupRecord
from einmal.groups.requests import Effects, GroupDecision, OffsetCommit, Respond, Ticket, TxnOffsetCommit
from einmal.shard.decision import Decision
from einmal.shard.timers import Timers
from einmal.types import ErrorCode, Instant
from einmal.wire.api.heartbeat import HeartbeatResponse
from einmal.wire.api.join_group import JoinGroupResponse
from einmal.wire.api.leave_group import LeaveGroupResponse, MemberResponse
from einmal.wire.api.sync_group import SyncGroupResponse

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
    """The rebalance protocol over ``groups``, which ``ClassicGroups`` owns, as their ``totals``."""

    def __init__(self, config: GroupConfig, groups: dict[str, ClassicGroup], totals: ShardTotals) -> None:
        self._config = config
        self._groups = groups
        self._totals = totals
        self._joins = JoinChecks(config, totals)
        self._timers: Timers[_Watch] = Timers()

    # --- requests -----------------------------------------------------------------------------------------------

    def join_group(self, request: JoinGroup, ticket: Ticket, now: Instant) -> GroupDecision[JoinGroupResponse | None]:
        """Answers at once, or later under ``ticket``."""
        effects = Effects()
        group = self._groups.get(request.group_id)
        error = self._joins.refusal(request, group)
        if error is not ErrorCode.none:
            return effects.decide(join_error(request.member_id, error))
        if group is None:
            group = self._groups[request.group_id] = ClassicGroup(request.group_id, totals=self._totals)
        if not self._joins.accepts(group, request.member_id):
            self._turn_away(group, request.member_id, now, effects)
            response: JoinGroupResponse | None = join_error(NO_MEMBER_ID, ErrorCode.group_max_size_reached)
        elif request.member_id == NO_MEMBER_ID:
            response = self._join_newcomer(group, request, ticket, now, effects)
        else:
            response = self._join_known(group, request, ticket, now, effects)
        return effects.decide(response)

    def sync_group(self, request: SyncGroup, ticket: Ticket, now: Instant) -> GroupDecision[SyncGroupResponse | None]:
        """Answers at once, or later under ``ticket``: when the leader has brought the assignment."""
        effects = Effects()
        group = self._groups.get(request.group_id)
        error = _sync_refusal(request, group)
        if error is ErrorCode.none:
            assert group is not None
            error = self._joins.assignment_refusal(request, group)
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

    def heartbeat(self, request: Heartbeat, now: Instant) -> GroupDecision[HeartbeatResponse]:
        effects = Effects()
        group = self._groups.get(request.group_id)
        if group is None:
            return effects.decide(HeartbeatResponse(error_code=_unknown(request.group_id)))
        error = group.check_member(request.member_id, request.group_instance_id)
        if error is ErrorCode.none and request.generation_id != group.generation_id:
            error = ErrorCode.illegal_generation
        if error is ErrorCode.none:
            self._extend_session(group, group.members[request.member_id], now)
            if group.state is GroupState.PREPARING_REBALANCE:
                error = ErrorCode.rebalance_in_progress
        return effects.decide(HeartbeatResponse(error_code=error))

    def leave_group(self, request: LeaveGroup, now: Instant) -> GroupDecision[LeaveGroupResponse]:
        effects = Effects()
        if not request.group_id:
            return effects.decide(LeaveGroupResponse(error_code=ErrorCode.invalid_group_id))
        group = self._groups.get(request.group_id)
        members = [
            MemberResponse(identity.member_id, identity.group_instance_id, self._leave(group, identity, now, effects))
            for identity in request.members
        ]
        if group is not None:
            self._forget_if_unused(group)
        return effects.decide(LeaveGroupResponse(members=tuple(members)))

    # --- time ---------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        return self._timers.next_deadline()

    def tick(self, now: Instant) -> tuple[GroupDecision[None], ...]:
        """Decide what is due: sessions that ran out, ids never joined under, phases of a rebalance that last too
        long."""
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

    def restore(self, group: ClassicGroup) -> None:
        """Watch over a group that was read from the log."""
        for member in group.members.values():
            self._watch_session(group, member)

    def forget(self, group: ClassicGroup) -> None:
        """Give up a group without members, with the ids that were handed out for it."""
        for member_id in list(group.pending_members):
            self._forget_pending(group, member_id)
        self._timers.drop(_Watch(_Kind.REBALANCE, group.group_id))

    def committed(self, request: OffsetCommit | TxnOffsetCommit, now: Instant) -> None:
        """A commit shows that a member of the present generation is alive."""
        group = self._groups.get(request.group_id)
        if (
            group is not None
            and request.generation_id == group.generation_id
            and group.check_member(request.member_id, request.group_instance_id) is ErrorCode.none
        ):
            self._extend_session(group, group.members[request.member_id], now)

    def _extend_session(self, group: ClassicGroup, member: Member, now: Instant) -> None:
        member.session_deadline = now.monotonic_ms + member.session_timeout_ms
        self._watch_session(group, member)

    def _watch_session(self, group: ClassicGroup, member: Member) -> None:
        self._timers.watch(_Watch(_Kind.SESSION, group.group_id, member.member_id), member.session_deadline)

    def _await_phase(self, group: ClassicGroup, duration_ms: int, now: Instant) -> None:
        group.rebalance_deadline = now.monotonic_ms + duration_ms
        self._timers.watch(_Watch(_Kind.REBALANCE, group.group_id), group.rebalance_deadline)

    def _check_session(self, group: ClassicGroup, member_id: str, now: Instant, effects: Effects) -> None:
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

    def _check_pending_member(self, group: ClassicGroup, member_id: str, now: Instant, effects: Effects) -> None:
        deadline = group.pending_members.get(member_id)
        if deadline is None:
            return
        if deadline > now.monotonic_ms:
            self._timers.watch(_Watch(_Kind.PENDING_MEMBER, group.group_id, member_id), deadline)
            return
        self._forget_pending(group, member_id)
        self._complete_join_if_all_joined(group, now, effects)

    def _check_rebalance(self, group: ClassicGroup, now: Instant, effects: Effects) -> None:
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

    def _turn_away(self, group: ClassicGroup, member_id: str, now: Instant, effects: Effects) -> None:
        member = group.members.get(member_id)
        if member is not None:
            self._remove(group, member, now, effects)
        self._forget_pending(group, member_id)

    def _join_newcomer(
        self, group: ClassicGroup, request: JoinGroup, ticket: Ticket, now: Instant, effects: Effects
    ) -> JoinGroupResponse | None:
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
            group.await_member(member_id, deadline)
            self._timers.watch(_Watch(_Kind.PENDING_MEMBER, group.group_id, member_id), deadline)
            return join_error(member_id, ErrorCode.member_id_required)
        self._admit(group, member_id, request, ticket, now, effects)
        return None

    def _join_known(
        self, group: ClassicGroup, request: JoinGroup, ticket: Ticket, now: Instant, effects: Effects
    ) -> JoinGroupResponse | None:
        if request.member_id in group.pending_members:
            if request.group_instance_id is not None:
                return join_error(request.member_id, ErrorCode.unknown_member_id)
            self._admit(group, request.member_id, request, ticket, now, effects)
            return None
        error = group.check_member(request.member_id, request.group_instance_id)
        if error is not ErrorCode.none:
            return join_error(request.member_id, error)
        member = group.members[request.member_id]
        if is_up_to_date(group, member, request):
            self._extend_session(group, member, now)
            return generation_answer(group, member)
        self._rejoin(group, member, request, ticket, effects)
        self._rebalance(group, now, effects)
        return None

    def _admit(
        self, group: ClassicGroup, member_id: str, request: JoinGroup, ticket: Ticket, now: Instant, effects: Effects
    ) -> None:
        member = Member(
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=distinct(request.protocols),
            session_deadline=now.monotonic_ms + self._config.new_member_join_timeout_ms,
            is_new=True,
        )
        group.has_newcomers = True
        self._forget_pending(group, member_id)
        group.add(member, request.protocol_type)
        group.park_join(member, ticket)
        self._watch_session(group, member)
        self._rebalance(group, now, effects)

    def _rejoin(
        self, group: ClassicGroup, member: Member, request: JoinGroup, ticket: Ticket, effects: Effects
    ) -> None:
        group.set_metadata(member, request.client_id, distinct(request.protocols))
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        member.client_host = request.client_host
        waited = group.park_join(member, ticket)
        if waited is not None:
            effects.actions.append(Respond(waited, join_error(member.member_id, ErrorCode.rebalance_in_progress)))

    def _rejoin_static(
        self,
        group: ClassicGroup,
        old: Member,
        member_id: str,
        request: JoinGroup,
        ticket: Ticket,
        now: Instant,
        effects: Effects,
    ) -> JoinGroupResponse | None:
        """A static member has restarted: the old instance is fenced, and a stable group stays as it is (KIP-345)."""
        _answer_waiting(group, old, ErrorCode.fenced_instance_id, effects)
        old_leader = group.leader
        member = group.replace_static(old, member_id)
        self._timers.drop(_Watch(_Kind.SESSION, group.group_id, old.member_id))
        self._rejoin(group, member, request, ticket, effects)
        self._extend_session(group, member, now)
        if group.state is not GroupState.STABLE or group.select_protocol() != group.protocol_name:
            self._rebalance(group, now, effects)
            return None
        group.park_join(member, None)
        effects.records.append(GroupRecord(group.group_id, group.metadata(now.wall_ms)))
        if request.supports_skipping_assignment:
            return generation_answer(group, member)._replace(skip_assignment=group.leader == member_id)
        # An older client would assign if it knew that it leads, so the response names its predecessor as leader.
        return generation_answer(group, member)._replace(leader=old_leader or "", members=())

    # --- rebalances ---------------------------------------------------------------------------------------------

    def _rebalance(self, group: ClassicGroup, now: Instant, effects: Effects) -> None:
        """Start a rebalance, or continue the one that runs."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            _cancel_syncs(group, effects)
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

    def _prolong_initial_delay(self, group: ClassicGroup, left_ms: int, now: Instant) -> None:
        delay_ms = min(self._config.initial_rebalance_delay_ms, left_ms)
        group.initial_delay_left_ms = left_ms - delay_ms
        group.has_newcomers = False
        self._await_phase(group, delay_ms, now)

    def _complete_join_if_all_joined(self, group: ClassicGroup, now: Instant, effects: Effects) -> None:
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group.initial_delay_left_ms is None
            and group.has_all_members_joined
        ):
            self._complete_join(group, now, effects)

    def _complete_join(self, group: ClassicGroup, now: Instant, effects: Effects) -> None:
        """End the joining: expel dynamic members that did not rejoin, begin the generation, answer those that did."""
        group.rebalance_deadline = None
        absent = [member for member in group.members.values() if member.join_ticket is None]
        for member in absent:
            if member.group_instance_id is None:
                self._drop_member(group, member)
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

    def _assign(self, group: ClassicGroup, request: SyncGroup, now: Instant, effects: Effects) -> None:
        """The leader's assignment: the generation is complete once its record is committed."""
        assignments = dict(request.assignments)
        for member in group.members.values():
            group.assign(member, assignments.get(member.member_id, b""))
        group.move_to(GroupState.STABLE)
        effects.records.append(GroupRecord(group.group_id, group.metadata(now.wall_ms)))
        for member in group.members.values():
            if member.sync_ticket is not None:
                effects.actions.append(Respond(member.sync_ticket, assignment_answer(group, member)))
                member.sync_ticket = None
                self._extend_session(group, member, now)

    def _expel_unsynced(self, group: ClassicGroup, now: Instant, effects: Effects) -> None:
        group.rebalance_deadline = None
        for member_id in list(group.pending_sync):
            member = group.members[member_id]
            _answer_waiting(group, member, ErrorCode.unknown_member_id, effects)
            self._drop_member(group, member)
        self._rebalance(group, now, effects)

    # --- leaving ------------------------------------------------------------------------------------------------

    def _leave(self, group: ClassicGroup | None, identity: MemberIdentity, now: Instant, effects: Effects) -> ErrorCode:
        if group is None:
            return ErrorCode.unknown_member_id
        member_id, group_instance_id = identity.member_id, identity.group_instance_id
        if member_id == NO_MEMBER_ID and group_instance_id is not None:
            member_id = group.static_members.get(group_instance_id, NO_MEMBER_ID)
        elif member_id in group.pending_members:
            if group_instance_id is not None:
                return ErrorCode.unknown_member_id
            self._forget_pending(group, member_id)
            self._complete_join_if_all_joined(group, now, effects)
            return ErrorCode.none
        error = group.check_member(member_id, group_instance_id)
        if error is ErrorCode.none:
            self._remove(group, group.members[member_id], now, effects)
        return error

    def _remove(self, group: ClassicGroup, member: Member, now: Instant, effects: Effects) -> None:
        _answer_waiting(group, member, ErrorCode.unknown_member_id, effects)
        self._drop_member(group, member)
        self._rebalance(group, now, effects)

    def _drop_member(self, group: ClassicGroup, member: Member) -> None:
        # Timers of what is gone are dropped: they hold names of a client's choice until a time of its choice.
        group.remove(member)
        self._timers.drop(_Watch(_Kind.SESSION, group.group_id, member.member_id))

    def _forget_pending(self, group: ClassicGroup, member_id: str) -> None:
        group.forget_pending(member_id)
        self._timers.drop(_Watch(_Kind.PENDING_MEMBER, group.group_id, member_id))

    def _forget_if_unused(self, group: ClassicGroup) -> None:
        if group.is_unused and self._groups.get(group.group_id) is group:
            self.forget(group)
            del self._groups[group.group_id]


def _unknown(group_id: str) -> ErrorCode:
    """The error for a member of a group that does not exist."""
    return ErrorCode.unknown_member_id if group_id else ErrorCode.invalid_group_id


def _cancel_syncs(group: ClassicGroup, effects: Effects) -> None:
    for member in group.members.values():
        group.assign(member, b"")
        if member.sync_ticket is not None:
            effects.actions.append(Respond(member.sync_ticket, sync_error(ErrorCode.rebalance_in_progress)))
            member.sync_ticket = None


def _answer_waiting(group: ClassicGroup, member: Member, error: ErrorCode, effects: Effects) -> None:
    ticket = group.park_join(member, None)
    if ticket is not None:
        effects.actions.append(Respond(ticket, join_error(member.member_id, error)))
    if member.sync_ticket is not None:
        effects.actions.append(Respond(member.sync_ticket, sync_error(error)))
        member.sync_ticket = None


def _sync_refusal(request: SyncGroup, group: ClassicGroup | None) -> ErrorCode:
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
