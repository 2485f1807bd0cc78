"""The blocking producer: the asyncio one in a thread of its own, with futures that can be waited for anywhere.

``send`` does not wait for the thread: records go through a queue and the thread is woken once for many. It blocks
only while buffer.memory is full, at most max.block.ms. The thread takes no lock: a signal handler may close the
producer in the midst of ``send``. After a fork the child has a producer and a queue of its own;
the futures of earlier records have their outcomes in the parent only.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from collections import deque
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from einmal.client.aio import producer as aio
from einmal.client.aio.producing.tickets import fail
from einmal.client.blocking.loop_thread import LoopThread
from einmal.client.config import ProducerSettings, parse
from einmal.client.cores.producer_batch import check_size, record_size
from einmal.client.errors import AbortableError, BufferExhausted, ClientClosed, KafkaError
from einmal.client.habits import missing_method
from einmal.client.prepared_txn_state import PreparedTxnState
from einmal.client.records import (
    GroupMetadata,
    HeadersLike,
    OffsetAndMetadata,
    RecordMetadata,
    bytes_of,
    check_destination,
    headers_of,
)
from einmal.types import Header, TopicPartition

_Queued = tuple[
    "Future[RecordMetadata]", str, bytes | None, bytes | None, tuple[Header, ...], int | None, int | None, int
]

_TURN_S: Final = 0.001


class Producer:
    """Takes Kafka's dotted names as a mapping, their snake_case forms as keywords, or both.

    ``with``, or ``close()``. May be used from several threads; a transaction belongs to one.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **settings: Any) -> None:
        self.settings = parse(ProducerSettings, config, settings)
        self._begin_queue()

        def make() -> aio.Producer:
            # Once per process: what was queued before a fork is sent by the parent.
            self._begin_queue()
            return aio.Producer(config, **settings)

        self._thread = LoopThread(make, "einmal-producer")
        self._at_exit = partial(_close_at_exit, weakref.ref(self))
        atexit.register(self._at_exit)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing_method(self, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        self.close(flush=error is None)

    def _begin_queue(self) -> None:
        self._queue: deque[_Queued] = deque()
        self._put_bytes = 0
        self._taken_bytes = 0
        self._lock = threading.RLock()
        """Taken by those who send."""
        self._is_woken = False
        self._has_turn = False
        self._has_ended = False
        """Nobody takes records from the queue any more."""

    def send(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        headers: HeadersLike = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Future[RecordMetadata]:
        """Queue one record; ``result()`` of the future waits for its offset.

        ``timestamp`` in ms, default now. Raises as the asyncio twin does; BufferExhausted only after max.block.ms.
        """
        producer = self._thread.client
        producer.check_send()
        check_destination(topic, partition, timestamp)
        key_bytes, value_bytes = bytes_of(key, "key"), bytes_of(value, "value")
        fixed_headers = headers_of(headers) if headers else ()
        size = record_size(key_bytes, value_bytes, fixed_headers)
        check_size(topic, size, self.settings.max_request_size, self.settings.buffer_memory)
        if producer.buffered_bytes + self._put_bytes - self._taken_bytes + size > self.settings.buffer_memory:
            self._wait_for_room(size)
        future: Future[RecordMetadata] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            self._put_bytes += size
            self._queue.append((future, topic, value_bytes, key_bytes, fixed_headers, partition, timestamp, size))
            must_wake, self._is_woken = not self._is_woken, True
        if must_wake:
            self._thread.wake(self._woken, producer)
        if self._has_ended:
            self._fail_queued()
        return future

    def _woken(self, producer: aio.Producer) -> None:
        """Inside the thread: hand over the queued records, in turns until no more arrive."""
        if not self._has_turn:
            self._take_turn(producer)

    def _take_turn(self, producer: aio.Producer) -> None:
        """At most one per millisecond: waking the thread for each record would cost more than sending it."""
        self._has_turn = self._hand_over(producer)
        if self._has_turn:
            asyncio.get_running_loop().call_later(_TURN_S, self._take_turn, producer)

    def _hand_over(self, producer: aio.Producer) -> bool:
        """Inside the thread: everything queued goes to the asyncio producer, in order. False: there was nothing."""
        queued = self._take_queued()
        if not queued:
            self._is_woken = False
            # Whoever sent before this line has not woken the thread.
            queued = self._take_queued()
            if not queued:
                return False
            self._is_woken = True
        for ticket, topic, value, key, headers, partition, timestamp, _size in queued:
            try:
                producer.send_with_ticket(ticket, topic, value, key, headers, partition, timestamp)
            except KafkaError as error:
                producer.refuse(topic, error)
                fail(ticket, error)
        # Only now: until here the records count as queued.
        self._taken_bytes += sum(record[-1] for record in queued)
        return True

    def _take_queued(self) -> list[_Queued]:
        """Take what is queued by now, and no more: others may send faster than this takes."""
        queue, queued = self._queue, []
        with suppress(IndexError):  # two take at once when the producer is closed
            for _ in range(len(queue)):
                queued.append(queue.popleft())
        return queued

    def _wait_for_room(self, size: int) -> None:
        async def wait(producer: aio.Producer) -> None:
            self._hand_over(producer)
            try:
                async with asyncio.timeout(self.settings.max_block_ms / 1000):
                    await producer.room(size)
            except TimeoutError as error:
                raise BufferExhausted(what_to_do="check that the brokers answer, or raise max.block.ms") from error

        self._thread.run(wait)

    def flush(self) -> None:
        """Wait until each record sent before this call has its outcome."""

        async def flush(producer: aio.Producer) -> None:
            self._hand_over(producer)
            await producer.flush()

        self._thread.run(flush)

    def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        """Acquire the transactional.id: fence its former owner and abort its open transaction, or keep it. Call it
        once."""
        self._thread.run(lambda producer: producer.init_transactions(keep_prepared_txn))

    def begin_transaction(self) -> None:
        """Open a transaction; every record sent from now on belongs to it."""
        self._thread.call(lambda producer: producer.begin_transaction())

    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: GroupMetadata | str
    ) -> None:
        """Commit a consumer group's positions (offset of the *next* record) with the transaction (KIP-447)."""
        self._thread.run(lambda producer: producer.send_offsets_to_transaction(offsets, group))

    def prepare_transaction(self) -> PreparedTxnState:
        """Flush; then only commit, abort or complete are possible. See the asyncio twin (KIP-939)."""

        async def prepare(producer: aio.Producer) -> PreparedTxnState:
            self._hand_over(producer)
            return await producer.prepare_transaction()

        return self._thread.run(prepare)

    def complete_transaction(self, committed: PreparedTxnState) -> None:
        """Commit the prepared transaction if it is the one that the database has committed, else abort it."""
        self._thread.run(lambda producer: _or_outcome(producer, producer.complete_transaction(committed)))

    def commit_transaction(self) -> None:
        """Flush, then commit. Raises AbortableError (abort then), ProducerFenced, or UnknownOutcome."""

        async def commit(producer: aio.Producer) -> None:
            self._hand_over(producer)
            await _or_outcome(producer, producer.commit_transaction())

        self._thread.run(commit)

    def abort_transaction(self) -> None:
        """Drop queued records, and abort."""

        async def abort(producer: aio.Producer) -> None:
            self._hand_over(producer)
            await producer.abort_transaction()

        self._thread.run(abort)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """``with producer.transaction() as txn``: commits at the end, aborts when the block raises.

        What the block has prepared stays prepared when it raises: only the database knows how it ends.
        A commit that can only be aborted is aborted, and its error raised: begin again to repeat the work.
        """
        self._thread.run(lambda producer: producer.init_transactions_once())
        self.begin_transaction()
        try:
            yield Transaction(self)
        except BaseException:
            self._abort_if_possible()
            raise
        try:
            self.commit_transaction()
        except AbortableError:
            self._abort_if_possible()
            raise

    def _abort_if_possible(self) -> None:
        async def abort(producer: aio.Producer) -> None:
            self._hand_over(producer)
            await producer.abort_if_possible()

        self._thread.run(abort)

    def close(self, *, flush: bool = True) -> None:
        """Send queued records (unless ``flush`` is False), then close. An open transaction will be aborted by the
        coordinator, one of a two-phase commit by this producer's successor."""

        async def end(producer: aio.Producer) -> None:
            self._hand_over(producer)
            await producer.close(flush=flush)

        atexit.unregister(self._at_exit)
        try:
            self._thread.close(end)
        finally:
            if self._thread.is_closed and self._thread.is_of_this_process:
                self._fail_queued()

    def _fail_queued(self) -> None:
        """The thread has ended: other threads may have queued records since."""
        self._has_ended = True
        for ticket, *_ in self._take_queued():
            fail(ticket, ClientClosed())


async def _or_outcome(producer: aio.Producer, ending: Coroutine[Any, Any, None]) -> None:
    """Await the end of a transaction. Another thread that closes the producer cancels it: the coordinator may have
    carried it out."""
    try:
        await ending
    except asyncio.CancelledError:
        if (error := producer.transaction_error) is not None:
            raise error from None
        raise


def _close_at_exit(producer: weakref.ref[Producer]) -> None:
    """Nobody has closed it: records that are still queued are lost with the process, which closing logs."""
    if (left := producer()) is not None:
        left.close(flush=False)


class Transaction:
    """An open transaction, from ``with producer.transaction()``."""

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
    ) -> Future[RecordMetadata]:
        """As ``Producer.send``."""
        return self._producer.send(topic, value, key, headers, partition, timestamp)

    def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: GroupMetadata | str
    ) -> None:
        """As ``Producer.send_offsets_to_transaction``."""
        self._producer.send_offsets_to_transaction(offsets, group)
