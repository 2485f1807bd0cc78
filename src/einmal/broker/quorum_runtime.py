"""Runs this node's member of the metadata quorum: its timers, its requests, its files, its partition.

The machine (``quorum.raft``) decides; here its effects are done, in their order and without waiting in between. What
has to wait for the disk is the follower's (``quorum_follower``). A cluster of one leads with the first step and uses no
socket. When the vote cannot be written down, the member does as if it had crashed, and starts again once it can.

Also the ``Commitment`` of the metadata partition: what is committed is published to the node before anybody who waits
for it is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from einmal.broker.cluster_metadata import METADATA_PARTITION, METADATA_TOPIC_ID
from einmal.broker.context import HandlerResult, RequestContext
from einmal.broker.listeners import ConfigError, Endpoint
from einmal.broker.metadata_snapshots import MetadataSnapshots
from einmal.broker.partition import Partition
from einmal.broker.quorum_fetch import answer_fetch
from einmal.broker.quorum_follower import MetadataFollower
from einmal.broker.quorum_log import QuorumLog
from einmal.broker.quorum_messages import (
    BEGIN_QUORUM_EPOCH,
    END_QUORUM_EPOCH,
    VERSION,
    VOTE,
    begin_fields,
    end_fields,
    reply_of,
    vote_fields,
)
from einmal.client.aio.connection import Disconnected
from einmal.log.errors import LogCorruption
from einmal.log.producer_state import Origin
from einmal.metadata import records
from einmal.metadata.records import NO_LEADER
from einmal.quorum import control_records, election_state, snapshot
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
    SendBeginQuorumEpoch,
    SendEndQuorumEpoch,
    SendVote,
    Step,
    StopLeading,
    Stopping,
    Tick,
    VoteAnswered,
)
from einmal.quorum.raft import EPOCH_MAX, Raft, RaftConfig
from einmal.types import NO_LEADER_EPOCH, BrokerId, ErrorCode, LeaderEpoch, Offset
from einmal.wire.errors import WireError
from einmal.wire.fetch import FetchRequest
from einmal.wire.record_batch import iter_headers

if TYPE_CHECKING:
    from einmal.broker.node import Node

log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1.0
_EPOCH_SPENT: Final = EPOCH_MAX - 1_000
_CHECK_BYTES: Final = 1 << 20
_WAYS_OUT: Final = (
    f"Restore {METADATA_PARTITION} from a backup; or, where a majority of the other controllers is alive, move it "
    "away: it is copied from their leader"
)
"""Where this member's memory is damaged."""
_LANE: Final = "quorum"
_REQUEST: Final = "request of the metadata quorum"
_FAREWELL_MS: Final = 500
"""How long a leader that stops waits for its successors to hear of it."""


