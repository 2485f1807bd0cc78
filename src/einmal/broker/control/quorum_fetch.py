"""The leader's answer to a replica's Fetch of the metadata log: at once, or when there is something new (KIP-595).

New is a batch, a high watermark above the one that the replica knows (KIP-1166), or another leader. Voters and
observers read to the end of the log, committed or not. Without the second case the members' high watermarks, and with
them that of the next leader, would lag by as much as one poll.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeAlias

from einmal.broker.control.quorum_messages import leader_of
from einmal.broker.listeners import Endpoint
from einmal.broker.replicas.partition import Partition
from einmal.log.errors import LogCorruption
from einmal.metadata.image import METADATA_PARTITION, METADATA_TOPIC_ID
from einmal.quorum.messages import Event, FetchRequested, OffsetAndEpoch, Reply
from einmal.quorum.raft import Raft
from einmal.types import ErrorCode, Offset
from einmal.wire.errors import WireError
from einmal.wire.fetch import (
    EpochEndOffset,
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    SnapshotId,
    encode_fetch_response,
)
from einmal.wire.produce import NodeEndpoint, Records
from einmal.wire.record_batch import validate_all

Answer: TypeAlias = list[Records]
"""An encoded Fetch response, in parts."""


class FetchedMember(Protocol):
    """The member that is asked, which may lead the quorum."""

    partition: Partition
    raft: Raft

    @property
    def cluster_id(self) -> str: ...

    @property
    def leader_epoch(self) -> int: ...

    def endpoint_of(self, node_id: int | None) -> Endpoint | None:
        """Where a voter is to be found; None: it is none, or nobody can reach it."""

    def ask(self, event: Event) -> Reply: ...


def answer_fetch(
    leader: FetchedMember, version: int, request: FetchRequest, *, is_from_member: bool
) -> Answer | asyncio.Future[Answer]:
    """The answer at once, or when there is something new. ``is_from_member``: only members can have sent it."""
    if request.replica_id < 0 or not is_from_member or not _is_of_metadata(request):
        # No client reads the metadata, and there is only one partition of it.
        error = ErrorCode.unknown_topic_or_partition
        refused = [
            (topic, [FetchedPartition(wanted.partition, error) for wanted in partitions])
            for topic, partitions in request.topics
        ]
        return encode_fetch_response(version, FetchResponse(refused))
    if request.cluster_id != leader.cluster_id:
        return encode_fetch_response(version, FetchResponse([], ErrorCode.inconsistent_cluster_id))
    fetch = _MetadataFetch(leader, version, request)
    if fetch.is_complete or request.max_wait_ms <= 0:
        return fetch.encode()
    return fetch.wait()


def _is_of_metadata(request: FetchRequest) -> bool:
    """Whether it asks for the metadata partition, and for nothing else."""
    asked = [(topic, wanted.partition) for topic, partitions in request.topics for wanted in partitions]
    return asked in ([METADATA_PARTITION], [(METADATA_TOPIC_ID, METADATA_PARTITION.partition)])


def _verify(records: bytes) -> None:
    """Raises LogCorruption for records that their replica would refuse.

    Of a leader's log nobody verifies what its process has written itself; and a replica that gets damaged records does
    not know that another voter has better ones.
    """
    try:
        validate_all(records)
    except WireError as error:
        raise LogCorruption(f"{METADATA_PARTITION}: {error}") from error


class _MetadataFetch:
    def __init__(self, leader: FetchedMember, version: int, request: FetchRequest) -> None:
        self._leader = leader
        self._version = version
        self._request = request
        self._topic, (self._wanted,) = request.topics[0]
        wanted = self._wanted
        self._event = FetchRequested(
            request.replica_id,
            wanted.current_leader_epoch,
            OffsetAndEpoch(wanted.fetch_offset, wanted.last_fetched_epoch),
        )
        self._reply = leader.ask(self._event)
        self._fetched = self._read()

    def _is_plain(self, reply: Reply) -> bool:
        return reply.error is ErrorCode.none and reply.diverging is None and reply.snapshot_id is None

    @property
    def is_complete(self) -> bool:
        fetched = self._fetched
        return (
            not self._is_plain(self._reply)
            or fetched.error_code is not ErrorCode.none
            or len(fetched.records) > 0
            or fetched.high_watermark > self._wanted.high_watermark
        )

    def _read(self) -> FetchedPartition:
        reply, partition = self._reply, self._leader.partition
        error, records = reply.error, b""
        if self._is_plain(reply):
            room = min(self._wanted.partition_max_bytes, self._request.max_bytes)
            try:
                records = partition.read(Offset(self._wanted.fetch_offset), room, below=partition.log_end_offset)
                _verify(records)
            except (LogCorruption, OSError) as failure:
                error, records = partition.report(failure), b""
        diverging, snapshot_id = reply.diverging, reply.snapshot_id
        return FetchedPartition(
            self._wanted.partition,
            error,
            partition.high_watermark,
            partition.high_watermark,
            partition.log_start_offset,
            records=records,
            diverging_epoch=None if diverging is None else EpochEndOffset(diverging.epoch, diverging.offset),
            current_leader=leader_of(reply),
            snapshot_id=None if snapshot_id is None else SnapshotId(*snapshot_id),
        )

    def encode(self) -> Answer:
        endpoint = self._leader.endpoint_of(self._reply.leader_id)
        leader_id = self._reply.leader_id
        endpoints = [] if endpoint is None or leader_id is None else [NodeEndpoint(leader_id, *endpoint)]
        response = FetchResponse([(self._topic, [self._fetched])], node_endpoints=endpoints)
        return encode_fetch_response(self._version, response)

    def wait(self) -> asyncio.Future[Answer]:
        """The answer, when there is something new or the time is over."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Answer] = loop.create_future()
        partition = self._leader.partition
        is_scheduled = False

        def changed() -> None:
            nonlocal is_scheduled
            if not is_scheduled:
                is_scheduled = True
                loop.call_soon(look)

        def look() -> None:
            nonlocal is_scheduled
            is_scheduled = False
            if done.done():
                return
            self._look_again()
            if self.is_complete:
                done.set_result(self.encode())

        def expire() -> None:
            if not done.done():
                self._look_again()
                done.set_result(self.encode())

        timer = loop.call_later(self._request.max_wait_ms / 1000, expire)
        partition.watch_end(self, changed)

        def end(_done: asyncio.Future[Answer]) -> None:
            timer.cancel()
            partition.unwatch_end(self)

        done.add_done_callback(end)
        return done

    def _look_again(self) -> None:
        leader = self._leader
        if not leader.raft.is_leader or leader.leader_epoch != self._reply.leader_epoch:
            self._reply = leader.ask(self._event)
        self._fetched = self._read()
