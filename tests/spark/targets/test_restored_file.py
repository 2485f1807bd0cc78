"""Database files and what belongs to them: one that was put back while its pipeline runs, two with one staging
directory."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from einmal.pipeline.errors import PipelineRefused
from einmal.spark.targets.kinds import destination
from einmal.spark.targets.target import Opening
from einmal.testing.targets.driving import RunUnderTest, frame_of
from tests.spark.targets.hooks import DuckDBHooks, OwnHooks, SQLiteHooks
from tests.spark.targets.local_tasks import local_session
from tests.spark.targets.postgres.rig import record


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


@pytest.mark.slow
@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("hooks", [SQLiteHooks(), DuckDBHooks()], ids=lambda hooks: hooks.kind)
def test_two_databases_with_one_staging_directory_keep_each_others_files(
    hooks: OwnHooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, copied: bool
) -> None:
    """Also where one is a copy of the other, and has its identity."""
    staging, names = tmp_path / "staging", ("first.db", "second.db")
    destinations = [
        destination(hooks.kind, {"path": str(tmp_path / name), "table": "words", "staging": str(staging)})
        for name in names
    ]
    opening = Opening(name="words")
    if copied:
        with closing(destinations[0].target(opening)) as target:
            target.acquire(None)
        shutil.copy(tmp_path / names[0], tmp_path / names[1])
    frame = frame_of(local_session(monkeypatch), [(1, "a")])
    with closing(destinations[0].target(opening)) as first:
        identity = first.acquire(None)
        first.read()
        first.stage(identity, 0, frame)
        for _ in range(2):
            # With a later epoch than the first one's.
            with closing(destinations[1].target(opening)) as second:
                newer = second.acquire(None)
                second.read()
                second.stage(newer, 0, frame)
        with closing(destinations[1].target(opening)) as following:
            following.abort(newer)
        assert len(list(staging.glob("*/*"))) == 1
        first.record(identity, record(0, 1, "words"))
        first.commit(identity)
    assert list(staging.glob("*/*")) == []
