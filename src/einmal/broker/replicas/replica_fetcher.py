"""The followers' side of replication: one task for each broker that leads a partition this broker follows.

A task keeps a long poll open, in an incremental session (KIP-227): requests have only changes. Changes such as a new
partition to follow, or a position reached while a poll is open, are sent at once in a second request, which makes the
leader answer the first. ``replication.follower`` decides on an answer, which counts only if the log has not changed
since its request. A partition that must wait, for its disk or after an error, is left out of the session and delays no
other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from einmal.broker.config import BrokerConfig
from einmal.broker.identity import Identity
from einmal.broker.replicas.partition import Partition
from einmal.broker.replicas.partitions import Partitions
from einmal.broker.resources.supervision import Supervisor
from einmal.broker.rpc.peers import Peers
from einmal.event_log import EventLog
from einmal.log.errors import LogCorruption
from einmal.metadata.image import ImageDelta
from einmal.metadata.records import NO_LEADER
from einmal.pauses import DoublingPauses
from einmal.replication.follower import Append, Later, Outdated, Restart, Step, Truncate, next_step, question
from einmal.rpc.connection import Answer, NoAnswer
from einmal.types import BrokerId, ErrorCode, LeaderEpoch, Offset
from einmal.wire.errors import WireError
from einmal.wire.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    decode_fetch_response,
    encode_fetch_request,
)

log = EventLog(__name__)

_FETCH: Final = 1
_VERSION: Final = 17
_LANE: Final = "fetch:0"
_ANSWER_TIMEOUT_MS: Final = 10_000
"""In addition to the leader's own maximum wait."""
_RETRY_SECONDS: Final = 0.1
"""After a lost connection, or an error of the whole request."""
_PAUSES_S: Final = DoublingPauses(0.01, 0.5)
"""After a partition's error, before it is requested again: a leader that does not know yet that it leads soon will."""
_PATIENCE_SECONDS: Final = 0.02
"""How long a poll without changes waits for partitions that are being flushed."""
_EPOCH_MAX: Final = 2**31 - 1
_REQUESTS_MAX: Final = 2
_NOTHING: Final = Append(b"", Offset(-1), Offset(-1))
_Key: TypeAlias = tuple[UUID, int]


@dataclass(slots=True, eq=False)
class _Followed:
    """A partition, and what the session knows of it."""

    partition: Partition
    leader_epoch: LeaderEpoch
    max_bytes: int
    asked: FetchPartition | None = None
    """The partition's state in the leader's session; None: absent."""
    asked_in: int = 0
    """The number of the request with that state: answers to earlier ones do not apply to it."""
    is_busy: bool = False
    """A running operation on its log will change its position."""
    is_paused: bool = False
    pauses: int = 0
    """Since the last useful answer."""

    @property
    def key(self) -> _Key:
        return (self.partition.topic_id, self.partition.topic_partition.partition)

    @property
    def is_current(self) -> bool:
        partition = self.partition
        return not partition.is_leader and not partition.is_closed and partition.leader_epoch == self.leader_epoch

    @property
    def is_reported(self) -> bool:
        """Whether the leader knows this log's present position."""
        asked, now = self.asked, self.question()
        return asked is not None and (asked.fetch_offset, asked.current_leader_epoch, asked.last_fetched_epoch) == (
            now.fetch_offset,
            now.current_leader_epoch,
            now.last_fetched_epoch,
        )

    def question(self) -> FetchPartition:
        return question(self.partition, self.partition.topic_partition.partition, self.leader_epoch, self.max_bytes)


@dataclass(slots=True, eq=False)
class _Request:
    number: int
    answer: asyncio.Task[Answer]


@dataclass(slots=True)
class _Session:
    session_id: int = 0
    epoch: int = 0
    known: dict[_Key, None] = field(default_factory=dict)
    """The partitions in the leader's session."""


class _Follower(NamedTuple):
    """The identity and the settings of the fetching broker."""

    config: BrokerConfig
    identity: Identity
    peers: Peers
    supervisor: Supervisor


