"""What all tests share.

Property tests have no time limit per example: a busy machine is no bug. Async tests have one, and fail if anything was
reported to the exception handler of their event loop. Where several processes share the tests, slow ones start first.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import traceback
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("einmal", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("einmal")

SECONDS_MAX: Final = 30
"""Time limit of an async test without the marker ``time_limit``."""

_FIGURE: Final = "figure"
_STARTED: Final = Path(__file__).parent / "started"
_REPORTED: Final = pytest.StashKey[list[str]]()
"""What was reported to the exception handler of the loop of an async test."""


def pytest_configure(config: pytest.Config) -> None:
    # The process that only gives out tests starts those that run them.
    if hasattr(config, "workerinput") or config.getoption("dist", "no") == "no":
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_STARTED), os.environ.get("PYTHONPATH")]))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Call it with a result that the summary of the run shows."""
    return functools.partial(record_property, _FIGURE)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            for name, value in report.user_properties:
                if name == _FIGURE:
                    terminalreporter.write_line(f"{report.nodeid}: {value}")


# --- async tests -----------------------------------------------------------------------------------------------------


@pytest.fixture
async def reported_exceptions(request: pytest.FixtureRequest) -> list[str]:
    """Exceptions that nobody caught in the loop of this test."""
    reported = request.node.stash[_REPORTED] = list[str]()

    def report(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        reported.append(context["message"] + "".join(traceback.format_exception(error) if error else ()))

    asyncio.get_running_loop().set_exception_handler(report)
    return reported


@pytest.fixture(autouse=True)
def _reported_in_async_tests(request: pytest.FixtureRequest) -> None:
    if inspect.iscoroutinefunction(request.function):
        request.getfixturevalue("reported_exceptions")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(test := item.obj):
        marker = item.get_closest_marker("time_limit")
        seconds = marker.args[0] if marker else SECONDS_MAX

        @functools.wraps(test)
        async def bounded(**arguments: Any) -> None:
            async with asyncio.timeout(seconds):
                await test(**arguments)

        item.obj = bounded
    yield
    _fail_if_reported(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    # The loop cancels remaining tasks when it is closed, which may fail, too.
    yield
    _fail_if_reported(item)


def _fail_if_reported(item: pytest.Item) -> None:
    reported = item.stash.get(_REPORTED, [])
    message = "\n".join(reported)
    reported.clear()
    assert not message, message
