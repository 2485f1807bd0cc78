"""A database file that was put back while its pipeline runs: the run does not continue above it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from einmal.spark.errors import PipelineRefused
from einmal.testing.targets.driving import RunUnderTest
from tests.spark.targets.hooks import DuckDBHooks, OwnHooks, SQLiteHooks


@pytest.mark.parametrize("hooks", [SQLiteHooks(), DuckDBHooks()], ids=lambda hooks: hooks.kind)
def test_run_does_not_continue_above_a_file_that_was_restored(hooks: OwnHooks, tmp_path: Path) -> None:
    """The copy has the epoch of the run, and lacks its last batch."""
    run = RunUnderTest(hooks, tmp_path, "words", None)
    run.start()
    copy = tmp_path / "copy"
    shutil.copy(tmp_path / "rows.db", copy)
    run.record(0)
    run.commit()
    for path in tmp_path.glob("rows.db*"):
        path.unlink()
    copy.rename(tmp_path / "rows.db")
    with pytest.raises(PipelineRefused, match="batch 0, and now it is none"):
        run.record(1)
    run.die()
    assert RunUnderTest(hooks, tmp_path, "words", None).start() is None
