"""Tasks that run as long as the node does: a failed one is logged, and restarted after a pause.

A fault of the disk or of another process is a line in the log, at most one a minute for each task while it stays the
same. Anything else is a defect of ours and goes to the event loop's exception handler, which tests watch. Knows nothing
of what the tasks do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from einmal.event_log import EventLog
from einmal.log.errors import LogCorruption
from einmal.pauses import DoublingPauses
from einmal.wire.errors import WireError

log = EventLog(__name__)

_PAUSES_S: Final = DoublingPauses(0.1, 30.0)
_REPEAT_SECONDS: Final = 60.0
_EXPECTED: Final = (OSError, WireError, LogCorruption)


class Supervisor:
    def __init__(self) -> None:
        self._reported: dict[str, tuple[str, float]] = {}

    def run(self, name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """A task that calls ``work`` until it returns: again after each failure, with pauses up to half a minute."""
        return asyncio.get_running_loop().create_task(self._run(name, work), name=name)

    async def _run(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        pauses = 0
        while True:
            begun = loop.time()
            if await self.attempt(name, work):
                return
            if loop.time() - begun > _PAUSES_S.longest:
                pauses = 0
            await asyncio.sleep(_PAUSES_S.after(pauses))
            pauses += 1

    async def attempt(self, name: str, work: Callable[[], Awaitable[None]]) -> bool:
        """Call ``work`` once; False: it failed, and that is logged."""
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - the node continues after any error.
            self.report(name, error)
            return False
        return True

    def report(self, name: str, error: BaseException) -> None:
        """Log that ``name`` failed, unless the same was logged less than a minute ago."""
        loop = asyncio.get_running_loop()
        text = f"{type(error).__name__}: {error}"
        last, said_at = self._reported.get(name, ("", 0.0))
        if text == last and loop.time() - said_at < _REPEAT_SECONDS:
            return
        self._reported[name] = (text, loop.time())
        if isinstance(error, _EXPECTED):
            log.error("task_failed", "%(task)s failed: %(error)s", task=name, error=text)
        else:
            loop.call_exception_handler({"message": f"{name} failed", "exception": error})


def log_defect(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An exception handler of the event loop: one line for the operator, the traceback at level DEBUG."""
    error = context.get("exception")
    text = "no exception" if error is None else f"{type(error).__name__}: {error}"
    log.error("defect", "%(what)s: %(error)s", what=context["message"], error=text)
    log.debug("defect_traceback", "%(what)s", what=context["message"], exc_info=error)
