"""The followers' side of replication: one task for each broker that leads something this broker follows.

A task keeps a long poll open, in an incremental session (KIP-227): only what has changed is asked for again. News, such
as a partition to follow or a position reached while a poll is open, go out at once in a second request, which makes the
leader answer the first. What an answer means is decided by ``replication.follower``, and believed only where the log is
still as it was when it was asked for. A partition that must wait, for its disk or for better times, is left out of the
session and holds up no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

from einmal.broker.partition import Partition
from einmal.client.aio.connection import Answer, Disconnected
from einmal.log.errors import LogCorruption
from einmal.metadata.image import ClusterImage, ImageDelta
from einmal.metadata.records import NO_LEADER
from einmal.replication.follower import Append, Later, Outdated, Restart, Step, Truncate, next_step, question
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

if TYPE_CHECKING:
    from einmal.broker.node import Node

log = logging.getLogger(__name__)

_FETCH: Final = 1
_VERSION: Final = 17
_LANE: Final = "fetch:0"
_ANSWER_TIMEOUT_MS: Final = 10_000
"""Beyond the time that the leader may wait itself."""
_RETRY_SECONDS: Final = 0.1
"""After a lost connection, or an error of the whole request."""
_PAUSE_SECONDS_MIN: Final = 0.01
_PAUSE_SECONDS_MAX: Final = 0.5
"""After a partition's error, before it is asked for again: a leader that has not heard yet that it leads soon will."""
_PATIENCE_SECONDS: Final = 0.02
"""How long a poll without news waits for partitions that are being flushed, and will be news."""
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
    """As the leader has it in the session; None: not there."""
    asked_in: int = 0
    """The number of the request that said so: answers to earlier ones are about something else."""
    is_busy: bool = False
    """Something is done to its log, after which its position is another."""
    is_paused: bool = False
    pauses: int = 0
    """Since it was of use last."""

    @property
    def key(self) -> _Key:
        return (self.partition.topic_id, self.partition.topic_partition.partition)

    @property
    def is_current(self) -> bool:
        partition = self.partition
        return not partition.is_leader and not partition.is_closed and partition.leader_epoch == self.leader_epoch

    @property
    def is_told(self) -> bool:
        """Whether the leader knows where this log is now."""
        asked, now = self.asked, self.question()
        return asked is not None and (asked.fetch_offset, asked.current_leader_epoch, asked.last_fetched_epoch) == (
            now.fetch_offset,
            now.current_leader_epoch,
            now.last_fetched_epoch,
        )

    def question(self) -> FetchPartition:
        return question(self.partition.log, self.partition.topic_partition.partition, self.leader_epoch, self.max_bytes)


@dataclass(slots=True, eq=False)
class _Request:
    number: int
    answer: asyncio.Task[Answer]


@dataclass(slots=True)
class _Session:
    session_id: int = 0
    epoch: int = 0
    known: dict[_Key, None] = field(default_factory=dict)
    """What is in the session on the leader's side."""


