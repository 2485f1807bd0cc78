"""The leader's side of replication: incremental fetch sessions (KIP-227), one for each follower.

A session knows its follower's last request of each partition, and which partitions have changed since its last
answer: a hundred idle partitions cost nothing, neither on the wire nor here. It also passes the follower's position
to ``replication.Leader``. Followers read to the end of the log.

A request ends the wait of the one before it in the same session, so that a follower whose partitions change need not
wait for the end of its own long poll. The follower restarts broken sessions.

Whether this broker still leads (``confirm_leadership``) is confirmed in rounds. A follower has at most two requests
in flight, so it sent each one after it had read the answer to the last but one, and thus in the round of that answer.

The purpose is that of Raft's read index. A coordinator that was replaced can commit nothing any more, but its state is
stale, and a processor that rewinds to positions from there reprocesses committed work (Apache Kafka does not check). A
fetch that only *arrives* after the question proves nothing: it may have been in flight when another leader was elected.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from uuid import UUID

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.config import BrokerConfig
from einmal.broker.replicas.partition import Partition
from einmal.broker.replicas.partitions import Partitions
from einmal.log.errors import LogCorruption
from einmal.replication.follower import divergence
from einmal.replication.leader import Leader
from einmal.seams import Clock
from einmal.types import BrokerId, ErrorCode, Offset, TopicPartition
from einmal.wire.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchResponse, encode_fetch_response
from einmal.wire.primitives import Topic
from einmal.wire.produce import Records

_EPOCH_MAX: Final = 2**31 - 1
Answer: TypeAlias = list[Records]
"""An encoded Fetch response, in parts."""
_Key: TypeAlias = tuple[UUID, int]
_NONE: Final = ErrorCode.none
_CONFIRM_SECONDS: Final = 2.0
"""After so long without the followers, this broker may lead no more."""


@dataclass(slots=True, eq=False)
class _Tracked:
    """One partition of a session; -1: not sent to the follower yet."""

    replica: BrokerId
    key: _Key
    asked: FetchPartition
    partition: Partition | None = None
    sent_high_watermark: int = -1
    sent_log_start: int = -1


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request that waits for changes."""

    version: int
    max_bytes: int
    done: asyncio.Future[Answer]


@dataclass(slots=True, eq=False)
class _Session:
    replica: BrokerId
    session_id: int
    epoch: int = 0
    partitions: dict[_Key, _Tracked] = field(default_factory=dict)
    changed: dict[_Key, None] = field(default_factory=dict)
    """Partitions that may have changes; the longest unreported first."""
    waiting: _Waiting | None = None
    is_scheduled: bool = False
    answered_in: int = 0
    """The round of the last answer."""
    last_answered_in: int = 0
    """The same, of the answer to the last request but one."""


@dataclass(slots=True, eq=False)
class _Confirmation:
    """A request that needs a confirmation that no other broker leads."""

    partition: Partition
    leader: Leader
    round_: int
    done: asyncio.Future[bool]

    @property
    def key(self) -> _Key:
        return (self.partition.topic_id, self.partition.topic_partition.partition)

    def look(self) -> None:
        """Settle it, if that is possible by now."""
        if self.done.done():
            return
        if self.partition.replication is not self.leader:
            self.done.set_result(False)
        elif self.leader.is_confirmed(self.round_):
            self.done.set_result(True)

    def expire(self) -> None:
        self.look()
        if not self.done.done():
            self.done.set_result(False)


