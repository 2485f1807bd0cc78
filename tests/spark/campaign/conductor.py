"""Leads the campaign: fills the topics, lets drivers live and die by the plan, and computes the verdict.

``python -m tests.spark.campaign`` is its entry point. Every kill is one line; in the end comes a table of all kills,
and the verdict.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from einmal.chaos.campaign import Campaign
from einmal.chaos.processes import kill as kill_pids
from einmal.chaos.reporting import ProcessEnded
from einmal.chaos.waiting import holds_within
from tests.spark.campaign import plan, verdict
from tests.spark.campaign.cluster import Driver, Theatre
from tests.spark.campaign.outcome import PROGRESS_S, Outcome
from tests.spark.campaign.pipelines import Place
from tests.spark.campaign.plan import Kill, Life
from tests.spark.campaign.report import PipelinesReport

_MOMENT_S: Final = 15.0
"""How long a moment is waited for; a victim that does not come to it dies where it is."""
_ANY_TIME_S: Final = 1.5
_AROUND_S: Final = 0.04
_DOWN_S: Final = 1.0
_POLL_S: Final = 0.02


class PipelinesCampaign(Campaign[PipelinesReport]):
    def __init__(self, theatre: Theatre, directory: Path, *, seed: int, guarantee: str = "exactly_once_v2") -> None:
        super().__init__(PipelinesReport(seed=seed), seed)
        self._theatre = theatre
        self._place = Place(theatre.brokers.bootstrap, str(directory / "checkpoints"), guarantee)
        self._drivers: list[Driver] = []
        self._outcome = Outcome(self._place, self.report)

    def start(self) -> None:
        self._outcome.start()

    def disturb(self, kills: int) -> None:
        """Until something is wrong: then the rest shows nothing."""
        every = list(plan.lives(self.chance, kills, on_cluster=self._theatre.spark is not None))
        # The last one lives.
        if every[-1].kills[-1].victim == plan.DRIVER:
            every.append(Life(self._theatre.spark is None, ()))
        self._drivers = [self._theatre.launch(asdict(self._place), local=every[0].local)]
        for number, life in enumerate(every):
            following = every[number + 1] if number + 1 < len(every) else None
            self._live(self._drivers[number], life, following)
            if self.report.wrong:
                return
            if number:
                # What the driver before has left running had this one's life to find out in.
                self._drivers[number - 1].sweep()

    def close(self) -> None:
        self._outcome.close()
        for driver in self._drivers:
            driver.sweep()

    # --- a life ---------------------------------------------------------------------------------------------------

    def _live(self, driver: Driver, life: Life, following: Life | None) -> None:
        self.report.drivers += 1
        first = life.kills[0] if life.kills else None
        held = first is not None and first.moment in (plan.NAME_TAKEN, plan.MENDING)
        driver.wait_until_ready()
        if first is not None and held:
            driver.hold(first.moment, first.pipeline)
        driver.begin()
        try:
            for kill in life.kills:
                if following is not None and (not held or kill.victim == plan.DRIVER):
                    # Not while this one begins: both would be slow.
                    self._drivers.append(self._theatre.launch(asdict(self._place), local=following.local))
                    following = None
                self._strike(driver, kill, held=held)
                held = False
                if self.report.wrong:
                    return
        except ProcessEnded as error:
            self.report.wrong.append(f"a driver ended by itself: {error}")
        self._hear_out(driver)

    def _hear_out(self, driver: Driver) -> None:
        self.report.commits += driver.commits
        self.report.restarts += driver.restarts
        for end in driver.ends:
            self.report.ends.append(f"{end['ended']}: {end['why']}")
            if end["refused"]:
                self.report.wrong.append(f"{end['ended']} was refused: {end['why']}")

    def _strike(self, driver: Driver, kill: Kill, *, held: bool) -> None:
        moment, port = self._wait_for(driver, kill, held=held)
        before = driver.commits[kill.pipeline]
        self.report.killed.append(Kill(kill.victim, moment, kill.pipeline))
        began = time.monotonic()
        self._kill(driver, kill, port)
        waited = ""
        if kill.victim != plan.DRIVER:
            driver.let_go()
            self._bring_back()
            if kill.waits:
                if not driver.wait_for(lambda: driver.commits[kill.pipeline] > before, PROGRESS_S):
                    self.report.wrong.append(f"{kill.pipeline} stands still after {kill}")
                self.report.waits.append(time.monotonic() - began)
                waited = f"goes on after {self.report.waits[-1]:.1f} s"
        where = "by itself" if driver.is_local else "on the cluster"
        details = f"{moment:<16} {kill.pipeline:<8} driver {self.report.drivers} {where:<15} {waited}"
        self.report.note(kill.victim, details)

    def _wait_for(self, driver: Driver, kill: Kill, *, held: bool) -> tuple[str, int | None]:
        """The moment that has come, and where a writer's connection comes from."""
        if kill.moment == plan.ANY_TIME:
            time.sleep(self.chance.uniform(0, _ANY_TIME_S))
            return kill.moment, None
        if not held:
            driver.hold(plan.BEFORE if kill.moment == plan.AROUND else kill.moment, kill.pipeline)
        if not driver.wait_for(lambda: driver.reached is not None, _MOMENT_S):
            self.report.missed[kill.moment] += 1
            driver.let_go()
            return plan.ANY_TIME, None
        if kill.moment == plan.AROUND:
            driver.let_go()
            time.sleep(self.chance.uniform(0, _AROUND_S))
        assert driver.reached is not None
        return kill.moment, driver.reached["port"]

    def _kill(self, driver: Driver, kill: Kill, port: int | None) -> None:
        match kill.victim:
            case plan.DRIVER:
                driver.kill()
            case plan.EXECUTOR:
                self._kill_one(lambda: driver.executor(self.chance, port))
            case plan.PYTHON_WORKER:
                self._kill_one(lambda: driver.python_worker(self.chance, port))
            case plan.SPARK_WORKER:
                assert self._theatre.spark is not None
                name = self._theatre.spark_worker(self.chance)
                kill_pids(self._theatre.spark.pids[name])
            case part:
                self._theatre.brokers.kill(self._theatre.broker(part, kill.pipeline, self.chance))
                time.sleep(self.chance.uniform(0, _DOWN_S))

    def _kill_one(self, find: Callable[[], int | None]) -> None:
        found: list[int] = []

        def is_there() -> bool:
            found.extend(pid for pid in [find()] if pid is not None)
            return bool(found)

        if holds_within(PROGRESS_S, is_there, pause_s=_POLL_S):
            kill_pids(found[0])
        else:
            self.report.wrong.append("there is nobody to kill: the driver's queries stand still")

    def _bring_back(self) -> None:
        for node_id in list(self._theatre.brokers.dead):
            self._theatre.brokers.start_node(node_id)
        if self._theatre.spark is not None:
            for name in self._theatre.workers:
                self._theatre.spark.ensure_worker(name)

    # --- the end --------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Wait until everything is through, and stop."""
        if self.report.wrong:
            return
        self._outcome.await_end()
        self._drivers[-1].stop()
        self._hear_out(self._drivers[-1])

    def check(self) -> None:
        if self.report.wrong:
            return
        came = [kill.moment for kill in self.report.killed]
        self.report.wrong += verdict.moments_that_never_came(self.report.missed, came)
        state = self._drivers[-1].state
        assert state is not None
        self._outcome.check(state)
