"""The follower's loop over the metadata log: fetch, then append and flush, truncate, or get a snapshot.

Without a known leader it asks any voter. It sends one request at a time, and only when everything here is flushed:
its fetch offset vouches for all records below. After a second failure in a row it reports the leader lost.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final, Protocol

from einmal.broker.control.metadata_snapshots import MetadataSnapshots
from einmal.broker.control.quorum_messages import VERSION, snapshot_request, somebody
from einmal.broker.replicas.partition import Partition
from einmal.broker.rpc.peers import Peers
from einmal.event_log import EventLog
from einmal.log.errors import LogCorruption
from einmal.metadata.image import METADATA_PARTITION, METADATA_TOPIC_ID
from einmal.quorum import snapshot
from einmal.quorum.messages import (
    AppendFetched,
    Effect,
    Event,
    FetchAnswered,
    FetchSnapshot,
    LeaderLost,
    OffsetAndEpoch,
    Reply,
    SnapshotAnswered,
    Step,
    TruncateTo,
)
from einmal.quorum.raft import Raft
from einmal.rpc.connection import Answer, NoAnswer
from einmal.types import ErrorCode, Offset
from einmal.wire import fetch
from einmal.wire.api.fetch_snapshot import API as FETCH_SNAPSHOT
from einmal.wire.errors import WireError
from einmal.wire.fetch import FetchedPartition, FetchPartition, FetchRequest

log = EventLog(__name__)

_LANE: Final = "quorum-fetch"
"""A connection of its own: a waiting Fetch must not delay a vote behind it."""
_FETCH: Final = 1
_FETCH_VERSION: Final = 18
_WAIT_MS: Final = 500
_BYTES_MAX: Final = 8 * 1024 * 1024
_PAUSE_SECONDS: Final = 0.05
_DISK_PAUSE_SECONDS: Final = 0.5


class FollowingMember(Protocol):
    """This node's member of the quorum: the machine, its log, and the events for it."""

    node_id: int
    request_timeout_ms: int
    raft: Raft
    partition: Partition
    snapshots: MetadataSnapshots
    is_stopped: bool
    has_failed: bool
    refused_with: ErrorCode

    @property
    def cluster_id(self) -> str: ...

    @property
    def leader_id(self) -> int | None: ...

    @property
    def leader_epoch(self) -> int: ...

    def step(self, event: Event) -> Step: ...

    def give_up(self, error: OSError) -> None: ...

    def publish(self, high_watermark: Offset) -> None: ...

    def install_snapshot(self, snapshot_id: OffsetAndEpoch, values: list[bytes]) -> None: ...


