"""Random kills of drivers, executors and Python workers under a stream into a sink, and the count of its rows.

``python -m tests.sinks.campaign --target delta --kills 300 --seed 1`` has exit code 0 where each row of the
input is in the sink once, the commit record is at the last of them, and nothing is left of what was staged.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from einmal.chaos.campaign import Campaign
from einmal.chaos.processes import kill
from einmal.chaos.report import CampaignReport, differences
from einmal.sinks.sink import Opening
from tests.campaigns.command import parser, run_in_folder
from tests.campaigns.spark_driver import SparkDriver, python_workers, spark_config
from tests.sinks.driver import NAME, ROWS_PER_BATCH
from tests.sinks.hooks import HOOKS, OwnHooks
from tests.spark.standalone import StandaloneCluster, executors_of
from tests.suite.patience import patient

_MOMENTS: Final = (
    "NameTaken",
    "BatchStarted",
    "PartitionWritten",
    "OutputWritten",
    "BatchWritten",
    "TransactionEnded",
    "BatchFinished",
)
_MOMENT_S: Final = 180.0
_ANY_TIME_S: Final = 1.5
_AFTER_BATCHES: Final = 2
_LAST_BATCHES: Final = 3
"""After the last kill the pipeline must commit so many."""
_WORKER_SHARE: Final = 0.3
"""Of the kills, those of an executor or a Python worker, which the driver outlives."""


@dataclass(kw_only=True)
class SinkReport(CampaignReport):
    batches: int = 0
    ends: Counter[str] = field(default_factory=Counter)


class SinkDriver(SparkDriver):
    """A program of ``driver``, which waits to begin."""

    def __init__(self, directory: Path, settings: dict[str, Any], spark: StandaloneCluster | None) -> None:
        self._spark = spark
        self.ends: list[dict[str, Any]] = []
        super().__init__(directory, "tests.sinks.driver", settings)

    def hear(self, message: dict[str, Any]) -> None:
        super().hear(message)
        if "ended" in message:
            self.ends.append(message)

    def begin(self, hold: str | None, after: int) -> None:
        self.wait_until_ready()
        self.order(begin=True, hold=hold, after=after)

    def await_event(self, event: str) -> None:
        self.next_message(patient(_MOMENT_S), lambda message: message.get("event") == event)

    def await_key(self, key: str) -> None:
        self.next_message(patient(_MOMENT_S), lambda message: key in message)

    def kill_worker(self, chance: random.Random) -> bool:
        """An executor of a cluster, or a Python worker; whether there was one."""
        if self._spark is None:
            pids = python_workers(self.process.pid)
        else:
            pids = [pid for name, each in self._spark.pids.items() if name != "master" for pid in executors_of(each)]
        if pids:
            kill(chance.choice(pids))
        return bool(pids)

    def stop(self) -> None:
        self.order(stop=True)
        self.await_key("finished")
        self.process.wait(patient(_MOMENT_S))


class SinkCampaign(Campaign[SinkReport]):
    def __init__(self, hooks: OwnHooks, directory: Path, spark: StandaloneCluster | None, seed: int) -> None:
        super().__init__(SinkReport(), seed)
        self._hooks = hooks
        self._directory = directory
        self._spark = spark
        self._drivers: list[SinkDriver] = []
        """The last one waits to begin."""

    def start(self) -> None:
        (self._directory / "sink").mkdir(parents=True)
        self._launch()

    def disturb(self, kills: int) -> None:
        while self.report.kills.total() < kills:
            driver = self._drivers[-1]
            self._launch()
            self._live(driver)
            self._count_ends(driver)

    def finish(self) -> None:
        driver = self._drivers[-1]
        driver.begin(None, 0)
        for _ in range(_LAST_BATCHES):
            driver.await_event("TransactionEnded")
        driver.stop()
        self._count_ends(driver)

    def close(self) -> None:
        for driver in self._drivers[-2:]:
            driver.sweep()

    def _live(self, driver: SinkDriver) -> None:
        """Let the driver live until its moment, and kill it."""
        chance = self.chance
        moment = chance.choice((*_MOMENTS, "any time"))
        is_worker = chance.random() < _WORKER_SHARE
        held = None if is_worker or moment == "any time" else moment
        driver.begin(held, chance.randrange(_AFTER_BATCHES) if moment != "NameTaken" else 0)
        if is_worker:
            driver.await_event("BatchStarted")
            driver.await_event("BatchFinished")
            time.sleep(chance.uniform(0, 0.2))
            if driver.kill_worker(chance):
                self.report.note("worker")
            # It must continue without a restart of its process.
            driver.await_event("TransactionEnded")
            driver.await_event("TransactionEnded")
        elif held is None:
            time.sleep(chance.uniform(0, _ANY_TIME_S))
        else:
            driver.await_key("reached")
        driver.sweep()
        self.report.note(moment if not is_worker else "driver after worker")

    def _count_ends(self, driver: SinkDriver) -> None:
        for line in driver.ends:
            self.report.ends[line["ended"].partition(":")[0]] += 1
            if line["refused"]:
                self.report.wrong.append(line["ended"])

    def _launch(self) -> None:
        directory = self._directory / f"driver-{len(self._drivers) + 1}"
        settings = {
            "master": "local[2]" if self._spark is None else self._spark.master,
            "config": spark_config(directory, self._spark, executor_cores=1),
            "kind": self._hooks.kind,
            "options": self._hooks.options(self._directory / "sink"),
            "checkpoint": str(self._directory / "checkpoint"),
        }
        self._drivers.append(SinkDriver(directory, settings, self._spark))

    def check(self) -> None:
        location, wrong = self._directory / "sink", self.report.wrong
        sink = self._hooks.sink(location)
        commit_point = sink.commit_point(Opening(name=NAME))
        # Whatever was staged under an earlier epoch is removed by this.
        commit_point.acquire(None)
        record = commit_point.read()
        commit_point.close()
        sink.close()
        if record is None:
            wrong.append("there is no commit record")
            return
        self.report.batches = record.batch_id + 1
        rows = self._hooks.rows(location)
        # Batch 0 of Spark's source begins at its start, and each batch has as many rows.
        wrong += differences("rows", (number for number, _ in rows), range(self.report.batches * ROWS_PER_BATCH))
        if any(name != f"row {number}" for number, name in rows):
            wrong.append("a row has another text")
        if staged := self._hooks.staged(location):
            wrong.append(f"still staged: {staged[:3]}")


def run_campaign(kind: str, kills: int, seed: int, directory: Path, spark: StandaloneCluster | None) -> SinkReport:
    return SinkCampaign(HOOKS[kind](), directory, spark, seed).run(kills)


def main() -> int:
    options = parser(__doc__, kills=300)
    options.add_argument("--target", choices=HOOKS, action="append")
    options.add_argument("--local", action="store_true", help="no Spark cluster: drivers that are their own executors")
    asked = options.parse_args()

    def run(kind: str, folder: Path) -> SinkReport:
        with contextlib.ExitStack() as stack:
            spark = None if asked.local else stack.enter_context(StandaloneCluster(folder / "spark", cores=6))
            return run_campaign(kind, asked.kills, asked.seed, folder / "campaign", spark)

    good = [run_in_folder(kind, asked, partial(run, kind)) for kind in asked.target or HOOKS]
    return not all(good)


if __name__ == "__main__":
    sys.exit(main())
