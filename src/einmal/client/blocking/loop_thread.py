"""The thread in which a blocking client's asyncio twin lives.

One thread and one event loop per client, made at the first call and once per process: after a fork the child gets its
own, because threads and connections do not survive it. Calls may come from any thread. When the interpreter ends, the
thread has stopped already (``park``): a generator that is closed then must not wait for it. Calls that are under way in
other threads when the client is closed end with ClientClosed.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, Final, Generic, Protocol, TypeVar

from einmal.client.errors import ClientClosed, InvalidState

T = TypeVar("T")

_CANCELLING_S: Final = 5.0
"""How long calls of other threads may take to end when the client is closed; then they are left behind."""

_PARKING_S: Final = 5.0
"""How long the interpreter's end waits for threads that are inside a callback of the user's."""
_SILENT_S: Final = 5.0
"""How long a daemon thread waits for the interpreter's end, before it gets an error."""


class Closable(Protocol):
    def close(self) -> Coroutine[Any, Any, None]: ...


ClientT = TypeVar("ClientT", bound=Closable)


class LoopThread(Generic[ClientT]):
    """``make`` builds the asyncio client; it runs inside the loop."""

    def __init__(self, make: Callable[[], ClientT], name: str) -> None:
        self._make = make
        self._name = name
        # A signal handler may close the client inside a call of its own thread.
        self._lock = threading.RLock()
        self._process_id = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: ClientT | None = None
        self._is_closed = False
        self._is_parked = False
        self._calls: set[Future[Any]] = set()
        """The calls that are under way."""
        self._closings: list[asyncio.Task[None]] = []
        _ALL.add(self)

    def forked(self) -> None:
        """Inside the child of a fork: a thread of the parent may have held the lock."""
        self._lock = threading.RLock()
        self._calls = set()
        self._closings = []

    @property
    def client(self) -> ClientT:
        """The asyncio client of this process. Raises ClientClosed."""
        if self._is_parked and threading.current_thread().daemon:
            time.sleep(_SILENT_S)
        if self._has_ended:
            raise ClientClosed()
        if self._client is None or self._process_id != os.getpid():
            self._start()
        assert self._client is not None
        return self._client

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def is_of_this_process(self) -> bool:
        """False: it was made before a fork, and not used since."""
        return self._process_id == os.getpid()

    @property
    def _has_ended(self) -> bool:
        return self._is_closed or self._is_parked or sys.is_finalizing()

    def wake(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function inside the thread soon, without waiting for it; none is called once the client is closed."""
        if (loop := self._loop) is not None:
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                loop.call_soon_threadsafe(function, *arguments)

    def _start(self) -> None:
        with self._lock:
            if self._client is not None and self._process_id == os.getpid():
                return
            self._client, self._thread, self._process_id = None, None, os.getpid()
            self._loop = _new_event_loop()
            try:
                self._thread = threading.Thread(target=_run_loop, args=(self._loop,), name=self._name, daemon=True)
                self._thread.start()
                self._client = run_in(self._loop, self._make_inside)
            except BaseException:
                # Wrong settings, or Ctrl-C: the next call makes another.
                self._end_thread()
                raise

    async def _make_inside(self) -> ClientT:
        return self._make()

    def run(self, start: Callable[[ClientT], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine of the client to its end. Interrupted, it is cancelled."""
        client = self.client
        self._refuse_own_thread()
        outcome: Future[T] = Future()
        self._calls.add(outcome)
        try:
            if (loop := self._loop) is None:
                raise ClientClosed()
            return run_in(loop, lambda: start(client), outcome)
        except (CancelledError, RuntimeError) as error:
            if self._has_ended and outcome.cancelled():
                raise ClientClosed() from error
            raise
        finally:
            self._calls.discard(outcome)

    def _refuse_own_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise InvalidState(
                meaning="a blocking call inside the client's own thread would wait for itself",
                what_to_do="make it from another thread",
            )

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
        self._refuse_own_thread()
        try:
            if self._client is not None and self._process_id == os.getpid():
                # Another thread may be closing it, too.
                with contextlib.suppress(ClientClosed):
                    self.run(lambda client: self._close_inside(client, end))
        finally:
            self._is_closed = True
            self._end_thread()

    async def _close_inside(self, client: ClientT, end: Callable[[ClientT], Coroutine[Any, Any, None]] | None) -> None:
        """Close the client, and wait for whoever has begun before: ending the thread would cut it short."""
        closing = asyncio.get_running_loop().create_task(client.close() if end is None else end(client))
        self._closings.append(closing)
        await asyncio.wait(self._closings)
        await closing

    def park(self) -> threading.Event | None:
        """The interpreter ends, and nobody has closed the client: its thread stops for good inside the next callback.
        uvloop's would wake after the interpreter, at a timer or an answer, and crash the process. Nothing is cancelled:
        daemon threads that use the client end as silently as all others, unless another handler waits for them: then
        with ClientClosed. Returns what is set once it has stopped; None: no thread."""
        loop, thread = self._loop, self._thread
        if loop is None or self._process_id != os.getpid() or thread is threading.current_thread():
            return None
        self._is_parked = True
        parked = threading.Event()
        self.wake(_stay, parked, self._calls)
        return parked

    def _end_thread(self) -> None:
        if self._process_id != os.getpid():
            return
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None:
            return
        try:
            if thread is not None and thread.ident is not None:
                try:
                    run_in(loop, _end_calls)
                finally:
                    loop.call_soon_threadsafe(loop.stop)
                    thread.join()
            loop.close()
        finally:
            # Nobody begins these any more.
            for call in list(self._calls):
                call.cancel()


_ALL: Final[weakref.WeakSet[LoopThread[Any]]] = weakref.WeakSet()


def _after_fork() -> None:
    for thread in list(_ALL):
        thread.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _park_all() -> None:
    """Handlers that were registered later have run: they could still use their clients."""
    parked = [event for thread in list(_ALL) if (event := thread.park()) is not None]
    until = time.monotonic() + _PARKING_S
    for event in parked:
        event.wait(max(0.0, until - time.monotonic()))


def _stay(parked: threading.Event, calls: set[Future[Any]]) -> None:
    parked.set()
    time.sleep(_SILENT_S)
    for call in list(calls):
        call.cancel()
    threading.Event().wait()


async def _end_calls() -> None:
    """Inside the thread: cancel what other threads wait for."""
    calls = asyncio.all_tasks() - {asyncio.current_task()}
    for call in calls:
        call.cancel()
    if calls:
        await asyncio.wait(calls, timeout=_CANCELLING_S)


def run_in(
    loop: asyncio.AbstractEventLoop, start: Callable[[], Coroutine[Any, Any, T]], outcome: Future[T] | None = None
) -> T:
    """Run a coroutine in a loop of another thread to its end. Interrupted, it is cancelled; so it is by cancelling
    ``outcome``, a new future.

    The coroutine is made in the loop's thread, where no signal is raised: between making it and handing it over, a
    KeyboardInterrupt would leave it behind, neither run nor cancelled.
    """
    outcome = Future() if outcome is None else outcome
    try:
        loop.call_soon_threadsafe(_begin, start, outcome)
        return outcome.result()
    except BaseException:
        outcome.cancel()
        raise


def _begin(start: Callable[[], Coroutine[Any, Any, T]], outcome: Future[T]) -> None:
    if outcome.cancelled():
        return
    loop = asyncio.get_running_loop()
    try:
        task = loop.create_task(start())
    except BaseException as error:  # noqa: BLE001 - the caller's, who waits for it
        outcome.set_exception(error)
        return
    task.add_done_callback(lambda _: _hand_over(task, outcome))
    outcome.add_done_callback(lambda _: loop.call_soon_threadsafe(task.cancel) if outcome.cancelled() else None)


def _hand_over(task: asyncio.Task[T], outcome: Future[T]) -> None:
    if task.cancelled():
        outcome.cancel()
        return
    error = task.exception()
    if not outcome.set_running_or_notify_cancel():
        return
    if error is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Until it is stopped. An event loop ends with a task that raises SystemExit, such as one that calls a callback of
    the user's: whoever waits for that task gets it, and all other calls need the loop."""
    while True:
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()
            return


async def _next(iterator: AsyncIterator[T]) -> T:
    return await anext(iterator)


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
