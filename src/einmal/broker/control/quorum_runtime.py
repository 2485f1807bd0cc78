"""Runs this node's member of the metadata quorum: its timers, its requests, its part of the log.

The machine (``quorum.raft``) decides; here its effects are done, in their order and without waiting in between. What
has to wait for the disk is the follower's (``quorum_follower``). A cluster of one leads with the first step and uses no
socket. When the vote cannot be written down, the member does as if it had crashed, and starts again once it can.

Also the ``Commitment`` of the metadata partition: what is committed is published to the node before anybody who waits
for it is answered.
"""

# Theory of operation (Raft; KIP-595, pre-vote KIP-996, snapshots KIP-630)
#
# `Raft` decides and has no side effects; this class has the side effects and decides nothing. Every event (a request of
# another member, an answer, a deadline, an append of the controller) passes through `step`, one at a time. The order in
# which effects are performed is part of the protocol:
#
# 1. Persist comes first. Epoch and vote are durable before any effect of the same step leaves this process. A vote that
#    is granted and forgotten could be granted again in the same epoch, and two leaders elected. Where the write fails,
#    nothing else of that step happens: the member counts as crashed (`give_up`) until a later write succeeds.
# 2. No await between two effects. The next event never finds a step half performed. What has to wait for the disk
#    (append, truncate, snapshot) is performed by the follower's loop, which looks at the epoch again after each wait.
# 3. A follower asks for the next offset only once everything before it is flushed. Its fetch offset is its vote for
#    committing those records; the leader counts a majority of them.
# 4. A new leader begins with a record of its own epoch. That a majority has one of an earlier epoch proves nothing yet:
#    a member without it may still be elected (Raft, section 5.4.2). A record of the own epoch behind it commits both.
# 5. Publish, then release. The image has a committed record before `Partition.advance` wakes whoever waits for it, so a
#    node that answers a request has applied what the request changed.
# 6. The controller leads after the partition does, and resigns before it follows: nothing is decided under an epoch
#    that is not this member's.
# 7. A snapshot is durable before the log may start behind the one before it, and replaces the log of a follower only
#    once it has been received whole (`QuorumStorage.open` finishes a replacement that a crash has cut short).

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.config import BrokerConfig
from einmal.broker.control.quorum_fetch import Answer, answer_fetch
from einmal.broker.control.quorum_follower import MetadataFollower
from einmal.broker.control.quorum_log import QuorumLog
from einmal.broker.control.quorum_messages import begin_request, end_request, vote_request
from einmal.broker.control.quorum_requests import QuorumRequests
from einmal.broker.control.quorum_storage import QuorumStorage
from einmal.broker.control.snapshot_writer import SnapshotWriter
from einmal.broker.listeners import Endpoint
from einmal.broker.replicas.partition import Partition
from einmal.broker.resources.supervision import Supervisor
from einmal.broker.rpc.peers import Peers
from einmal.event_log import EventLog
from einmal.log.producer_state import AppendOrigin
from einmal.metadata import records
from einmal.metadata.image import METADATA_PARTITION
from einmal.metadata.records import NO_LEADER
from einmal.quorum import control_records
from einmal.quorum.election_state import ElectionState
from einmal.quorum.messages import (
    AdvanceHighWatermark,
    Effect,
    EpochAnswered,
    Event,
    Follow,
    Lead,
    OffsetAndEpoch,
    Persist,
    Reply,
    ResignRequested,
    SendBeginQuorumEpoch,
    SendEndQuorumEpoch,
    SendVote,
    Step,
    StopLeading,
    Tick,
    VoteAnswered,
)
from einmal.quorum.raft import Raft, RaftConfig
from einmal.seams import Clock
from einmal.types import BrokerId, ErrorCode, LeaderEpoch, Offset
from einmal.wire.api.begin_quorum_epoch import API as BEGIN_QUORUM_EPOCH
from einmal.wire.api.end_quorum_epoch import API as END_QUORUM_EPOCH
from einmal.wire.api.vote import API as VOTE
from einmal.wire.fetch import FetchRequest

