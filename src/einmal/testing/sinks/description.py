"""Tests of what a sink answers before anything runs: its identity, its problems, its promises."""

from __future__ import annotations

from pathlib import Path

from einmal.pipeline.reasons import Reason
from einmal.sinks.row_schema import RowSchema
from einmal.testing.sinks.driving import RunUnderTest, rows_of, tables_of
from einmal.testing.sinks.hooks import SinkHooks


class DescriptionTests(SinkHooks):
    def test_promises_are_known_without_asking_anybody(self, tmp_path: Path) -> None:
        sink = self.sink(tmp_path / "nothing here")
        promises = sink.promises()
        assert promises and all(isinstance(promise, Reason) and promise.text for promise in promises)
        assert sink.table
        sink.close()

    def test_identity_stays_and_belongs_to_one_location(self, tmp_path: Path) -> None:
        locations = [tmp_path / "one", tmp_path / "two"]
        identities = []
        for location in locations:
            location.mkdir()
            sink = self.sink(location)
            assert sink.problems("battery", self._schema()) == []
            identities.append(sink.identity())
            sink.close()
            run = RunUnderTest(self, location, "battery")
            run.start()
            run.write(0, rows_of(0))
            run.die()
        assert [self.sink(location).identity() for location in locations] == identities
        assert identities == [None, None] or len(set(identities)) == 2

    def test_problems_are_none_for_rows_that_were_written(self, tmp_path: Path) -> None:
        for batch_id in range(2):
            sink = self.sink(tmp_path)
            assert sink.problems("battery", self._schema()) == []
            assert sink.problems("battery", None) == []
            sink.close()
            run = RunUnderTest(self, tmp_path, "battery")
            run.start()
            run.write(batch_id, rows_of(batch_id))
            run.die()

    def test_problems_name_what_the_sink_cannot_take(self, tmp_path: Path) -> None:
        run = RunUnderTest(self, tmp_path, "battery")
        run.start()
        run.write(0, rows_of(0))
        run.die()
        if self.wrong_column is not None:
            sink = self.sink(tmp_path)
            problems = sink.problems("battery", RowSchema(fields=(*self._schema(), self.wrong_column)))
            sink.close()
            assert problems and all(problem and hint for problem, hint in problems)

    def test_asking_before_the_first_run_finds_no_pipelines(self, tmp_path: Path) -> None:
        sink = self.sink(tmp_path)
        assert dict(sink.committed()) == {}
        sink.close()

    def _schema(self) -> RowSchema:
        return self.batch_rows(tables_of([])).schema
