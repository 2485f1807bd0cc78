"""Async tests on virtual time."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Final, ParamSpec, TypeVar

from einmal.simulation.loop import SimulatedLoop

P = ParamSpec("P")
T = TypeVar("T")
SECONDS_MAX: Final = 4_000
"""Time limit of a test, in virtual time."""


class VirtualLoop(SimulatedLoop):
    """Keeps what is reported to its exception handler, except what ``is_expected`` accepts."""

    def __init__(self) -> None:
        super().__init__(self._report)
        self.reported: list[str] = []
        self.is_expected: Callable[[dict[str, Any]], bool] = lambda _context: False

    def _report(self, context: dict[str, Any]) -> None:
        if not self.is_expected(context):
            self.reported.append(f"{context.get('message')}: {context.get('exception')!r}")


def virtual_time(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Run an async function on a loop of its own; fail if anything was reported to the loop's exception handler."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        loop = VirtualLoop()  # type: ignore[abstract]

        async def bounded() -> T:
            async with asyncio.timeout(SECONDS_MAX):
                return await test(*args, **kwargs)

        try:
            result: T = loop.run_until_complete(bounded())
        finally:
            loop.close()
        assert not loop.reported, "\n".join(loop.reported)
        return result

    return run


def running_loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop), "only in a test on virtual time"
    return loop
