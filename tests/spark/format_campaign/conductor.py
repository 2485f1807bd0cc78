"""Leads the campaign: fills the topics, kills who is at a moment of the protocol, and computes the verdict.

``python -m tests.spark.format_campaign`` is its entry point. Every kill is one line; in the end comes a table of all
kills, and the verdict.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from einmal.chaos.campaign import Campaign
from einmal.chaos.processes import command_of, kill
from einmal.chaos.report import CampaignReport
from einmal.chaos.reporting import ProcessEnded
from einmal.chaos.waiting import holds_within
from tests.campaigns.spark_driver import READY_S, REPOSITORY, SparkDriver
from tests.spark.campaign import verdict
from tests.spark.campaign.cluster import Theatre
from tests.spark.campaign.outcome import PROGRESS_S, Outcome
from tests.spark.campaign.pipelines import NAMES, Place
from tests.spark.campaign.plan import BROKERS
from tests.spark.standalone import StandaloneCluster, executors_of

DRIVER: Final = "driver"
EXECUTOR: Final = "executor"
KEEPER: Final = "keeper"
PLANNING_WORKER: Final = "planning worker"
TASK_WORKER: Final = "task worker"
COMMIT_WORKER: Final = "commit worker"
ANY_TIME: Final = "any time"
WORKERS: Final = {
    "acquired": KEEPER,
    "planning": PLANNING_WORKER,
    "planned": KEEPER,
    "granted": PLANNING_WORKER,
    "in a task": TASK_WORKER,
    "claiming": KEEPER,
    "reported": KEEPER,
    "committing": COMMIT_WORKER,
    "written": KEEPER,
    "committed": KEEPER,
    "answered": COMMIT_WORKER,
}
"""Who is at a moment, which ``hold_writers`` explains, in the order of a batch."""
MOMENTS: Final = (*WORKERS, ANY_TIME)
WITHOUT_TRANSACTIONS: Final = ("planning", "granted", "in a task", "committing", "answered")
BROKER: Final = "broker"
VICTIMS: Final = (DRIVER, KEEPER, PLANNING_WORKER, TASK_WORKER, COMMIT_WORKER, EXECUTOR, BROKER)
WHOEVER: Final = "whoever is there"
_WEIGHTS: Final = {DRIVER: 2, WHOEVER: 4, BROKER: 1, EXECUTOR: 1}
_LOCAL_SHARE: Final = 0.5
_MOMENT_S: Final = 25.0
_ANY_TIME_S: Final = 1.5
_DOWN_S: Final = 1.0
_POLL_S: Final = 0.02
_HOOKS: Final = REPOSITORY / "tests" / "spark" / "programs" / "hold_writers"


class FormatDriver(SparkDriver):
    """A process that runs ``driver``, by itself or as an application of a Spark cluster."""

    def __init__(
        self, directory: Path, settings: dict[str, Any], env: Mapping[str, str], spark: StandaloneCluster | None
    ) -> None:
        self._spark = spark
        self._application = ""
        self.commits: Counter[str] = Counter()
        self.ends: list[str] = []
        self.state: dict[str, Any] | None = None
        super().__init__(directory, "tests.spark.format_campaign.driver", settings, env)

    @property
    def is_local(self) -> bool:
        return self._spark is None

    def hear(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            self.jvm, self._application = message["ready"], message["application"]
        elif "committed" in message:
            self.commits[message["committed"]] += 1
        elif "ended" in message:
            self.ends.append(f"{message['ended']}: {message['why']}")
        elif "state" in message:
            self.state = message["state"]

    def executors(self) -> list[int]:
        leaders = [] if self._spark is None else [pid for name, pid in self._spark.pids.items() if name != "master"]
        return [pid for leader in leaders for pid in executors_of(leader) if self._application in command_of(pid)]


@dataclass(kw_only=True)
class FormatReport(CampaignReport):
    seed: int
    cells: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By moment and victim: one that dies while several queries are held is at several moments."""
    missed: Counter[str] = field(default_factory=Counter)
    """Moments that did not come in time."""
    drivers: int = 0
    ends: list[str] = field(default_factory=list)
    """Why queries ended; the program started them again."""
    waits: list[float] = field(default_factory=list)
    records: dict[str, int] = field(default_factory=dict)
    commits: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        lines = ["", "moments          " + "".join(f"{victim:>17}" for victim in VICTIMS)]
        for moment in MOMENTS:
            lines.append(f"{moment:<17}" + "".join(f"{self.cells[moment, victim]:>17}" for victim in VICTIMS))
        waits = sorted(self.waits) or [0.0]
        lines.append(f"continues after  median {waits[len(waits) // 2]:.1f} s, longest {waits[-1]:.1f} s")
        lines.append(f"drivers          {self.drivers}")
        lines.append(
            f"did not come     {', '.join(f'{count} {name}' for name, count in self.missed.items()) or 'none'}"
        )
        for why, count in Counter(map(_cause, self.ends)).most_common(20):
            lines.append(f"ended, again     {count} x {why}")
        lines += [f"{topic:<17}{count} records" for topic, count in self.records.items()]
        lines.append(f"batches          {', '.join(f'{self.commits[name]} {name}' for name in NAMES)}")
        lines += [f"WRONG            {each}" for each in self.wrong]
        found = f"{len(self.wrong)} wrong" if self.wrong else "0 wrong: output = f(input), positions = outputs"
        lines.append(f"verdict          {self.kills.total()} kills in {self.seconds:.0f} s, seed {self.seed}: {found}")
        return "\n".join(lines)


