"""The producer on asyncio: idempotent by default, transactional with a transactional.id.

``send`` never waits: it returns a future of the record's offset. Records sent before their topic's metadata is known
wait in order. This class checks arguments; records go through an ``Outbox``, transactions through
``Transactions``, and every decision is made without I/O: in ``producer_core``, ``record_router`` and
``transaction_core``.
"""

from __future__ import annotations

import asyncio
import random as random_module
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from einmal.client.aio.done import DONE, DoneAtOnce
from einmal.client.aio.network.cluster import Cluster
from einmal.client.aio.producing.outbox import Outbox
from einmal.client.aio.producing.transaction_requests import TransactionRequests
from einmal.client.aio.producing.transactions import Transactions
from einmal.client.config import ProducerSettings, parse
from einmal.client.cores.partitioner import Partitioner
from einmal.client.cores.producer_batch import check_size, record_size
from einmal.client.cores.record_router import RecordRouter
from einmal.client.cores.transaction_core import TransactionCore, TxnPhase
from einmal.client.errors import AbortableError, BufferExhausted, ClientClosed, InvalidState, KafkaError
from einmal.client.habits import missing_method
from einmal.client.prepared_txn_state import PreparedTxnState
from einmal.client.records import (
    GroupMetadata,
    HeadersLike,
    OffsetAndMetadata,
    RecordMetadata,
    bytes_of,
    check_destination,
    group_of,
    headers_of,
    positions_of,
)
from einmal.seams import Clock, Network, SystemClock, TcpNetwork
from einmal.types import TopicPartition
from einmal.wire.record_batch import NewRecord


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
        self._transaction: TransactionCore | None = None
        if self.settings.transactional_id is not None:
            self._transaction = TransactionCore(
                self.settings.transactional_id,
                has_two_phase_commit=self.settings.transaction_two_phase_commit_enable,
            )
        router = RecordRouter(Partitioner(source, self.settings.batch_size))
        self._outbox = Outbox(self.settings, self._cluster, router, self._transaction)
        self._transactions: Transactions | None = None
        if self._transaction is not None:
            requests = TransactionRequests(
                self._cluster,
                self._transaction.transactional_id,
                timeout_ms=self.settings.transaction_timeout_ms,
                max_block_ms=self.settings.max_block_ms,
                has_two_phase_commit=self.settings.transaction_two_phase_commit_enable,
            )
            self._transactions = Transactions(self._transaction, requests, self._outbox)
            self._outbox.add_partitions = self._transactions.add_partitions
        self._loop = asyncio.get_running_loop()
        self._is_closed = False

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
        """Queue one record; the future returns its offset once it is acknowledged.

        ``timestamp`` in ms, default now. Raises BufferExhausted, RecordTooLarge, InvalidState or the error after
        which this producer, or its transaction, cannot continue. The future fails with the record's own error.
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
        check_destination(topic, partition, timestamp)
        key_bytes = key if isinstance(key, bytes) else bytes_of(key, "key")
        value_bytes = value if isinstance(value, bytes) else bytes_of(value, "value")
        fixed_headers = headers_of(headers) if headers else ()
        size = record_size(key_bytes, value_bytes, fixed_headers)
        check_size(topic, size, self.settings.max_request_size, self.settings.buffer_memory)
        if self._outbox.buffered_bytes + size > self.settings.buffer_memory:
            raise BufferExhausted()
        now = self._clock.now()
        record = NewRecord(key_bytes, value_bytes, now.wall_ms if timestamp is None else timestamp, fixed_headers)
        self._outbox.put(topic, record, size, partition, ticket, now.monotonic_ms)

    def check_send(self) -> None:
        """Raises what ``send`` would raise now: ClientClosed, InvalidState, or the error of the transaction."""
        if self._is_closed:
            raise ClientClosed()
        if self._transaction is not None:
            self._transaction.check_send()

    @property
    def buffered_bytes(self) -> int:
        """Bytes of records that are not acknowledged yet."""
        return self._outbox.buffered_bytes

    async def room(self, size: int = 0) -> None:
        """Wait until at most half of buffer.memory is in use, and a record of ``size`` bytes fits.

        For loops that send faster than the broker accepts.
        """
        await self._outbox.room(size)

    def refuse(self, topic: str, error: KafkaError) -> None:
        """A record that its sender believes to be sent is not: an open transaction can only be aborted now."""
        self._outbox.not_written(topic, 1, error)

    async def flush(self) -> None:
        """Send all queued records, and wait until each record sent before this call has its outcome."""
        await self._outbox.flush()

    # --- transactions ---------------------------------------------------------------------------------------------

    async def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        """Acquire the transactional.id: fence its former owner and abort its open transaction. Call it once.

        ``keep_prepared_txn``: keep that transaction for this producer instead, which can only commit, abort or complete
        it then (KIP-939). May be called again after a timeout (max.block.ms).
        """
        await self._transactional().initialize(keeps_prepared=keep_prepared_txn)

    def begin_transaction(self) -> DoneAtOnce:
        """Open a transaction; every record sent from now on belongs to it."""
        self._transactional().begin(self._cluster.transaction_version)
        return DONE

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: GroupMetadata | str
    ) -> None:
        """Commit a consumer group's positions with the transaction.

        An offset is that of the *next* record to read. ``group``: ``consumer.group_metadata()``, so that the
        coordinator can refuse a member that was replaced (KIP-447).
        """
        await self._transactional().send_offsets(positions_of(offsets), group_of(group))

    async def prepare_transaction(self) -> PreparedTxnState:
        """Flush; then only ``commit_transaction``, ``abort_transaction`` or ``complete_transaction`` are possible.

        Commit the state in the database, with the database's part of the transaction. The brokers keep the transaction
        until it is ended, however long that takes; it holds back readers (read_committed) meanwhile. Raises
        AbortableError. Needs transaction.two.phase.commit.enable.
        """
        return await self._transactional().prepare()

    async def complete_transaction(self, committed: PreparedTxnState) -> None:
        """Commit the prepared transaction if it is the one that the database has committed, else abort it.

        After ``init_transactions(keep_prepared_txn=True)`` also where there was none to keep: then nothing is done.
        """
        await self._transactional().complete(committed)

    async def commit_transaction(self) -> None:
        """Flush, then commit. Returns once the coordinator has decided for good.

        Raises AbortableError (call ``abort_transaction``), ProducerFenced, or UnknownOutcome.
        """
        await self._transactional().commit()

    async def abort_transaction(self) -> None:
        """Drop queued records, and abort. Afterwards a new transaction can begin, unless this producer is fenced."""
        await self._transactional().abort()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """``async with producer.transaction() as txn``: commits at the end, aborts when the block raises.

        What the block has prepared stays prepared when it raises: only the database knows how it ends.
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

    @property
    def transaction_error(self) -> KafkaError | None:
        """Error that the transaction keeps, such as UnknownOutcome of a cancelled commit."""
        return None if self._transaction is None else self._transaction.error

    async def init_transactions_once(self) -> None:
        """``init_transactions`` unless that was done."""
        await self._transactional().initialize_once()

    async def abort_if_possible(self) -> None:
        """Abort an open transaction, but not a prepared one, which a database may have committed; when the producer is
        fenced or fatally broken there is nothing to abort."""
        core = self._transaction
        if core is not None and core.may_abort and core.state is not TxnPhase.PREPARED:
            await self.abort_transaction()

    def _transactional(self) -> Transactions:
        if self._is_closed:
            raise ClientClosed()
        if self._transactions is None:
            raise InvalidState(meaning="this producer has no transactions", what_to_do="set transactional.id")
        return self._transactions

    # --- end ------------------------------------------------------------------------------------------------------

    async def close(self, *, flush: bool = True) -> None:
        """Send queued records (unless ``flush`` is False), then close. An open transaction will be aborted by the
        coordinator, one of a two-phase commit by this producer's successor."""
        if self._is_closed:
            return
        if flush and (self._transaction is None or self._transaction.state is TxnPhase.IN_TRANSACTION):
            await self.flush()
        self._is_closed = True
        await self._outbox.close()
        await self._cluster.close()
        self._outbox.fail_what_is_left()


class Transaction:
    """An open transaction, from ``async with producer.transaction()``."""

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
