"""Two drivers under one name: the one that has acquired it last commits, and the older one never does again."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from einmal.pipeline.errors import PipelineRefused
from einmal.sinks.commit_point import SinkError, SinkFenced
from einmal.testing.sinks.driving import ConcurrentRun, RunUnderTest, rows_of
from einmal.testing.sinks.hooks import SinkHooks

NAME = "battery"
_OLDER: Final = ("stage", "record", "commit")
_NEWER: Final = ("acquire", "stage", "record", "commit")
_RACES: Final = 40
_APART_S: Final = 0.01
"""By how much two drivers that race may begin apart."""


def interleavings() -> Iterator[tuple[bool, ...]]:
    """Every order of the verbs of two drivers, the older of which has acquired the name first; True: the older's."""
    length = len(_OLDER) + len(_NEWER)
    for positions in itertools.combinations(range(length), len(_OLDER)):
        yield tuple(position in positions for position in range(length))


class FencingTests(SinkHooks):
    def test_older_driver_commits_in_no_order_of_the_verbs(self, tmp_path: Path) -> None:
        """All 35 orders; each has a name and rows of its own in the same table."""
        for case, order in enumerate(interleavings()):
            wrong = self._two_drivers(tmp_path, case, order)
            steps = " ".join("older" if is_older else "newer" for is_older in order)
            assert not wrong, f"{wrong}, in the order {steps}"

    def _two_drivers(self, location: Path, case: int, order: tuple[bool, ...]) -> str:
        name = f"pair-{case}"
        older, newer = (ConcurrentRun(RunUnderTest(self, location, name)) for _ in range(2))
        older.call("start", older.run.start)
        older.finish()
        rows = {run: rows_of(case * 2 + number, "pair") for number, run in enumerate((older, newer))}
        steps = {older: iter(_OLDER), newer: iter(_NEWER)}
        for is_older in order:
            run = older if is_older else newer
            _call(run, next(steps[run]), rows[run])
        for run in (older, newer):
            run.close()
        last = RunUnderTest(self, location, name)
        record = last.start()
        committed = [run for run in (older, newer) if "commit" in run.ended]
        # A lock may have kept the newer one from starting, and the older one may have ended by itself.
        batches = 0 if record is None else record.batch_id + 1
        last.die()
        expected = sorted(row for run in committed for row in rows[run])
        seen = sorted(row for row in self.rows(location) if row[0] // 2_000 == case)
        if "acquire" in newer.ended and older.began.get("commit", 0) > newer.ended["acquire"] and older in committed:
            return "the older driver has committed after the newer one had acquired the name"
        if isinstance(newer.error, SinkFenced):
            return f"the newer driver was fenced: {newer.error}"
        if seen != expected or batches != len(committed):
            return f"{len(committed)} commits were answered, the record has {batches} batches, {seen} != {expected}"
        return f"staged: {self.staged(location)}" if self.staged(location) else ""

    def test_commit_and_acquire_at_once_have_one_winner(self, tmp_path: Path) -> None:
        """Either the newer driver finds what the older one has committed, or the older one has not."""
        chance = random.Random(1)
        RunUnderTest(self, tmp_path, NAME).die()
        for _ in range(_RACES):
            older, newer = (ConcurrentRun(RunUnderTest(self, tmp_path, NAME, prepares=False)) for _ in range(2))
            older.call("start", older.run.start)
            older.finish()
            batch_id = older.run.next_batch_id
            start = threading.Barrier(2)
            for run, action in ((older, partial(_commits, older.run, batch_id)), (newer, newer.run.start)):
                run.begin("race", partial(_at_once, start, chance.uniform(0, _APART_S), action))
            older.close()
            newer.close()
            if older.error is None and newer.error is None:
                assert newer.run.next_batch_id == batch_id + 1, "a commit came after the read of the newer driver"

    def test_restart_in_the_same_process_is_granted_with_the_held_identity(self, tmp_path: Path) -> None:
        before = RunUnderTest(self, tmp_path, NAME)
        before.start()
        record = before.write(0, rows_of(0))
        before.die()
        after = RunUnderTest(self, tmp_path, NAME)
        assert after.start(before.own) == record
        after.write(1, rows_of(1))
        after.die()
        assert sorted(self.rows(tmp_path)) == rows_of(0) + rows_of(1)

    def test_restart_with_a_held_identity_does_not_fence_a_newer_driver(self, tmp_path: Path) -> None:
        before = RunUnderTest(self, tmp_path, NAME)
        before.start()
        before.die()
        newer = RunUnderTest(self, tmp_path, NAME)
        newer.start()
        newer.stage(0, rows_of(0))
        restarted = RunUnderTest(self, tmp_path, NAME)
        with pytest.raises(SinkFenced):
            restarted.abort(before.own)
        with pytest.raises(SinkFenced):
            restarted.acquire(before.own)
        restarted.die()
        newer.record(0)
        newer.commit()
        newer.die()
        assert sorted(self.rows(tmp_path)) == rows_of(0)

    def test_fenced_driver_reads_no_record_for_certain(self, tmp_path: Path) -> None:
        older, newer = (RunUnderTest(self, tmp_path, NAME) for _ in range(2))
        older.acquire()
        newer.start()
        with pytest.raises(SinkFenced):
            older.read()
        older.die()
        newer.die()

    def test_idle_driver_notices_that_it_was_fenced(self, tmp_path: Path) -> None:
        """And is not fenced by its own transactions, nor by asking."""
        older, newer = (RunUnderTest(self, tmp_path, NAME) for _ in range(2))
        older.start()
        older.commit_point.check(older.own)
        older.write(0, rows_of(0))
        older.commit_point.check(older.own)
        older.stage(1, rows_of(1))
        older.record(1)
        older.abort()
        older.commit_point.check(older.own)
        older.write(1, rows_of(1))
        newer.acquire()
        with pytest.raises(SinkFenced):
            older.commit_point.check(older.own)
        older.die()
        newer.die()
        assert sorted(self.rows(tmp_path)) == rows_of(0) + rows_of(1)

    @pytest.mark.parametrize("when", ["running", "idle"])
    def test_driver_does_not_continue_above_another_record(self, tmp_path: Path, when: str) -> None:
        """As after a restore: the epoch is its own, and the record is not its last one. An idle driver that has asked
        remembers what it has committed."""
        run = RunUnderTest(self, tmp_path, NAME)
        run.start()
        run.commit_point.check(run.own)
        run.write(0, rows_of(0))
        run.commit_point.check(run.own)
        if self.can_lose_commits:
            self.damage_record(tmp_path, NAME)
            if when == "idle":
                with pytest.raises(PipelineRefused):
                    run.commit_point.check(run.own)
            with pytest.raises(PipelineRefused):
                run.write(1, rows_of(1))
        run.die()
        assert sorted(self.rows(tmp_path)) == rows_of(0)

    def test_look_fences_nobody(self, tmp_path: Path) -> None:
        run, reader = (RunUnderTest(self, tmp_path, NAME) for _ in range(2))
        run.start()
        for batch_id in range(2):
            reader.commit_point.look()
            run.stage(batch_id, rows_of(batch_id))
            reader.commit_point.look()
            run.record(batch_id)
            run.commit()
        run.die()
        reader.die()
        assert sorted(self.rows(tmp_path)) == rows_of(0) + rows_of(1)

    def test_driver_of_before_a_deleted_record_commits_no_more(self, tmp_path: Path) -> None:
        """However often the name is acquired afterwards: its epochs do not begin again."""
        older = RunUnderTest(self, tmp_path, NAME)
        older.start()
        older.write(0, rows_of(0))
        forgets = RunUnderTest(self, tmp_path, NAME, prepares=False)
        forgets.commit_point.forget()
        forgets.die()
        for _ in range(4):
            newer = RunUnderTest(self, tmp_path, NAME)
            newer.start()
            newer.die()
            with pytest.raises(SinkError):
                older.write(1, rows_of(1, "older"))
        older.die()
        assert sorted(self.rows(tmp_path)) == rows_of(0)


def _commits(run: RunUnderTest, batch_id: int) -> None:
    run.record(batch_id)
    run.commit()


def _at_once(start: threading.Barrier, pause_s: float, action: Callable[[], object]) -> None:
    start.wait()
    time.sleep(pause_s)
    action()


def _call(run: ConcurrentRun, verb: str, rows: list[tuple[int, str]]) -> None:
    if verb == "acquire":
        # The record that is found decides which batch comes next.
        run.call("acquire", run.run.acquire)
        run.call("read", run.run.read)
    else:
        run.call(verb, lambda: run.run.perform(verb, run.run.next_batch_id, rows))
