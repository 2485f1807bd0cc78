"""The producer on asyncio: idempotent by default, transactional with a transactional.id.

``send`` never waits: it gives a future of the record's place in the log. What is sent before a topic's metadata is
known waits in order. Everything that decides is in ``producer_core`` and ``transaction_core``; this file moves values
between them, the cluster and the caller's futures.
"""

from __future__ import annotations

import asyncio
import random as random_module
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Self

from einmal.client.aio.cluster import Cluster, end_tasks
from einmal.client.aio.done import DONE, Done
from einmal.client.aio.sender import Sender
from einmal.client.aio.transaction_requests import PRODUCE_TV_2, TransactionRequests
from einmal.client.apis import SPOKEN, ApiKey
from einmal.client.config import ProducerSettings, parse
from einmal.client.errors import (
    AbortableError,
    BufferExhausted,
    ClientClosed,
    InvalidState,
    KafkaError,
    LocalError,
    RetriableError,
    TransactionAborted,
    UnknownOutcome,
    error_for,
)
from einmal.client.habits import missing_method
from einmal.client.partitioner import Partitioner
from einmal.client.producer_core import (
    Appended,
    BatchState,
    Outcome,
    ProduceLimits,
    ProducerCore,
    check_size,
    record_size,
)
from einmal.client.records import (
    GroupMetadata,
    HeadersLike,
    OffsetAndMetadata,
    RecordMetadata,
    bytes_of,
    check_place,
    headers_of,
)
from einmal.client.transaction_core import State, TransactionCore, as_abortable
from einmal.seams import Clock, Network, SystemClock, TcpNetwork
from einmal.types import ErrorCode, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition, TransactionVersion
from einmal.wire.compression import Compression
from einmal.wire.record_batch import NewRecord

_PRODUCE_VERSIONS: Final = SPOKEN[ApiKey.PRODUCE]


class _Unrouted(NamedTuple):
    """A record whose partition is not known yet."""

    record: NewRecord
    size: int
    partition: int | None
    ticket: Any


@dataclass(slots=True, eq=False)
class _Flush:
    remaining: int
    done: asyncio.Future[None]


