"""The battery of sinks can fail: each of its tests catches the defect that it is for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from einmal.options.values import Options
from einmal.sinks.commit_point import SinkError
from einmal.sinks.sqlite import SQLiteSink
from tests.sinks.broken import MUTANTS, BrokenSink
from tests.sinks.hooks import SQLiteHooks

pytestmark = pytest.mark.slow


@pytest.mark.representatives(6)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_defect_is_caught_by_the_test_that_is_for_it(mutant: Any, tmp_path: Path) -> None:
    class Broken(SQLiteHooks):
        def sink(self, location: Path) -> SQLiteSink:
            options = Options({"path": location / "rows.db", "table": "words", "busyTimeout": "2s"})
            return BrokenSink(options, mutant)

    name, _, parameter = MUTANTS[mutant].partition(":")
    test = getattr(Broken(), name)
    with pytest.raises((AssertionError, pytest.fail.Exception, SinkError)):
        test(tmp_path, *([parameter] if parameter else []))