class QuorumRuntime:
    partition: Partition
    raft: Raft
    """Both only after ``load``."""

    def __init__(self, node: Node) -> None:
        config = node.config
        self._node = node
        self.node_id = config.node_id
        self.voters = tuple(sorted(config.quorum_voters)) or (config.node_id,)
        self.request_timeout_ms = config.controller_quorum_request_timeout_ms
        self.snapshots = MetadataSnapshots(node.disk, node.directory / str(METADATA_PARTITION))
        self._config = RaftConfig(
            fetch_timeout_ms=config.controller_quorum_fetch_timeout_ms,
            election_timeout_ms=config.controller_quorum_election_timeout_ms,
            election_backoff_max_ms=config.controller_quorum_election_backoff_max_ms,
        )
        self._state_path = self.snapshots.directory / election_state.FILE_NAME
        self._follower = MetadataFollower(node, self)
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._waiting_for_leader: list[asyncio.Future[None]] = []
        self._bytes_covered = 0
        """Of the partition's ``bytes_appended``: so much is in a snapshot."""
        self._is_snapshotting = False
        self.refused_with = ErrorCode.none
        """Why a voter has not let this node have the metadata log, if one has not."""
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
        return self.node_id in self.voters

    @property
    def cluster_id(self) -> str:
        return self._node.metadata.cluster_id

    def endpoint_of(self, node_id: int | None) -> Endpoint | None:
        return None if node_id is None else self._node.config.quorum_voters.get(node_id)

    # --- life --------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Open log, snapshot and state file. Raises OSError or LogCorruption."""
        self.partition = self._node.partitions.open_metadata(METADATA_PARTITION, METADATA_TOPIC_ID)
        await self._load_snapshot()
        self._check_log()
        persisted = self._read_state()
        self._start_machine(persisted)
        self._bytes_covered = -self.partition.log.size()

    async def _load_snapshot(self) -> None:
        partition_log = self.partition.log
        found = self.snapshots.load(partition_log.log_start_offset)
        if found is None:
            return
        snapshot_id, values = found
        if partition_log.log_end_offset < snapshot_id.offset or partition_log.latest_epoch < snapshot_id.epoch:
            # It stopped while it put the snapshot in the place of a log that was far behind.
            await self.partition.restart_at(Offset(snapshot_id.offset))
        self.install_snapshot(snapshot_id, values)
        self.partition.advance(Offset(snapshot_id.offset))

    def install_snapshot(self, snapshot_id: OffsetAndEpoch, values: list[bytes]) -> None:
        """The log reaches, or starts at, the snapshot's end: let the node have what is in it. Raises OSError."""
        self.snapshots.use(snapshot_id)
        decoded = [record for value in values if (record := records.decode(None, value)) is not None]
        self._node.metadata.load_snapshot(decoded, Offset(snapshot_id.offset), snapshot_id.epoch)

    def _check_log(self) -> None:
        """Read all that the image will be made of: with a part of it the node would wait for the rest for ever.

        Raises LogCorruption or OSError.
        """
        partition_log = self.partition.log
        offset, end = self._node.metadata.next_offset, partition_log.log_end_offset
        while offset < end:
            batches = partition_log.read(offset, _CHECK_BYTES, below=end)
            if not batches:
                raise LogCorruption(f"{self.snapshots.directory}: nothing to read at offset {offset}. {_WAYS_OUT}")
            for _, header in iter_headers(batches):
                # No batch of this log is ever compacted away.
                if not header.base_offset <= offset < header.next_offset:
                    raise LogCorruption(
                        f"{self.snapshots.directory}: offset {header.base_offset} where {offset} is due. {_WAYS_OUT}"
                    )
                offset = header.next_offset

    def _read_state(self) -> ElectionState | None:
        """Raises LogCorruption, ConfigError or OSError."""
        state, log_epoch = None, self.partition.log.latest_epoch
        if self._node.disk.exists(self._state_path):
            try:
                state = election_state.decode(self._node.disk.read_file(self._state_path))
            except ValueError as error:
                raise LogCorruption(f"{self._state_path}: {error}. {_WAYS_OUT}") from error
        if self.is_voter and log_epoch > (NO_LEADER_EPOCH if state is None else state.epoch):
            if state is None and len(self.voters) == 1:
                # Nobody else votes: all that matters is that the next epoch is a new one.
                log.warning("%s is missing: begun anew after epoch %d of the log", self._state_path, log_epoch)
                return None
            known = "is missing" if state is None else f"has epoch {state.epoch}"
            raise LogCorruption(
                f"{self._state_path} {known}, and the log beside it has epoch {log_epoch}: this controller does not "
                f"know whom it has voted for. {_WAYS_OUT}"
            )
        if state is not None and state.epoch > _EPOCH_SPENT:
            raise ConfigError(
                f"{self._state_path} is of epoch {state.epoch}, which leaves no epoch for another election. No cluster "
                "comes there by itself. Stop all controllers and write the same leaderEpoch, with leaderId=-1, "
                "votedId=-1 and no crc32c, into quorum-state on each: one more than the last epoch of any controller's "
                f"log (here {log_epoch})"
            )
        return state

    def _write_state(self, state: ElectionState) -> None:
        data = election_state.encode(state, self.cluster_id, self.voters)
        self._node.disk.write_file(self._state_path, data)

    def _start_machine(self, persisted: ElectionState | None) -> None:
        self.raft = Raft(
            self.node_id,
            self.voters,
            QuorumLog(self.partition.log, self.snapshots),
            persisted,
            self._config,
            now=self._now(),
            draw=self._node.random.random(),
        )
        self._follow(self.raft.leader_id, self.raft.epoch)

    async def start(self) -> None:
        """Take part. A single voter leads when this returns, and all of its log is committed. Raises OSError."""
        self.step(Tick())
        if self.voters != (self.node_id,):
            self._follow_leader()
            return
        error = await self.partition.committed(Offset(self.partition.log.log_end_offset - 1))
        if error is not ErrorCode.none:
            raise OSError(f"cannot write to {METADATA_PARTITION}: {error.name}")

    def _follow_leader(self) -> None:
        task = self._node.supervisor.run("following the metadata quorum", self._follower.run)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def stop(self) -> None:
        """Hand over the lead, if it is here and there is anybody to take it, and take part no more."""
        if not self.is_stopped and not self.has_failed and len(self.voters) > 1 and self.is_leader:
            for task in self._requests():
                task.cancel()
            self.step(Stopping())
            await asyncio.gather(*self._requests(), return_exceptions=True)
        self.is_stopped = True
        for timer in (self._timer, self._retry):
            if timer is not None:
                timer.cancel()
        self._follower.stop()
        for future in self._waiting_for_leader:
            future.cancel()
        for task in self._requests():
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _requests(self) -> list[asyncio.Task[None]]:
        return [task for task in self._tasks if task.get_name() == _REQUEST]

    def spawn(self, work: Coroutine[Any, Any, None], name: str | None = None) -> None:
        loop = asyncio.get_running_loop()

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.pop(task, None)
            error = None if task.cancelled() else task.exception()
            if error is not None:
                loop.call_exception_handler({"message": "a task of the metadata quorum ended", "exception": error})

        task = loop.create_task(work, name=name)
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
        result = self.raft.step(event, now=self._now(), draw=self._node.random.random())
        for effect in result.effects:
            if isinstance(effect, Persist):
                try:
                    self._write_state(effect.state)
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
            message = "refused, for no member of the quorum can have sent it in epoch %d: %s"
            log.warning(message, self.raft.epoch, event)
        return reply

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Lead():
                self._lead(effect)
            case StopLeading(epoch):
                log.info("the metadata quorum is no longer led from here", extra={"epoch": epoch})
                self._node.controller.resign()
            case Follow(leader_id, epoch):
                self._follow(leader_id, epoch)
            case AdvanceHighWatermark(offset):
                self.publish(offset)
                self.partition.advance(offset)
            case SendVote(to, epoch, _log_end, pre_vote):
                fields = vote_fields(self.cluster_id, self.node_id, effect)
                self._send(to, VOTE, fields, lambda reply: self.step(VoteAnswered(to, epoch, pre_vote, reply)))
            case SendBeginQuorumEpoch(to):
                endpoint = self.endpoint_of(self.node_id)
                fields = begin_fields(self.cluster_id, self.node_id, effect, endpoint)
                self._send(to, BEGIN_QUORUM_EPOCH, fields, self._epoch_answered)
            case SendEndQuorumEpoch(to):
                endpoint = self.endpoint_of(self.node_id)
                fields = end_fields(self.cluster_id, self.node_id, effect, endpoint)
                self._send(to, END_QUORUM_EPOCH, fields, self._epoch_answered, timeout_ms=_FAREWELL_MS)
            case _:
                assert not isinstance(effect, Persist), "written before all else"

    def _lead(self, effect: Lead) -> None:
        log.info("the metadata quorum is led from here", extra={"epoch": effect.epoch})
        self.partition.lead(self, LeaderEpoch(effect.epoch))
        now = self._node.clock.now()
        batch = control_records.leader_change(self.node_id, self.voters, effect.granting, now.wall_ms)
        result = self.partition.append(bytearray(batch), now, Origin.COORDINATOR)
        if result.error is not ErrorCode.none:
            # Without a record of its own epoch it could commit nothing.
            log.error("cannot lead the metadata quorum: %s", result.error.name)
            asyncio.get_running_loop().call_soon(self.step, Stopping())
        self._node.controller.lead(LeaderEpoch(effect.epoch))
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
        log.error("no part in the metadata quorum: %s", error)
        self.has_failed = True
        if self.partition.is_leader:
            self._node.controller.resign()
        self._follow(None, self.raft.epoch)
        if not self.partition.log.is_offline:
            self._retry = asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._come_back)

    def _come_back(self) -> None:
        state = self.raft.election
        try:
            self._write_state(state)
        except OSError:
            self._retry = asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._come_back)
            return
        self.has_failed = False
        self._start_machine(state)
        self.step(Tick())

    # --- time --------------------------------------------------------------------------------------------------------

    def _now(self) -> int:
        return self._node.clock.now().monotonic_ms

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
        if self.partition.log.is_offline:
            self.give_up(OSError(f"{METADATA_PARTITION} is offline"))
            return
        try:
            self.step(Tick())
        except Exception as error:  # noqa: BLE001 - without its timer the member would take part no more.
            self._node.supervisor.report("the metadata quorum's timer", error)
            self._timer = asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._tick)

    # --- requests to others ------------------------------------------------------------------------------------------

    def _send(
        self,
        to: int,
        api_key: int,
        fields: dict[str, Any],
        answered: Callable[[Reply | None], object],
        *,
        timeout_ms: int | None = None,
    ) -> None:
        async def ask() -> None:
            reply = None
            limit = timeout_ms or self.request_timeout_ms
            try:
                answer = await self._node.peers.ask(to, api_key, VERSION[api_key], fields, timeout_ms=limit, lane=_LANE)
                if answer.error_code is not ErrorCode.none:
                    log.error("node %d has nothing to do with this one: %s", to, answer.error_code.name)
                reply = reply_of(answer)
            except (Disconnected, WireError) as error:
                log.debug("request %d to node %d: %s", api_key, to, error)
            answered(reply)

        self.spawn(ask(), _REQUEST)

    def _epoch_answered(self, reply: Reply | None) -> None:
        if reply is not None:
            self.step(EpochAnswered(reply))

    def handle_fetch(self, context: RequestContext, request: FetchRequest) -> HandlerResult:
        """A replica's Fetch of the metadata partition, the only one of its request."""
        return answer_fetch(self, context, request)

    # --- Commitment, and what follows from it ------------------------------------------------------------------------

    def local_end_moved(self, end: Offset) -> Offset:
        high_watermark = self.raft.local_end_moved(end)
        if high_watermark > self.partition.high_watermark:
            self.publish(high_watermark)
        return high_watermark

    def publish(self, high_watermark: Offset) -> None:
        """Let the node have what is committed now; take a snapshot when there has been enough of it."""
        self._node.metadata.published(high_watermark)
        unsnapshotted = self.partition.bytes_appended - self._bytes_covered
        is_due = unsnapshotted >= self._node.config.metadata_log_max_record_bytes_between_snapshots
        if is_due and not self._is_snapshotting and not self.is_stopped:
            self._is_snapshotting = True
            self.spawn(self._take_snapshot())

    async def _take_snapshot(self) -> None:
        try:
            self._bytes_covered = self.partition.bytes_appended
            await self._write_snapshot()
        except OSError as error:
            log.error("no snapshot of the metadata log: %s", error)
        finally:
            self._is_snapshotting = False

    async def _write_snapshot(self) -> None:
        metadata, now = self._node.metadata, self._node.clock.now()
        end = metadata.next_offset
        epoch = self.partition.log.epoch_of_offset(Offset(end - 1))
        snapshot_id = OffsetAndEpoch(end, epoch)
        values = [records.encode(record)[1] for record in metadata.image.snapshot_records()]
        data = snapshot.encode(values, epoch, last_contained_log_timestamp=now.wall_ms, timestamp=now.wall_ms)
        before = self.snapshots.latest
        if before is not None and snapshot_id <= before:
            return
        await self.snapshots.store(snapshot_id, data)
        if before == self.snapshots.latest:
            self.snapshots.use(snapshot_id)
            if before is not None:
                # One snapshot later: who is only a little behind still finds its records.
                self.partition.log.delete_records_before(Offset(before.offset))


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
