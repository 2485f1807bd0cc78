"""Fetch: read record batches.

API: 1. Versions: 4-18.
Behaviour: read_committed reads below the last stable offset and names the aborted transactions of what it returns;
read_uncommitted reads below the high watermark. Waits until min_bytes are there, or as much as an answer may have, at
most max_wait_ms. At least one batch of the first partition that has any, whatever the limits; one contiguous read per
partition. KIP-227 sessions.
That the log ends before an offset is said only by who leads for certain: consumers begin again at another one then.
Replicas, which name themselves and their broker epoch, read to the end of the log. The metadata log is the quorum's:
only the controllers' listener has it.
Version notes: v7 sessions; v9 current leader epoch; v12 last fetched epoch and diverging epoch; v13 topic ids; v15
replica state; v16 says who leads, where this broker does not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

from einmal.broker.cluster_metadata import METADATA_TOPIC_ID
from einmal.broker.context import Body, HandlerResult, Parked, RequestContext, Versions
from einmal.broker.fetch_sessions import NO_SESSION, Wanted
from einmal.broker.leader_hints import WRONG_BROKER, LeaderHints
from einmal.broker.listeners import Audience
from einmal.broker.partition import Partition
from einmal.log.errors import LogCorruption
from einmal.metadata.image import CLUSTER_METADATA
from einmal.replication.follower import divergence
from einmal.types import ErrorCode, IsolationLevel, Offset, TopicPartition
from einmal.wire.fetch import (
    EpochEndOffset,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    decode_fetch_request,
    encode_fetch_response,
)
from einmal.wire.primitives import Topic
from einmal.wire.produce import NodeEndpoint
from einmal.wire.record_batch import iter_headers

log = logging.getLogger(__name__)

API_KEY: Final = 1
VERSIONS: Final = Versions(4, 18, flexible=12)
_TOPIC_IDS: Final = 13
_NODE_ENDPOINTS: Final = 16
_METADATA: Final = (CLUSTER_METADATA, METADATA_TOPIC_ID)

_AT_ONCE_MAX: Final = 500
"""Above so many partitions a Fetch is read when it is its turn."""

decode = decode_fetch_request


def handle(context: RequestContext, request: FetchRequest) -> HandlerResult:
    if context.audience is Audience.CONTROLLERS or any(topic in _METADATA for topic, _partitions in request.topics):
        return context.node.quorum.handle_fetch(context, request)
    if request.replica_id >= 0:
        if not context.may_be_from_broker:
            error = context.refuse_client("Fetch of a replica")
            return encode_fetch_response(context.api_version, FetchResponse([], error))
        return context.node.replica_sessions.handle(context, request)
    wanted = context.node.fetch_sessions.begin(
        request, context.now.monotonic_ms, has_topic_ids=context.api_version >= _TOPIC_IDS
    )
    if isinstance(wanted, ErrorCode):
        return encode_fetch_response(context.api_version, FetchResponse([], wanted))
    fetch = _Fetch(context, request, wanted)
    if len(wanted.partitions) > _AT_ONCE_MAX:
        return _in_turn(context, request, fetch)
    if fetch.read() or request.max_wait_ms <= 0:
        return fetch.confirm() if fetch.ended else fetch.encode()
    return Parked(fetch.wait(), fetch.bytes_max)


async def _in_turn(context: RequestContext, request: FetchRequest, fetch: _Fetch) -> Body | Parked:
    await context.node.turns.next()
    if fetch.read() or request.max_wait_ms <= 0:
        return await fetch.confirm() if fetch.ended else fetch.encode()
    return Parked(fetch.wait(), fetch.bytes_max)


class _Fetch:
    """One request: read now, or again when more has come."""

    def __init__(self, context: RequestContext, request: FetchRequest, wanted: Wanted) -> None:
        node = self._node = context.node
        self._version = context.api_version
        self._for_brokers = context.for_brokers
        self._request = request
        self._session = wanted.session
        self._is_incremental = wanted.is_incremental
        self._isolation = IsolationLevel.READ_COMMITTED if request.isolation_level else IsolationLevel.READ_UNCOMMITTED
        self.bytes_max = max(0, min(request.max_bytes, node.config.fetch_max_bytes))
        # Nobody waits for more than an answer may have.
        self._min_bytes = min(request.min_bytes, max(1, self.bytes_max))
        self._image = node.metadata.image
        names = self._image.topic_names
        self._wanted: list[tuple[Topic, FetchPartition, Partition | ErrorCode]] = []
        for topic, partition in wanted.partitions:
            name = topic if isinstance(topic, str) else names.get(topic)
            found: Partition | ErrorCode = ErrorCode.unknown_topic_id
            if name is not None:
                topic_partition = TopicPartition(name, partition.partition)
                found = node.partitions.get(topic_partition) or node.partitions.error_of_missing(topic_partition)
            self._wanted.append((topic, partition, found))
        self._results: list[tuple[Topic, FetchedPartition]] = []
        self._bytes_read = self._room = 0
        self.ended: dict[int, Partition] = {}
        """Partitions whose log ends before the offset that was asked for, by their place among the results."""

    # --- reading -------------------------------------------------------------------------------------------------

    def read(self) -> bool:
        """Read all partitions; whether the answer need not wait."""
        self._results.clear()
        self.ended.clear()
        self._bytes_read = 0
        # What other clients have not taken yet leaves less for this one; the first batch comes all the same.
        self._room = min(self.bytes_max, self._node.response_memory.room)
        must_answer = not self._wanted
        for topic, wanted, partition in self._wanted:
            if isinstance(partition, ErrorCode):
                fetched = FetchedPartition(wanted.partition, partition)
            else:
                fetched = self._read(wanted, partition)
                self._bytes_read += len(fetched.records)
            if fetched.error_code is not ErrorCode.none or fetched.diverging_epoch is not None:
                must_answer = True
            self._results.append((topic, fetched))
        if must_answer or self._bytes_read >= self._min_bytes:
            return True
        return self._bytes_read > 0 and self._available() >= self._min_bytes

    def _available(self) -> int:
        """Bytes that could be read, whether this answer has room for them or not; counted no further than needed."""
        total = 0
        for number in range(len(self._wanted)):
            total += self._available_of(number)
            if total >= self._min_bytes:
                break
        return total

    def _available_of(self, number: int) -> int:
        """The same of one partition. ``_min_bytes`` where only a look can tell."""
        _topic, wanted, partition = self._wanted[number]
        if isinstance(partition, ErrorCode) or not partition.is_leader:
            return self._min_bytes
        below, at_most = partition.visible_end(self._isolation), min(wanted.partition_max_bytes, self._min_bytes)
        try:
            return partition.log.bytes_between(Offset(wanted.fetch_offset), below, max(0, at_most))
        except (LogCorruption, OSError):
            return self._min_bytes

    def _read(self, wanted: FetchPartition, partition: Partition) -> FetchedPartition:
        partition_log = partition.log
        error = partition.check_leader_epoch(wanted.current_leader_epoch)
        if error is not ErrorCode.none:
            return FetchedPartition(wanted.partition, error)
        diverging = divergence(partition_log, wanted)
        if diverging is not None:
            return self._fetched(wanted, partition, b"", diverging)
        offset = Offset(wanted.fetch_offset)
        if not partition_log.log_start_offset <= offset <= partition_log.log_end_offset:
            if offset > partition_log.log_end_offset:
                self.ended[len(self._results)] = partition
            return FetchedPartition(wanted.partition, ErrorCode.offset_out_of_range)
        below = partition.visible_end(self._isolation)
        room = min(wanted.partition_max_bytes, self._room - self._bytes_read)
        if offset >= below or (room <= 0 and self._bytes_read):
            return self._fetched(wanted, partition, b"")
        try:
            # Only the first records of an answer may exceed the limits: else a large batch could never be read.
            records = partition_log.read(offset, max(room, 0), below=below, min_one=not self._bytes_read)
        except LogCorruption as corruption:
            partition.report(corruption)
            return FetchedPartition(wanted.partition, ErrorCode.corrupt_message)
        except OSError as failure:
            partition.report(failure)
            return FetchedPartition(wanted.partition, ErrorCode.kafka_storage_error)
        return self._fetched(wanted, partition, records)

    def _fetched(
        self, wanted: FetchPartition, partition: Partition, records: bytes, diverging: EpochEndOffset | None = None
    ) -> FetchedPartition:
        partition_log = partition.log
        aborted: list[tuple[int, int]] | None = None
        if self._isolation is IsolationLevel.READ_COMMITTED:
            aborted = _aborted(partition, Offset(wanted.fetch_offset), records) if records else []
        return FetchedPartition(
            wanted.partition,
            ErrorCode.none,
            partition_log.high_watermark,
            partition_log.last_stable_offset,
            partition_log.log_start_offset,
            aborted,
            records,
            diverging_epoch=diverging,
        )

    async def confirm(self) -> Body:
        """The answer, once it is known whether another leader may have written beyond the end by now."""
        sessions = self._node.replica_sessions
        for place, confirmed in [(place, sessions.confirm_leadership(each)) for place, each in self.ended.items()]:
            if not await confirmed:
                topic, fetched = self._results[place]
                self._results[place] = topic, fetched._replace(error_code=ErrorCode.not_leader_or_follower)
        return self.encode()

    # --- waiting -------------------------------------------------------------------------------------------------

    def wait(self) -> asyncio.Future[Body]:
        """The answer, when there is enough to read or the time is over."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Body] = loop.create_future()
        partitions = [
            (number, partition)
            for number, (_topic, _wanted, partition) in enumerate(self._wanted)
            if isinstance(partition, Partition)
        ]
        available = [] if self._min_bytes <= 1 else [self._available_of(each) for each in range(len(self._wanted))]
        total = sum(available)
        is_scheduled = False

        def changed(number: int) -> None:
            nonlocal is_scheduled, total
            if available:
                # Without this a Fetch for a megabyte would read it again with every small batch that comes.
                before, available[number] = available[number], self._available_of(number)
                total += available[number] - before
            if not is_scheduled and (not available or total >= self._min_bytes):
                is_scheduled = True
                if len(partitions) > _AT_ONCE_MAX:
                    self._node.turns.call(look)
                else:
                    loop.call_soon(look)

        def look() -> None:
            nonlocal is_scheduled
            is_scheduled = False
            if not done.done() and self.read():
                done.set_result(self.encode())

        def expire() -> None:
            if not done.done():
                self.read()
                done.set_result(self.encode())

        timer = loop.call_later(self._request.max_wait_ms / 1000, expire)
        for number, partition in partitions:
            partition.watch(self, partial(changed, number))

        def end(_done: asyncio.Future[Body]) -> None:
            timer.cancel()
            for _number, partition in partitions:
                partition.unwatch(self)

        done.add_done_callback(end)
        return done

    # --- answering -----------------------------------------------------------------------------------------------

    def encode(self) -> Body:
        session = self._session
        topics: dict[Topic, list[FetchedPartition]] = {}
        for topic, fetched in self._results:
            is_new = session is None or session.remember(topic, fetched)
            if is_new or not self._is_incremental:
                topics.setdefault(topic, []).append(fetched)
        session_id = NO_SESSION if session is None else session.session_id
        response = FetchResponse(list(topics.items()), session_id=session_id, node_endpoints=self._hint(topics))
        return encode_fetch_response(self._version, response)

    def _hint(self, topics: dict[Topic, list[FetchedPartition]]) -> Sequence[NodeEndpoint]:
        """Say who leads what this broker does not."""
        if self._version < _NODE_ENDPOINTS:
            return ()
        hints = LeaderHints(self._image, for_brokers=self._for_brokers)
        for topic, results in topics.items():
            for number, fetched in enumerate(results):
                if fetched.error_code in WRONG_BROKER:
                    name = topic if isinstance(topic, str) else self._image.topic_names.get(topic, "")
                    results[number] = fetched._replace(current_leader=hints.of(TopicPartition(name, fetched.partition)))
        return hints.endpoints


def _aborted(partition: Partition, offset: Offset, records: bytes) -> list[tuple[int, int]]:
    """The aborted transactions with records in what is returned."""
    candidates = partition.log.aborted_transactions(offset, partition.log.last_stable_offset)
    if not candidates:
        return []
    end = offset
    for _position, header in iter_headers(records):
        end = header.next_offset
    return [(item.producer_id, item.first_offset) for item in candidates if item.first_offset < end]
