"""The thread of a blocking client: its calls run one after the other there, and their results come back to the loop.

``PendingSends``: the records of a producer, whose results come back in any order.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from einmal.client.errors import AbortableError, KafkaError, UnknownOutcome
from einmal.client.records import RecordMetadata

T = TypeVar("T")


class PendingSends:
    """Records of one producer that have neither an acknowledgement nor an error."""

    def __init__(self) -> None:
        self._futures: dict[asyncio.Future[RecordMetadata], None] = {}

    def add(self) -> asyncio.Future[RecordMetadata]:
        """The future of one more."""
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        self._futures[future] = None
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: asyncio.Future[RecordMetadata]) -> None:
        self._futures.pop(future, None)
        if not future.cancelled():
            future.exception()

    async def commit(self, commit: Callable[[], Awaitable[object]]) -> None:
        """Commit; then those that were sent before are done. Raises AbortableError, UnknownOutcome."""
        pending = list(self._futures)
        try:
            await commit()
        except AbortableError:
            raise
        except KafkaError as error:
            raise UnknownOutcome(detail=str(error)) from error
        await asyncio.gather(*pending)


class OwnThread:
    """``idle``: called there while there is nothing to do, and returns after a short while.

    It is a daemon: a client that never returns from a call does not keep the program from its end.
    """

    def __init__(self, translate: Callable[[Exception], Exception], idle: Callable[[], object] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._translate = translate
        self._idle = idle
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Call it there after all calls before it. The future fails with the translated error."""
        future: asyncio.Future[T] = self._loop.create_future()
        # Whoever is interested awaits it.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())

        def run() -> None:
            try:
                result = call()
            except Exception as error:  # noqa: BLE001 - every library has errors of its own, and some of Python's
                self.report(future, error=error)
            else:
                self.report(future, result)

        self._calls.put(run)
        return future

    def report(self, future: asyncio.Future[T], result: T | None = None, *, error: Exception | None = None) -> None:
        """End a future of the loop, from any thread."""

        def end() -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(self._translate(error))
            else:
                future.set_result(result)  # type: ignore[arg-type]

        # The loop may have ended before a client that takes its time.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(end)

    def end(self) -> None:
        """End the thread after the calls before."""
        self._calls.put(None)

    def _run(self) -> None:
        while True:
            try:
                call = self._calls.get_nowait() if self._idle else self._calls.get()
            except queue.Empty:
                assert self._idle is not None
                self._idle()
                continue
            if call is None:
                return
            call()
