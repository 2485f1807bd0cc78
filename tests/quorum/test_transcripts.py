"""The messages between the members of a quorum: the files in ``transcripts/``.

Commands:

- ``members N``: voters 1 to N, which have never run; ``elect ID of N``: the same, and one of them is elected;
- ``tick ID``: time moves on to the next deadline of a member, which is notified; ``wait MS``: time moves on;
- ``fetch ID ...``: members fetch, each from whom it would fetch from, and all messages are delivered;
- ``propose ID TEXT``: a leader appends a record, and flushes it; ``unflushed ID TEXT``: it does not;
- ``deliver [FROM>TO]``: messages arrive in the order in which they were sent, with all that they cause, until none is
  left; ``lose FROM>TO``: those that are on their way are lost, and their senders learn of it;
- ``crash ID`` (what is not flushed is lost), ``start ID``, ``stop ID``: it resigns first;
- ``lost ID OTHER``: the connection to another member breaks;
- ``status``: role, epoch, log and high watermark of all.

A log's end is shown as OFFSET/EPOCH. Random numbers are all 0.5.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

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
    Lead,
    LeaderLost,
    Persist,
    Reply,
    ResignRequested,
    SendBeginQuorumEpoch,
    SendEndQuorumEpoch,
    SendVote,
    Tick,
    TruncateTo,
    VoteAnswered,
    VoteRequested,
)
from einmal.quorum.raft import Raft, RaftConfig
from einmal.types import Offset
from tests.quorum.model import ModelLog
from tests.transcripts import World, check, show

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
DRAW = 0.5
LEADER_CHANGE = "leader change"


class Message(NamedTuple):
    source: int
    target: int
    content: Any
    """A request, or an answer."""
    deliver: Callable[[], None]
    lost: Callable[[], None]


class Member:
    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.log = ModelLog()
        self.persisted: ElectionState | None = None
        self.raft: Raft | None = None


class Quorum(World):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.members: dict[int, Member] = {}
        self.messages: list[Message] = []

    # --- commands ----------------------------------------------------------------------------------------------------

    def do_members(self, count: str) -> None:
        self.members = {node_id: Member(node_id) for node_id in range(1, int(count) + 1)}
        for node_id in self.members:
            self.do_start(str(node_id))

    def do_elect(self, node_id: str, _of: str, count: str) -> None:
        self.do_members(count)
        self.do_tick(node_id)
        self.do_deliver()

    def do_start(self, node_id: str) -> None:
        member = self.members[int(node_id)]
        voters = tuple(self.members)
        member.raft = Raft(member.node_id, voters, member.log, member.persisted, RaftConfig(), now=self.now, draw=DRAW)
        self._show(member)

    def do_crash(self, node_id: str) -> None:
        member = self.members[int(node_id)]
        log = member.log
        del log.entries[log.flushed_offset - log.start_offset :]
        log.high_watermark = Offset(log.start_offset)
        member.raft = None
        self._show(member)

    def do_stop(self, node_id: str) -> None:
        self._step(self.members[int(node_id)], ResignRequested())

    def do_wait(self, milliseconds: str) -> None:
        self.now += int(milliseconds)
        self.log(f"it is {self.now} ms")

    def do_tick(self, node_id: str) -> None:
        member = self.members[int(node_id)]
        deadline = self._raft(member).next_deadline()
        assert deadline is not None, f"{node_id} has no deadline"
        if deadline > self.now:
            self.do_wait(str(deadline - self.now))
        self._step(member, Tick())

    def do_lost(self, node_id: str, other: str) -> None:
        self._step(self.members[int(node_id)], LeaderLost(int(other)))

    def do_propose(self, node_id: str, *text: str) -> None:
        member = self.members[int(node_id)]
        self._append(member, " ".join(text))
        self._flush(member)

    def do_unflushed(self, node_id: str, *text: str) -> None:
        self._append(self.members[int(node_id)], " ".join(text))

    def do_fetch(self, *node_ids: str) -> None:
        for node_id in node_ids:
            member = self.members[int(node_id)]
            raft = self._raft(member)
            target = raft.fetch_target(DRAW)
            assert target is not None, f"{node_id} has nobody to fetch from"
            self._ask(member, target, FetchRequested(member.node_id, raft.epoch, raft.log_end), lambda answer: answer)
        self.do_deliver()

    def do_deliver(self, between: str = "") -> None:
        while (message := self._next(between)) is not None:
            self.messages.remove(message)
            self.log(f"{message.source}>{message.target} {show(message.content)}")
            message.deliver()

    def do_lose(self, between: str) -> None:
        while (message := self._next(between)) is not None:
            self.messages.remove(message)
            self.log(f"{message.source}>{message.target} lost: {show(message.content)}")
            message.lost()

    def do_status(self) -> None:
        for member in self.members.values():
            self._show(member)

    # --- what members do ---------------------------------------------------------------------------------------------

    def _raft(self, member: Member) -> Raft:
        assert member.raft is not None, f"{member.node_id} does not run"
        return member.raft

    def _next(self, between: str) -> Message | None:
        return next((each for each in self.messages if between in ("", f"{each.source}>{each.target}")), None)

    def _show(self, member: Member) -> None:
        raft, log = member.raft, member.log
        if raft is None:
            self.log(f"{member.node_id} is down, log end {log.end_offset}")
            return
        leader = "" if raft.leader_id is None else f", leader {raft.leader_id}"
        self.log(
            f"{member.node_id} {type(raft.role).__name__}, epoch {raft.epoch}{leader}, "
            f"log end {show(raft.log_end)}, high watermark {log.high_watermark}"
        )

    def _step(self, member: Member, event: Event) -> Reply | None:
        raft = self._raft(member)
        before = type(raft.role).__name__, raft.epoch
        effects, reply = raft.step(event, now=self.now, draw=DRAW)
        after = type(raft.role).__name__, raft.epoch
        if after != before:
            self.log(f"  {member.node_id}: {before[0]} of epoch {before[1]} becomes {after[0]} of epoch {after[1]}")
        for effect in effects:
            self.log(f"  {member.node_id}: {show(effect)}")
            self._perform(member, effect)
        return reply

    def _perform(self, member: Member, effect: Effect) -> None:
        me, log = member.node_id, member.log
        match effect:
            case Persist(state):
                member.persisted = state
            case Lead():
                self._append(member, LEADER_CHANGE)
                self._flush(member)
            case SendVote(to, epoch, log_end, pre_vote):
                request = VoteRequested(me, epoch, log_end, pre_vote)
                self._ask(member, to, request, lambda reply: VoteAnswered(to, epoch, pre_vote, reply))
            case SendBeginQuorumEpoch(to, epoch):
                self._ask(member, to, BeginQuorumEpochRequested(me, epoch), _epoch_answered)
            case SendEndQuorumEpoch(to, epoch, successors):
                self._ask(member, to, EndQuorumEpochRequested(me, epoch, successors), _epoch_answered)
            case AdvanceHighWatermark(offset):
                log.high_watermark = offset
            case AppendFetched(records, high_watermark):
                for epoch, content in json.loads(records):
                    log.append((epoch, content))
                log.flushed_offset = log.end_offset
                log.high_watermark = Offset(max(log.high_watermark, min(high_watermark, log.end_offset)))
            case TruncateTo(offset):
                log.truncate_to(offset)
            case _:
                pass

    def _append(self, member: Member, content: str) -> None:
        raft = self._raft(member)
        assert raft.is_leader, f"{member.node_id} does not lead"
        member.log.append((raft.epoch, content))

    def _flush(self, member: Member) -> None:
        log = member.log
        log.flushed_offset = log.end_offset
        log.high_watermark = self._raft(member).local_end_moved(Offset(log.end_offset))
        self.log(f"  {member.node_id}: flushed to {log.end_offset}, high watermark {log.high_watermark}")

    # --- messages ----------------------------------------------------------------------------------------------------

    def _ask(self, member: Member, to: int, request: Event, event_of: Callable[[Any], Event | None]) -> None:
        """``event_of``: what the answer is to whoever asked; None: nothing."""
        incarnation = member.raft

        def answered(answer: Any) -> None:
            event = event_of(answer)
            if event is not None and member.raft is incarnation:
                self._step(member, event)

        def deliver() -> None:
            target = self.members[to]
            if target.raft is None:
                self.log(f"  {to} is down")
                answered(None)
                return
            answer: Any = self._step(target, request)
            if isinstance(request, FetchRequested):
                answer = _fetched(target, request, answer)
            back = Message(to, member.node_id, answer, lambda: answered(answer), lambda: answered(None))
            self.messages.append(back)

        self.messages.append(Message(member.node_id, to, request, deliver, lambda: answered(None)))


def _epoch_answered(reply: Reply | None) -> Event | None:
    return None if reply is None else EpochAnswered(reply)


def _fetched(leader: Member, request: FetchRequested, reply: Reply) -> FetchAnswered:
    log, records = leader.log, b"[]"
    if not reply.error and reply.diverging is None and reply.snapshot_id is None:
        records = json.dumps(log.entries[request.log_end.offset - log.start_offset :]).encode()
    return FetchAnswered(leader.node_id, request.epoch, request.log_end, reply, log.high_watermark, records)


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_quorum_sends_the_messages_of_the_transcript(path: Path) -> None:
    check(path, Quorum())
