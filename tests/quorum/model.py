"""A quorum of machines on a model of network, time, logs and disks; every random choice comes from one seed.

After every step it checks what Raft promises: one leader per epoch, equal logs where epochs agree, committed entries
that stay and are the same everywhere, and that a leader has all of them.
"""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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
    Reply,
    ResignRequested,
    SendBeginQuorumEpoch,
    SendEndQuorumEpoch,
    SendVote,
    SnapshotAnswered,
    SnapshotRequested,
    StopLeading,
    Tick,
    TruncateTo,
    VoteAnswered,
    VoteRequested,
)
from einmal.quorum.raft import Raft, RaftConfig
from einmal.types import Offset

Entry = tuple[int, str]
"""Epoch and content."""
FETCH_WAIT_MS = 500
REQUEST_TIMEOUT_MS = 1_000


class ModelLog:
    """Entries with a start; ``flushed_offset`` is how much of them a crash spares."""

    def __init__(self) -> None:
        self.start_offset = 0
        self.flushed_offset = 0
        self.high_watermark = Offset(0)
        self.entries: list[Entry] = []
        self.prefix: list[Entry] = []
        """What the snapshot holds."""
        self.snapshot_id: OffsetAndEpoch | None = None

    @property
    def end_offset(self) -> int:
        return self.start_offset + len(self.entries)

    @property
    def last_epoch(self) -> int:
        if self.entries:
            return self.entries[-1][0]
        return 0 if self.snapshot_id is None else self.snapshot_id.epoch

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch | None:
        found = None
        for index, (entry_epoch, _content) in enumerate(self.entries):
            if entry_epoch <= epoch:
                found = OffsetAndEpoch(self.start_offset + index + 1, entry_epoch)
        return found

    def whole(self) -> list[Entry]:
        return self.prefix[: self.start_offset] + self.entries

    def append(self, entry: Entry) -> None:
        self.entries.append(entry)

    def truncate_to(self, offset: int) -> None:
        assert offset >= self.high_watermark
        del self.entries[offset - self.start_offset :]
        self.flushed_offset = min(self.flushed_offset, self.end_offset)

    def take_snapshot(self) -> None:
        if self.high_watermark > self.start_offset:
            whole = self.whole()
            self.prefix = whole[: self.high_watermark]
            self.snapshot_id = OffsetAndEpoch(self.high_watermark, self.prefix[-1][0])

    def forget_prefix(self) -> None:
        if self.snapshot_id is not None and self.snapshot_id.offset <= self.flushed_offset:
            del self.entries[: self.snapshot_id.offset - self.start_offset]
            self.start_offset = self.snapshot_id.offset

    def restart_at(self, snapshot_id: OffsetAndEpoch, prefix: list[Entry]) -> None:
        self.entries = []
        self.prefix = list(prefix)
        self.snapshot_id = snapshot_id
        self.start_offset = self.flushed_offset = snapshot_id.offset
        self.high_watermark = Offset(snapshot_id.offset)


