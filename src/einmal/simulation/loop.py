"""An asyncio event loop on virtual time: one thread, no selector, no wall clock.

Callbacks run in the order in which they became ready; when none is, time jumps to the next timer, and timers of one
moment run in the order in which they were set. So a run is a function of the code and the seed.

Hosts are the processes of a simulated world. A host is a context variable: tasks, timers and callbacks inherit it, and
after a kill of the host none of them ever runs again, as if its process had died; during a pause, all of them wait.
Knows no network and no disk.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")
Context = contextvars.Context

EVENTS_MAX: Final = 2_000_000
"""A run with so many steps is in an endless loop."""


class Host:
    """A process: tasks in its context die and pause with it."""

    __slots__ = ("context", "held", "is_alive", "is_paused", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.is_paused = False
        self.held: list[asyncio.Handle] = []
        self.context = contextvars.copy_context()
        self.context.run(_HOST.set, self)

    def __repr__(self) -> str:
        return f"<{self.name}>"


_HOST: contextvars.ContextVar[Host | None] = contextvars.ContextVar("host", default=None)


class Stuck(Exception):
    """The simulated world makes no more progress, or never stops."""


class _Handle(asyncio.Handle):
    __slots__ = ("host",)

    def __init__(
        self, callback: Callable[..., object], args: Any, loop: SimulatedLoop, context: Context | None
    ) -> None:
        super().__init__(callback, args, loop, context)
        # The host of a callback is recorded when it is scheduled, and checked before it runs.
        self.host: Host | None = _HOST.get() if context is None else context.get(_HOST)


class _Timer(asyncio.TimerHandle):
    __slots__ = ("host",)

    def __init__(
        self, when: float, callback: Callable[..., object], args: Any, loop: SimulatedLoop, context: Context | None
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self.host: Host | None = _HOST.get() if context is None else context.get(_HOST)


class SimulatedLoop(asyncio.AbstractEventLoop):
    """The part of a loop that simulated code needs. ``on_exception`` receives uncaught exceptions."""

    def __init__(self, on_exception: Callable[[dict[str, Any]], None] | None = None) -> None:
        self._now = 0.0
        self._ready: deque[_Handle | _Timer] = deque()
        self._timers: list[tuple[float, int, _Timer]] = []
        self._counter = 0
        self._is_running = False
        self._is_stopping = False
        self._is_closed = False
        self._graveyard: list[asyncio.Task[Any]] = []
        self._on_exception = on_exception
        self.events = 0

    # --- time and order ---

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        if not self._is_closed:
            self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + max(delay, 0.0), callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        self._counter += 1
        if not self._is_closed:
            heapq.heappush(self._timers, (when, self._counter, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers stay in the heap until their time comes."""

    def run_forever(self) -> None:
        self._is_running = True
        events._set_running_loop(self)
        try:
            while not self._is_stopping:
                self._step()
        finally:
            events._set_running_loop(None)
            self._is_running = self._is_stopping = False

    def _step(self) -> None:
        ready = self._ready
        if not ready:
            self._advance()
        while ready:
            handle = ready.popleft()
            if handle.cancelled():
                continue
            host = handle.host
            if host is not None:
                if not host.is_alive:
                    continue
                if host.is_paused:
                    host.held.append(handle)
                    continue
            self.events += 1
            handle._run()
            if self._is_stopping:
                return
        if self.events > EVENTS_MAX:
            raise Stuck(f"no end after {self.events} steps, at {self._now:.3f} s")

    def _advance(self) -> None:
        timers = self._timers
        while timers:
            when, _, timer = heapq.heappop(timers)
            host = timer.host
            if timer.cancelled() or (host is not None and not host.is_alive):
                continue
            self._now = max(self._now, when)
            self._ready.append(timer)
            return
        raise Stuck(f"no event is pending, at {self._now:.3f} s")

    def run_until_complete(self, future: Any) -> Any:
        main = asyncio.ensure_future(future, loop=self)
        main.add_done_callback(lambda _: self.stop())
        self.run_forever()
        return main.result()

    def stop(self) -> None:
        self._is_stopping = True

    # --- hosts ---

    def kill(self, host: Host) -> None:
        """Kill the host: none of its code runs any more. Its coroutines are kept: collecting one would run its
        ``finally``."""
        host.is_alive = False
        host.held.clear()
        self._graveyard.extend(asyncio.all_tasks(self))

    def pause(self, host: Host) -> None:
        host.is_paused = True

    def resume(self, host: Host) -> None:
        """Continue, with everything that became ready meanwhile at once."""
        host.is_paused = False
        self._ready.extend(host.held)  # type: ignore[arg-type]
        host.held = []

    # --- the rest of an event loop ---

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """The world is over: pending callbacks are dropped."""
        self._is_closed = True
        self._ready.clear()
        self._timers.clear()

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: object = None, context: Context | None = None, **more: Any
    ) -> asyncio.Task[T]:
        return asyncio.Task(coro, loop=self, name=None if name is None else str(name), context=context, **more)

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        assert not enabled, "debug mode reads the wall clock"

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        # A dead host's tasks end with the world, not by an error.
        if self._on_exception is not None and not self._is_closed:
            self._on_exception(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    async def shutdown_asyncgens(self) -> None:
        """They are not kept."""

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        raise AssertionError("simulated code has no threads: the disk seam has in_background")