def _cause(end: str) -> str:
    """The first words of Spark's report that no other end has."""
    name, _, why = end.partition(":")
    _, _, cause = why.partition("terminated with exception: ")
    return f"{name}: {(cause or why).strip().partition(chr(10))[0][:150]}"


class FormatCampaign(Campaign[FormatReport]):
    def __init__(self, theatre: Theatre, directory: Path, *, seed: int, guarantee: str = "exactly_once_v2") -> None:
        super().__init__(FormatReport(seed=seed), seed)
        self._theatre = theatre
        self._directory = directory
        self._holds = directory / "holds"
        self._holds.mkdir()
        self._place = Place(theatre.brokers.bootstrap, str(directory / "checkpoints"), guarantee)
        self._number = 0
        """Of the last hold."""
        self._drivers: list[FormatDriver] = []
        self._outcome = Outcome(self._place, self.report)

    def start(self) -> None:
        self._outcome.start()

    def disturb(self, kills: int) -> None:
        """Until something is wrong: then the rest shows nothing."""
        self._begin(self._launch())
        while self.report.kills.total() < kills and not self.report.wrong:
            (victim,) = self.chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
            try:
                self._strike(victim)
            except ProcessEnded as error:
                self.report.wrong.append(f"a driver ended by itself: {error}")

    def finish(self) -> None:
        if not self.report.wrong:
            self._outcome.await_end()
            self._driver.order(stop=True)
            self._driver.wait_for(lambda: self._driver.state is not None, READY_S)

    def check(self) -> None:
        self.report.drivers = len(self._drivers)
        for driver in self._drivers:
            self.report.ends += driver.ends
            self.report.commits += driver.commits
        refused = [end for end in self.report.ends if "PipelineRefused" in end]
        self.report.wrong += refused[:3]
        if not self.report.wrong:
            came = [moment for moment, _ in self.report.cells]
            self.report.wrong += verdict.moments_that_never_came(self.report.missed, came)
            assert self._driver.state is not None
            self._outcome.check(self._driver.state)

    def close(self) -> None:
        self._outcome.close()
        for driver in self._drivers:
            driver.sweep()

    # --- drivers ------------------------------------------------------------------------------------------------------

    @property
    def _driver(self) -> FormatDriver:
        return self._drivers[-1]

    def _launch(self) -> FormatDriver:
        directory = self._directory / f"driver-{len(self._drivers) + 1}"
        spark = self._theatre.spark if self.chance.random() >= _LOCAL_SHARE else None
        hooked = os.pathsep.join(map(str, (_HOOKS, REPOSITORY / "src", REPOSITORY)))
        settings = self._theatre.settings(
            directory, spark, asdict(self._place), PYTHONPATH=hooked, EINMAL_HOLD=str(self._holds)
        )
        path = os.pathsep.join(filter(None, (str(_HOOKS), os.environ.get("PYTHONPATH"))))
        env = {**os.environ, "EINMAL_HOLD": str(self._holds), "PYTHONPATH": path}
        return FormatDriver(directory, settings, env, spark)

    def _begin(self, driver: FormatDriver) -> None:
        self._drivers.append(driver)
        driver.wait_until_ready()
        driver.order(begin=True)
        # A query that was never there could not be killed.
        self._await_commits(Counter())

    def _await_commits(self, before: Counter[str]) -> None:
        """Of every pipeline, beyond ``before``."""

        def waiting() -> list[str]:
            return [name for name in NAMES if self._driver.commits[name] <= before[name]]

        if not self._driver.wait_for(lambda: not waiting(), PROGRESS_S):
            ends = [each for each in self._driver.ends if each.startswith(tuple(waiting()))]
            self.report.wrong.append(f"{waiting()} stand still, {self.report.cells}: {ends[-2:]}")

    # --- kills --------------------------------------------------------------------------------------------------------

    def _strike(self, victim: str) -> None:
        """Every pipeline is at a moment, if it comes in time: there die the driver, whoever is there, or another."""
        moments = tuple(WORKERS) if self._place.guarantee == "exactly_once_v2" else WITHOUT_TRANSACTIONS
        held = self._hold({name: self.chance.choice(moments) for name in NAMES})
        if not held:
            time.sleep(self.chance.uniform(0, _ANY_TIME_S))
        before, began = self._driver.commits.copy(), time.monotonic()
        killed = self._kill(victim, held)
        if killed == [DRIVER]:
            # It takes its time, and those that are held have theirs.
            old, new = self._driver, self._launch()
            self._let_go()
            self._begin(new)
            old.sweep()
        else:
            self._let_go()
            self._bring_back()
            self._await_commits(before)
        self.report.waits.append(time.monotonic() - began)
        where = "by itself" if self._driver.is_local else "on the cluster"
        at = ", ".join(f"{name} {moment}" for name, (moment, _) in held.items()) or ANY_TIME
        for each in killed:
            self.report.note(each, f"{where}, {at}; continues after {self.report.waits[-1]:.1f} s")

    def _hold(self, moments: Mapping[str, str]) -> dict[str, tuple[str, int]]:
        """By pipeline the moment, and the process that has come to it; those whose moment has not come are let go."""
        self._number += 1
        plans = {name: f"{moment} *\n{self._number}" for name, moment in moments.items()}
        for name, plan in plans.items():
            (self._holds / name).write_text(plan)
            if moments[name] == "acquired":
                self._driver.order(restart=name)
        held: dict[str, tuple[str, int]] = {}

        def are_all_there() -> bool:
            for name in moments.keys() - held.keys():
                process = self._process_at(name, plans[name])
                if process is not None:
                    held[name] = moments[name], process
            return held.keys() == moments.keys()

        holds_within(_MOMENT_S, are_all_there, pause_s=_POLL_S)
        for name in moments.keys() - held.keys():
            self.report.missed[moments[name]] += 1
            (self._holds / name).unlink()
        return held

    def _process_at(self, name: str, plan: str) -> int | None:
        """None: none has come there for this plan, or it has died since."""
        try:
            process, _, asked = (self._holds / f"{name}.reached").read_text().partition(" ")
        except FileNotFoundError:
            return None
        return int(process) if asked == plan and Path("/proc", process).exists() else None

    def _let_go(self) -> None:
        for path in self._holds.iterdir():
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    def _kill(self, victim: str, held: Mapping[str, tuple[str, int]]) -> list[str]:
        """Who they were."""
        moments = [moment for moment, _ in held.values()] or [ANY_TIME]
        if victim == DRIVER:
            self._driver.kill()
            self.report.cells.update((moment, DRIVER) for moment in moments)
            return [DRIVER]
        if victim == WHOEVER and held:
            kill(*(process for _, process in held.values()))
            self.report.cells.update((moment, WORKERS[moment]) for moment in moments)
            return [WORKERS[moment] for moment in moments]
        executors = self._driver.executors() if victim == EXECUTOR else []
        if executors:
            kill(self.chance.choice(executors))
            self.report.cells.update((moment, EXECUTOR) for moment in moments)
            return [EXECUTOR]
        part = self.chance.choice(BROKERS)
        self._theatre.brokers.kill(self._theatre.broker(part, self.chance.choice(NAMES), self.chance))
        time.sleep(self.chance.uniform(0, _DOWN_S))
        self.report.cells.update((moment, BROKER) for moment in moments)
        return [part]

    def _bring_back(self) -> None:
        for node_id in list(self._theatre.brokers.dead):
            self._theatre.brokers.start_node(node_id)