@dataclass
class Member:
    node_id: int
    log: ModelLog = field(default_factory=ModelLog)
    persisted: ElectionState | None = None
    raft: Raft | None = None
    incarnation: int = 0
    fetching: int = 0
    """Number of the fetch whose answer is awaited; 0: none."""
    flush_due: bool = False
    parked: dict[int, tuple[FetchRequested, Callable[[FetchAnswered], None], int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Faults:
    """Probabilities per message; delays in ms."""

    loss: float = 0.0
    duplication: float = 0.0
    delay_max: int = 20
    slow: float = 0.0
    slow_max: int = 1_500
    slow_flush: float = 0.0


CALM = Faults()


class World:
    def __init__(self, seed: int, *, voters: int = 3, observers: int = 0, faults: Faults = CALM) -> None:
        self.source = random.Random(seed)
        self.now = 0
        self.faults = faults
        self.voters = tuple(range(1, voters + 1))
        self.config = RaftConfig()
        self.members = {n: Member(n) for n in range(1, voters + observers + 1)}
        self.cut: dict[tuple[int, int], None] = {}
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self.count = 0
        self.leaders: dict[int, int] = {}
        self.committed: list[Entry] = []
        self.elections = 0
        for node_id in self.members:
            self.start(node_id)

    # --- time and network ---------------------------------------------------------------------------------------

    def at(self, delay: int, work: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.queue, (self.now + delay, self.count, work))

    def run(self, duration: int) -> None:
        end = self.now + duration
        while self.queue and self.queue[0][0] <= end:
            self.now, _number, work = heapq.heappop(self.queue)
            work()
        self.now = end

    def run_until(self, reached: Callable[[], bool], limit: int) -> bool:
        end = self.now + limit
        while not reached() and self.queue and self.queue[0][0] <= end:
            self.now, _number, work = heapq.heappop(self.queue)
            work()
        return reached()

    def send(self, source: int, target: int, deliver: Callable[[], None], lost: Callable[[], None]) -> None:
        """``lost`` runs at once where the target's port is closed, after a timeout where the message is gone."""
        if self.members[target].raft is None and (source, target) not in self.cut:
            self.at(1, lost)
            return
        copies = 1 + (self.source.random() < self.faults.duplication)
        for _ in range(copies):
            if (source, target) in self.cut or self.source.random() < self.faults.loss:
                self.at(REQUEST_TIMEOUT_MS, lost)
                continue
            delay_max = self.faults.slow_max if self.source.random() < self.faults.slow else self.faults.delay_max
            self.at(self.source.randrange(delay_max + 1), deliver)

    def ask(self, source: int, target: int, event: Event, answered: Callable[[Any], object]) -> None:
        """``answered`` gets the reply, or None when there is none."""
        incarnation = self.members[source].incarnation

        def back(reply: Any) -> None:
            if self.members[source].incarnation == incarnation and self.members[source].raft is not None:
                answered(reply)

        def deliver() -> None:
            member = self.members[target]
            if member.raft is None:
                self.at(1, lambda: back(None))
                return
            if isinstance(event, FetchRequested):
                self.serve_fetch(member, event, lambda answer: self.send(target, source, lambda: back(answer), nothing))
                return
            reply = self.step(member, event)
            self.send(target, source, lambda: back(reply), nothing)

        def nothing() -> None:
            # The response is lost: the sender notices by its timeout.
            self.at(REQUEST_TIMEOUT_MS, lambda: back(None))

        self.send(source, target, deliver, lambda: back(None))

    # --- members ------------------------------------------------------------------------------------------------

    def start(self, node_id: int) -> None:
        member = self.members[node_id]
        member.incarnation += 1
        member.fetching, member.flush_due, member.parked = 0, False, {}
        member.raft = Raft(
            node_id,
            self.voters,
            member.log,
            member.persisted,
            self.config,
            now=self.now,
            draw=self.source.random(),
        )
        self.tend(member)

    def crash(self, node_id: int) -> None:
        """What is not flushed is lost, all or the later part of it."""
        member = self.members[node_id]
        log = member.log
        if log.flushed_offset < log.end_offset:
            kept = self.source.randrange(log.flushed_offset, log.end_offset + 1)
            del log.entries[kept - log.start_offset :]
        log.flushed_offset = log.end_offset
        log.high_watermark = Offset(log.start_offset)
        member.raft = None

    def stop(self, node_id: int) -> None:
        self.step(self.members[node_id], ResignRequested())
        self.crash(node_id)

    def tend(self, member: Member) -> None:
        """Timers and the fetch loop, as the runtime has them."""
        incarnation = member.incarnation

        def again() -> None:
            if member.incarnation != incarnation or member.raft is None:
                return
            deadline = member.raft.next_deadline()
            if deadline is not None and deadline <= self.now:
                self.step(member, Tick())
            if not member.fetching and not member.flush_due:
                self.fetch(member)
            self.at(5, again)

        again()

    def fetch(self, member: Member) -> None:
        assert member.raft is not None
        target = member.raft.fetch_target(self.source.random())
        if target is None:
            return
        self.count += 1
        number = member.fetching = self.count
        epoch, log_end = member.raft.epoch, member.raft.log_end

        def answered(answer: FetchAnswered | None) -> None:
            if member.fetching == number:
                member.fetching = 0
            if answer is None:
                if member.raft is not None and self.members[target].raft is None and self.source.random() < 0.8:
                    self.step(member, LeaderLost(target))
            elif not member.flush_due:
                self.step(member, answer)

        def give_up() -> None:
            if member.fetching == number:
                answered(None)

        assert member.log.flushed_offset == member.log.end_offset
        self.at(FETCH_WAIT_MS + REQUEST_TIMEOUT_MS, give_up)
        self.ask(member.node_id, target, FetchRequested(member.node_id, epoch, log_end), answered)

    def serve_fetch(self, member: Member, event: FetchRequested, respond: Callable[[FetchAnswered], None]) -> None:
        reply = self.step(member, event)
        assert reply is not None
        waits = reply == Reply(reply.error, reply.leader_id, reply.leader_epoch) and not reply.error
        if waits and event.log_end.offset >= member.log.end_offset:
            self.count += 1
            number = self.count
            incarnation = member.incarnation
            member.parked[number] = (event, respond, int(member.log.high_watermark))

            def expire() -> None:
                if member.incarnation == incarnation:
                    self.unpark(member, number)

            self.at(FETCH_WAIT_MS, expire)
            return
        respond(self.fetched(member, event, reply))

    def unpark(self, member: Member, number: int) -> None:
        found = member.parked.pop(number, None)
        if found is None or member.raft is None:
            return
        event, respond, _high_watermark = found
        reply = self.step(member, event)
        assert reply is not None
        respond(self.fetched(member, event, reply))

    def fetched(self, member: Member, event: FetchRequested, reply: Reply) -> FetchAnswered:
        log = member.log
        records = b""
        if not reply.error and reply.diverging is None and reply.snapshot_id is None:
            # At most a few: a follower is not always brought up in one step.
            records = json.dumps(log.entries[event.log_end.offset - log.start_offset :][:3]).encode()
        return FetchAnswered(member.node_id, event.epoch, event.log_end, reply, log.high_watermark, records)

    def wake(self, member: Member) -> None:
        for number, (event, _respond, high_watermark) in list(member.parked.items()):
            if member.log.end_offset > event.log_end.offset or member.log.high_watermark > high_watermark:
                self.unpark(member, number)

    # --- steps --------------------------------------------------------------------------------------------------

    def step(self, member: Member, event: Event) -> Reply | None:
        assert member.raft is not None
        before = member.raft.election
        result = member.raft.step(event, now=self.now, draw=self.source.random())
        if member.raft.election != before:
            assert isinstance(result.effects[0], Persist), "persisted before anything else"
        for effect in result.effects:
            self.perform(member, effect)
        self.check(member)
        return result.reply

    def perform(self, member: Member, effect: Effect) -> None:  # noqa: C901 - one case for each kind
        raft, log, me = member.raft, member.log, member.node_id
        assert raft is not None
        match effect:
            case Persist(state):
                assert member.persisted is None or state.epoch >= member.persisted.epoch
                member.persisted = state
            case Lead(epoch, granting):
                assert self.leaders.setdefault(epoch, me) == me, f"two leaders in epoch {epoch}"
                assert 2 * len(granting) > len(self.voters)
                self.elections += 1
                self.append(member, "leader change")
            case StopLeading() | Follow():
                for number in list(member.parked):
                    self.unpark(member, number)
            case SendVote(to, epoch, log_end, pre_vote):
                self.ask(
                    me,
                    to,
                    VoteRequested(me, epoch, log_end, pre_vote),
                    lambda reply: self.step(member, VoteAnswered(to, epoch, pre_vote, reply)),
                )
            case SendBeginQuorumEpoch(to, epoch):
                self.ask(me, to, BeginQuorumEpochRequested(me, epoch), lambda reply: self.epoch_answered(member, reply))
            case SendEndQuorumEpoch(to, epoch, successors):
                event = EndQuorumEpochRequested(me, epoch, successors)
                self.ask(me, to, event, lambda reply: self.epoch_answered(member, reply))
            case AdvanceHighWatermark(offset):
                self.advance(member, offset)
            case AppendFetched(records, high_watermark):
                for epoch, content in json.loads(records):
                    log.append((epoch, content))
                self.flush_later(member)
                self.advance(member, Offset(max(log.high_watermark, min(high_watermark, log.end_offset))))
            case TruncateTo(offset):
                log.truncate_to(offset)
            case FetchSnapshot(leader_id, snapshot_id):
                self.fetch_snapshot(member, leader_id, snapshot_id)

    def epoch_answered(self, member: Member, reply: Reply | None) -> None:
        if reply is not None:
            self.step(member, EpochAnswered(reply))

    def fetch_snapshot(self, member: Member, leader_id: int, snapshot_id: OffsetAndEpoch) -> None:
        assert member.raft is not None
        epoch = member.raft.epoch
        self.count += 1
        number = member.fetching = self.count

        def answered(reply: Reply | None) -> None:
            if member.fetching != number:
                return
            member.fetching = 0
            if reply is None:
                return
            self.step(member, SnapshotAnswered(leader_id, epoch, reply))
            assert member.raft is not None
            source = self.members[leader_id].log
            is_there = not reply.error and source.snapshot_id == snapshot_id
            if is_there and not member.raft.is_leader and snapshot_id.offset > member.log.high_watermark:
                member.log.restart_at(snapshot_id, source.prefix)
                self.check(member)

        self.ask(member.node_id, leader_id, SnapshotRequested(member.node_id, epoch), answered)

    def append(self, member: Member, content: str) -> None:
        assert member.raft is not None and member.raft.is_leader
        member.log.append((member.raft.epoch, content))
        self.flush_later(member)
        self.wake(member)

    def flush_later(self, member: Member) -> None:
        if member.flush_due or member.log.flushed_offset == member.log.end_offset:
            return
        member.flush_due = True
        incarnation, end = member.incarnation, member.log.end_offset

        def flushed() -> None:
            if member.incarnation != incarnation or member.raft is None:
                return
            member.flush_due = False
            member.log.flushed_offset = max(member.log.flushed_offset, min(end, member.log.end_offset))
            if member.raft.is_leader:
                self.advance(member, member.raft.local_end_moved(Offset(member.log.flushed_offset)))
            self.flush_later(member)

        is_slow = self.source.random() < self.faults.slow_flush
        self.at(self.source.randrange(1, self.faults.slow_max if is_slow else 8), flushed)

    def advance(self, member: Member, offset: Offset) -> None:
        if offset > member.log.high_watermark:
            member.log.high_watermark = offset
            self.check(member)
            self.wake(member)

    # --- what Raft promises ---------------------------------------------------------------------------------------

    def check(self, member: Member) -> None:
        log = member.log
        assert log.high_watermark <= log.end_offset
        whole = log.whole()
        seen = whole[: log.high_watermark]
        common = min(len(seen), len(self.committed))
        assert seen[:common] == self.committed[:common], "state machine safety"
        if len(seen) > len(self.committed):
            self.committed = seen
        raft = member.raft
        if raft is not None and raft.is_leader and max(self.leaders) == raft.epoch:
            assert whole[: len(self.committed)] == self.committed, "leader completeness"

    def check_logs_match(self) -> None:
        logs = [member.log.whole() for member in self.members.values()]
        for one in logs:
            assert [epoch for epoch, _ in one] == sorted(epoch for epoch, _ in one)
            for other in logs:
                for offset in range(min(len(one), len(other)) - 1, -1, -1):
                    if one[offset][0] == other[offset][0]:
                        assert one[: offset + 1] == other[: offset + 1], "log matching"
                        break

    # --- for tests -------------------------------------------------------------------------------------------------

    @property
    def leader(self) -> Member | None:
        """Of the latest epoch, if it is up and knows it."""
        leaders = [m for m in self.members.values() if m.raft is not None and m.raft.is_leader]
        return max(leaders, key=lambda m: m.raft.epoch if m.raft else 0, default=None)

    def has_leader(self) -> bool:
        """A leader that every member follows."""
        leader = self.leader
        if leader is None or leader.raft is None:
            return False
        return all(
            m.raft is None or (m.raft.leader_id, m.raft.epoch) == (leader.node_id, leader.raft.epoch)
            for m in self.members.values()
        )

    def isolate(self, node_id: int) -> None:
        for other in self.members:
            self.cut[node_id, other] = self.cut[other, node_id] = None

    def heal(self) -> None:
        self.cut.clear()
        self.faults = CALM
        for node_id, member in self.members.items():
            if member.raft is None:
                self.start(node_id)