log = EventLog(__name__)

_RETRY_SECONDS: Final = 1.0
_FAREWELL_MS: Final = 500
"""How long a leader that stops waits for its successors to hear of it."""


class LeadsOrResigns(Protocol):
    """Decides while this node leads the quorum."""

    def lead(self, partition: Partition) -> None: ...

    def resign(self) -> None: ...


class QuorumRuntime:
    partition: Partition
    raft: Raft
    _snapshot_writer: SnapshotWriter
    """All only after ``load``."""

    def __init__(
        self,
        config: BrokerConfig,
        storage: QuorumStorage,
        metadata: ClusterMetadata,
        controller: LeadsOrResigns,
        peers: Peers,
        clock: Clock,
        source: random.Random,
    ) -> None:
        self._config = config
        self._storage = storage
        self._metadata = metadata
        self._controller = controller
        self._clock = clock
        self._source = source
        self._supervisor = Supervisor()
        self.node_id = config.node_id
        self.voters = storage.voters
        self.snapshots = storage.snapshots
        self.request_timeout_ms = config.controller_quorum_request_timeout_ms
        self._requests = QuorumRequests(peers, self.request_timeout_ms)
        self._follower = MetadataFollower(self, peers, source)
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._waiting_for_leader: list[asyncio.Future[None]] = []
        self.refused_with = ErrorCode.none
        """Why a voter has not let this node have the metadata log, if one has not."""
        self.is_loaded = False
        """Whether log and machine are there."""
        self.is_stopped = False
        self.has_failed = False
        """The vote cannot be written down; meanwhile this member does nothing."""

    @property
    def leader_id(self) -> int | None:
        return self.raft.leader_id

    @property
    def leader_epoch(self) -> int:
        return self.raft.epoch

    @property
    def is_leader(self) -> bool:
        return self.partition.is_leader

    @property
    def is_voter(self) -> bool:
        return self._storage.is_voter

    @property
    def cluster_id(self) -> str:
        return self._storage.cluster_id

    def endpoint_of(self, node_id: int | None) -> Endpoint | None:
        return None if node_id is None else self._config.quorum_voters.get(node_id)

    # --- life --------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Open log, snapshot and state file. Raises OSError, LogCorruption or ConfigError."""
        snapshot = await self._storage.open()
        self.partition = self._storage.partition
        if snapshot is not None:
            snapshot_id, values = snapshot
            self.install_snapshot(snapshot_id, values)
            self.partition.advance(Offset(snapshot_id.offset))
        self._storage.check_log(self._metadata.next_offset)
        bytes_between = self._config.metadata_log_max_record_bytes_between_snapshots
        self._snapshot_writer = SnapshotWriter(
            self.partition, self.snapshots, self._metadata, self._clock, bytes_between, self._spawn
        )
        self._start_machine(self._storage.read_state())
        self.is_loaded = True

    def install_snapshot(self, snapshot_id: OffsetAndEpoch, values: list[bytes]) -> None:
        """The log reaches, or starts at, the snapshot's end: let the node have what is in it. Raises OSError."""
        self.snapshots.use(snapshot_id)
        decoded = [record for value in values if (record := records.decode(None, value)) is not None]
        self._metadata.load_snapshot(decoded, Offset(snapshot_id.offset), snapshot_id.epoch)

    def _start_machine(self, persisted: ElectionState | None) -> None:
        self.raft = Raft(
            self.node_id,
            self.voters,
            QuorumLog(self.partition, self.snapshots),
            persisted,
            RaftConfig(
                fetch_timeout_ms=self._config.controller_quorum_fetch_timeout_ms,
                election_timeout_ms=self._config.controller_quorum_election_timeout_ms,
                election_backoff_max_ms=self._config.controller_quorum_election_backoff_max_ms,
            ),
            now=self._now(),
            draw=self._source.random(),
        )
        self._follow(self.raft.leader_id, self.raft.epoch)

    async def start(self) -> None:
        """Take part. A single voter leads when this returns, and all of its log is committed. Raises OSError."""
        self.step(Tick())
        if self.voters != (self.node_id,):
            self._follow_leader()
            return
        error = await self.partition.committed(Offset(self.partition.log_end_offset - 1))
        if error is not ErrorCode.none:
            raise OSError(f"cannot write to {METADATA_PARTITION}: {error.name}")

    def _follow_leader(self) -> None:
        task = self._supervisor.run("following the metadata quorum", self._follower.run)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def stop(self) -> None:
        """Hand over the lead, if it is here and there is anybody to take it, and take part no more."""
        if not self.is_stopped and not self.has_failed and len(self.voters) > 1 and self.is_leader:
            self._requests.cancel()
            self.step(ResignRequested())
            await self._requests.ended()
        self.is_stopped = True
        for timer in (self._timer, self._retry):
            if timer is not None:
                timer.cancel()
        self._follower.stop()
        for future in self._waiting_for_leader:
            future.cancel()
        self._requests.cancel()
        await self._requests.ended()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        loop = asyncio.get_running_loop()

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.pop(task, None)
            error = None if task.cancelled() else task.exception()
            if error is not None:
                loop.call_exception_handler({"message": "a task of the metadata quorum ended", "exception": error})

        task = loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(ended)

    async def leader_known(self, timeout_s: float) -> int | None:
        """The leader, waited for; None: nobody is known to lead by the end of the time."""
        if self.leader_id is None:
            loop = asyncio.get_running_loop()
            known: asyncio.Future[None] = loop.create_future()
            self._waiting_for_leader.append(known)
            timer = loop.call_later(timeout_s, _set, known)
            try:
                await known
            finally:
                timer.cancel()
                if known in self._waiting_for_leader:
                    self._waiting_for_leader.remove(known)
        return self.leader_id

    # --- the machine -------------------------------------------------------------------------------------------------

    def step(self, event: Event) -> Step:
        """Let the machine take an event, and do what follows; what waits for the disk is left to the follower."""
        if self.is_stopped or self.has_failed:
            return Step((), Reply(ErrorCode.not_leader_or_follower, None, self.raft.epoch))
        result = self.raft.step(event, now=self._now(), draw=self._source.random())
        for effect in result.effects:
            if isinstance(effect, Persist):
                try:
                    self._storage.write_state(effect.state)
                except OSError as error:
                    self.give_up(error)
                    return Step((), Reply(ErrorCode.not_leader_or_follower, None, self.raft.epoch))
            else:
                self._perform(effect)
        self._arm_timer()
        self._follower.look()
        return result

    def ask(self, event: Event) -> Reply:
        """The answer to a request of another member."""
        reply = self.step(event).reply
        assert reply is not None, f"{event} is no request"
        if reply.error is ErrorCode.invalid_request:
            message = "refused, for no member of the quorum can have sent it in epoch %(epoch)d: %(request)s"
            log.warning("quorum_message_refused", message, epoch=self.raft.epoch, request=event)
        return reply

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Lead():
                self._lead(effect)
            case StopLeading(epoch):
                log.info("quorum_leadership_lost", "the metadata quorum is no longer led from here", epoch=epoch)
                self._controller.resign()
            case Follow(leader_id, epoch):
                self._follow(leader_id, epoch)
            case AdvanceHighWatermark(offset):
                self.publish(offset)
                self.partition.advance(offset)
            case SendVote(to, epoch, _log_end, pre_vote):
                vote = vote_request(self.cluster_id, self.node_id, effect)
                self._requests.send(to, VOTE, vote, lambda reply: self.step(VoteAnswered(to, epoch, pre_vote, reply)))
            case SendBeginQuorumEpoch(to):
                endpoint = self.endpoint_of(self.node_id)
                begin = begin_request(self.cluster_id, self.node_id, effect, endpoint)
                self._requests.send(to, BEGIN_QUORUM_EPOCH, begin, self._epoch_answered)
            case SendEndQuorumEpoch(to):
                endpoint = self.endpoint_of(self.node_id)
                end = end_request(self.cluster_id, self.node_id, effect, endpoint)
                self._requests.send(to, END_QUORUM_EPOCH, end, self._epoch_answered, timeout_ms=_FAREWELL_MS)
            case _:
                assert not isinstance(effect, Persist), "written before all else"

    def _lead(self, effect: Lead) -> None:
        log.info("quorum_leadership_won", "the metadata quorum is led from here", epoch=effect.epoch)
        self.partition.lead(self, LeaderEpoch(effect.epoch))
        now = self._clock.now()
        batch = control_records.leader_change(self.node_id, self.voters, effect.granting, now.wall_ms)
        result = self.partition.append(bytearray(batch), now, AppendOrigin.COORDINATOR)
        if result.error is not ErrorCode.none:
            # Without a record of its own epoch it could commit nothing.
            log.error("quorum_leadership_failed", "cannot lead the metadata quorum: %(error)s", error=result.error.name)
            asyncio.get_running_loop().call_soon(self.step, ResignRequested())
        self._controller.lead(self.partition)
        self._leader_is_known()

    def _follow(self, leader_id: int | None, epoch: int) -> None:
        self.partition.follow(NO_LEADER if leader_id is None else BrokerId(leader_id), LeaderEpoch(epoch))
        self._follower.leader_changed()
        if leader_id is not None:
            self._leader_is_known()

    def _leader_is_known(self) -> None:
        for future in self._waiting_for_leader:
            _set(future)

    def give_up(self, error: OSError) -> None:
        """The disk refuses: be as one that has crashed, until what is remembered can be written down again."""
        log.error("quorum_left", "no part in the metadata quorum: %(error)s", error=error)
        self.has_failed = True
        if self.partition.is_leader:
            self._controller.resign()
        self._follow(None, self.raft.epoch)
        if not self.partition.is_offline:
            self._retry = asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._come_back)

    def _come_back(self) -> None:
        state = self.raft.election
        try:
            self._storage.write_state(state)
        except OSError:
            self._retry = asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._come_back)
            return
        self.has_failed = False
        self._start_machine(state)
        self.step(Tick())

    # --- time --------------------------------------------------------------------------------------------------------

    def _now(self) -> int:
        return self._clock.now().monotonic_ms

    def _arm_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline = self.raft.next_deadline()
        self._timer = None
        if deadline is not None and not self.is_stopped:
            seconds = max(1, deadline - self._now()) / 1000
            self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self.partition.is_offline:
            self.give_up(OSError(f"{METADATA_PARTITION} is offline"))
            return
        try:
            self.step(Tick())
        except Exception as error:  # noqa: BLE001 - without its timer the member would take part no more.
            self._supervisor.report("the metadata quorum's timer", error)
            self._timer = asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._tick)

    # --- requests ----------------------------------------------------------------------------------------------------

    def _epoch_answered(self, reply: Reply | None) -> None:
        if reply is not None:
            self.step(EpochAnswered(reply))

    def handle_fetch(
        self, version: int, request: FetchRequest, *, is_from_member: bool
    ) -> Answer | asyncio.Future[Answer]:
        """A replica's Fetch of the metadata partition, the only one of its request; nobody else's is answered."""
        return answer_fetch(self, version, request, is_from_member=is_from_member)

    # --- Commitment, and what follows from it ------------------------------------------------------------------------

    def resign(self) -> None:
        if len(self.voters) > 1:
            # Not at once: the machine may be answering a Fetch.
            asyncio.get_running_loop().call_soon(self.step, ResignRequested())

    def local_end_moved(self, end: Offset) -> Offset:
        high_watermark = self.raft.local_end_moved(end)
        if high_watermark > self.partition.high_watermark:
            self.publish(high_watermark)
        return high_watermark

    def publish(self, high_watermark: Offset) -> None:
        """Let the node have what is committed now; take a snapshot when there has been enough of it."""
        self._metadata.committed(*self._storage.read(self._metadata.next_offset, high_watermark))
        if not self.is_stopped:
            self._snapshot_writer.look()


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
