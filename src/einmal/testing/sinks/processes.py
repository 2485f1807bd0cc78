"""Drivers in processes of their own, killed with SIGKILL.

A process is a fork of one that has imported what it needs, so that it starts in a second.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from einmal.testing.sinks.driving import VERBS, RunUnderTest, rows_of
from einmal.testing.sinks.hooks import Row, SinkHooks

NAME = "battery"
_ANSWER_S: Final = 120.0
_MOMENTS: Final = ("after acquire", "in stage", "after stage", "in record", "after record", "in commit", "after commit")
_IN_S: Final = 0.02
"""A kill inside of a verb comes within this time of its beginning."""


class ProcessTests(SinkHooks):
    def beginning(self) -> Callable[[], None]:
        """Return what a process does first; it is pickled. By default nothing."""
        return _nothing

    def settle(self) -> None:
        """Wait until nothing runs any more of what killed processes have begun. By default that ends with them."""

    def test_killed_process_leaves_the_batch_whole(self, tmp_path: Path) -> None:
        chance = random.Random(1)
        expected: list[Row] = []
        for batch_id, moment in enumerate(_MOMENTS):
            killed = rows_of(batch_id, "killed")
            _kill_at(self, tmp_path, moment, batch_id, killed, chance)
            successor = RunUnderTest(self, tmp_path, NAME)
            record = successor.start()
            is_in = record is not None and record.batch_id == batch_id
            assert is_in or moment != "after commit", "an answered commit is lost"
            assert not is_in or "commit" in moment, f"committed {moment}"
            if not is_in:
                successor.write(batch_id, rows_of(batch_id, "successor"))
            successor.die()
            expected += killed if is_in else rows_of(batch_id, "successor")
            assert sorted(self.rows(tmp_path)) == sorted(expected), f"killed {moment}"
        self.settle()
        last = RunUnderTest(self, tmp_path, NAME)
        last.start()
        last.die()
        assert self.staged(tmp_path) == []


def _kill_at(
    hooks: ProcessTests,
    location: Path,
    moment: str,
    batch_id: int,
    rows: Sequence[Row],
    chance: random.Random,
) -> None:
    when, _, last = moment.partition(" ")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([type(hooks).__module__, "pyarrow"])
    ours, theirs = context.Pipe()
    arguments = (type(hooks), str(location), hooks.beginning(), theirs)
    process = context.Process(target=_drive, args=arguments, daemon=True)
    process.start()
    try:
        for verb in VERBS[: VERBS.index(last) + 1]:
            ours.send((verb, batch_id, rows))
            if when == "in" and verb == last:
                time.sleep(chance.uniform(0, _IN_S))
            else:
                assert ours.poll(_ANSWER_S), f"{verb} has no answer"
                assert (answer := ours.recv()) == "", f"{verb}: {answer}"
    finally:
        process.kill()
        process.join()
        ours.close()


# --- in the process ---------------------------------------------------------------------------------------------------


def _nothing() -> None:
    return


def _drive(hooks: type[SinkHooks], location: str, begin: Callable[[], None], pipe: Connection) -> None:
    begin()
    run = RunUnderTest(hooks(), Path(location), NAME)
    while True:
        verb, batch_id, rows = pipe.recv()
        try:
            run.perform(verb, batch_id, rows)
            pipe.send("")
        except Exception as error:  # noqa: BLE001 - the test reports it
            pipe.send(repr(error))
