"""Tasks that nobody waits for, and how tasks are ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any


class Background:
    """Tasks of one kind: at most one at a time for each key. Create it inside a running event loop.

    ``what`` names the kind in error messages. ``ended`` is called after each task.
    """

    def __init__(self, what: str, ended: Callable[[], None]) -> None:
        self._what = what
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_closed = False

    def start(self, key: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a task, unless one of this key is running."""
        running = self._tasks.get(key)
        # One that is done has not seen what came since, and this may be called before its own callback runs.
        if self._is_closed or (running is not None and not running.done()):
            return
        task = self._loop.create_task(work())
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._done(key, done))

    def _done(self, key: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": f"{self._what} {key!r} failed", "exception": error})
        self._ended()

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks that are running."""
        return list(self._tasks.values())

    def close(self) -> list[asyncio.Task[None]]:
        """Start no more tasks. Returns those that are to be ended."""
        self._is_closed = True
        return self.tasks


async def end_tasks(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until each has ended, in order."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        while not task.done():
            await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled():
            task.exception()