class ReplicaSessions:
    """``isr_may_change`` is called when the leader of a partition wants its ISR changed."""

    def __init__(
        self,
        config: BrokerConfig,
        metadata: ClusterMetadata,
        partitions: Partitions,
        clock: Clock,
        source: random.Random,
        isr_may_change: Callable[[Partition], None],
    ) -> None:
        self._bytes_most = config.fetch_max_bytes
        self._metadata = metadata
        self._partitions = partitions
        self._clock = clock
        self._source = source
        self._isr_may_change = isr_may_change
        self._sessions: dict[BrokerId, _Session] = {}
        self._round = 0
        self._confirmations: dict[_Confirmation, None] = {}

    def is_from_replica(self, request: FetchRequest) -> bool:
        """Whether the request names the log directory that the broker has registered with."""
        # Broker ids are public, this id is not: otherwise a client could confirm records that no replica has.
        broker = self._metadata.image.brokers.get(BrokerId(request.replica_id))
        if broker is None or broker.broker_epoch != request.replica_epoch or not broker.log_dirs:
            return True
        return all(
            asked.directory_id in broker.log_dirs for _topic, partitions in request.topics for asked in partitions
        )

    def handle(self, version: int, request: FetchRequest) -> Answer | asyncio.Future[Answer]:
        """A Fetch that ``is_from_replica``: the answer at once, or when something has changed."""
        session = self._session(request)
        if isinstance(session, ErrorCode):
            return encode_fetch_response(version, FetchResponse([], session))
        self._end_wait(session)
        sent_in, session.last_answered_in = session.last_answered_in, session.answered_in
        for topic, indexes in request.forgotten:
            for index in indexes:
                self._forget(session, topic, index)
        for topic, partitions in request.topics:
            for asked in partitions:
                self._track(session, topic, asked, request.replica_epoch)
        if self._confirmations:
            self._heard(session, sent_in)
        if self._has_urgent(session) or request.max_wait_ms <= 0 or self._is_awaited(session):
            return self._encode(version, session, self._read(session, self._bytes_max(request)))
        return self._wait(version, session, request)

    def close(self) -> None:
        """Answer the waiting followers."""
        for session in self._sessions.values():
            self._end_wait(session)

    # --- sessions ----------------------------------------------------------------------------------------------------

    def _session(self, request: FetchRequest) -> _Session | ErrorCode:
        replica = BrokerId(request.replica_id)
        broker = self._metadata.image.brokers.get(replica)
        if broker is None or broker.broker_epoch != request.replica_epoch:
            # It may have registered just now; then the next attempt finds it.
            return ErrorCode.stale_broker_epoch
        session = self._sessions.get(replica)
        if request.session_epoch <= 0:
            if session is not None:
                self._end(session)
            session = _Session(replica, self._source.randint(1, _EPOCH_MAX))
            self._sessions[replica] = session
            return session
        if session is None or session.session_id != request.session_id:
            return ErrorCode.fetch_session_id_not_found
        following = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        if request.session_epoch != following:
            return ErrorCode.invalid_fetch_session_epoch
        session.epoch = following
        return session

    def _end(self, session: _Session) -> None:
        self._end_wait(session)
        for tracked in list(session.partitions.values()):
            self._unwatch(tracked)

    def _forget(self, session: _Session, topic: Topic, index: int) -> None:
        if not isinstance(topic, str):
            tracked = session.partitions.pop((topic, index), None)
            session.changed.pop((topic, index), None)
            if tracked is not None:
                self._unwatch(tracked)

    def _track(self, session: _Session, topic: Topic, asked: FetchPartition, broker_epoch: int) -> None:
        """A follower reports its position in one partition."""
        if isinstance(topic, str):
            return
        key = (topic, asked.partition)
        tracked = session.partitions.get(key)
        if tracked is None:
            tracked = session.partitions[key] = _Tracked(session.replica, key, asked)
        tracked.asked = asked
        tracked.sent_high_watermark = -1
        self._resolve(session, tracked)
        session.changed[key] = None
        partition = tracked.partition
        if partition is not None and self._error(tracked, partition) is _NONE:
            self._position(partition, session.replica, broker_epoch, asked)

    def _resolve(self, session: _Session, tracked: _Tracked) -> None:
        """Find the follower's partition, and observe its changes."""
        name = self._metadata.image.topic_names.get(tracked.key[0])
        partition = None if name is None else self._partitions.get(TopicPartition(name, tracked.key[1]))
        if partition is tracked.partition:
            return
        self._unwatch(tracked)
        tracked.partition = partition
        if partition is not None:
            partition.watch_end(tracked, lambda: self._changed(session, tracked))

    @staticmethod
    def _unwatch(tracked: _Tracked) -> None:
        if tracked.partition is not None:
            tracked.partition.unwatch_end(tracked)
            tracked.partition = None

    # --- positions ---------------------------------------------------------------------------------------------------

    @staticmethod
    def _error(tracked: _Tracked, partition: Partition) -> ErrorCode:
        error = partition.check_leader_epoch(tracked.asked.current_leader_epoch)
        leader = partition.replication
        if error is _NONE and (leader is None or tracked.replica not in leader.replicas):
            # A new replica may know this before its leader does: it must retry, or its position is never known.
            return ErrorCode.not_leader_or_follower
        return error

    def _position(self, partition: Partition, replica: BrokerId, broker_epoch: int, asked: FetchPartition) -> None:
        """A follower has the log below its fetch offset, if it agrees with the leader's up to there."""
        leader = partition.replication
        assert leader is not None
        end = partition.log_end_offset
        is_in_range = partition.log_start_offset <= asked.fetch_offset <= end
        if not is_in_range or divergence(partition, asked) is not None:
            return
        now_ms = self._clock.now().monotonic_ms
        offset, start = Offset(asked.fetch_offset), Offset(asked.log_start_offset)
        low_watermark = leader.low_watermark(partition.log_start_offset)
        if leader.fetched(replica, broker_epoch, offset, end, now_ms, start) is not _NONE:
            return
        partition.advance(leader.high_watermark)
        if leader.low_watermark(partition.log_start_offset) > low_watermark:
            partition.wake()
        if leader.wants_change:
            self._isr_may_change(partition)

    # --- whether this broker still leads -----------------------------------------------------------------------------

    def confirm_leadership(self, partition: Partition) -> asyncio.Future[bool]:
        """Whether nobody else can have led a partition by now, so that its answers are not stale.

        True once all replicas that may succeed this leader have fetched from it after now, at once where there are
        none. False: it leads no more, or they have not fetched in time.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bool] = loop.create_future()
        leader = partition.replication
        if leader is None:
            done.set_result(partition.is_leader)
            return done
        self._round += 1
        confirmation = _Confirmation(partition, leader, self._round, done)
        confirmation.look()
        if done.done():
            return done
        self._confirmations[confirmation] = None
        partition.watch(confirmation, confirmation.look)
        timer = loop.call_later(_CONFIRM_SECONDS, confirmation.expire)

        def settled(_done: asyncio.Future[bool]) -> None:
            timer.cancel()
            partition.unwatch(confirmation)
            del self._confirmations[confirmation]

        done.add_done_callback(settled)
        for session in self._sessions.values():
            if self._is_awaited(session):
                self._end_wait(session)
        return done

    def _heard(self, session: _Session, sent_in: int) -> None:
        """A follower still fetches the partitions of its session, so it leads none of them."""
        for confirmation in list(self._confirmations):
            if self._is_followed(session, confirmation):
                confirmation.leader.heard(session.replica, sent_in)
            confirmation.look()

    def _is_awaited(self, session: _Session) -> bool:
        """Whether any request waits for the follower's next fetch."""
        return any(
            confirmation.leader.awaits(session.replica, confirmation.round_)
            and self._is_followed(session, confirmation)
            for confirmation in self._confirmations
        )

    def _is_followed(self, session: _Session, confirmation: _Confirmation) -> bool:
        tracked = session.partitions.get(confirmation.key)
        partition = confirmation.partition
        return (
            tracked is not None
            and tracked.partition is partition
            and partition.replication is confirmation.leader
            and self._error(tracked, partition) is _NONE
        )

    # --- reading -----------------------------------------------------------------------------------------------------

    def _bytes_max(self, request: FetchRequest) -> int:
        return min(request.max_bytes, self._bytes_most)

    def _read(self, session: _Session, max_bytes: int) -> list[tuple[UUID, FetchedPartition]]:
        """The answer of the changed partitions, at most about so many bytes, but at least one batch."""
        partitions: list[tuple[UUID, FetchedPartition]] = []
        # With max_bytes of 0 a follower would never advance, and would retry at once for ever.
        room = max(1, max_bytes)
        for key in list(session.changed):
            if room <= 0:
                break
            del session.changed[key]
            tracked = session.partitions[key]
            fetched = self._read_one(tracked, room)
            if self._is_news(tracked, fetched):
                tracked.sent_high_watermark = fetched.high_watermark
                tracked.sent_log_start = fetched.log_start_offset
                partitions.append((key[0], fetched))
                room -= len(fetched.records)
        return partitions

    def _read_one(self, tracked: _Tracked, room: int) -> FetchedPartition:
        asked, partition = tracked.asked, tracked.partition
        if partition is None:
            return FetchedPartition(asked.partition, ErrorCode.unknown_topic_id)
        error = self._error(tracked, partition)
        if error is not _NONE:
            return FetchedPartition(asked.partition, error)
        high_watermark, start = partition.high_watermark, partition.log_start_offset
        diverging = divergence(partition, asked)
        if diverging is not None:
            return FetchedPartition(asked.partition, _NONE, high_watermark, -1, start, diverging_epoch=diverging)
        end = partition.log_end_offset
        if not start <= asked.fetch_offset <= end:
            return FetchedPartition(asked.partition, ErrorCode.offset_out_of_range, high_watermark, -1, start)
        records = b""
        if asked.fetch_offset < end:
            try:
                records = partition.read(Offset(asked.fetch_offset), min(room, asked.partition_max_bytes), below=end)
            except (LogCorruption, OSError) as failure:
                return FetchedPartition(asked.partition, partition.report(failure))
        partition.counts.replication_bytes_out += len(records)
        return FetchedPartition(asked.partition, _NONE, high_watermark, -1, start, None, records)

    @staticmethod
    def _is_news(tracked: _Tracked, fetched: FetchedPartition) -> bool:
        return (
            fetched.error_code is not _NONE
            or fetched.diverging_epoch is not None
            or len(fetched.records) > 0
            or fetched.high_watermark != tracked.sent_high_watermark
            or fetched.log_start_offset != tracked.sent_log_start
        )

    # --- waiting -----------------------------------------------------------------------------------------------------

    def _changed(self, session: _Session, tracked: _Tracked) -> None:
        """A partition has changed."""
        session.changed[tracked.key] = None
        if session.waiting is None or session.is_scheduled:
            return
        if self._is_urgent(tracked):
            session.is_scheduled = True
            asyncio.get_running_loop().call_soon(self._look, session)

    def _is_urgent(self, tracked: _Tracked) -> bool:
        """Whether more than the high watermark has changed. Nobody waits for that: the next answer has it."""
        asked, partition = tracked.asked, tracked.partition
        if partition is None or self._error(tracked, partition) is not _NONE:
            return True
        start, end = partition.log_start_offset, partition.log_end_offset
        return (
            asked.fetch_offset != end
            or asked.log_start_offset < start != tracked.sent_log_start
            or divergence(partition, asked) is not None
        )

    def _has_urgent(self, session: _Session) -> bool:
        return any(self._is_urgent(session.partitions[key]) for key in session.changed)

    def _look(self, session: _Session) -> None:
        session.is_scheduled = False
        waiting = session.waiting
        if waiting is not None and self._has_urgent(session):
            self._answer(session, waiting, self._read(session, waiting.max_bytes))

    def _wait(self, version: int, session: _Session, request: FetchRequest) -> asyncio.Future[Answer]:
        loop = asyncio.get_running_loop()
        waiting = session.waiting = _Waiting(version, self._bytes_max(request), loop.create_future())
        timer = loop.call_later(request.max_wait_ms / 1000, self._expire, session, waiting)
        waiting.done.add_done_callback(lambda _done: timer.cancel())
        return waiting.done

    def _expire(self, session: _Session, waiting: _Waiting) -> None:
        if session.waiting is waiting:
            self._answer(session, waiting, self._read(session, waiting.max_bytes))

    def _end_wait(self, session: _Session) -> None:
        if session.waiting is not None:
            self._answer(session, session.waiting, [])

    def _answer(self, session: _Session, waiting: _Waiting, partitions: list[tuple[UUID, FetchedPartition]]) -> None:
        session.waiting = None
        # If the follower's connection is lost it does not read this answer, and begins a new session.
        if not waiting.done.done():
            waiting.done.set_result(self._encode(waiting.version, session, partitions))

    def _encode(self, version: int, session: _Session, partitions: list[tuple[UUID, FetchedPartition]]) -> Answer:
        session.answered_in = self._round
        topics: dict[Topic, list[FetchedPartition]] = {}
        for topic_id, fetched in partitions:
            topics.setdefault(topic_id, []).append(fetched)
        return encode_fetch_response(version, FetchResponse(list(topics.items()), session_id=session.session_id))
