"""Tests of staging: what tasks stage is taken once or not at all, and removed once nobody can commit it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from einmal.sinks.batch_rows import BatchRows, PartReport, Selected, TaskAttempt, WritePart
from einmal.sinks.commit_point import SinkError, SinkFailed
from einmal.sinks.row_schema import RowSchema
from einmal.testing.sinks.driving import RunUnderTest, rows_of, tables_of
from einmal.testing.sinks.hooks import SinkHooks

NAME = "battery"
_RELEASED_S: Final = 60.0
_POLL_S: Final = 0.02


class StagingTests(SinkHooks):
    def test_staged_rows_of_another_pipeline_are_left_alone(self, tmp_path: Path) -> None:
        other = RunUnderTest(self, tmp_path, "other")
        other.start()
        other.stage(0, rows_of(0, "other"))
        assert self.staged(tmp_path) != []
        for _ in range(2):
            run = RunUnderTest(self, tmp_path, NAME)
            run.start()
            run.stage(0, rows_of(1))
            run.abort()
            run.die()
        other.record(0)
        other.commit()
        other.die()
        assert sorted(self.rows(tmp_path)) == rows_of(0, "other")

    def test_lost_staged_rows_are_found_missing(self, tmp_path: Path) -> None:
        run = RunUnderTest(self, tmp_path, NAME)
        run.start()
        run.stage(0, rows_of(0))
        self.lose_staged(tmp_path)
        with pytest.raises(SinkFailed):
            run.record(0)
        run.abort()
        assert (self.rows(tmp_path), self.staged(tmp_path)) == ([], [])
        run.write(0, rows_of(0, "again"))
        run.die()
        assert sorted(self.rows(tmp_path)) == rows_of(0, "again")

    def test_rows_of_an_attempt_that_does_not_count_are_not_taken(self, tmp_path: Path) -> None:
        run = RunUnderTest(self, tmp_path, NAME)
        run.start()
        run.stage(0, rows_of(0))
        self.copy_staged(tmp_path)
        run.record(0)
        run.commit()
        assert sorted(self.rows(tmp_path)) == rows_of(0)
        run.die()
        again = RunUnderTest(self, tmp_path, NAME)
        again.start()
        again.die()
        assert self.staged(tmp_path) == []

    def test_batch_whose_job_failed_is_aborted_and_written_again(self, tmp_path: Path) -> None:
        run = RunUnderTest(self, tmp_path, NAME)
        run.start()
        rows = rows_of(0, "failed", 40)
        failing = Through(self.batch_rows(tables_of(rows)), partial(_failing, rows[-1][0]))
        with pytest.raises(Exception, match="the battery fails this task"):
            run.stage_rows(0, failing)
        run.abort()
        assert (self.rows(tmp_path), self.staged(tmp_path)) == ([], [])
        run.write(0, rows_of(0))
        run.die()
        assert sorted(self.rows(tmp_path)) == rows_of(0)

    def test_task_that_outlives_its_batch_changes_nothing(self, tmp_path: Path) -> None:
        began, release = tmp_path / "began", tmp_path / "release"
        older = RunUnderTest(self, tmp_path, NAME)
        older.start()
        tables = tables_of(rows_of(0, "late"), 1)
        rows = Through(self.batch_rows(tables), partial(_waiting, str(began), str(release)))
        raised: list[Exception] = []

        def stage() -> None:
            try:
                older.stage_rows(0, rows)
            except Exception as error:  # noqa: BLE001 - the staging of a fenced run may fail in any way
                raised.append(error)

        late = threading.Thread(target=stage)
        late.start()
        try:
            _wait_for(began)
            newer = RunUnderTest(self, tmp_path, NAME)
            newer.start()
            newer.write(0, rows_of(0))
        finally:
            release.touch()
            late.join(_RELEASED_S)
        assert not late.is_alive()
        with pytest.raises((SinkError, AssertionError)):
            older.record(0)
            older.commit()
        older.die()
        assert sorted(self.rows(tmp_path)) == rows_of(0)
        newer.write(1, rows_of(1))
        newer.die()
        assert sorted(self.rows(tmp_path)) == rows_of(0) + rows_of(1)
        last = RunUnderTest(self, tmp_path, NAME)
        last.start()
        last.die()
        assert self.staged(tmp_path) == []


class Through(BatchRows):
    """Rows that pass through a function in each task before they are written."""

    def __init__(self, rows: BatchRows, function: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
        self._rows, self._function = rows, function

    @property
    def schema(self) -> RowSchema:
        return self._rows.schema

    def without(self, column: str) -> Through:
        return Through(self._rows.without(column), self._function)

    def select(self, columns: Sequence[Selected]) -> Through:
        return Through(self._rows.select(columns), self._function)

    def write(self, write: WritePart) -> list[PartReport]:
        return self._rows.write(partial(_written_through, self._function, write))


def _written_through(
    function: Callable[[Iterator[Any]], Iterator[Any]], write: WritePart, attempt: TaskAttempt, batches: Iterator[Any]
) -> PartReport | None:
    return write(attempt, function(batches))


def _failing(last: int, batches: Iterator[Any]) -> Iterator[Any]:
    """A task that has this row fails after it; the other one has staged its rows by then, or not."""
    for batch in batches:
        yield batch
        if last in batch.column("id").to_pylist():
            raise RuntimeError("the battery fails this task")


def _waiting(began: str, release: str, batches: Iterator[Any]) -> Iterator[Any]:
    """A task that is in the middle of its rows until a file exists."""
    for batch in batches:
        yield batch.slice(0, 1)
        Path(began).touch()
        _wait_for(Path(release))
        yield batch.slice(1)


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + _RELEASED_S
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} does not come"
        time.sleep(_POLL_S)