class ReplicaFetchers:
    """All of this broker. They follow the roles of its partitions."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._fetchers: dict[BrokerId, _Fetcher] = {}
        self._is_stopped = False

    def apply(self, delta: ImageDelta, _image: ClusterImage) -> None:
        """What has changed in the cluster. The partitions have their new roles by now."""
        if delta.topics or delta.deleted:
            self.refresh()
        if delta.brokers:
            self._node.isr_updates.look_at_all()

    def refresh(self) -> None:
        """Fetch what is followed now from who leads it now, and nothing else."""
        if self._is_stopped:
            return
        wanted: dict[BrokerId, list[Partition]] = {leader: [] for leader in self._fetchers}
        for partition in self._node.partitions:
            if not partition.is_leader and partition.leader != NO_LEADER:
                wanted.setdefault(partition.leader, []).append(partition)
        for leader, partitions in wanted.items():
            fetcher = self._fetchers.get(leader)
            if fetcher is None:
                fetcher = self._fetchers[leader] = _Fetcher(self._node, leader)
            fetcher.follow(partitions)

    async def stop(self) -> None:
        self._is_stopped = True
        for fetcher in list(self._fetchers.values()):
            await fetcher.stop()


class _Fetcher:
    def __init__(self, node: Node, leader: BrokerId) -> None:
        self._node = node
        self._leader = leader
        self._followed: dict[_Key, _Followed] = {}
        self._changed: dict[_Key, None] = {}
        """What may be news to the leader."""
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
            followed = _Followed(partition, partition.leader_epoch, self._node.config.replica_fetch_max_bytes)
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
            self._task = self._node.supervisor.run(f"following broker {self._leader}", self._run)
        self._news()

    async def stop(self) -> None:
        tasks: list[asyncio.Task[Any]] = [request.answer for request in self._requests]
        if self._task is not None:
            tasks.append(self._task)
        for task in tasks:
            task.cancel()
        for task in [*tasks, *self._works]:
            with suppress(asyncio.CancelledError, Disconnected):
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
            # What the session knows by now is uncertain.
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
        """The session is lost, or no connection can be had."""
        while self._requests:
            self._requests.popleft().answer.cancel()
        self._session = _Session()
        for key, followed in self._followed.items():
            followed.asked = None
            self._changed[key] = None
        await asyncio.sleep(_RETRY_SECONDS)

    # --- asking ------------------------------------------------------------------------------------------------------

    def _settle_changes(self) -> None:
        """Keep of the changes what the leader has to be told."""
        self._changed = {key: None for key in list(self._changed) if self._is_news(key)}

    def _is_news(self, key: _Key) -> bool:
        followed = self._followed.get(key)
        if followed is None or followed.is_paused:
            return key in self._session.known
        if followed.is_busy or not followed.is_current:
            return False
        if not followed.partition.is_flushed:
            # What it says that it has, it has to keep.
            self._work(followed, self._flush(followed))
            return False
        return followed.asked != followed.question()

    def _send(self) -> None:
        """One request: whatever the leader does not know yet."""
        node, session = self._node, self._session
        self._number += 1
        topics: dict[UUID, list[FetchPartition]] = {}
        forgotten: dict[UUID, list[int]] = {}
        for key in self._changed:
            followed = self._followed.get(key)
            if followed is None or followed.is_paused:
                del session.known[key]
                forgotten.setdefault(key[0], []).append(key[1])
            else:
                followed.asked, followed.asked_in = followed.question(), self._number
                session.known[key] = None
                asked = followed.asked._replace(directory_id=node.directory_id)
                topics.setdefault(key[0], []).append(asked)
        self._changed.clear()
        request = FetchRequest(
            # The session's first answer brings its id, without which nothing else can be asked.
            node.config.replica_fetch_wait_max_ms if session.session_id else 0,
            node.config.replica_fetch_min_bytes,
            node.config.replica_fetch_response_max_bytes,
            0,
            list(topics.items()),
            list(forgotten.items()),
            session.session_id,
            session.epoch,
            replica_id=node.config.node_id,
            replica_epoch=node.broker_epoch,
        )
        session.epoch = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        exchange = node.peers.exchange(
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
            # Looked at here, since a session that was given up does not.
            answer.exception()
        self._news()

    # --- answers -----------------------------------------------------------------------------------------------------

    def _receive(self, request: _Request) -> bool:
        """False: the session is over."""
        try:
            frame, position = request.answer.result()
            response = decode_fetch_response(_VERSION, frame, position)
        except Disconnected as error:
            log.info("broker %d does not answer: %s", self._leader, error)
            return False
        except WireError as error:
            log.error("broker %d answers what cannot be read: %s", self._leader, error)
            return False
        if response.error_code is not ErrorCode.none:
            log.info("broker %d: %s", self._leader, response.error_code.name)
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
                # The leader may have answered the same question once more before it heard the next.
                if followed.is_told:
                    self._carry_out_or_pause(followed, answered)
                self._changed[followed.key] = None

    def _carry_out_or_pause(self, followed: _Followed, answered: FetchedPartition) -> None:
        try:
            self._carry_out(followed, next_step(followed.partition.log, answered), answered)
        except Exception as error:  # noqa: BLE001 - one bad partition must not hold up the leader's others.
            self._fail(followed, error)

    def _fail(self, followed: _Followed, error: BaseException) -> None:
        self._node.supervisor.report(f"replicating {followed.partition.topic_partition}", error)
        self._pause(followed)

    def _carry_out(self, followed: _Followed, step: Step, answered: FetchedPartition) -> None:
        partition = followed.partition
        match step:
            case Append(records, high_watermark, log_start):
                followed.pauses = 0
                error = partition.append_replicated(records)
                if error is not ErrorCode.none:
                    log.error("%s: cannot append: %s", partition.topic_partition, error.name)
                    self._pause(followed)
                elif partition.is_flushed:
                    partition.settle(high_watermark, log_start, followed.leader_epoch)
                else:
                    self._work(followed, self._flush(followed, step))
            case Truncate(offset):
                if offset < partition.high_watermark:
                    log.warning("%s: truncated below the high watermark", partition.topic_partition)
                log.info("%s: truncated to %d: %s", partition.topic_partition, offset, answered.diverging_epoch)
                self._work(followed, self._change(followed, partition.truncate_to(offset)))
            case Restart(offset):
                log.info("%s: begun anew at %d", partition.topic_partition, offset)
                self._work(followed, self._change(followed, partition.restart_at(offset)))
            case Later(error):
                log.info("%s: broker %d: %s", partition.topic_partition, self._leader, error.name)
                self._pause(followed)
            case Outdated():
                log.info("%s: there is a newer leader epoch", partition.topic_partition)
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
            log.error("%s: %s", followed.partition.topic_partition, error)
            self._pause(followed)

    def _pause(self, followed: _Followed) -> None:
        """Leave it out for a while; for good when its disk is broken."""

        def resume() -> None:
            followed.is_paused = False
            self._changed[followed.key] = None
            self._news()

        followed.is_paused = True
        # What the session knows of it is of no use, also if it is not forgotten before the pause is over.
        followed.asked = None
        followed.pauses += 1
        self._changed[followed.key] = None
        if followed.partition.log.is_offline:
            return
        seconds = min(_PAUSE_SECONDS_MAX, _PAUSE_SECONDS_MIN * 2 ** min(followed.pauses, 10))
        asyncio.get_running_loop().call_later(seconds, resume)
