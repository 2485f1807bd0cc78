"""Rows and record become visible together, or not at all, wherever a run ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from einmal.commit_protocol.commit_record import CommitRecord
from einmal.sinks.commit_point import OutcomeUnknown, SinkError, SinkFailed
from einmal.testing.sinks.driving import VERBS, RunUnderTest, rows_of
from einmal.testing.sinks.hooks import Row, SinkHooks

NAME = "battery"


class CommitTests(SinkHooks):
    def test_new_name_has_no_record(self, tmp_path: Path) -> None:
        run = RunUnderTest(self, tmp_path, NAME)
        assert run.commit_point.look() is None
        assert run.start() is None
        assert self.rows(tmp_path) == []
        run.die()

    def test_rows_and_record_become_visible_together(self, tmp_path: Path) -> None:
        run, reader = RunUnderTest(self, tmp_path, NAME), RunUnderTest(self, tmp_path, NAME, prepares=False)

        def seen() -> tuple[list[Row], CommitRecord | None]:
            return sorted(self.rows(tmp_path)), reader.commit_point.look()

        run.start()
        for batch_id in range(3):
            before, last = seen()
            run.stage(batch_id, rows_of(batch_id))
            assert seen() == (before, last), "staged rows are visible"
            record = run.record(batch_id)
            if self.can_be_read_beside_a_transaction:
                assert seen() == (before, last), "rows before the commit"
            run.commit()
            assert seen() == (before + rows_of(batch_id), record)
        assert self.staged(tmp_path) == []
        run.die()
        reader.die()

    def test_every_transaction_has_an_identity_of_its_own(self, tmp_path: Path) -> None:
        run = RunUnderTest(self, tmp_path, NAME)
        run.start()
        seen = [run.own]
        run.write(0, rows_of(0))
        seen.append(run.own)
        run.stage(1, rows_of(1))
        run.abort()
        seen.append(run.own)
        run.die()
        run = RunUnderTest(self, tmp_path, NAME)
        run.start()
        seen.append(run.own)
        run.die()
        assert len(set(seen)) == len(seen)

    def test_outputs_count_the_rows_of_every_task(self, tmp_path: Path) -> None:
        run = RunUnderTest(self, tmp_path, NAME)
        run.start()
        outputs = run.stage(0, rows_of(0, count=23))
        assert sum(output.count for output in outputs) == 23
        assert all(output.last_offset - output.first_offset + 1 == output.count > 0 for output in outputs)
        assert len({(output.topic, output.partition) for output in outputs}) == len(outputs)
        run.abort()
        run.die()

    def test_empty_batch_moves_the_record_alone(self, tmp_path: Path) -> None:
        run = RunUnderTest(self, tmp_path, NAME)
        run.start()
        run.write(0, rows_of(0))
        record = run.write(1, [])
        run.die()
        again = RunUnderTest(self, tmp_path, NAME)
        assert again.start() == record
        again.die()
        assert sorted(self.rows(tmp_path)) == rows_of(0)

    def test_record_is_written_without_staged_rows(self, tmp_path: Path) -> None:
        """As by ``einmal pipeline adopt``."""
        RunUnderTest(self, tmp_path, "other").die()
        run = RunUnderTest(self, tmp_path, NAME, prepares=False)
        run.start()
        record = run.record(7)
        run.commit()
        assert (run.commit_point.look(), self.rows(tmp_path)) == (record, [])
        run.die()

    @pytest.mark.parametrize("last", VERBS)
    def test_run_that_ends_after_a_verb_leaves_the_batch_whole(self, tmp_path: Path, last: str) -> None:
        first = RunUnderTest(self, tmp_path, NAME)
        first.start()
        first.write(0, rows_of(0))
        first.die()
        killed = RunUnderTest(self, tmp_path, NAME)
        for verb in VERBS[: VERBS.index(last) + 1]:
            killed.perform(verb, 1, rows_of(1, "killed"))
        killed.die()
        successor = RunUnderTest(self, tmp_path, NAME)
        record = successor.start()
        assert record is not None and record.batch_id == (1 if last == "commit" else 0)
        assert self.staged(tmp_path) == [], "staged by a run that has ended"
        before = sorted(rows_of(0) + (rows_of(1, "killed") if last == "commit" else []))
        assert sorted(self.rows(tmp_path)) == before
        successor.write(record.batch_id + 1, rows_of(record.batch_id + 1, "successor"))
        successor.die()
        assert sorted(self.rows(tmp_path)) == sorted(before + rows_of(record.batch_id + 1, "successor"))
        assert self.staged(tmp_path) == []

    def test_record_that_was_not_committed_is_not_there(self, tmp_path: Path) -> None:
        """The request of a commit is lost, not its answer."""
        run = RunUnderTest(self, tmp_path, NAME)
        run.start()
        run.stage(0, rows_of(0))
        run.record(0)
        run.commit_point.abandon()
        run.die()
        again = RunUnderTest(self, tmp_path, NAME)
        assert again.start() is None
        assert self.rows(tmp_path) == []
        again.die()

    @pytest.mark.parametrize("last", ["stage", "record"])
    def test_aborted_batch_is_written_again_by_the_same_run(self, tmp_path: Path, last: str) -> None:
        run = RunUnderTest(self, tmp_path, NAME)
        run.start()
        run.stage(0, rows_of(0, "aborted"))
        if last == "record":
            run.record(0)
        run.abort()
        assert (self.rows(tmp_path), self.staged(tmp_path), run.commit_point.look()) == ([], [], None)
        record = run.write(0, rows_of(0, "again"))
        assert (sorted(self.rows(tmp_path)), run.commit_point.look()) == (rows_of(0, "again"), record)
        run.die()

    def test_run_with_a_held_identity_aborts_what_the_run_before_it_left(self, tmp_path: Path) -> None:
        before = RunUnderTest(self, tmp_path, NAME)
        before.start()
        before.stage(0, rows_of(0, "before"))
        before.die()
        run = RunUnderTest(self, tmp_path, NAME)
        run.abort(before.own)
        assert self.staged(tmp_path) == []
        with pytest.raises(SinkFailed):
            # Nothing is open under the identity any more.
            RunUnderTest(self, tmp_path, NAME).abort(run.own)
        assert run.start(run.own) is None
        run.write(0, rows_of(0))
        run.die()
        assert sorted(self.rows(tmp_path)) == rows_of(0)

    def test_commit_without_a_record_is_no_commit(self, tmp_path: Path) -> None:
        run = RunUnderTest(self, tmp_path, NAME)
        run.start()
        run.stage(0, rows_of(0))
        with pytest.raises((SinkError, AssertionError)) as caught:
            run.commit()
        assert not isinstance(caught.value, OutcomeUnknown)
        run.die()
        assert self.rows(tmp_path) == []
