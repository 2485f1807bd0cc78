"""Database files and what belongs to them: one that was put back while its pipeline runs, two with one staging
directory."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from einmal.pipeline.errors import PipelineRefused
from einmal.sinks.arrow_rows import ArrowRows
from einmal.sinks.embedded import EmbeddedSink
from einmal.sinks.kinds import new_sink
from einmal.sinks.sink import Opening
from einmal.testing.sinks.driving import RunUnderTest, tables_of
from tests.sinks.hooks import DuckDBHooks, OwnHooks, SQLiteHooks
from tests.sinks.postgres.rig import record


@pytest.mark.parametrize("is_older", [False, True], ids=["", "older"])
@pytest.mark.parametrize("hooks", [SQLiteHooks(), DuckDBHooks()], ids=lambda hooks: hooks.kind)
def test_run_does_not_continue_above_a_file_that_was_restored(
    hooks: OwnHooks, tmp_path: Path, *, is_older: bool
) -> None:
    """The copy lacks the run's last batch. It has the run's epoch, or that of a run before."""
    run = RunUnderTest(hooks, tmp_path, "words", prepares=False)
    run.start()
    copy = tmp_path / "copy"
    shutil.copy(tmp_path / "rows.db", copy)
    if is_older:
        run.die()
        run = RunUnderTest(hooks, tmp_path, "words", prepares=False)
        run.start()
    run.record(0)
    run.commit()
    for path in tmp_path.glob("rows.db*"):
        path.unlink()
    copy.rename(tmp_path / "rows.db")
    why = "has epoch 1 .* was granted 2: it was restored" if is_older else "batch 0, and now it is none"
    with pytest.raises(PipelineRefused, match=why):
        run.record(1)
    run.die()
    assert RunUnderTest(hooks, tmp_path, "words", prepares=False).start() is None


@pytest.mark.slow
@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("hooks", [SQLiteHooks(), DuckDBHooks()], ids=lambda hooks: hooks.kind)
def test_two_databases_with_one_staging_directory_keep_each_others_files(
    hooks: OwnHooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, copied: bool
) -> None:
    """Also where one is a copy of the other, and has its identity."""
    staging, names = tmp_path / "staging", ("first.db", "second.db")
    sinks = [
        new_sink(hooks.kind, {"path": str(tmp_path / name), "table": "words", "staging": str(staging)})
        for name in names
    ]
    opening = Opening(name="words")
    if copied:
        with closing(sinks[0].commit_point(opening)) as commit_point:
            commit_point.acquire(None)
        shutil.copy(tmp_path / names[0], tmp_path / names[1])
    rows = ArrowRows(tables_of([(1, "a")]))
    with closing(sinks[0].commit_point(opening)) as first:
        identity = first.acquire(None)
        first.read()
        first.stage(identity, 0, rows)
        for _ in range(2):
            # With a later epoch than the first one's.
            with closing(sinks[1].commit_point(opening)) as second:
                newer = second.acquire(None)
                second.read()
                second.stage(newer, 0, rows)
        with closing(sinks[1].commit_point(opening)) as following:
            following.abort(newer)
        assert len(list(staging.glob("*/*"))) == 1
        first.record(identity, record(0, 1, "words"))
        first.commit(identity)
    assert list(staging.glob("*/*")) == []


@pytest.mark.parametrize("hooks", [SQLiteHooks(), DuckDBHooks()], ids=lambda hooks: hooks.kind)
def test_a_table_that_was_dropped_with_its_rows_is_not_made_anew(hooks: OwnHooks, tmp_path: Path) -> None:
    run = RunUnderTest(hooks, tmp_path, "words")
    run.start()
    run.stage(0, [(1, "one")])
    run.record(0)
    run.commit()
    run.die()
    sink = hooks.sink(tmp_path)
    assert isinstance(sink, EmbeddedSink)
    with closing(sink._database.connect()) as connection:
        connection.execute("DROP TABLE words")
    schema = ArrowRows(tables_of([(2, "two")])).schema
    ((why, hint),) = sink.problems("words", schema)
    assert "does not exist, and by the record of 'words' batches up to 0 are committed" in why and "reset" in hint
    assert sink.problems("another", schema) == []
    # It exists now: its owner has decided.
    assert sink.problems("words", schema) == []
