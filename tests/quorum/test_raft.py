"""One member by hand: each rule of the quorum, and a model cluster where time is what matters."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from einmal.quorum.election_state import ElectionState
from einmal.quorum.messages import (
    AdvanceHighWatermark,
    AppendFetched,
    BeginQuorumEpochRequested,
    EndQuorumEpochRequested,
    Event,
    FetchAnswered,
    FetchRequested,
    FetchSnapshot,
    Follow,
    Lead,
    LeaderLost,
    OffsetAndEpoch,
    Persist,
    Reply,
    ResignRequested,
    SendBeginQuorumEpoch,
    SendEndQuorumEpoch,
    SendVote,
    SnapshotRequested,
    Step,
    StopLeading,
    Tick,
    TruncateTo,
    VoteAnswered,
    VoteRequested,
)
from einmal.quorum.raft import Raft, RaftConfig
from einmal.quorum.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from einmal.types import ErrorCode, Offset
from tests.quorum.model import ModelLog, World

NONE = ErrorCode.none
EMPTY = OffsetAndEpoch(0, 0)


class One:
    """Member 1 of three."""

    def __init__(self, *epochs: int, persisted: ElectionState | None = None, voters: tuple[int, ...] = (1, 2, 3)):
        self.log = ModelLog()
        for epoch in epochs:
            self.log.append((epoch, "value"))
        self.log.flushed_offset = self.log.end_offset
        self.now = 0
        self.raft = Raft(1, voters, self.log, persisted, RaftConfig(), now=0, draw=0.5)

    def step(self, event: Event) -> Step:
        return self.raft.step(event, now=self.now, draw=0.5)

    def tick(self) -> Step:
        """The next deadline passes."""
        deadline = self.raft.next_deadline()
        assert deadline is not None
        self.now = max(self.now, deadline)
        return self.step(Tick())

    def granted(self, voter: int, *, pre_vote: bool) -> Step:
        reply = Reply(NONE, None, self.raft.epoch, vote_granted=True)
        return self.step(VoteAnswered(voter, self.raft.epoch, pre_vote, reply))

    def lead(self) -> Step:
        self.tick()
        self.granted(2, pre_vote=True)
        step = self.granted(2, pre_vote=False)
        self.log.append((self.raft.epoch, "leader change"))
        return step

    def follow(self, epoch: int = 1, *, fetched: bool = True) -> None:
        self.step(BeginQuorumEpochRequested(2, epoch))
        if fetched:
            self.answered()

    def answered(self, error: ErrorCode = NONE, high_watermark: int = 0, **more: Any) -> Step:
        reply = Reply(error, 2, self.raft.epoch, **more)
        return self.step(FetchAnswered(2, self.raft.epoch, self.raft.log_end, reply, high_watermark))

    def vote(self, candidate: int, epoch: int, log_end: OffsetAndEpoch = EMPTY, *, pre_vote: bool = False) -> Reply:
        reply = self.step(VoteRequested(candidate, epoch, log_end, pre_vote)).reply
        assert reply is not None
        return reply

    def fetch(self, replica: int, end: int, last_epoch: int, epoch: int | None = None) -> Step:
        asked_in = self.raft.epoch if epoch is None else epoch
        return self.step(FetchRequested(replica, asked_in, OffsetAndEpoch(end, last_epoch)))


# --- elections -----------------------------------------------------------------------------------------------------


def test_a_single_voter_leads_with_its_first_tick_and_has_voted_durably_before() -> None:
    one = One(voters=(1,))
    step = one.tick()
    assert step.effects == (Persist(ElectionState(1, 1, 1)), Lead(1, (1,)))
    assert one.raft.next_deadline() is None


def test_a_single_voter_commits_what_it_has_flushed_once_that_includes_its_own_epoch() -> None:
    one = One(1, 1, voters=(1,))
    one.tick()
    assert one.raft.local_end_moved(Offset(2)) == 0
    one.log.append((2, "leader change"))
    assert one.raft.local_end_moved(Offset(3)) == 3


def test_a_pre_vote_precedes_an_election_and_begins_an_epoch_only_if_it_can_be_won() -> None:
    one = One(1, persisted=ElectionState(1))
    asked = one.tick().effects
    assert asked == (SendVote(2, 1, OffsetAndEpoch(1, 1), True), SendVote(3, 1, OffsetAndEpoch(1, 1), True))
    stood = one.granted(3, pre_vote=True).effects
    assert stood[0] == Persist(ElectionState(2, None, 1))
    assert stood[-2:] == (SendVote(2, 2, OffsetAndEpoch(1, 1), False), SendVote(3, 2, OffsetAndEpoch(1, 1), False))
    won = one.granted(3, pre_vote=False).effects
    assert won[:2] == (Persist(ElectionState(2, 1, 1)), Lead(2, (1, 3)))
    assert won[2:] == (SendBeginQuorumEpoch(2, 2), SendBeginQuorumEpoch(3, 2))


def test_votes_of_another_round_do_not_count() -> None:
    one = One()
    one.tick()
    one.granted(2, pre_vote=False)
    assert isinstance(one.raft.role, Prospective)
    one.granted(2, pre_vote=True)
    one.granted(3, pre_vote=True)
    assert isinstance(one.raft.role, Candidate)


def test_an_election_that_can_no_longer_be_won_is_given_up_and_tried_again_soon() -> None:
    one = One()
    one.tick()
    one.step(VoteAnswered(2, 0, True, None))
    one.step(VoteAnswered(3, 0, True, None))
    assert isinstance(one.raft.role, Unattached)
    assert one.raft.epoch == 0
    assert one.now + 20 <= (one.raft.next_deadline() or 0) <= one.now + 120


@pytest.mark.parametrize("is_pre_vote_won", [False, True])
def test_an_election_without_answers_is_given_up_at_its_deadline(is_pre_vote_won: bool) -> None:
    one = One()
    one.tick()
    if is_pre_vote_won:
        one.granted(2, pre_vote=True)
    assert isinstance(one.raft.role, Candidate if is_pre_vote_won else Prospective)
    one.tick()
    assert isinstance(one.raft.role, Unattached)
    assert one.now + 20 <= (one.raft.next_deadline() or 0) <= one.now + 120
    one.tick()
    assert isinstance(one.raft.role, Prospective)


def test_a_vote_is_durable_before_it_is_answered_and_given_once_per_epoch() -> None:
    one = One()
    step = one.step(VoteRequested(2, 5, EMPTY, False))
    assert step.effects[0] == Persist(ElectionState(5, None, 2))
    assert step.reply == Reply(NONE, None, 5, vote_granted=True)
    assert one.vote(2, 5).vote_granted
    assert not one.vote(3, 5).vote_granted
    again = One(persisted=one.raft.election)
    assert not again.vote(3, 5).vote_granted
    assert again.vote(2, 5).vote_granted


@pytest.mark.parametrize("end", [OffsetAndEpoch(1, 2), OffsetAndEpoch(9, 1)])
def test_a_candidate_with_an_older_log_is_not_elected(end: OffsetAndEpoch) -> None:
    one = One(1, 2)
    assert not one.vote(2, 5, end).vote_granted
    assert not one.vote(2, 5, end, pre_vote=True).vote_granted
    assert one.vote(3, 5, OffsetAndEpoch(2, 2)).vote_granted


def test_a_vote_of_an_older_epoch_or_for_a_stranger_is_refused() -> None:
    one = One(3)
    assert one.vote(2, 2).error is ErrorCode.fenced_leader_epoch
    assert one.vote(7, 9, OffsetAndEpoch(9, 9)).error is ErrorCode.inconsistent_voter_set
    assert one.raft.epoch == 3


def test_a_follower_grants_no_pre_vote_while_its_leader_answers() -> None:
    one = One()
    one.follow(fetched=False)
    assert one.vote(3, 1, pre_vote=True).vote_granted
    one.answered()
    assert not one.vote(3, 1, pre_vote=True).vote_granted
    one.step(LeaderLost(2))
    assert one.vote(3, 1, pre_vote=True).vote_granted
    one.answered()
    assert not one.vote(3, 1, pre_vote=True).vote_granted
    assert one.raft.next_deadline() == one.now + 2_000


def test_a_restarted_leader_neither_leads_its_epoch_again_nor_votes_in_it() -> None:
    one = One(4, persisted=ElectionState(4, 1, 1))
    assert isinstance(one.raft.role, Unattached)
    assert one.raft.leader_id is None
    assert not one.vote(2, 4, OffsetAndEpoch(9, 4)).vote_granted
    one.step(BeginQuorumEpochRequested(1, 4))
    assert isinstance(one.raft.role, Unattached)


def test_a_log_of_a_later_epoch_than_the_state_file_counts() -> None:
    assert One(7, persisted=ElectionState(3, 2, 2)).raft.election == ElectionState(7)


# --- leaders come and go -------------------------------------------------------------------------------------------


def test_a_leader_steps_down_before_it_follows_a_later_epoch() -> None:
    one = One()
    one.lead()
    step = one.step(BeginQuorumEpochRequested(3, 9))
    assert step.effects == (Persist(ElectionState(9, 3)), StopLeading(1), Follow(3, 9))


def test_a_leader_that_no_majority_fetches_from_resigns() -> None:
    one = One()
    one.lead()
    led_at = one.now
    one.now += 1_000
    one.fetch(3, 0, 0)
    fetched_at = one.now
    while isinstance(one.raft.role, Leader):
        step = one.tick()
    assert one.now == fetched_at + 3_000 > led_at + 3_000
    assert step.effects[-2:] == (SendEndQuorumEpoch(2, 1, (3, 2)), SendEndQuorumEpoch(3, 1, (3, 2)))
    assert StopLeading(1) in step.effects
    assert isinstance(one.raft.role, Resigned)


def test_a_leader_that_stops_names_the_most_caught_up_first_and_that_one_hurries() -> None:
    one = One()
    one.lead()
    one.fetch(3, 1, 1)
    step = one.step(ResignRequested())
    assert SendEndQuorumEpoch(3, 1, (3, 2)) in step.effects
    first, second = One(), One()
    for other, successors in ((first, (1, 3)), (second, (3, 1))):
        other.follow()
        other.step(EndQuorumEpochRequested(2, 1, successors))
    assert first.raft.next_deadline() == first.now
    assert second.raft.next_deadline() == second.now + 75


def test_begin_quorum_epoch_is_repeated_to_voters_that_do_not_fetch() -> None:
    one = One()
    one.lead()
    one.fetch(2, 0, 0)
    one.now += 999
    one.fetch(2, 0, 0)
    one.now += 1
    assert one.tick().effects == (SendBeginQuorumEpoch(3, 1),)


def test_a_node_that_is_no_voter_cannot_announce_itself_as_leader() -> None:
    one = One(persisted=ElectionState())
    for event in (BeginQuorumEpochRequested(9, 2**31 - 1), EndQuorumEpochRequested(9, 2**31 - 1, (1,))):
        step = one.step(event)
        assert step == Step((), Reply(ErrorCode.inconsistent_voter_set, None, 0))


def test_an_observer_finds_and_follows_the_leader_but_never_seeks_election() -> None:
    one = One(voters=(2, 3, 4))
    assert one.raft.next_deadline() is None
    assert one.raft.fetch_target(0.0) == 2
    assert one.raft.fetch_target(0.99) == 4
    one.step(FetchAnswered(4, 0, EMPTY, Reply(ErrorCode.fenced_leader_epoch, 3, 6)))
    assert one.raft.fetch_target(0.0) == 3
    one.tick()
    assert isinstance(one.raft.role, Unattached)
    assert one.raft.next_deadline() is None


# --- fetching ------------------------------------------------------------------------------------------------------


def test_only_the_leader_of_the_epoch_answers_a_fetch() -> None:
    one = One()
    assert one.fetch(2, 0, 0).reply == Reply(ErrorCode.not_leader_or_follower, None, 0)
    one.lead()
    assert one.fetch(2, 0, 0, epoch=0).reply == Reply(ErrorCode.fenced_leader_epoch, 1, 1)
    assert one.fetch(2, 0, 0, epoch=2).reply == Reply(ErrorCode.unknown_leader_epoch, 1, 1)
    assert one.fetch(2, 0, 0, epoch=-1).reply == Reply(NONE, 1, 1)
    assert one.fetch(2, 0, 5).reply == Reply(ErrorCode.invalid_request, 1, 1)


def test_committed_is_what_a_majority_has_flushed() -> None:
    one = One()
    one.lead()
    assert one.fetch(2, 1, 1).effects == ()
    assert one.raft.local_end_moved(Offset(1)) == 1
    one.log.flushed_offset, one.log.high_watermark = 1, Offset(1)
    one.log.append((1, "value"))
    assert one.fetch(2, 2, 1).effects == ()
    assert one.fetch(3, 2, 1).effects == (AdvanceHighWatermark(Offset(2)),)


def test_a_record_of_an_earlier_epoch_is_not_committed_by_counting_its_copies() -> None:
    one = One(1, 1)
    one.lead()
    one.log.flushed_offset = 3
    assert one.fetch(2, 2, 1).effects == ()
    assert one.fetch(3, 2, 1).effects == ()
    assert one.fetch(2, 3, 2).effects == (AdvanceHighWatermark(Offset(3)),)


def test_an_observer_does_not_count() -> None:
    one = One()
    one.lead()
    one.log.flushed_offset = 1
    assert one.fetch(9, 1, 1).effects == ()
    assert isinstance(one.raft.role, Leader)
    assert list(one.raft.role.observers) == [9]


def test_the_leader_returns_the_diverging_epoch_and_the_follower_truncates() -> None:
    leader = One(1, 1, 3)
    leader.lead()
    reply = leader.fetch(2, 5, 2).reply
    assert reply is not None
    assert reply.diverging == OffsetAndEpoch(2, 1)
    follower = One(1, 1, 2, 2, 2)
    follower.follow(epoch=4)
    assert follower.answered(diverging=reply.diverging).effects == (TruncateTo(Offset(2)),)
    shorter = One(1, 2, 2)
    shorter.follow(epoch=4)
    assert shorter.answered(diverging=reply.diverging).effects == (TruncateTo(Offset(1)),)


def test_a_follower_whose_next_record_is_gone_is_sent_to_the_snapshot() -> None:
    leader = One(1, 1, 1, 2)
    leader.log.high_watermark = Offset(3)
    leader.log.take_snapshot()
    leader.log.forget_prefix()
    leader.lead()
    snapshot_id = OffsetAndEpoch(3, 1)
    for end, last_epoch in ((0, 0), (2, 1)):
        reply = leader.fetch(2, end, last_epoch).reply
        assert reply is not None
        assert reply.snapshot_id == snapshot_id
    reply = leader.fetch(2, 3, 1).reply
    assert reply == Reply(NONE, 1, 3)
    follower = One(1)
    follower.follow(epoch=3)
    assert follower.answered(snapshot_id=snapshot_id).effects == (FetchSnapshot(2, snapshot_id),)


def test_a_voter_that_fetches_a_snapshot_counts_as_alive() -> None:
    one = One()
    one.lead()
    one.now += 2_900
    reply = one.step(SnapshotRequested(2, 1)).reply
    assert reply == Reply(NONE, 1, 1)
    one.now += 200
    one.tick()
    assert isinstance(one.raft.role, Leader)


def test_a_late_copy_of_an_answer_changes_nothing() -> None:
    one = One(1)
    one.follow()
    reply = Reply(NONE, 2, 1)
    late = FetchAnswered(2, 1, EMPTY, reply, 1, b"late")
    assert one.step(late).effects == ()
    assert one.step(FetchAnswered(2, 1, one.raft.log_end, reply, 1, b"new")).effects == (AppendFetched(b"new", 1),)
    assert one.step(FetchAnswered(3, 1, one.raft.log_end, reply, 1, b"who?")).effects == ()


def test_a_leader_that_answers_not_leader_or_follower_is_treated_as_lost() -> None:
    one = One()
    one.follow()
    one.step(FetchAnswered(2, 1, EMPTY, Reply(ErrorCode.not_leader_or_follower, None, 1)))
    assert isinstance(one.raft.role, Follower)
    assert one.raft.role.is_leader_lost
    assert (one.raft.next_deadline() or 0) <= one.now + 120


# --- together ------------------------------------------------------------------------------------------------------


def test_a_healthy_leader_is_not_disturbed_by_a_member_that_is_cut_off_and_comes_back() -> None:
    for seed in range(50):
        world = World(seed)
        assert world.run_until(world.has_leader, 5_000)
        leader = world.leader
        assert leader is not None and leader.raft is not None
        epoch = leader.raft.epoch
        lonely = next(n for n in world.members if n != leader.node_id)
        for _ in range(3):
            world.isolate(lonely)
            world.run(4_000)
            world.cut.clear()
            world.run(3_000)
        assert world.has_leader()
        assert leader.raft.is_leader
        assert leader.raft.epoch == epoch


def test_a_one_way_partition_does_not_depose_a_leader_with_a_majority() -> None:
    for seed in range(30):
        world = World(seed)
        assert world.run_until(world.has_leader, 5_000)
        leader = world.leader
        assert leader is not None and leader.raft is not None
        deaf = next(n for n in world.members if n != leader.node_id)
        world.cut[leader.node_id, deaf] = None
        world.run(10_000)
        assert leader.raft.is_leader
        assert len(world.leaders) == 1


@pytest.mark.parametrize("voters", [3, 5])
def test_a_killed_leader_is_replaced_within_300_ms_in_the_median(voters: int) -> None:
    durations = []
    for seed in range(100):
        world = World(seed, voters=voters)
        assert world.run_until(world.has_leader, 5_000)
        world.run(1_000)
        leader = world.leader
        assert leader is not None
        world.crash(leader.node_id)
        # A killed process closes its connections: pending requests fail.
        for member in world.members.values():
            member.fetching = 0
        killed_at = world.now
        assert world.run_until(world.has_leader, 10_000)
        durations.append(world.now - killed_at)
    assert statistics.median(durations) < 300
    assert sorted(durations)[94] < 1_500


def test_the_first_leader_of_a_new_quorum_is_there_in_a_moment() -> None:
    durations = []
    for seed in range(50):
        world = World(seed)
        assert world.run_until(world.has_leader, 5_000)
        durations.append(world.now)
    assert statistics.median(durations) < 400


# --- epochs that nobody can have reached --------------------------------------------------------------------------


def requests_of(epoch: int) -> list[Event]:
    """Those that may bring a later epoch."""
    return [
        VoteRequested(2, epoch, OffsetAndEpoch(9, epoch), False),
        VoteRequested(2, epoch, OffsetAndEpoch(9, epoch), True),
        BeginQuorumEpochRequested(2, epoch),
        EndQuorumEpochRequested(2, epoch, (1,)),
    ]


@pytest.mark.parametrize("request_", requests_of(2**31 - 1))
def test_a_request_cannot_use_up_all_epochs(request_: Event) -> None:
    one = One(3)
    for _ in range(3):
        step = one.step(request_)
        assert step.reply is not None
        assert (step.reply.error, step.reply.vote_granted, step.reply.leader_epoch) == (
            ErrorCode.invalid_request,
            False,
            3,
        )
        assert one.raft.epoch == 3


def test_epochs_that_requests_claim_are_bounded_over_time_too() -> None:
    one = One(0)
    for _ in range(10_000):
        one.step(BeginQuorumEpochRequested(2, one.raft.epoch + 500))
    assert one.raft.epoch == 1_000
    one.now += 10_000
    for leap in (1_000, 100, 1):
        one.step(BeginQuorumEpochRequested(2, one.raft.epoch + leap))
    assert one.raft.epoch == 1_100


def test_a_member_that_is_far_behind_learns_the_epoch_from_those_it_asks() -> None:
    one = One(3)
    refused = one.step(BeginQuorumEpochRequested(2, 5_000)).reply
    assert refused is not None and refused.error is ErrorCode.invalid_request
    one.tick()
    one.step(VoteAnswered(2, one.raft.epoch, True, Reply(ErrorCode.fenced_leader_epoch, 2, 5_000)))
    assert isinstance(one.raft.role, Follower)
    assert (one.raft.epoch, one.raft.leader_id) == (5_000, 2)


def test_a_member_without_epochs_left_does_not_stand_for_election() -> None:
    one = One(3, persisted=ElectionState(2**31 - 1))
    one.tick()
    one.granted(2, pre_vote=True)
    assert one.raft.epoch == 2**31 - 1
    assert isinstance(one.raft.role, Unattached)


def test_the_number_of_observers_that_a_leader_knows_is_bounded() -> None:
    one = One(voters=(1,))
    one.tick()
    assert isinstance(one.raft.role, Leader)
    for observer in range(10, 5_000):
        one.step(FetchRequested(observer, one.raft.epoch, EMPTY))
    assert len(one.raft.role.observers) <= 1_000