class ReplicaFetchers:
    """All fetchers of this broker. They follow the roles of its partitions."""

    def __init__(self, config: BrokerConfig, identity: Identity, partitions: Partitions, peers: Peers) -> None:
        self._partitions = partitions
        self._follower = _Follower(config, identity, peers, Supervisor())
        self._fetchers: dict[BrokerId, _Fetcher] = {}
        self._is_stopped = False

    def apply(self, delta: ImageDelta) -> None:
        """Apply changes of the cluster. The partitions have their new roles by now."""
        if delta.topics or delta.deleted:
            self.refresh()

    def refresh(self) -> None:
        """Fetch the partitions that are followed now from their present leaders, and nothing else."""
        if self._is_stopped:
            return
        wanted: dict[BrokerId, list[Partition]] = {leader: [] for leader in self._fetchers}
        for partition in self._partitions:
            if not partition.is_leader and partition.leader != NO_LEADER:
                wanted.setdefault(partition.leader, []).append(partition)
        for leader, partitions in wanted.items():
            fetcher = self._fetchers.get(leader)
            if fetcher is None:
                fetcher = self._fetchers[leader] = _Fetcher(self._follower, leader)
            fetcher.follow(partitions)

    async def stop(self) -> None:
        self._is_stopped = True
        for fetcher in list(self._fetchers.values()):
            await fetcher.stop()


