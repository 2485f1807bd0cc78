"""What all tests share.

Property tests have no time limit per example: a busy machine is no bug. Async tests have one, and fail if anything was
reported to the exception handler of their event loop. ``tests.suite`` distributes the tests over several processes.
"""

from __future__ import annotations

import asyncio
import fcntl
import functools
import gc
import inspect
import os
import signal
import sys
import traceback
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

from tests.suite import run_directory, warm
from tests.suite.collection import NamedTests, SharedCollection
from tests.suite.deselected import is_deselected
from tests.suite.durations import DurationRecorder, Durations, file_of
from tests.suite.patience import SLOW, patient, slowness
from tests.suite.scheduler import LongestFirst, publish_spark_files, workers_for
from tests.suite.shards import Shard

settings.register_profile("einmal", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("einmal")

pytest_plugins = ("tests.spark.fixtures", "tests.suite.representatives")

SECONDS_MAX: Final = 30
"""Time limit of an async test without the marker ``time_limit``, on a quiet machine."""

_FIGURE: Final = "figure"
_STARTED: Final = Path(__file__).parent / "started"
_DURATIONS: Final = Path(__file__).parent / "durations.json"
_RUN: Final = pytest.StashKey[tuple[Path, int]]()
"""The directory of this run and its lifeline, in the process that began it."""
_FILE: Final = pytest.StashKey[Path]()
"""Whose tests run."""
_REPORTED: Final = pytest.StashKey[list[str]]()
"""What was reported to the exception handler of the loop of an async test."""


# --- one run of several processes ------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-durations", action="store_true", help="write how long each file took to durations.json")
    parser.addoption("--shard", type=Shard.parse, metavar="K/N", help="run part K of N parts that take about as long")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    sys.unraisablehook = _forget
    _keep_formatters(config)
    # Tests use no connection profile of the person who runs them.
    os.environ["EINMAL_PROFILE"] = ""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As in the background of a shell: every process that a test starts would ignore it, too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # The process that only gives out tests starts those that run them.
    if is_worker or config.getoption("dist", "no") == "no":
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_STARTED), os.environ.get("PYTHONPATH")]))
    if is_worker:
        # A test that is named, or a part of a file, is found by collecting.
        if not any("::" in each for each in config.args):
            config.pluginmanager.register(SharedCollection(run_directory.of_this_run()))
        return
    directory = config._tmp_path_factory.getbasetemp() / "run"  # type: ignore[attr-defined]
    config.stash[_RUN] = (directory, run_directory.begin(directory))
    if config.getoption("record_durations"):
        config.pluginmanager.register(DurationRecorder(_DURATIONS))


def _keep_formatters(config: pytest.Config) -> None:
    """pytest hands its handlers to each logger that does not propagate, too. A logger of PySpark gives them another
    formatter: what later tests find in ``caplog.text`` would be JSON."""
    plugin: Any = config.pluginmanager.get_plugin("logging-plugin")
    for handler in (plugin.caplog_handler, plugin.report_handler):
        handler.setFormatter = lambda _formatter: None


def _forget(_left: object) -> None:
    """A finalizer runs in any thread and under any test: what it raises is of a test that is over, such as one that
    cut the power of simulated brokers. pytest would format its traceback there, with ``ast``, whose depth Python 3.11
    counts for all threads at once: another one that parses fails with SystemError (gh-106905)."""


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the shared servers of this run, before their directory is removed."""
    warm.end()
    if _RUN not in session.config.stash:
        return
    directory, life = session.config.stash[_RUN]
    os.close(life)
    for running in directory.glob("*.running"):
        with running.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)


def pytest_xdist_auto_num_workers() -> int:
    return workers_for(os.cpu_count() or 1, is_slow=slowness() > SLOW)


def pytest_xdist_make_scheduler(config: pytest.Config) -> LongestFirst:
    return LongestFirst(config, _DURATIONS)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    shard: Shard | None = config.getoption("shard")
    # Of all files: a worker that makes the tests of one has got it.
    if shard is None or items is not session.items:
        return
    chosen = shard.of({file_of(each.nodeid) for each in items}, Durations.load(_DURATIONS))
    config.hook.pytest_deselected(items=[each for each in items if file_of(each.nodeid) not in chosen])
    items[:] = [each for each in items if file_of(each.nodeid) in chosen]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if is_deselected(collection_path, config.getoption("markexpr")) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    # Hundreds of thousands of objects are made, nearly all to stay: looking for cycles among them, again and again, is
    # a large part of the time that each worker needs before its first test.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    # A Spark context, or a command that a test has run in this process, leaves its own.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if item.path != item.session.stash.get(_FILE, None):
        item.session.stash[_FILE] = item.path
        # Objects of earlier files stay: a test that collects garbage looks through what its own file has made.
        gc.collect()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    # Before a worker reports that it has collected: then the tests are distributed.
    if "PYTEST_XDIST_WORKER" in os.environ and not isinstance(session.items, NamedTests):
        publish_spark_files(session.items)


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
        seconds = patient(marker.args[0] if marker else SECONDS_MAX)

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
