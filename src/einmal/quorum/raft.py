"""The metadata quorum's machine: Raft in which followers pull, as KRaft does it (KIP-595), with pre-vote (KIP-996).

Values in, values out: ``step`` takes an event, the time and one random number, changes the role, and returns effects in
the order in which they must be done. Knows no network, no timer and no file; reads its log through ``RaftLog``.
"""

# Theory of operation
# ===================
#
# Sections refer to Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm" (USENIX ATC 2014), and
# Ongaro's dissertation (2014). Roles and their transitions are in ``roles.py``.
#
# Raft's promises, and where they are kept here:
#
#   - *Election safety* (5.2): at most one leader per epoch. A voter votes once per epoch (`_vote_requested`), and
#     both epoch and vote are on disk before anything that follows from them leaves the node: `Persist` is the first
#     effect of any step that changes them (`_effects_of_role`), and the runtime does effects in order, the reply
#     last.
#   - *Leader completeness* (5.4.1): a voter refuses a candidate whose log ends earlier than its own, by (epoch,
#     offset). A majority has every committed record, so whoever a majority elects has it too.
#   - *Log matching* (5.3): a follower's fetch names the end of its log and the epoch of its last batch. A leader
#     whose log does not contain that point answers with where they part (`_where_logs_part`, KIP-595's diverging
#     epoch), and the follower cuts its log there and asks again. In Raft proper the leader looks for that point by
#     trying.
#   - *Commitment* (5.4.2): the high watermark is what a majority has, and it moves only once that includes a record
#     of the leader's own epoch (`_high_watermark`); counting replicas of an older epoch's record is not enough
#     (figure 8). That is why a leader begins by appending a LeaderChange record.
#   - *State machine safety* (5.4.3): nothing below the high watermark is ever truncated (`_truncation_point` asserts
#     it).
#
# Pulling instead of pushing. Followers fetch; there is no AppendEntries. A fetch is three things at once: a request for
# what comes next, the acknowledgement of everything before its offset, and a sign of life. Hence:
#
#   - only *flushed* offsets may be fetched from: what a follower asks after, it will have after a power cut. The
#     leader counts its own flushed end in the same way (`local_end_moved`);
#   - a leader cannot reach followers that do not know it, so it announces itself with BeginQuorumEpoch, again and
#     again to those that have not fetched since (`_begin_epoch`);
#   - a follower that hears nothing for `fetch_timeout_ms` seeks an election; a leader from which no majority has
#     fetched for `check_quorum_ms` resigns (dissertation, 6.2: check quorum). Otherwise a leader cut off from its
#     followers would accept requests that can never commit.
#
# Elections. Before it raises the epoch a member asks whether it would be elected (pre-vote, KIP-996; dissertation,
# 9.6). A member that was cut off returns with its epoch unchanged and disturbs nobody; and voters that have fetched
# from a live leader do not grant a pre-vote against it (`_would_elect_another`). Timeouts are drawn between once and
# twice the configured time, so that votes rarely split (5.2). A leader whose connections break is probably dead, and
# then waiting for the timeout is a waste: its followers seek an election *in haste*, after 20 to 120 ms, and after
# more with every election that they lose (`_in_haste`). Haste costs nothing in safety, as no election does; pre-vote
# keeps it from costing availability. A leader that stops names its successors, the most caught up first
# (EndQuorumEpoch).
#
# Epochs are finite (int32), and in a cluster without authentication anybody can claim one. So requests can raise the
# epoch only at the rate at which elections could (`_is_incredible`), and a member that is farther behind learns the
# epoch from the answers to its own requests, whose senders it has chosen.
#
# After a restart a member that led its epoch does not lead it again: its log may have lost a tail that was appended and
# not flushed, and which a follower may have (`__init__`).
#
# Snapshots (KIP-630). A follower that asks for something before the leader's log start gets the id of a snapshot
# instead of records, fetches that, and continues from its end.

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from einmal.quorum.election_state import ElectionState
from einmal.quorum.messages import (
    AdvanceHighWatermark,
    AppendFetched,
    BeginQuorumEpochRequested,
    Effect,
    EndQuorumEpochRequested,
    EpochAnswered,
    Event,
    FetchAnswered,
    FetchRequested,
    FetchSnapshot,
    Follow,
    Lead,
    LeaderLost,
    OffsetAndEpoch,
    Persist,
    RaftLog,
    Reply,
    ResignRequested,
    SendBeginQuorumEpoch,
    SendEndQuorumEpoch,
    SendVote,
    SnapshotAnswered,
    SnapshotRequested,
    Step,
    StopLeading,
    Tick,
    TruncateTo,
    VoteAnswered,
    VoteRequested,
)
from einmal.quorum.roles import (
    TRANSITIONS,
    Candidate,
    Follower,
    Leader,
    Prospective,
    ReplicaState,
    Resigned,
    Role,
    Unattached,
    majority_of,
)
from einmal.types import ErrorCode, Offset