class _Fetcher:
    def __init__(self, follower: _Follower, leader: BrokerId) -> None:
        self._config, self._identity, self._peers, self._supervisor = follower
        self._leader = leader
        self._followed: dict[_Key, _Followed] = {}
        self._changed: dict[_Key, None] = {}
        """Changes that the leader may not know yet."""
        self._session = _Session()
        self._requests: deque[_Request] = deque()
        self._number = 0
        self._wake: asyncio.Future[None] | None = None
        self._works: dict[asyncio.Task[None], None] = {}
        self._task: asyncio.Task[None] | None = None

    def follow(self, partitions: list[Partition]) -> None:
        """Follow these from now on, and no others."""
        before, self._followed = self._followed, {}
        for partition in partitions:
            followed = _Followed(partition, partition.leader_epoch, self._config.replica_fetch_max_bytes)
            known = before.pop(followed.key, None)
            if known is not None and known.partition is partition and known.leader_epoch == partition.leader_epoch:
                followed = known
            else:
                self._changed[followed.key] = None
            self._followed[followed.key] = followed
        self._changed.update(dict.fromkeys(before))
        if not self._changed:
            return
        if self._task is None:
            self._task = self._supervisor.run(f"following broker {self._leader}", self._run)
        self._news()

    async def stop(self) -> None:
        tasks: list[asyncio.Task[Any]] = [request.answer for request in self._requests]
        if self._task is not None:
            tasks.append(self._task)
        for task in tasks:
            task.cancel()
        for task in [*tasks, *self._works]:
            with suppress(asyncio.CancelledError, NoAnswer):
                await task

    # --- the loop ----------------------------------------------------------------------------------------------------

    def _news(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _until_news(self, seconds: float | None = None) -> None:
        loop = asyncio.get_running_loop()
        self._wake = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, self._news)
        try:
            await self._wake
        finally:
            if timer is not None:
                timer.cancel()

    async def _run(self) -> None:
        try:
            await self._follow()
        except Exception:
            # The state of the leader's session is uncertain now.
            await self._begin_anew()
            raise

    async def _follow(self) -> None:
        is_patient = True
        while True:
            while self._requests and self._requests[0].answer.done():
                if not self._receive(self._requests.popleft()):
                    await self._begin_anew()
                is_patient = True
            self._settle_changes()
            # Before the session has its id a second request would be refused, and only after the first one's poll.
            if self._changed and len(self._requests) < (_REQUESTS_MAX if self._session.session_id else 1):
                self._send()
            elif not self._requests and self._followed:
                if is_patient and self._works:
                    is_patient = False
                    await self._until_news(_PATIENCE_SECONDS)
                    continue
                self._send()
            await self._until_news()

    async def _begin_anew(self) -> None:
        """The session is lost, or no connection can be opened."""
        while self._requests:
            self._requests.popleft().answer.cancel()
        self._session = _Session()
        for key, followed in self._followed.items():
            followed.asked = None
            self._changed[key] = None
        await asyncio.sleep(_RETRY_SECONDS)

    # --- asking ------------------------------------------------------------------------------------------------------

    def _settle_changes(self) -> None:
        """Keep only the changes that the leader has to know."""
        self._changed = {key: None for key in list(self._changed) if self._is_news(key)}

    def _is_news(self, key: _Key) -> bool:
        followed = self._followed.get(key)
        if followed is None or followed.is_paused:
            return key in self._session.known
        if followed.is_busy or not followed.is_current:
            return False
        if not followed.partition.is_flushed:
            # The follower must not lose what its fetch offset claims.
            self._work(followed, self._flush(followed))
            return False
        return followed.asked != followed.question()

    def _send(self) -> None:
        """One request with all changes that the leader does not know yet."""
        config, session = self._config, self._session
        self._number += 1
        topics: dict[UUID, list[FetchPartition]] = {}
        forgotten: dict[UUID, list[int]] = {}
        for key in self._changed:
            followed = self._followed.get(key)
            if followed is None or followed.is_paused:
                # Otherwise a later request for it at the same offset would request nothing: the leader sends again only
                # what has changed since.
                del session.known[key]
                forgotten.setdefault(key[0], []).append(key[1])
            else:
                followed.asked, followed.asked_in = followed.question(), self._number
                session.known[key] = None
                asked = followed.asked._replace(directory_id=self._identity.directory_id)
                topics.setdefault(key[0], []).append(asked)
        self._changed.clear()
        request = FetchRequest(
            # The session's first answer has its id, which every further request needs.
            config.replica_fetch_wait_max_ms if session.session_id else 0,
            config.replica_fetch_min_bytes,
            config.replica_fetch_response_max_bytes,
            0,
            list(topics.items()),
            list(forgotten.items()),
            session.session_id,
            session.epoch,
            replica_id=self._identity.node_id,
            replica_epoch=self._identity.broker_epoch,
        )
        session.epoch = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        exchange = self._peers.exchange(
            self._leader,
            _FETCH,
            _VERSION,
            [encode_fetch_request(_VERSION, request)],
            timeout_ms=request.max_wait_ms + _ANSWER_TIMEOUT_MS,
            lane=_LANE,
        )
        answer = asyncio.get_running_loop().create_task(exchange)
        answer.add_done_callback(self._answered)
        self._requests.append(_Request(self._number, answer))

    def _answered(self, answer: asyncio.Task[Answer]) -> None:
        if not answer.cancelled():
            # Checked here, since an abandoned session does not.
            answer.exception()
        self._news()

    # --- answers -----------------------------------------------------------------------------------------------------

    def _receive(self, request: _Request) -> bool:
        """False: the session is over."""
        try:
            frame, position = request.answer.result()
            response = decode_fetch_response(_VERSION, frame, position)
        except NoAnswer as error:
            log.info(
                "leader_unanswered", "broker %(broker)d does not answer: %(error)s", broker=self._leader, error=error
            )
            return False
        except WireError as error:
            unreadable = "the answer of broker %(broker)d cannot be read: %(error)s"
            log.error("leader_answer_unreadable", unreadable, broker=self._leader, error=error)
            return False
        if response.error_code is not ErrorCode.none:
            name = response.error_code.name
            log.info("replica_fetch_failed", "broker %(broker)d: %(error)s", broker=self._leader, error=name)
            return False
        self._session.session_id = response.session_id
        self._take(request.number, response)
        return True

    def _take(self, number: int, response: FetchResponse) -> None:
        for topic_id, partitions in response.topics:
            for answered in partitions:
                followed = None if isinstance(topic_id, str) else self._followed.get((topic_id, answered.partition))
                if followed is None or followed.asked_in > number or followed.is_busy or not followed.is_current:
                    continue
                # The leader may have answered the same request again before it received the next.
                if followed.is_reported:
                    self._carry_out_or_pause(followed, answered)
                self._changed[followed.key] = None

    def _carry_out_or_pause(self, followed: _Followed, answered: FetchedPartition) -> None:
        try:
            self._carry_out(followed, next_step(followed.partition, answered), answered)
        except Exception as error:  # noqa: BLE001 - one bad partition must not hold up the leader's others.
            self._fail(followed, error)

    def _fail(self, followed: _Followed, error: BaseException) -> None:
        self._supervisor.report(f"replicating {followed.partition.topic_partition}", error)
        self._pause(followed)

    def _carry_out(self, followed: _Followed, step: Step, answered: FetchedPartition) -> None:
        partition, name = followed.partition, followed.partition.topic_partition
        match step:
            case Append(records, high_watermark, log_start):
                followed.pauses = 0
                error = partition.append_replicated(records)
                if error is not ErrorCode.none:
                    log.error(
                        "replica_append_failed",
                        "%(partition)s: cannot append: %(error)s",
                        partition=name,
                        error=error.name,
                    )
                    self._pause(followed)
                elif partition.is_flushed:
                    partition.settle(high_watermark, log_start, followed.leader_epoch)
                else:
                    self._work(followed, self._flush(followed, step))
            case Truncate(offset):
                if offset < partition.high_watermark:
                    below = "%(partition)s: truncated below the high watermark"
                    log.warning("replica_truncated_below_high_watermark", below, partition=name, offset=offset)
                log.info(
                    "replica_truncated",
                    "%(partition)s: truncated to %(offset)d: %(diverging_epoch)s",
                    partition=name,
                    offset=offset,
                    diverging_epoch=answered.diverging_epoch,
                )
                self._work(followed, self._change(followed, partition.truncate_to(offset)))
            case Restart(offset):
                log.info("replica_restarted", "%(partition)s: restarted at %(offset)d", partition=name, offset=offset)
                self._work(followed, self._change(followed, partition.restart_at(offset)))
            case Later(error):
                log.info(
                    "replica_fetch_paused",
                    "%(partition)s: broker %(broker)d: %(error)s",
                    partition=name,
                    broker=self._leader,
                    error=error.name,
                )
                self._pause(followed)
            case Outdated():
                log.info("replica_epoch_outdated", "%(partition)s: there is a newer leader epoch", partition=name)
                self._pause(followed)

    # --- what takes its time -----------------------------------------------------------------------------------------

    def _work(self, followed: _Followed, work: Coroutine[Any, Any, None]) -> None:
        followed.is_busy = True

        def done(task: asyncio.Task[None]) -> None:
            del self._works[task]
            followed.is_busy = False
            if not task.cancelled() and (error := task.exception()) is not None:
                self._fail(followed, error)
            self._changed[followed.key] = None
            self._news()

        task = asyncio.get_running_loop().create_task(work)
        self._works[task] = None
        task.add_done_callback(done)

    async def _flush(self, followed: _Followed, answered: Append = _NOTHING) -> None:
        error = await followed.partition.flushed()
        if error is ErrorCode.none:
            followed.partition.settle(answered.high_watermark, answered.log_start_offset, followed.leader_epoch)
        else:
            self._pause(followed)

    async def _change(self, followed: _Followed, change: Coroutine[Any, Any, None]) -> None:
        try:
            await change
        except (OSError, LogCorruption) as error:
            name = followed.partition.topic_partition
            log.error("replica_change_failed", "%(partition)s: %(error)s", partition=name, error=error)
            self._pause(followed)

    def _pause(self, followed: _Followed) -> None:
        """Pause it for a while; for ever when its disk is broken."""

        def resume() -> None:
            followed.is_paused = False
            self._changed[followed.key] = None
            self._news()

        followed.is_paused = True
        # The session's state of it is useless, also if it is not forgotten before the pause is over.
        followed.asked = None
        followed.pauses += 1
        self._changed[followed.key] = None
        if followed.partition.is_offline:
            return
        asyncio.get_running_loop().call_later(_PAUSES_S.after(followed.pauses), resume)
