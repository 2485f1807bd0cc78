"""A worker imports the test files whose tests it runs; the first one collects all files, for the others, too.

xdist has the same list of tests in every worker, and to make it takes 15 seconds of processor time: the imports of
hundreds of files, and thousands of tests with their fixtures. So the worker that comes first publishes the names. The
others wait for them, and make the tests of a file when they get the first of them.
"""

from __future__ import annotations

import fcntl
import gc
import json
import warnings
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.suite.durations import file_of

_NAMES: Final = "tests.json"


@dataclass(frozen=True, slots=True)
class _Named:
    """A test that another worker has collected."""

    nodeid: str


class NamedTests(list[Any]):
    """Tests by their names: an index makes the test, with all others of its file."""

    def __init__(self, names: Iterable[str], make: Callable[[str], dict[str, pytest.Item]]) -> None:
        super().__init__(map(_Named, names))
        self._make = make
        self._made: dict[str, dict[str, pytest.Item]] = {}

    def __getitem__(self, index: Any) -> Any:
        name = super().__getitem__(index).nodeid
        file = file_of(name)
        if file not in self._made:
            self._made[file] = self._make(file)
        assert name in self._made[file], f"{name}: collected by another worker, and not by this one"
        return self._made[file][name]


class SharedCollection:
    """The plugin of a worker of a run with this directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._names: list[str] | None = None
        self._modules: dict[str, pytest.Module] = {}
        self._is_making = False

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self, session: pytest.Session) -> Generator[None, object, object]:
        published = self._directory / _NAMES
        with (self._directory / f"{_NAMES}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not published.exists():
                result = yield
                # Where a file cannot be imported, each worker reports it.
                if not session.testsfailed:
                    whole = published.with_suffix(".part")
                    whole.write_text(json.dumps([each.nodeid for each in session.items]))
                    whole.rename(published)
                return result
        self._names = json.loads(published.read_text())
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> pytest.CollectReport | None:
        if self._names is None or self._is_making or not isinstance(collector, pytest.Module):
            return None
        self._modules[collector.nodeid] = collector
        return pytest.CollectReport(collector.nodeid, "passed", None, [])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, items: list[pytest.Item]
    ) -> Generator[None, object, object]:
        result = yield
        if self._names is not None and not self._is_making:
            session.items = NamedTests(self._names, lambda file: self._tests_of(session, file))
            items[:] = session.items
        return result

    def _tests_of(self, session: pytest.Session, file: str) -> dict[str, pytest.Item]:
        # As in the collection of all tests: no search for cycles, and none later in what stays.
        gc.collect()
        gc.disable()
        self._is_making = True
        try:
            # The worker that has collected has looked at them.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                items = list(session.genitems(self._modules[file]))
                session.config.hook.pytest_collection_modifyitems(session=session, config=session.config, items=items)
        finally:
            self._is_making = False
            gc.freeze()
            gc.enable()
        return {each.nodeid: each for each in items}
