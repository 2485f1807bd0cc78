"""The producer's records on their way: routed, batched, sent, and settled with the futures of their senders.

Drives a ``RecordRouter`` and a ``ProducerCore``, which decide; a ``Sender`` exchanges the requests. Records whose
partition is not known yet wait for a task that looks up their topic; an idempotent producer without an identity has a
task that asks for one. Of transactions it knows ``TransactionCore`` only, to report records that fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from einmal.client.aio.network.background import Background, end_tasks
from einmal.client.aio.network.changes import Changes
from einmal.client.aio.network.cluster import Cluster
from einmal.client.aio.network.results import error_code
from einmal.client.aio.producing.sender import Sender
from einmal.client.aio.producing.tickets import Flush, fail, report
from einmal.client.aio.producing.unwritten import UnwrittenRecords
from einmal.client.config import ProducerSettings
from einmal.client.cores.producer_core import Appended, BatchOutcome, ProduceLimits, ProducerCore
from einmal.client.cores.record_router import RecordRouter, UnroutedRecord
from einmal.client.cores.transaction_core import TransactionCore, produce_versions
from einmal.client.errors import ClientClosed, KafkaError, TransactionAborted, UnknownTopic, error_for
from einmal.types import ErrorCode, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from einmal.wire.api.init_producer_id import API as INIT_PRODUCER_ID
from einmal.wire.api.init_producer_id import InitProducerIdRequest
from einmal.wire.compression import Compression
from einmal.wire.record_batch import NewRecord

_ACKS: Final = {"all": -1, "1": 1, "0": 0}


class Outbox:
    """Create it inside a running event loop. ``add_partitions`` is started when the transaction lacks a partition."""

    def __init__(
        self, settings: ProducerSettings, cluster: Cluster, router: RecordRouter, transaction: TransactionCore | None
    ) -> None:
        self.core = ProducerCore(_limits(settings))
        self.add_partitions: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._settings = settings
        self._cluster = cluster
        self._router = router
        self._transaction = transaction
        self._unwritten = UnwrittenRecords(cluster.clock)
        self._sender = Sender(
            self.core,
            cluster,
            acks=_ACKS[settings.acks],
            settle=self._settle,
            may_write=self._may_write,
            versions=self._versions,
        )
        self._changes = Changes()
        self._written_at_ms: dict[str, int] = {}
        cluster.wanted.idle = self._idle_topics
        self._routing = Background("routing the records of topic", self._changes.announce)
        self._asking = Background("the producer's task", self._changes.announce)

    # --- records in -----------------------------------------------------------------------------------------------

    def put(self, topic: str, record: NewRecord, size: int, partition: int | None, ticket: Any, now_ms: int) -> None:
        """Append one record of ``size`` bytes to its partition's batch, or keep it until the partition is known."""
        if topic not in self._written_at_ms:
            # An answer that was on its way when the topic was forgotten may have brought its metadata back.
            self._cluster.want_topic(topic, may_create=True)
        self._written_at_ms[topic] = now_ms
        known = self._cluster.metadata.topics.get(topic)
        chosen = self._router.route(topic, known, record.key, size, partition)
        if chosen is not None:
            self._append(TopicPartition(topic, chosen), record, size, ticket, now_ms)
            return
        self._router.wait(topic, UnroutedRecord(record, size, partition, ticket))
        self._routing.start(topic, lambda: self._route(topic))

    def _append(self, topic_partition: TopicPartition, record: NewRecord, size: int, ticket: Any, now: int) -> None:
        appended = self.core.append(topic_partition, record, size, ticket, now)
        if appended is Appended.TO_A_BATCH:
            return
        if appended is Appended.AND_FILLED_ONE or not self._settings.linger_ms:
            self._sender.wake()
        else:
            self._sender.wake_within(self._settings.linger_ms)
        if self.core.lacks_identity:
            self._asking.start("identity", self.acquire_identity)

    def _idle_topics(self) -> list[str]:
        """Forget the topics that had no record for metadata.max.idle.ms: asked for again, a broker would create one
        that was deleted meanwhile."""
        before = self._cluster.now_ms() - self._settings.metadata_max_idle_ms
        idle = [topic for topic, written_at_ms in self._written_at_ms.items() if written_at_ms < before]
        if idle:
            busy = {batch.topic_partition.topic for batch in self.core.unsettled()}
            idle = [topic for topic in idle if topic not in busy and not self._router.is_waiting(topic)]
        for topic in idle:
            del self._written_at_ms[topic]
        return idle

    @property
    def buffered_bytes(self) -> int:
        """Bytes of records that are not acknowledged yet."""
        return self.core.buffered_bytes + self._router.waiting_bytes

    async def room(self, size: int) -> None:
        """Wait until at most half of buffer.memory is in use, and a record of ``size`` bytes fits."""
        # While nothing is buffered, nothing frees memory.
        while (used := self.buffered_bytes) and max(used * 2, used + size) > self._settings.buffer_memory:
            await self._changes.wait()

    async def _route(self, topic: str) -> None:
        """Wait for a topic's metadata, then append what waits for it, in order."""
        cluster, router = self._cluster, self._router
        while router.is_waiting(topic):
            deadline = cluster.deadline(self._settings.max_block_ms)
            try:
                known = await cluster.topic(topic, deadline=deadline)
                missing = router.missing_partition(topic, known)
                if missing is not None:
                    await cluster.leader(TopicPartition(topic, missing), deadline=deadline)
                    known = cluster.metadata.topics[topic]
            except UnknownTopic as error:
                known_now = cluster.metadata.topics.get(topic)
                if known_now is None or not known_now.is_usable:
                    self._give_up(topic, router.drop(topic), error)
                    return
                # Only a partition is missing: the records behind those for it have another one.
                self._give_up(topic, router.drop_missing(topic, known_now), error)
                continue
            except KafkaError as error:
                self._fail_unrouted(topic, error)
                return
            for topic_partition, unrouted in router.routable(topic, known):
                self._append(topic_partition, unrouted.record, unrouted.size, unrouted.ticket, cluster.now_ms())

    def _fail_unrouted(self, topic: str, error: KafkaError) -> None:
        self._give_up(topic, self._router.drop(topic), error)

    def _give_up(self, topic: str, dropped: list[UnroutedRecord], error: KafkaError) -> None:
        for unrouted in dropped:
            fail(unrouted.ticket, error)
        self.not_written(topic, len(dropped), error)
        self._changes.announce()

    def not_written(self, topic: str, count: int, error: KafkaError) -> None:
        """Records that are given up: their transaction can only be aborted now, and outside one they are logged."""
        if self._transaction is not None:
            self._transaction.record_failed(error)
        elif count:
            self._unwritten.add(topic, count, error)

    async def flush(self) -> None:
        """Send everything that waits, and wait until each record sent before this call has its outcome."""
        if routing := self._routing.tasks:
            # gather() would cancel them with its caller, and nobody would route their records then.
            await asyncio.wait(routing)
        if batches := self.core.unsettled():
            flush = Flush(len(batches), asyncio.get_running_loop().create_future())
            for batch in batches:
                batch.watchers.append(flush)
            self.core.flush()
            self._sender.wake()
            await flush.done
        self._unwritten.log()

    # --- outcomes -------------------------------------------------------------------------------------------------

    def _settle(self, outcomes: Iterable[BatchOutcome]) -> None:
        self._report(outcomes)
        self._report(self.core.fail_rest(TransactionAborted()))
        if self.core.must_renew_identity:
            self._asking.start("identity", self.acquire_identity)
        self._changes.announce()

    def _report(self, outcomes: Iterable[BatchOutcome]) -> None:
        for outcome in outcomes:
            if outcome.error is not None:
                batch = outcome.batch
                self.not_written(batch.topic_partition.topic, len(batch.tickets), outcome.error)
            report(outcome)

    async def drop(self) -> None:
        """Settle every record of the transaction. What is in flight is waited for: its answer must not come later."""
        await end_tasks([*self._routing.tasks, *self._asking.tasks])
        for topic in self._router.topics:
            self._fail_unrouted(topic, TransactionAborted())
        self.fail(TransactionAborted())
        while not self.core.is_empty:
            await self._changes.wait()
            self.fail(TransactionAborted())

    def fail(self, error: KafkaError) -> None:
        """Settle what waits, and send nothing more."""
        self._settle(self.core.fail_waiting(error))

    # --- identity -------------------------------------------------------------------------------------------------

    def begin_identity(self, identity: ProducerIdAndEpoch, *, forget_error: bool = False) -> None:
        """Send under this identity from now on. ``forget_error``: the one of the transaction before."""
        if forget_error:
            self.core.forget_error()
        self._settle(self.core.begin_identity(identity))

    async def acquire_identity(self) -> None:
        """A producer id for an idempotent producer, or the next epoch after a hole in its sequences."""
        identity = self.core.next_identity()
        backoff = self._cluster.backoff()
        while identity is None:
            try:
                identity = await self._init_producer_id()
            except KafkaError as error:
                settled = self.core.identity_refused(error)
                if settled is not None:
                    self._settle(settled)
                    return
                # With a short max.block.ms it was not asked for a second time, and nothing has waited yet.
                await backoff.pause()
        self._settle(self.core.identity_granted(identity))
        self._sender.wake()

    async def _init_producer_id(self) -> ProducerIdAndEpoch:
        response = await self._cluster.call_any(
            INIT_PRODUCER_ID,
            InitProducerIdRequest(),
            deadline=self._cluster.deadline(self._settings.max_block_ms),
            error_of=error_code,
        )
        if response.error_code is not ErrorCode.none:
            raise error_for(response.error_code, "InitProducerId")
        return ProducerIdAndEpoch(ProducerId(response.producer_id), ProducerEpoch(response.producer_epoch))

    # --- what the transaction allows ------------------------------------------------------------------------------

    def wake(self) -> None:
        """Batches may be sent that could not be sent before."""
        self._sender.wake()

    def _may_write(self, topic_partition: TopicPartition) -> bool:
        if self._transaction is None or self._transaction.may_write(topic_partition):
            return True
        assert self.add_partitions is not None
        self._asking.start("partitions", self.add_partitions)
        return False

    def _versions(self) -> tuple[int, int]:
        return produce_versions(None if self._transaction is None else self._transaction.version)

    # --- end ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop at once. What is still in flight is settled by the closing connections."""
        await end_tasks([*self._routing.close(), *self._asking.close()])
        await self._sender.close()

    def fail_what_is_left(self) -> None:
        """The connections are closed: report to every sender what is known of his record."""
        for topic in self._router.topics:
            self._fail_unrouted(topic, ClientClosed())
        self._report(self.core.left_at_close())
        self._changes.announce()
        self._unwritten.log()


def _limits(settings: ProducerSettings) -> ProduceLimits:
    return ProduceLimits(
        is_idempotent=bool(settings.enable_idempotence),
        transactional_id=settings.transactional_id,
        linger_ms=settings.linger_ms,
        batch_size=settings.batch_size,
        max_request_size=settings.max_request_size,
        max_in_flight=settings.max_in_flight_requests_per_connection,
        delivery_timeout_ms=settings.delivery_timeout_ms,
        retry_backoff_ms=settings.retry_backoff_ms,
        retry_backoff_max_ms=settings.retry_backoff_max_ms,
        compression=Compression[settings.compression_type.upper()],
    )
