"""Incremental fetch sessions (KIP-227): a consumer's last request and last answer, by partition.

A session belongs to the broker, not to a connection, and its epoch numbers the requests. Knows no log. An incremental
answer has only partitions with changes; those with records move to the end of the order, so that a few busy ones
cannot starve the others. A name that no topic can have is answered, and not remembered: it may be a hundred times as
long as one that a topic has.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from einmal.metadata.topics import is_legal_name
from einmal.types import ErrorCode
from einmal.wire.fetch import FetchedPartition, FetchPartition, FetchRequest
from einmal.wire.primitives import Topic

NO_SESSION: Final = 0
_FIRST_EPOCH: Final = 0
_FINAL_EPOCH: Final = -1
_EPOCH_MAX: Final = 2**31 - 1
_EVICTABLE_AFTER_MS: Final = 120_000
"""As in Kafka: a session unused for so long may be evicted for a new one."""
PARTITIONS_MAX: Final = 100_000
"""Maximum number of partitions of all sessions together, some 30 MB, and as much for names that no topic has; beyond
that a Fetch is answered without a session."""

Key = tuple[Topic, int]


@dataclass(slots=True)
class _Seen:
    """The client's last answer about a partition; -1: none, or an error."""

    wanted: FetchPartition
    high_watermark: int = -1
    log_start_offset: int = -1


@dataclass(slots=True)
class FetchSession:
    session_id: int
    epoch: int = 1
    used_at_ms: int = 0
    has_topic_ids: bool = False
    partitions: dict[Key, _Seen] = field(default_factory=dict)

    def update(self, request: FetchRequest) -> None:
        for topic, partitions in request.topics:
            if not _may_exist(topic):
                continue
            for wanted in partitions:
                seen = self.partitions.get((topic, wanted.partition))
                if seen is None:
                    self.partitions[topic, wanted.partition] = _Seen(wanted)
                else:
                    seen.wanted = wanted
        for topic, indexes in request.forgotten:
            for index in indexes:
                self.partitions.pop((topic, index), None)

    def remember(self, topic: Topic, fetched: FetchedPartition) -> bool:
        """Record the client's answer; whether it contains anything new."""
        key = (topic, fetched.partition)
        seen = self.partitions.get(key)
        if seen is None:
            return True
        if fetched.error_code is not ErrorCode.none:
            seen.high_watermark = -1
            return True
        is_new = (
            len(fetched.records) > 0
            or fetched.high_watermark != seen.high_watermark
            or fetched.log_start_offset != seen.log_start_offset
            or fetched.diverging_epoch is not None
        )
        seen.high_watermark = fetched.high_watermark
        seen.log_start_offset = fetched.log_start_offset
        if len(fetched.records):
            self.partitions[key] = self.partitions.pop(key)
        return is_new


@dataclass(frozen=True, slots=True)
class Wanted:
    """The partitions of one request. ``session`` None: the answer is sessionless, with ``session_id`` 0."""

    partitions: list[tuple[Topic, FetchPartition]]
    session: FetchSession | None
    is_incremental: bool


class FetchSessions:
    def __init__(self, slots: int, random: random.Random) -> None:
        self._slots = slots
        self._random = random
        self._sessions: dict[int, FetchSession] = {}
        """Least recently used first."""

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, request: FetchRequest, now_ms: int, *, has_topic_ids: bool) -> Wanted | ErrorCode:
        """The partitions of a request, in the context of its session. An ErrorCode is the answer of the whole
        request."""
        if request.session_epoch in (_FINAL_EPOCH, _FIRST_EPOCH):
            self._sessions.pop(request.session_id, None)
            # A partition that is named twice is fetched once, as on Kafka.
            named = {(topic, wanted.partition): wanted for topic, partitions in request.topics for wanted in partitions}
            partitions = [(topic, wanted) for (topic, _index), wanted in named.items()]
            session = None
            if request.session_epoch == _FIRST_EPOCH and any(_may_exist(topic) for topic, _wanted in partitions):
                session = self._open(request, len(partitions), now_ms, has_topic_ids)
            return Wanted(partitions, session, False)
        session = self._sessions.get(request.session_id)
        if session is None:
            return ErrorCode.fetch_session_id_not_found
        if session.epoch != request.session_epoch:
            return ErrorCode.invalid_fetch_session_epoch
        if session.has_topic_ids != has_topic_ids:
            return ErrorCode.fetch_session_topic_id_error
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        session.used_at_ms = now_ms
        session.update(request)
        if request.topics and self._partition_count() > PARTITIONS_MAX:
            del self._sessions[session.session_id]
            return ErrorCode.fetch_session_id_not_found
        session.epoch = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        partitions = [(key[0], seen.wanted) for key, seen in session.partitions.items()]
        return Wanted([*partitions, *_impossible(request)], session, True)

    def close(self, session: FetchSession) -> None:
        """Forget a session whose id the client does not have."""
        self._sessions.pop(session.session_id, None)

    def _partition_count(self) -> int:
        return sum(len(session.partitions) for session in self._sessions.values())

    def _open(self, request: FetchRequest, count: int, now_ms: int, has_topic_ids: bool) -> FetchSession | None:
        if self._partition_count() + count > PARTITIONS_MAX:
            return None
        if len(self._sessions) >= self._slots:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.used_at_ms < _EVICTABLE_AFTER_MS:
                return None
            del self._sessions[oldest.session_id]
        session_id = self._random.randint(1, _EPOCH_MAX)
        while session_id in self._sessions:
            session_id = self._random.randint(1, _EPOCH_MAX)
        session = FetchSession(session_id, used_at_ms=now_ms, has_topic_ids=has_topic_ids)
        session.update(request)
        self._sessions[session_id] = session
        return session


def _may_exist(topic: Topic) -> bool:
    return not isinstance(topic, str) or is_legal_name(topic)


def _impossible(request: FetchRequest) -> Iterator[tuple[Topic, FetchPartition]]:
    """Partitions of topics that cannot exist."""
    for topic, partitions in request.topics:
        if not _may_exist(topic):
            yield from ((topic, wanted) for wanted in partitions)