class MetadataFollower:
    def __init__(self, member: FollowingMember, peers: Peers, source: random.Random) -> None:
        self._member = member
        self._peers = peers
        self._source = source
        self._changed = asyncio.Event()
        self._asking: asyncio.Task[Answer] | None = None
        self._failures = 0

    def look(self) -> None:
        """The machine has taken a step: there may be a node to fetch from."""
        self._changed.set()

    def leader_changed(self) -> None:
        """Cancel the request in flight."""
        self._failures = 0
        if self._asking is not None:
            self._asking.cancel()
        self._changed.set()

    def stop(self) -> None:
        self.leader_changed()

    async def run(self) -> None:
        member = self._member
        while not member.is_stopped:
            self._changed.clear()
            draw = self._source.random()
            if member.has_failed or member.raft.fetch_target(draw) is None:
                await self._changed.wait()
                continue
            error = await member.partition.flushed()
            target = member.raft.fetch_target(draw)
            if error is not ErrorCode.none:
                member.give_up(OSError(f"{METADATA_PARTITION}: {error.name}"))
            elif target is not None and not member.is_stopped:
                await self._fetch(target)

    async def _fetch(self, target: int) -> None:
        raft, partition = self._member.raft, self._member.partition
        log_end, epoch = raft.log_end, raft.epoch
        wanted = FetchPartition(
            METADATA_PARTITION.partition,
            log_end.offset,
            _BYTES_MAX,
            epoch,
            log_end.epoch,
            partition.log_start_offset,
            partition.high_watermark,
        )
        request = FetchRequest(
            _WAIT_MS,
            1,
            _BYTES_MAX,
            0,
            [(METADATA_TOPIC_ID, [wanted])],
            replica_id=self._member.node_id,
            cluster_id=self._member.cluster_id,
        )
        fetched = await self._exchange(target, request)
        if fetched is None:
            return
        step = self._member.step(_event(target, epoch, log_end, fetched))
        try:
            for effect in step.effects:
                await self._perform(effect)
        except (OSError, LogCorruption) as error:
            log.error("metadata_replication_failed", "the metadata log does not follow: %(error)s", error=error)
            await asyncio.sleep(_DISK_PAUSE_SECONDS)
        if fetched.error_code is not ErrorCode.none and self._member.raft.epoch == epoch:
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _exchange(self, target: int, request: FetchRequest) -> FetchedPartition | None:
        """The answer for the one partition; None: there is none, and this is handled."""
        body = fetch.encode_fetch_request(_FETCH_VERSION, request)
        timeout_ms = max(self._member.request_timeout_ms, 2 * _WAIT_MS)
        self._asking = asyncio.get_running_loop().create_task(
            self._peers.exchange(target, _FETCH, _FETCH_VERSION, [body], timeout_ms=timeout_ms, lane=_LANE)
        )
        try:
            answer = await self._asking
            response = fetch.decode_fetch_response(_FETCH_VERSION, answer.frame, answer.position)
        except asyncio.CancelledError:
            if self._asking.cancelled():
                return None
            raise
        except (NoAnswer, WireError) as error:
            await self._failed(target, error)
            return None
        finally:
            self._asking = None
        self._failures = 0
        if response.error_code is not ErrorCode.none or not response.topics or not response.topics[0][1]:
            refused = "node %(node)d does not let this node take part: %(error)s"
            log.warning("quorum_fetch_refused", refused, node=target, error=response.error_code.name)
            self._member.refused_with = response.error_code
            await asyncio.sleep(_DISK_PAUSE_SECONDS)
            return None
        return response.topics[0][1][0]

    async def _failed(self, target: int, error: Exception) -> None:
        sentence = "fetch of the metadata log from node %(node)d: %(error)s"
        log.debug("quorum_fetch_failed", sentence, node=target, error=error)
        self._failures += 1
        if self._failures > 1:
            self._member.step(LeaderLost(target))
            await asyncio.sleep(_PAUSE_SECONDS)

    # --- what the machine wants of the log ---------------------------------------------------------------------------

    async def _perform(self, effect: Effect) -> None:
        partition = self._member.partition
        match effect:
            case AppendFetched(records, high_watermark):
                error = await partition.replicate(records, Offset(high_watermark), Offset(0))
                if error in (ErrorCode.none, ErrorCode.not_leader_or_follower):
                    self._member.publish(partition.high_watermark)
                else:
                    log.error(
                        "metadata_append_refused",
                        "the metadata log does not take what the leader sends: %(error)s",
                        error=error.name,
                    )
                    await asyncio.sleep(_DISK_PAUSE_SECONDS)
            case TruncateTo(offset):
                log.info("metadata_log_truncated", "the metadata log is cut", offset=offset)
                await partition.truncate_to(offset)
            case FetchSnapshot(leader_id, snapshot_id):
                await self._fetch_snapshot(leader_id, snapshot_id)

    async def _fetch_snapshot(self, leader_id: int, snapshot_id: OffsetAndEpoch) -> None:
        member, partition = self._member, self._member.partition
        epoch = member.leader_epoch
        data = await self._receive_snapshot(leader_id, epoch, snapshot_id)
        if data is None:
            await asyncio.sleep(_PAUSE_SECONDS)
            return
        try:
            values = snapshot.decode(data)
        except WireError as error:
            log.error(
                "received_snapshot_damaged",
                "the snapshot that node %(node)d sends: %(error)s",
                node=leader_id,
                error=error,
            )
            # The next answer names it again.
            await asyncio.sleep(_DISK_PAUSE_SECONDS)
            return
        await member.snapshots.store(snapshot_id, data)
        if member.leader_epoch != epoch or member.leader_id != leader_id:
            return
        await partition.restart_at(Offset(snapshot_id.offset))
        if partition.log_end_offset == partition.log_start_offset == snapshot_id.offset:
            member.install_snapshot(snapshot_id, values)

    async def _receive_snapshot(self, leader_id: int, epoch: int, snapshot_id: OffsetAndEpoch) -> bytes | None:
        """The whole file; None: the attempt failed."""
        member = self._member
        data = bytearray()
        size = 1
        while len(data) < size:
            request = snapshot_request(member.cluster_id, member.node_id, epoch, snapshot_id, len(data), _BYTES_MAX)
            try:
                response = await self._peers.ask(
                    leader_id,
                    FETCH_SNAPSHOT,
                    VERSION[FETCH_SNAPSHOT.key],
                    request,
                    timeout_ms=member.request_timeout_ms,
                    lane=_LANE,
                )
            except (NoAnswer, WireError) as error:
                await self._failed(leader_id, error)
                return None
            if response.error_code is not ErrorCode.none or not response.topics:
                return None
            partition = response.topics[0].partitions[0]
            leader = partition.current_leader
            member.step(
                SnapshotAnswered(
                    leader_id, epoch, Reply(partition.error_code, somebody(leader.leader_id), leader.leader_epoch)
                )
            )
            if (
                partition.error_code is not ErrorCode.none
                or member.leader_epoch != epoch
                or not partition.unaligned_records
            ):
                return None
            data += partition.unaligned_records
            size = partition.size
        return bytes(data)


def _event(target: int, epoch: int, log_end: OffsetAndEpoch, fetched: FetchedPartition) -> FetchAnswered:
    leader, diverging, snapshot_id = fetched.current_leader, fetched.diverging_epoch, fetched.snapshot_id
    reply = Reply(
        fetched.error_code,
        None if leader is None else somebody(leader.leader_id),
        -1 if leader is None else leader.leader_epoch,
        diverging=None if diverging is None else OffsetAndEpoch(diverging.end_offset, diverging.epoch),
        snapshot_id=None if snapshot_id is None else OffsetAndEpoch(*snapshot_id),
    )
    return FetchAnswered(target, epoch, log_end, reply, fetched.high_watermark, bytes(fetched.records))