_HASTE_MS: Final = 20
_HASTE_SPREAD_MS: Final = 100
"""A leader that seems dead is replaced after 20 to 120 ms: its followers shall not all try at the same moment."""
_HASTE_DOUBLINGS_MAX: Final = 10
_SUCCESSION_MS: Final = 50
"""Between one preferred successor and the next."""
_OBSERVERS_MAX: Final = 1_000
"""Observers whose position is tracked; anybody can claim to be one."""
EPOCH_MAX: Final = 2**31 - 1
_EPOCH_LEAP_MAX: Final = 1_000
_EPOCH_INTERVAL_MS: Final = 100
"""Requests may raise the epoch by so many at once, and then by one in so long: all epochs last for seven years. A
member that is farther behind learns the epoch from the answers of those that it asks itself."""


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """Kafka's ``controller.quorum.*``, in ms."""

    fetch_timeout_ms: int = 2_000
    election_timeout_ms: int = 1_000
    election_backoff_max_ms: int = 1_000

    @property
    def check_quorum_ms(self) -> int:
        """How long a leader stays one that no majority fetches from."""
        return self.fetch_timeout_ms * 3 // 2


class Raft:
    """One member. ``persisted``: what was read from ``quorum-state``, None where there is none."""

    def __init__(
        self,
        node_id: int,
        voters: tuple[int, ...],
        log: RaftLog,
        persisted: ElectionState | None,
        config: RaftConfig,
        *,
        now: int,
        draw: float,
    ) -> None:
        self.node_id = node_id
        self.voters = voters
        self.is_voter = node_id in voters
        self._log = log
        self._config = config
        self._others = tuple(voter for voter in voters if voter != node_id)
        self._persisted = persisted
        self._lost_elections = 0
        self._epochs_paid_until = now
        """Up to when the epochs that requests have claimed are paid for, one each interval."""
        self._effects: list[Effect] = []
        self._now = now
        self._draw = draw
        election = persisted or ElectionState()
        if log.last_epoch > election.epoch:
            election = ElectionState(log.last_epoch)
        if election.leader_id == node_id:
            # It has led this epoch before it stopped. It will not again: its log may have lost what was not flushed.
            election = election._replace(leader_id=None)
        self.election = election
        leader_id = election.leader_id
        self.role: Role = self._unattached(hasty=True) if leader_id is None else self._follower(leader_id)

    # --- what it is ------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self.election.epoch

    @property
    def leader_id(self) -> int | None:
        return self.election.leader_id

    @property
    def is_leader(self) -> bool:
        return isinstance(self.role, Leader)

    @property
    def log_end(self) -> OffsetAndEpoch:
        return OffsetAndEpoch(self._log.end_offset, self._log.last_epoch)

    def next_deadline(self) -> int | None:
        """When a ``Tick`` has something to do; None: never."""
        match self.role:
            case Leader() as leader:
                if not leader.voters:
                    return None
                return min(leader.begin_epoch_at, leader.heard_at(self._now) + self._config.check_quorum_ms)
            case Follower(deadline=deadline, candidacy_at=candidacy_at):
                return deadline if candidacy_at is None else min(deadline, candidacy_at)
            case role:
                return role.deadline

    def fetch_target(self, draw: float) -> int | None:
        """Whom to fetch from: the leader; while there is none, any voter, who may know one. None: nobody."""
        if isinstance(self.role, Follower):
            return self.role.leader_id
        if isinstance(self.role, Unattached) and self._others:
            return self._others[int(draw * len(self._others))]
        return None

    # --- Commitment --------------------------------------------------------------------------------------------------

    def local_end_moved(self, end: Offset) -> Offset:
        """The leader's own flushed end: -> the high watermark."""
        return self._high_watermark(end)

    def _high_watermark(self, own_end: int) -> Offset:
        known = self._log.high_watermark
        if not isinstance(self.role, Leader):
            return known
        committed = self.role.committed_offset(own_end)
        assert committed <= self._log.end_offset, "followers have nothing that their leader has not written"
        return max(known, committed) if committed > self.role.epoch_start else known

    # --- the one mutator ---------------------------------------------------------------------------------------------

    def step(self, event: Event, *, now: int, draw: float) -> Step:
        """Take one event. ``now`` in monotonic ms; ``draw`` is random, from 0 to below 1."""
        self._now, self._draw = now, draw
        self._effects = []
        before, led_epoch = self.election, self.epoch if self.is_leader else None
        reply = self._on(event)
        return Step((*self._effects_of_role(before, led_epoch), *self._effects), reply)

    def _effects_of_role(self, before: ElectionState, led_epoch: int | None) -> list[Effect]:
        """Return the effects of another epoch, vote, leader or role; before all else that the step does."""
        self._check_election(before)
        effects: list[Effect] = []
        if self.election != self._persisted:
            effects.append(Persist(self.election))
            self._persisted = self.election
        leads = isinstance(self.role, Leader)
        if led_epoch is not None and not (leads and led_epoch == self.epoch):
            effects.append(StopLeading(led_epoch))
        if isinstance(self.role, Leader):
            if led_epoch != self.epoch:
                effects.append(Lead(self.epoch, self.role.granting))
        elif (self.epoch, self.leader_id) != (before.epoch, before.leader_id):
            effects.append(Follow(self.leader_id, self.epoch))
        return effects

    def _check_election(self, before: ElectionState) -> None:
        """Election safety, before anything of it reaches the disk or another member."""
        after = self.election
        assert after.epoch >= before.epoch, "an older epoch could have another leader, or another vote of this member"
        if after.epoch == before.epoch:
            assert before.voted_id in (None, after.voted_id), "a second vote in an epoch could elect a second leader"
            assert before.leader_id is None or after.leader_id in (None, before.leader_id), "an epoch has one leader"
        leads = after.leader_id == self.node_id
        assert self.is_leader == leads, "what is on disk of the leadership is what this member acts upon"

    def _on(self, event: Event) -> Reply | None:  # noqa: C901 - one line for each kind of event
        match event:
            case Tick():
                self._tick()
            case ResignRequested():
                self._resign()
            case LeaderLost():
                self._leader_lost(event)
            case VoteRequested():
                return self._vote_requested(event)
            case VoteAnswered():
                self._vote_answered(event)
            case BeginQuorumEpochRequested():
                return self._begin_quorum_epoch(event)
            case EndQuorumEpochRequested():
                return self._end_quorum_epoch(event)
            case EpochAnswered(reply):
                self._learn(reply.leader_id, reply.leader_epoch)
            case FetchRequested():
                return self._fetch_requested(event)
            case FetchAnswered():
                self._fetch_answered(event)
            case SnapshotRequested():
                return self._snapshot_requested(event)
            case SnapshotAnswered():
                self._is_from_leader(event)
        return None

    # --- roles -------------------------------------------------------------------------------------------------------

    def _become(self, role: Role) -> None:
        assert type(role) in TRANSITIONS[type(self.role)], f"{type(self.role)} to {type(role)}"
        self.role = role

    def _unattached(self, *, hasty: bool = False) -> Unattached:
        if not self.is_voter:
            return Unattached(None)
        if len(self.voters) == 1:
            return Unattached(self._now)
        return Unattached(self._in_haste() if hasty else self._election_deadline())

    def _follower(self, leader_id: int) -> Follower:
        return Follower(leader_id, self._now + self._config.fetch_timeout_ms)

    def _election_deadline(self) -> int:
        return self._now + int(self._config.election_timeout_ms * (1 + self._draw))

    def _in_haste(self) -> int:
        """Soon; later with every election that was lost."""
        spread = _HASTE_SPREAD_MS << min(self._lost_elections, _HASTE_DOUBLINGS_MAX)
        return self._now + _HASTE_MS + int(min(spread, self._config.election_backoff_max_ms) * self._draw)

    def _enter_epoch(self, epoch: int, leader_id: int | None) -> None:
        """A later epoch, in which this node does not lead."""
        assert epoch > self.epoch, "epochs only grow"
        self.election = ElectionState(epoch, leader_id)
        self._become(self._unattached() if leader_id is None else self._follower(leader_id))

    def _is_incredible(self, epoch: int) -> bool:
        """Whether no election can have led to the epoch that a request claims; if it can, it is paid for.

        Who may send requests is not always known. Without a bound three of them would use up all epochs for ever.
        """
        leap = max(0, epoch - self.epoch)
        paid_until = max(self._epochs_paid_until, self._now) + leap * _EPOCH_INTERVAL_MS
        if paid_until - self._now > _EPOCH_LEAP_MAX * _EPOCH_INTERVAL_MS:
            return True
        self._epochs_paid_until = paid_until
        return False

    def _learn(self, leader_id: int | None, epoch: int) -> None:
        """Take over who leads in which epoch, as another member reports it."""
        if leader_id == self.node_id:
            leader_id = None
        if epoch > self.epoch:
            self._enter_epoch(epoch, leader_id)
        elif epoch == self.epoch and leader_id is not None and self.leader_id is None:
            assert not isinstance(self.role, Leader | Resigned), f"{leader_id} and this node lead epoch {epoch}"
            self.election = self.election._replace(leader_id=leader_id)
            self._become(self._follower(leader_id))

    def _reply(self, error: ErrorCode = ErrorCode.none, *, granted: bool = False) -> Reply:
        return Reply(error, self.leader_id, self.epoch, granted)

    # --- time --------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        deadline = self.next_deadline()
        if deadline is None or self._now < deadline:
            return
        match self.role:
            case Leader() as leader:
                if self._now >= leader.heard_at(self._now) + self._config.check_quorum_ms:
                    self._resign()
                else:
                    self._begin_epoch(leader)
            case Prospective() | Candidate():
                self._lose_election()
            case Follower() if not self.is_voter:
                self.election = self.election._replace(leader_id=None)
                self._become(self._unattached())
            case _:
                self._seek_election()

    def _leader_lost(self, event: LeaderLost) -> None:
        role = self.role
        if not isinstance(role, Follower) or role.leader_id != event.leader_id:
            return
        if not self.is_voter:
            self.election = self.election._replace(leader_id=None)
            self._become(self._unattached())
            return
        role.is_leader_lost = True
        if role.candidacy_at is None:
            role.candidacy_at = self._in_haste()

    # --- elections: the candidate's side -----------------------------------------------------------------------------

    def _seek_election(self) -> None:
        role = Prospective(self._election_deadline(), granted={self.node_id: None})
        self._become(role)
        self._ask_for_votes(pre_vote=True)
        self._count_votes(role)

    def _stand_for_election(self) -> None:
        if self.epoch >= EPOCH_MAX:
            self._lose_election()
            return
        self.election = ElectionState(self.epoch + 1, None, voted_id=self.node_id)
        role = Candidate(self._election_deadline(), granted={self.node_id: None})
        self._become(role)
        self._ask_for_votes(pre_vote=False)
        self._count_votes(role)

    def _ask_for_votes(self, *, pre_vote: bool) -> None:
        self._effects += [SendVote(voter, self.epoch, self.log_end, pre_vote) for voter in self._others]

    def _vote_answered(self, event: VoteAnswered) -> None:
        reply = event.reply
        if reply is not None:
            self._learn(reply.leader_id, reply.leader_epoch)
        role = self.role
        if not isinstance(role, Prospective | Candidate) or event.epoch != self.epoch:
            return
        if event.pre_vote != isinstance(role, Prospective) or event.voter_id not in self._others:
            return
        if reply is not None and reply.vote_granted:
            role.granted[event.voter_id] = None
            role.refused.pop(event.voter_id, None)
        # Without a reply, too: a voter whose connection cannot be opened has probably died. Only a machine that
        # vanishes without a FIN costs the fetch timeout.
        elif event.voter_id not in role.granted:
            role.refused[event.voter_id] = None
        self._count_votes(role)

    def _count_votes(self, role: Prospective | Candidate) -> None:
        needed = majority_of(len(self.voters))
        if len(role.granted) >= needed:
            if isinstance(role, Prospective):
                self._stand_for_election()
            else:
                self._win(role)
        elif len(self.voters) - len(role.refused) < needed:
            self._lose_election()

    def _win(self, role: Candidate) -> None:
        assert self.election.voted_id == self.node_id, "a candidate elects itself, so nobody else has its vote"
        assert self._log.last_epoch < self.epoch, "no record is of an epoch that nobody has led yet"
        self.election = self.election._replace(leader_id=self.node_id)
        self._lost_elections = 0
        voters = {voter: ReplicaState(fetched_at=self._now) for voter in self._others}
        leader = Leader(self._log.end_offset, tuple(sorted(role.granted)), voters, begin_epoch_at=self._now)
        self._become(leader)
        self._begin_epoch(leader)

    def _lose_election(self) -> None:
        """Try again later; meanwhile continue with the leader of this epoch, if there is one."""
        retry_at = self._in_haste()
        self._lost_elections += 1
        if self.leader_id is None:
            self._become(Unattached(retry_at))
        else:
            self._become(self._follower(self.leader_id))
            assert isinstance(self.role, Follower)
            self.role.is_leader_lost, self.role.candidacy_at = True, retry_at

    # --- elections: the voter's side ---------------------------------------------------------------------------------

    def _vote_requested(self, event: VoteRequested) -> Reply:
        if event.epoch < self.epoch:
            return self._reply(ErrorCode.fenced_leader_epoch)
        if not self.is_voter or event.candidate_id not in self._others:
            return self._reply(ErrorCode.inconsistent_voter_set)
        if self._is_incredible(event.epoch):
            return self._reply(ErrorCode.invalid_request)
        if event.epoch > self.epoch:
            self._enter_epoch(event.epoch, None)
        own = self.log_end
        is_up_to_date = (event.log_end.epoch, event.log_end.offset) >= (own.epoch, own.offset)
        if event.pre_vote:
            return self._reply(granted=is_up_to_date and self._would_elect_another())
        election = self.election
        if not is_up_to_date or election.leader_id is not None or election.voted_id not in (None, event.candidate_id):
            return self._reply()
        if election.voted_id is None:
            self.election = election._replace(voted_id=event.candidate_id)
            self._become(self._unattached())
        return self._reply(granted=True)

    def _would_elect_another(self) -> bool:
        match self.role:
            case Leader():
                return False
            case Follower(has_fetched=has_fetched, is_leader_lost=is_leader_lost):
                return not has_fetched or is_leader_lost
            case _:
                return True

    # --- epochs: announcements of leaders ----------------------------------------------------------------------------

    def _begin_epoch(self, leader: Leader) -> None:
        """Announce the leader to those voters that have not shown that they know it."""
        interval = self._config.fetch_timeout_ms // 2
        leader.begin_epoch_at = self._now + interval
        for voter, state in leader.voters.items():
            if not state.has_fetched or self._now - state.fetched_at >= interval:
                self._effects.append(SendBeginQuorumEpoch(voter, self.epoch))

    def _refusal_of_leader(self, leader_id: int, epoch: int) -> ErrorCode:
        """The error for a request of a leader that cannot be one; none: it may be.

        Only voters lead: a request of another node, however late it arrives, does not show who leads.
        """
        if epoch < self.epoch:
            return ErrorCode.fenced_leader_epoch
        if leader_id not in self._others:
            return ErrorCode.inconsistent_voter_set
        return ErrorCode.invalid_request if self._is_incredible(epoch) else ErrorCode.none

    def _begin_quorum_epoch(self, event: BeginQuorumEpochRequested) -> Reply:
        error = self._refusal_of_leader(event.leader_id, event.epoch)
        if error is not ErrorCode.none:
            return self._reply(error)
        self._learn(event.leader_id, event.epoch)
        if isinstance(self.role, Prospective | Follower) and self.leader_id == event.leader_id:
            # Whatever made it seem dead, it lives.
            had_fetched = isinstance(self.role, Follower) and self.role.has_fetched
            self._become(self._follower(event.leader_id))
            assert isinstance(self.role, Follower)
            self.role.has_fetched = had_fetched
        return self._reply()

    def _resign(self) -> None:
        if not isinstance(self.role, Leader):
            return
        successors = self.role.successors()
        self._effects += [SendEndQuorumEpoch(voter, self.epoch, successors) for voter in self._others]
        self.election = self.election._replace(leader_id=None)
        self._become(Resigned(self._election_deadline()))

    def _end_quorum_epoch(self, event: EndQuorumEpochRequested) -> Reply:
        error = self._refusal_of_leader(event.leader_id, event.epoch)
        if error is not ErrorCode.none:
            return self._reply(error)
        self._learn(event.leader_id, event.epoch)
        role = self.role
        if isinstance(role, Follower) and role.leader_id == event.leader_id and self.is_voter:
            role.is_leader_lost = True
            role.candidacy_at = self._in_haste()
            if self.node_id in event.successors:
                turn = event.successors.index(self.node_id)
                role.candidacy_at = self._now + int(_SUCCESSION_MS * (turn + self._draw * min(turn, 1)))
        return self._reply()

    # --- fetching: the leader's side ---------------------------------------------------------------------------------

    def _refusal(self, epoch: int) -> ErrorCode:
        """Why not to answer as leader of ``epoch``, if so."""
        if 0 <= epoch < self.epoch:
            return ErrorCode.fenced_leader_epoch
        if epoch > self.epoch:
            return ErrorCode.unknown_leader_epoch
        return ErrorCode.none if self.is_leader else ErrorCode.not_leader_or_follower

    def _fetch_requested(self, event: FetchRequested) -> Reply:
        error = self._refusal(event.epoch)
        if error is not ErrorCode.none:
            return self._reply(error)
        if event.log_end.offset < 0 or event.log_end.epoch < 0 or event.log_end.epoch > self.epoch:
            return self._reply(ErrorCode.invalid_request)
        assert isinstance(self.role, Leader)
        state = self._replica(self.role, event.replica_id)
        refused = self._where_logs_part(event.log_end)
        if refused is not None:
            if state is not None:
                state.fetched_at, state.has_fetched = self._now, True
            return refused
        assert event.log_end.offset <= self._log.end_offset, "a log that ends behind the leader's is no beginning of it"
        if state is not None:
            state.fetched(event.log_end.offset, self._log.end_offset, self._now)
        high_watermark = self._high_watermark(self._log.flushed_offset)
        if high_watermark > self._log.high_watermark:
            self._effects.append(AdvanceHighWatermark(high_watermark))
        return self._reply()

    def _replica(self, leader: Leader, replica_id: int) -> ReplicaState | None:
        """Return what is known of a replica; None: of somebody who is no replica."""
        if replica_id < 0 or replica_id == self.node_id:
            return None
        known = leader.voters.get(replica_id) or leader.observers.get(replica_id)
        if known is None and len(leader.observers) < _OBSERVERS_MAX:
            known = leader.observers[replica_id] = ReplicaState()
        return known

    def _where_logs_part(self, end: OffsetAndEpoch) -> Reply | None:
        """The answer to a replica whose log is no beginning of the leader's, or ends before that starts."""
        log, snapshot_id = self._log, self._log.snapshot_id
        if end == snapshot_id or (end == (0, 0) and log.start_offset == 0):
            return None
        known = log.end_offset_for_epoch(end.epoch) if end.offset >= log.start_offset else None
        if known is None and snapshot_id is not None:
            return self._reply()._replace(snapshot_id=snapshot_id)
        if known is None or known.epoch != end.epoch or known.offset < end.offset:
            return self._reply()._replace(diverging=known or OffsetAndEpoch(log.start_offset, 0))
        return None

    def _snapshot_requested(self, event: SnapshotRequested) -> Reply:
        error = self._refusal(event.epoch)
        if error is ErrorCode.none:
            assert isinstance(self.role, Leader)
            state = self._replica(self.role, event.replica_id)
            if state is not None:
                state.fetched_at, state.has_fetched = self._now, True
        return self._reply(error)

    # --- fetching: the follower's side -------------------------------------------------------------------------------

    def _is_from_leader(self, event: FetchAnswered | SnapshotAnswered) -> bool:
        """Whether it is an answer of the leader that is followed now; then it lives."""
        self._learn(event.reply.leader_id, event.reply.leader_epoch)
        role = self.role
        if not isinstance(role, Follower) or role.leader_id != event.asked_id or event.epoch != self.epoch:
            return False
        if event.reply.error is not ErrorCode.none:
            if event.reply.error is ErrorCode.not_leader_or_follower:
                # It leads no more, and nobody else does yet.
                self._leader_lost(LeaderLost(role.leader_id))
            return False
        role.deadline = self._now + self._config.fetch_timeout_ms
        role.has_fetched = True
        role.is_leader_lost, role.candidacy_at = False, None
        self._lost_elections = 0
        return True

    def _fetch_answered(self, event: FetchAnswered) -> None:
        # A request from another end was sent before the log changed: the answer is a late copy.
        if not self._is_from_leader(event) or event.log_end != self.log_end:
            return
        if event.reply.diverging is not None:
            self._effects.append(TruncateTo(self._truncation_point(event.reply.diverging)))
        elif event.reply.snapshot_id is not None:
            self._effects.append(FetchSnapshot(event.asked_id, event.reply.snapshot_id))
        else:
            self._effects.append(AppendFetched(event.records, event.high_watermark))

    def _truncation_point(self, diverging: OffsetAndEpoch) -> Offset:
        """Up to where the log may agree with the leader's (KIP-595); the next fetch shows whether it does."""
        own = self._log.end_offset_for_epoch(diverging.epoch)
        if own is None:
            offset = self._log.start_offset
        else:
            offset = min(own.offset, diverging.offset) if own.epoch == diverging.epoch else own.offset
        assert offset >= self._log.high_watermark, f"truncation to {offset}, below {self._log.high_watermark}"
        return Offset(offset)
