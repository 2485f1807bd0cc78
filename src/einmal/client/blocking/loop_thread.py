"""The thread in which a blocking client's asyncio twin lives.

One thread and one event loop per client, made at the first call and once per process: after a fork the child gets its
own, because threads and connections do not survive it. Calls may come from any thread. When the interpreter ends, the
thread has stopped already: a generator that is closed then must not wait for it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Generic, Protocol, TypeVar

from einmal.client.errors import ClientClosed, InvalidState

T = TypeVar("T")


class Closable(Protocol):
    async def close(self) -> None: ...


ClientT = TypeVar("ClientT", bound=Closable)


class LoopThread(Generic[ClientT]):
    """``make`` builds the asyncio client; it runs inside the loop."""

    def __init__(self, make: Callable[[], ClientT], name: str) -> None:
        self._make = make
        self._name = name
        self._lock = threading.Lock()
        self._process_id = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: ClientT | None = None
        self._is_closed = False

    @property
    def client(self) -> ClientT:
        """The asyncio client of this process. Raises ClientClosed."""
        if self._has_ended:
            raise ClientClosed()
        if self._client is None or self._process_id != os.getpid():
            self._start()
        assert self._client is not None
        return self._client

    @property
    def _has_ended(self) -> bool:
        return self._is_closed or sys.is_finalizing()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "the client is made first"
        return self._loop

    def _start(self) -> None:
        with self._lock:
            if self._client is not None and self._process_id == os.getpid():
                return
            self._loop = _new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
            self._thread.start()
            self._process_id = os.getpid()
            self._client = asyncio.run_coroutine_threadsafe(self._make_inside(), self._loop).result()

    async def _make_inside(self) -> ClientT:
        return self._make()

    def run(self, start: Callable[[ClientT], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine of the client to its end. Interrupted, it is cancelled."""
        client = self.client
        if threading.current_thread() is self._thread:
            raise InvalidState(
                meaning="a blocking call inside the client's own thread would wait for itself",
                what_to_do="make it from another thread",
            )
        future = asyncio.run_coroutine_threadsafe(start(client), self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[ClientT], T]) -> T:
        """Run a plain function of the client inside its thread."""

        async def inside(client: ClientT) -> T:
            return function(client)

        return self.run(inside)

    def iterate(self, start: Callable[[ClientT], AsyncIterator[T]]) -> Iterator[T]:
        """Yield what an asynchronous iterator of the client yields, one by one."""
        iterator = self.call(start)
        try:
            while True:
                try:
                    yield self.run(lambda _: _next(iterator))
                except StopAsyncIteration:
                    return
        finally:
            if not self._has_ended and hasattr(iterator, "aclose"):
                self.run(lambda _: iterator.aclose())

    def close(self, end: Callable[[ClientT], Coroutine[Any, Any, None]] | None = None) -> None:
        """Close the client and end its thread. In a process that never used it there is nothing to do."""
        if self._has_ended:
            return
        try:
            if self._client is not None and self._process_id == os.getpid():
                self.run(end or (lambda client: client.close()))
        finally:
            self._is_closed = True
            self._end_thread()

    def _end_thread(self) -> None:
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or self._process_id != os.getpid():
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _next(iterator: AsyncIterator[T]) -> T:
    return await anext(iterator)


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