class Producer:
    """Create it inside a running event loop; ``async with``, or ``await close()``.

    Takes Kafka's dotted names as a mapping, their snake_case forms as keywords, or both.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        network: Network | None = None,
        clock: Clock | None = None,
        random: random_module.Random | None = None,
        **settings: Any,
    ) -> None:
        self.settings = parse(ProducerSettings, config, settings)
        source = random or random_module.Random()
        self._clock = clock or SystemClock()
        self._cluster = Cluster(self.settings, network=network or TcpNetwork(), clock=self._clock, source=source)
        self._core = ProducerCore(_limits(self.settings))
        self._partitioner = Partitioner(source, self.settings.batch_size)
        self._sender = Sender(
            self._core,
            self._cluster,
            acks={"all": -1, "1": 1, "0": 0}[self.settings.acks],
            settle=self._settle,
            may_write=self._may_write,
            versions=self._versions,
        )
        self._unrouted: dict[str, deque[_Unrouted]] = {}
        self._unrouted_bytes = 0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._transaction: TransactionCore | None = None
        self._requests: TransactionRequests | None = None
        if self.settings.transactional_id is not None:
            self._transaction = TransactionCore(self.settings.transactional_id)
            self._requests = TransactionRequests(
                self._cluster,
                self.settings.transactional_id,
                timeout_ms=self.settings.transaction_timeout_ms,
                max_block_ms=self.settings.max_block_ms,
            )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing_method(self, name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close(flush=error is None)

    # --- send -----------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        headers: HeadersLike = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Queue one record; the future gives its place in the log once it is acknowledged.

        ``timestamp`` in ms, default now. Raises BufferExhausted, RecordTooLarge, InvalidState or the error after
        which this producer, or its transaction, cannot go on. The future fails with what became of the record.
        """
        future: asyncio.Future[RecordMetadata] = self._loop.create_future()
        self.send_with_ticket(future, topic, value, key, headers, partition, timestamp)
        return future

    def send_with_ticket(
        self,
        ticket: Any,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None,
        headers: HeadersLike,
        partition: int | None,
        timestamp: int | None,
    ) -> None:
        """As ``send``, for a future of the caller's own kind (it needs done, set_result and set_exception)."""
        self.check_send()
        check_place(topic, partition, timestamp)
        key_bytes = key if isinstance(key, bytes) else bytes_of(key, "key")
        value_bytes = value if isinstance(value, bytes) else bytes_of(value, "value")
        fixed_headers = headers_of(headers) if headers else ()
        size = record_size(key_bytes, value_bytes, fixed_headers)
        check_size(size, self.settings.max_request_size)
        if self.buffered_bytes + size > self.settings.buffer_memory:
            raise BufferExhausted()
        now = self._clock.now()
        record = NewRecord(key_bytes, value_bytes, now.wall_ms if timestamp is None else timestamp, fixed_headers)
        known = self._cluster.metadata.topics.get(topic)
        if known is None or topic in self._unrouted or not known.is_usable:
            self._route_later(topic, _Unrouted(record, size, partition, ticket))
            return
        if partition is None:
            partition = self._partitioner.partition(topic, key_bytes, size, len(known.partitions))
        elif partition not in known.partitions:
            self._route_later(topic, _Unrouted(record, size, partition, ticket))
            return
        self._append(TopicPartition(topic, partition), record, size, ticket, now.monotonic_ms)

    def check_send(self) -> None:
        """Raises what ``send`` would raise now: ClientClosed, InvalidState, or the error of the transaction."""
        if self._is_closed:
            raise ClientClosed()
        if self._transaction is not None:
            self._transaction.check_send()

    def _append(self, topic_partition: TopicPartition, record: NewRecord, size: int, ticket: Any, now: int) -> None:
        appended = self._core.append(topic_partition, record, size, ticket, now)
        if appended is Appended.TO_A_BATCH:
            return
        if appended is Appended.AND_FILLED_ONE or not self.settings.linger_ms:
            self._sender.wake()
        else:
            self._sender.wake_within(self.settings.linger_ms)
        if self._transaction is None and self.settings.enable_idempotence and self._core.identity.producer_id < 0:
            self._in_background("identity", self._acquire_identity)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of records that are not acknowledged yet."""
        return self._core.buffered_bytes + self._unrouted_bytes

    async def room(self, size: int = 0) -> None:
        """Wait until at most half of buffer.memory is in use, and a record of ``size`` bytes fits.

        For loops that send faster than the broker takes.
        """
        # Where nothing is buffered nothing will make more room.
        while (used := self.buffered_bytes) and max(used * 2, used + size) > self.settings.buffer_memory:
            await self._change()

    def spoil(self, error: KafkaError) -> None:
        """A record that its sender believes to be in the open transaction is not: that can only be aborted now."""
        if self._transaction is not None:
            self._transaction.record_failed(error)

    def _route_later(self, topic: str, unrouted: _Unrouted) -> None:
        self._unrouted.setdefault(topic, deque()).append(unrouted)
        self._unrouted_bytes += unrouted.size
        self._in_background(f"topic {topic}", lambda: self._route(topic))

    async def _route(self, topic: str) -> None:
        """Wait for a topic's metadata, then append what waits for it, in order."""
        queue = self._unrouted[topic]
        while queue:
            deadline = self._cluster.deadline(self.settings.max_block_ms)
            try:
                known = await self._cluster.topic(topic, deadline=deadline)
                wanted = queue[0].partition
                if wanted is not None and wanted not in known.partitions:
                    await self._cluster.leader(TopicPartition(topic, wanted), deadline=deadline)
                    known = self._cluster.metadata.topics[topic]
            except KafkaError as error:
                self._fail_unrouted(topic, error)
                return
            while queue and (queue[0].partition is None or queue[0].partition in known.partitions):
                each = queue.popleft()
                self._unrouted_bytes -= each.size
                partition = each.partition
                if partition is None:
                    count = len(known.partitions)
                    partition = self._partitioner.partition(topic, each.record.key, each.size, count)
                now = self._cluster.now_ms()
                self._append(TopicPartition(topic, partition), each.record, each.size, each.ticket, now)
        del self._unrouted[topic]

    def _fail_unrouted(self, topic: str, error: KafkaError) -> None:
        for each in self._unrouted.pop(topic, ()):
            self._unrouted_bytes -= each.size
            _fail_ticket(each.ticket, error, is_silent=self._transaction is not None)
        if self._transaction is not None:
            self._transaction.record_failed(error)
        self._changed()

    async def flush(self) -> None:
        """Send everything that waits, and wait until each record sent before this call has its outcome."""
        if routing := [task for name, task in self._tasks.items() if name.startswith("topic ")]:
            await asyncio.gather(*routing, return_exceptions=True)
        batches = self._core.unsettled()
        if not batches:
            return
        flush = _Flush(len(batches), self._loop.create_future())
        for batch in batches:
            batch.watchers.append(flush)
        self._core.flush()
        self._sender.wake()
        await flush.done

    # --- outcomes -------------------------------------------------------------------------------------------------

    def _settle(self, outcomes: Iterable[Outcome]) -> None:
        self._report(outcomes)
        if self._core.error is not None and self._transaction is not None:
            # Nothing of the transaction is sent any more: whoever flushes must not wait for what is left of it.
            self._report(self._core.fail_waiting(TransactionAborted()))
        if self._core.error is not None and not self._core.in_flight and self._transaction is None:
            self._in_background("identity", self._acquire_identity)
        self._changed()

    def _report(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            batch, error = outcome.batch, outcome.error
            if error is None:
                self._resolve(outcome)
            else:
                if self._transaction is not None:
                    self._transaction.record_failed(error)
                for ticket in batch.tickets:
                    _fail_ticket(ticket, error, is_silent=self._transaction is not None)
            for flush in batch.watchers:
                flush.remaining -= 1
                if not flush.remaining and not flush.done.done():
                    flush.done.set_result(None)

    def _resolve(self, outcome: Outcome) -> None:
        (topic, partition), batch = outcome.batch.topic_partition, outcome.batch
        offset, append_time = outcome.base_offset, outcome.log_append_time
        for record, ticket in zip(batch.records, batch.tickets, strict=True):
            if not ticket.done():
                timestamp = record.timestamp if append_time < 0 else append_time
                ticket.set_result(RecordMetadata(topic, partition, offset, timestamp))
            if offset >= 0:
                offset += 1

    def _changed(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    async def _change(self) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    async def _acquire_identity(self) -> None:
        """A producer id for an idempotent producer, or the next epoch after a hole in its sequences."""
        core = self._core
        identity = core.next_identity() if core.identity.producer_id >= 0 else None
        backoff = self._cluster.backoff()
        while identity is None:
            fields = {"transactional_id": None, "producer_id": -1, "producer_epoch": -1}
            try:
                response = await self._cluster.call_any(
                    ApiKey.INIT_PRODUCER_ID,
                    fields,
                    deadline=self._cluster.deadline(self.settings.max_block_ms),
                    error_of=lambda told: told.error_code,
                )
            except (RetriableError, UnknownOutcome):
                # Records expire by delivery.timeout.ms while there is no identity. With a short max.block.ms it was
                # not asked for a second time, and nothing has waited yet.
                await backoff.pause()
                continue
            except KafkaError as error:
                # A broker without InitProducerId refuses before anything is sent: asking again would never end.
                self._settle(core.fail_waiting(error))
                return
            if response.error_code is not ErrorCode.none:
                self._settle(core.fail_waiting(error_for(response.error_code, "InitProducerId")))
                return
            identity = ProducerIdAndEpoch(ProducerId(response.producer_id), ProducerEpoch(response.producer_epoch))
        if not core.in_flight:
            self._settle(core.begin_identity(identity))
        self._sender.wake()

    # --- transactions ---------------------------------------------------------------------------------------------

    async def init_transactions(self) -> None:
        """Take over the transactional.id: fence its former owner and abort what that left open. Call it once.

        May be called again when it ran out of time (max.block.ms).
        """
        transaction, requests = self._transactional()
        transaction.begin_initialization()
        try:
            identity = await requests.init_producer_id()
        except KafkaError as error:
            transaction.failed(error)
            raise
        except asyncio.CancelledError:
            transaction.failed(UnknownOutcome(detail="init_transactions() was cancelled"))
            raise
        transaction.initialized(identity)
        self._settle(self._core.begin_identity(identity))

    def begin_transaction(self) -> Done:
        """Open a transaction; every record sent from now on belongs to it."""
        transaction, _requests = self._transactional()
        is_tv_2 = self._cluster.transaction_version >= TransactionVersion.TV_2
        transaction.begin(TransactionVersion.TV_2 if is_tv_2 else TransactionVersion.TV_1)
        return DONE

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: GroupMetadata | str
    ) -> None:
        """Commit a consumer group's positions with the transaction.

        An offset is that of the *next* record to read. ``group``: ``consumer.group_metadata()``, so that the
        coordinator can refuse a member that was replaced (KIP-447).
        """
        transaction, requests = self._transactional()
        transaction.check_send()
        metadata = GroupMetadata(group) if isinstance(group, str) else group
        positions = {
            TopicPartition(*each): OffsetAndMetadata(offset) if isinstance(offset, int) else offset
            for each, offset in offsets.items()
        }
        if not positions:
            return
        try:
            if transaction.must_add_group(metadata.group_id):
                await requests.add_offsets(transaction.identity, metadata.group_id)
                transaction.group_added(metadata.group_id)
            await requests.commit_offsets(transaction.identity, transaction.version, metadata, positions)
        except LocalError:
            raise
        except KafkaError as error:
            _spoil(transaction, as_abortable(error), error)

    async def commit_transaction(self) -> None:
        """Flush, then commit. Returns once the coordinator has decided for good.

        Raises AbortableError (call ``abort_transaction``), ProducerFenced, or UnknownOutcome.
        """
        transaction, requests = self._transactional()
        transaction.begin_commit()
        try:
            await self.flush()
            if transaction.is_spoiled:
                assert transaction.error is not None
                raise transaction.error
            following = None
            if transaction.has_begun:
                following = await requests.end_txn(transaction.identity, transaction.version, committed=True)
        except KafkaError as error:
            failure = error if isinstance(error, UnknownOutcome) else as_abortable(error)
            _spoil(transaction, failure, error)
        except asyncio.CancelledError:
            transaction.failed(UnknownOutcome(detail="commit_transaction() was cancelled"))
            raise
        transaction.ended(following)
        self._settle(self._core.begin_identity(transaction.identity))

    async def abort_transaction(self) -> None:
        """Drop what waits, and abort. Afterwards a new transaction can begin, unless this producer is fenced."""
        transaction, requests = self._transactional()
        transaction.begin_abort()
        try:
            await self._drop_waiting()
            following = await self._end_by_abort(transaction, requests)
        except KafkaError as error:
            _spoil(transaction, as_abortable(error), error)
        except asyncio.CancelledError:
            transaction.failed(TransactionAborted(detail="abort_transaction() was cancelled"))
            raise
        transaction.ended(following)
        self._core.forget_error()
        self._settle(self._core.begin_identity(transaction.identity))

    async def _drop_waiting(self) -> None:
        """Settle every record of the transaction. What is in flight is waited for: its answer must not come later."""
        routing = {name: task for name, task in self._tasks.items() if name.startswith(("topic ", "partitions"))}
        await end_tasks(list(routing.values()))
        for topic in list(self._unrouted):
            self._fail_unrouted(topic, TransactionAborted())
        self._settle(self._core.fail_waiting(TransactionAborted()))
        while not self._core.is_empty:
            await self._change()
            self._settle(self._core.fail_waiting(TransactionAborted()))

    @staticmethod
    async def _end_by_abort(transaction: TransactionCore, requests: TransactionRequests) -> ProducerIdAndEpoch | None:
        following = None
        if transaction.has_begun:
            try:
                following = await requests.end_txn(transaction.identity, transaction.version, committed=False)
            except AbortableError as error:
                # Below TV_2 the coordinator refuses to abort a transaction of which it never heard.
                if not (transaction.needs_new_epoch and error.code is ErrorCode.invalid_txn_state):
                    raise
            if transaction.needs_new_epoch:
                following = await requests.init_producer_id(transaction.identity)
        return following

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """``async with producer.transaction() as txn``: commits at the end, aborts when the block raises.

        A commit that can only be aborted is aborted, and its error raised: begin again to repeat the work.
        """
        await self.init_transactions_once()
        self.begin_transaction()
        try:
            yield Transaction(self)
        except BaseException:
            await self.abort_if_possible()
            raise
        try:
            await self.commit_transaction()
        except AbortableError:
            await self.abort_if_possible()
            raise

    async def init_transactions_once(self) -> None:
        """``init_transactions`` unless that was done."""
        transaction, _requests = self._transactional()
        if transaction.state is State.UNINITIALIZED:
            await self.init_transactions()

    async def abort_if_possible(self) -> None:
        """Abort an open transaction; when the producer is fenced or fatally broken there is nothing to abort."""
        assert self._transaction is not None
        if self._transaction.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
            await self.abort_transaction()

    def _transactional(self) -> tuple[TransactionCore, TransactionRequests]:
        if self._is_closed:
            raise ClientClosed()
        if self._transaction is None or self._requests is None:
            raise InvalidState(meaning="this producer has no transactions", what_to_do="set transactional.id")
        return self._transaction, self._requests

    def _may_write(self, topic_partition: TopicPartition) -> bool:
        if self._transaction is None or self._transaction.may_write(topic_partition):
            return True
        self._in_background("partitions", self._add_partitions)
        return False

    async def _add_partitions(self) -> None:
        transaction, requests = self._transactional()
        while partitions := transaction.partitions_to_add():
            try:
                await requests.add_partitions(transaction.identity, partitions)
            except KafkaError as error:
                transaction.failed(as_abortable(error))
                self._settle(self._core.fail_waiting(error))
                return
            transaction.added(partitions)
        self._sender.wake()

    def _versions(self) -> tuple[int, int]:
        """Produce 12 and later mean TV_2 to a broker."""
        lowest, highest = _PRODUCE_VERSIONS
        if self._transaction is None:
            return lowest, highest
        if self._transaction.version >= TransactionVersion.TV_2:
            return PRODUCE_TV_2, highest
        return lowest, PRODUCE_TV_2 - 1

    # --- tasks and the end ----------------------------------------------------------------------------------------

    def _in_background(self, name: str, start: Callable[[], Any]) -> None:
        """Run one task of this name at a time."""
        running = self._tasks.get(name)
        # One that is done has not looked at what came since, and may be told of it before its own callback runs.
        if self._is_closed or (running is not None and not running.done()):
            return
        task = self._loop.create_task(start())
        self._tasks[name] = task
        task.add_done_callback(lambda done: self._background_done(name, done))

    def _background_done(self, name: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": f"producer task {name!r} failed", "exception": error})
        self._changed()

    async def close(self, *, flush: bool = True) -> None:
        """Send what waits (unless ``flush`` is False), then close. An open transaction is left to be aborted."""
        if self._is_closed:
            return
        if flush and (self._transaction is None or self._transaction.state is State.IN_TRANSACTION):
            await self.flush()
        self._is_closed = True
        await end_tasks(list(self._tasks.values()))
        await self._sender.close()
        await self._cluster.close()
        for topic in list(self._unrouted):
            self._fail_unrouted(topic, ClientClosed())
        for batch in self._core.unsettled():
            error: KafkaError = ClientClosed()
            if batch.is_outcome_unknown or batch.state is BatchState.IN_FLIGHT:
                error = UnknownOutcome(detail=f"{batch.topic_partition}: the producer was closed")
            for ticket in batch.tickets:
                _fail_ticket(ticket, error, is_silent=True)
            for watcher in batch.watchers:
                if not watcher.done.done():
                    watcher.done.set_result(None)


class Transaction:
    """An open transaction: what ``async with producer.transaction()`` gives."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def send(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        headers: HeadersLike = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """As ``Producer.send``."""
        return self._producer.send(topic, value, key, headers, partition, timestamp)

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: GroupMetadata | str
    ) -> None:
        """As ``Producer.send_offsets_to_transaction``."""
        await self._producer.send_offsets_to_transaction(offsets, group)


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


def _spoil(transaction: TransactionCore, failure: KafkaError, cause: KafkaError) -> NoReturn:
    """What is raised is what the transaction keeps, so that its type says what to do next."""
    transaction.failed(failure)
    raise failure from (None if failure is cause else cause)


def _fail_ticket(ticket: Any, error: KafkaError, *, is_silent: bool) -> None:
    """``is_silent``: the error is reported elsewhere (by the commit), so nobody has to ask this future."""
    if not ticket.done():
        ticket.set_exception(error)
        if is_silent:
            ticket.exception()
