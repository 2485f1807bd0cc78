"""Drives a ``ProducerCore`` over a ``Cluster``: drained batches become Produce requests, whose answers it gets.

One turn of the sender is a plain function, called by the event loop when something has changed or is due; so nothing
here waits, and the order of requests on a connection is the order of the drain. Knows no transaction: the owner decides
whether a partition may be written to now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final

from einmal.client.aio.network.background import end_tasks
from einmal.client.aio.network.cluster import Cluster
from einmal.client.apis import ApiKey, choose_version
from einmal.client.cores.metadata_cache import NO_TOPIC_ID
from einmal.client.cores.producer_batch import ProducerBatch
from einmal.client.cores.producer_core import BatchOutcome, ProducerCore
from einmal.client.errors import ClientClosed, Disconnected, KafkaError, RequestRefused
from einmal.rpc.connection import Answer, Connection
from einmal.types import ErrorCode, TopicPartition
from einmal.wire.errors import WireError
from einmal.wire.primitives import Topic
from einmal.wire.produce import (
    VERSIONS,
    ProducedPartition,
    ProduceRequest,
    Records,
    decode_produce_response,
    encode_produce_request,
)

STALE_METADATA: Final = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.network_exception,
        ErrorCode.kafka_storage_error,
        ErrorCode.fenced_leader_epoch,
    }
)
"""Answers after which the leader is looked up again. Apache Kafka may return the first after a topic is created."""

_BY_ID_SINCE: Final = 13


class Sender:
    """``settle`` receives every outcome. ``may_write`` may refuse a partition for now; then ``wake`` must follow."""

    def __init__(
        self,
        core: ProducerCore,
        cluster: Cluster,
        *,
        acks: int,
        settle: Callable[[Iterable[BatchOutcome]], None],
        may_write: Callable[[TopicPartition], bool] = lambda _: True,
        versions: Callable[[], tuple[int, int]] = lambda: (VERSIONS.start, VERSIONS.stop - 1),
    ) -> None:
        self._core = core
        self._cluster = cluster
        self._acks = acks
        self._settle = settle
        self._may_write = may_write
        self._versions = versions
        self._loop = asyncio.get_running_loop()
        self._turn_handle: asyncio.Handle | None = None
        self._timer: asyncio.Handle | None = None
        self._timer_due = 0.0
        self._background: dict[int | str, asyncio.Task[None]] = {}
        self._sent_on: dict[int, Connection] = {}
        self._is_closed = False
        cluster.leaders_changed = self._leaders_changed
        cluster.silence = self._hang_up_where_it_is_silent

    def wake(self) -> None:
        """Something has changed: take a turn soon."""
        if self._turn_handle is None and not self._is_closed:
            self._turn_handle = self._loop.call_soon(self._turn)

    def wake_within(self, milliseconds: int) -> None:
        """Take a turn after this time at the latest."""
        due = self._loop.time() + milliseconds / 1000
        if self._timer is not None and not self._timer.cancelled():
            if self._timer_due <= due:
                return
            self._timer.cancel()
        if not self._is_closed:
            # the due time is kept here: uvloop's call_at returns a handle without when() if it is due at once
            self._timer = self._loop.call_at(due, self._timer_fired)
            self._timer_due = due

    def _timer_fired(self) -> None:
        self._timer = None
        self.wake()

    def _turn(self) -> None:
        self._turn_handle = None
        if self._is_closed:
            return
        now = self._cluster.now_ms()
        self._settle(self._core.expire(now))
        if (rejection := self._cluster.rejection) is not None:
            # As in Java's client: brokers reject the credentials or the certificate, so batches wait in vain.
            self._settle(self._core.fail_waiting(rejection))
        self._cluster.refresh_when_old()
        while requests := self._core.drain(now, self._target, self._in_flight):
            for node_id, batches in requests.items():
                self._send(node_id, batches)
        if unencodable := self._core.take_unencodable():
            self._settle(unencodable)
            self.wake()
        deadline = self._core.next_deadline(now)
        if deadline is not None:
            self.wake_within(deadline - now)

    # --- where to -------------------------------------------------------------------------------------------------

    def _target(self, topic_partition: TopicPartition) -> int | None:
        leader = self._cluster.metadata.leader(topic_partition)
        if leader is None:
            self._in_background("metadata", self._refresh_metadata)
            return None
        if self._cluster.open_connection(leader.leader) is None:
            self._in_background(leader.leader, partial(self._connect, leader.leader))
            return None
        return leader.leader if self._may_write(topic_partition) else None

    def _in_flight(self, node_id: int) -> int:
        connection = self._cluster.open_connection(node_id)
        return 0 if connection is None else connection.in_flight

    def _in_background(self, name: int | str, start: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run one such task at a time; a turn follows when it has ended."""
        if name in self._background or self._is_closed:
            return
        task = self._loop.create_task(start())
        self._background[name] = task
        task.add_done_callback(partial(self._background_done, name))

    def _background_done(self, name: int | str, task: asyncio.Task[None]) -> None:
        del self._background[name]
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self._loop.call_exception_handler(
                    {"message": "the sender's background task failed", "exception": error}
                )
        self.wake()

    async def _connect(self, node_id: int) -> None:
        try:
            await self._cluster.connection(node_id)
        except ClientClosed:
            return
        except KafkaError:
            # The broker may have another address, or another one leads by now.
            await self._cluster.refresh_soon()

    async def _refresh_metadata(self) -> None:
        await self._cluster.refresh_soon()

    def _leaders_changed(self, changed: Iterable[TopicPartition]) -> None:
        """Batches that wait for their next attempt need not wait any longer."""
        for partition in changed:
            self._core.retry_now(partition)
        self._hang_up_where_it_is_silent()
        self.wake()

    def _hang_up_where_it_is_silent(self) -> None:
        """A broker that does not answer, and does not lead any more, has stopped or is partitioned."""
        for batch in self._core.flying():
            leader = self._cluster.metadata.leader(batch.topic_partition)
            connection = self._sent_on.get(batch.node)
            if leader is not None and leader.leader != batch.node and connection is not None and connection.is_silent:
                connection.abort("no answer, and another broker leads by now")

    # --- requests and answers -------------------------------------------------------------------------------------

    def _send(self, node_id: int, batches: list[ProducerBatch]) -> None:
        connection = self._cluster.open_connection(node_id)
        assert connection is not None
        self._sent_on[node_id] = connection
        lowest, highest = self._versions()
        topics = self._cluster.metadata.topics
        if any(topics[batch.topic_partition.topic].topic_id == NO_TOPIC_ID for batch in batches):
            highest = min(highest, _BY_ID_SINCE - 1)
        try:
            version = choose_version(connection.versions, ApiKey.PRODUCE, at_least=lowest, at_most=highest)
        except RequestRefused:
            self._refuse_all(batches, ErrorCode.unsupported_version)
            return
        names: dict[Topic, str] = {}
        by_topic: dict[Topic, list[tuple[int, Records | None]]] = {}
        for batch in batches:
            name, index = batch.topic_partition
            topic: Topic = topics[name].topic_id if version >= _BY_ID_SINCE else name
            names[topic] = name
            by_topic.setdefault(topic, []).append((index, batch.data))
        request = ProduceRequest(
            self._core.limits.transactional_id,
            self._acks,
            self._cluster.settings.request_timeout_ms,
            list(by_topic.items()),
        )
        body = encode_produce_request(version, request)
        if self._acks == 0:
            self._send_unanswered(connection, version, body, batches)
            return
        future = connection.send(ApiKey.PRODUCE, version, body, self._cluster.settings.request_timeout_ms)
        future.add_done_callback(partial(self._answered, batches, names, version))

    def _send_unanswered(
        self, connection: Connection, version: int, body: list[Records], batches: list[ProducerBatch]
    ) -> None:
        was_written = connection.send_unanswered(ApiKey.PRODUCE, version, body)
        now = self._cluster.now_ms()
        for batch in batches:
            self._settle(
                self._core.unanswered(batch) if was_written else self._core.lost(batch, was_sent=False, now=now)
            )

    def _answered(
        self, batches: list[ProducerBatch], names: dict[Topic, str], version: int, future: asyncio.Future[Answer]
    ) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if isinstance(error, Disconnected):
            self._lost(batches, error.was_sent)
            return
        assert error is None
        answer = future.result()
        try:
            response = decode_produce_response(version, answer.frame, answer.position)
            results = {
                TopicPartition(names[topic], partition.partition): partition
                for topic, partitions in response.topics
                for partition in partitions
            }
        except (WireError, KeyError):
            self._lost(batches, was_sent=True)
            return
        outcomes: list[BatchOutcome] = []
        for batch in batches:
            outcomes += self._take_answer(batch, results.get(batch.topic_partition))
        self._settle(outcomes)
        self._cluster.update_leaders(
            [(topic_partition, partition.current_leader) for topic_partition, partition in results.items()],
            response.node_endpoints,
        )
        for batch in batches:
            produced = results.get(batch.topic_partition)
            if produced is not None and produced.error_code in STALE_METADATA and not self._retry_elsewhere(batch):
                self._cluster.refresh_soon()
        self.wake()

    def _retry_elsewhere(self, batch: ProducerBatch) -> bool:
        """No pause before an attempt at a known leader that was not tried yet."""
        leader = self._cluster.metadata.leader(batch.topic_partition)
        if leader is None or leader.leader == batch.node:
            return False
        self._core.retry_now(batch.topic_partition)
        return True

    def _take_answer(self, batch: ProducerBatch, result: ProducedPartition | None) -> list[BatchOutcome]:
        now = self._cluster.now_ms()
        if result is None:
            return self._core.lost(batch, was_sent=True, now=now)
        if result.error_code is ErrorCode.none:
            return self._core.accepted(batch, result.base_offset, result.log_append_time)
        return self._core.refused(batch, result.error_code, result.error_message, now)

    def _lost(self, batches: list[ProducerBatch], was_sent: bool) -> None:
        now = self._cluster.now_ms()
        for batch in batches:
            self._settle(self._core.lost(batch, was_sent=was_sent, now=now))
        if not self._is_closed:
            self._cluster.refresh_soon()
            for batch in batches:
                self._retry_elsewhere(batch)
        self.wake()

    def _refuse_all(self, batches: list[ProducerBatch], code: ErrorCode) -> None:
        now = self._cluster.now_ms()
        for batch in batches:
            self._settle(self._core.refused(batch, code, None, now))
        self.wake()

    async def close(self) -> None:
        """Stop taking turns. The closing connections settle the requests in flight."""
        self._is_closed = True
        if self._turn_handle is not None:
            self._turn_handle.cancel()
        if self._timer is not None:
            self._timer.cancel()
        await end_tasks(list(self._background.values()))
