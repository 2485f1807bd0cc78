"""Random runs under one name against a model: rows and record are those of the commits that were answered."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from einmal.testing.sinks.driving import ConcurrentRun, RunUnderTest, rows_of
from einmal.testing.sinks.hooks import Row, SinkHooks

NAME = "battery"
SEED: Final = "EINMAL_SEED"
STEPS: Final = "EINMAL_STEPS"
"""Environment: the seed of the campaign, and its length."""
_STEPS: Final = 80
_RUNS_MAX: Final = 3
_STARTS, _ABORTS, _DIES = 0.1, 0.15, 0.06
"""How probable in a step: another driver starts; a transaction is aborted; a driver ends where it is."""
_NEXT: Final = {"start": "stage", "stage": "record", "record": "commit", "commit": "stage", "abort": "stage"}


class _Player:
    """A run whose next verb is drawn. It continues after a commit, and its thread after a lock of another run."""

    def __init__(self, run: RunUnderTest, mark: str, model: _Model) -> None:
        self.run = run
        self.calls = ConcurrentRun(run)
        self._mark = mark
        self._model = model
        self._verb = "start"
        self._attempts = 0
        self._rows: list[Row] = []
        self._batch_id = 0
        self.calls.call("start", run.start)

    def step(self, chance: random.Random) -> None:
        """The next verb, or an abort."""
        self._verb = _NEXT[self._verb]
        if self._verb in ("record", "commit") and chance.random() < _ABORTS:
            self._verb = "abort"
        self.calls.call(self._verb, getattr(self, f"_{self._verb}"))

    def _stage(self) -> None:
        # Asked here, in the thread of the run: it may have waited for the name until now.
        self._attempts += 1
        self._batch_id = self.run.next_batch_id
        self._rows = rows_of(self._batch_id, f"{self._mark}.{self._attempts}")
        self.run.stage(self._batch_id, self._rows)

    def _record(self) -> None:
        self.run.record(self._batch_id)

    def _abort(self) -> None:
        self.run.abort()

    def _commit(self) -> None:
        began = self.calls.began["commit"]
        self.run.commit()
        self._model.commits.append(_Commit(self, began, self._batch_id, self._rows))


class _Commit(NamedTuple):
    player: _Player
    began: int
    batch_id: int
    rows: list[Row]


@dataclass
class _Model:
    """``commits``: those that were answered."""

    commits: list[_Commit] = field(default_factory=list)
    players: list[_Player] = field(default_factory=list)

    def fenced(self) -> list[int]:
        """Batches of runs that were not the last to acquire the name any more when they began to commit."""
        granted = {player: player.calls.ended["start"] for player in self.players if "start" in player.calls.ended}
        return [
            commit.batch_id
            for commit in self.commits
            if any(granted[commit.player] < ended < commit.began for ended in granted.values())
        ]


class CampaignTests(SinkHooks):
    def test_random_runs_leave_each_batch_once(self, tmp_path: Path) -> None:
        seed = int(os.environ.get(SEED) or random.SystemRandom().randrange(1_000_000))
        chance, model, alive = random.Random(seed), _Model(), list[_Player]()
        for _ in range(int(os.environ.get(STEPS) or _STEPS)):
            if not alive or (len(alive) < _RUNS_MAX and chance.random() < _STARTS):
                run = RunUnderTest(self, tmp_path, NAME)
                player = _Player(run, f"run {len(model.players)}", model)
                alive.append(player)
                model.players.append(player)
            else:
                player = chance.choice(alive)
                player.step(chance)
            if player.calls.error is not None or chance.random() < _DIES:
                player.calls.close()
                alive.remove(player)
        for player in alive:
            player.calls.close()
        last = RunUnderTest(self, tmp_path, NAME)
        record = last.start()
        last.die()
        again = f"{SEED}={seed} repeats it"
        assert model.fenced() == [], again
        batches = [commit.batch_id for commit in model.commits]
        assert batches == list(range(0 if record is None else record.batch_id + 1)), again
        assert sorted(self.rows(tmp_path)) == sorted(row for commit in model.commits for row in commit.rows), again
        assert self.staged(tmp_path) == [], again
