"""Commit records: under every name, replaced, deleted, damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from einmal.commit_protocol.commit_record import UnreadableCommitRecord
from einmal.testing.sinks.driving import RunUnderTest, rows_of
from einmal.testing.sinks.hooks import SinkHooks

NAME = "battery"
ODD_NAMES: Final = (
    "a",
    "A",
    "a/b",
    "../a",
    ".",
    "a'; DROP TABLE einmal_commits; --",
    'quoted "name"',
    "%2e%2e",
    "with a blank ",
    "grüße-日本語-😀",
    "x" * 249,
    "x" * 248 + "y",
    "back\\slash",
    "_",
    "$1 %s {0} ?",
)
"""Each is a name of its own: no two are the same pipeline, whatever a file system or a database folds."""


class RecordTests(SinkHooks):
    def test_every_name_has_a_record_of_its_own(self, tmp_path: Path) -> None:
        expected, records = [], {}
        for number, name in enumerate(ODD_NAMES):
            run = RunUnderTest(self, tmp_path, name)
            assert run.start() is None, f"{name!r} has the record of another name"
            run.stage(number, rows_of(number))
            records[name] = run.record(number)
            run.commit()
            run.die()
            expected += rows_of(number)
        assert sorted(self.rows(tmp_path)) == expected
        committed = self.sink(tmp_path).committed()
        assert {name: commit.record for name, commit in committed.items()} == records
        assert all(commit.transactional_id == name and commit.timestamp > 0 for name, commit in committed.items())
        for name in ODD_NAMES:
            run = RunUnderTest(self, tmp_path, name, prepares=False)
            assert run.commit_point.look() == records[name]
            run.die()
        assert self.staged(tmp_path) == []

    def test_deleted_record_is_gone_and_the_name_can_begin_again(self, tmp_path: Path) -> None:
        run = RunUnderTest(self, tmp_path, NAME)
        run.start()
        run.write(0, rows_of(0))
        run.die()
        resets = RunUnderTest(self, tmp_path, NAME, prepares=False)
        resets.start()
        resets.commit_point.record(resets.own, None)
        resets.commit()
        assert resets.commit_point.look() is None
        resets.die()
        assert NAME not in self.sink(tmp_path).committed()
        again = RunUnderTest(self, tmp_path, NAME)
        assert again.start() is None
        record = again.write(0, rows_of(1))
        assert again.commit_point.look() == record
        again.die()
        assert sorted(self.rows(tmp_path)) == rows_of(0) + rows_of(1)

    def test_forgotten_name_leaves_no_record(self, tmp_path: Path) -> None:
        for name in (NAME, "other"):
            run = RunUnderTest(self, tmp_path, name)
            run.start()
            run.write(0, rows_of(0, name))
            run.commit_point.forget()
            assert run.commit_point.look() is None
            run.die()
        assert self.sink(tmp_path).committed() == {}
        again = RunUnderTest(self, tmp_path, NAME)
        assert again.start() is None
        again.die()
        assert len(self.rows(tmp_path)) == 10

    def test_damaged_record_is_reported_and_can_be_replaced(self, tmp_path: Path) -> None:
        run = RunUnderTest(self, tmp_path, NAME)
        run.start()
        run.write(0, rows_of(0))
        run.die()
        self.damage_record(tmp_path, NAME)
        run = RunUnderTest(self, tmp_path, NAME)
        with pytest.raises(UnreadableCommitRecord):
            run.commit_point.look()
        run.acquire()
        with pytest.raises(UnreadableCommitRecord):
            run.read()
        committed = self.sink(tmp_path).committed()[NAME]
        assert committed.record is None and committed.problem
        record = run.record(3)
        run.commit()
        run.die()
        again = RunUnderTest(self, tmp_path, NAME)
        assert again.start() == record
        again.die()
        assert sorted(self.rows(tmp_path)) == rows_of(0)
