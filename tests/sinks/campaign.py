"""Random kills of drivers, executors and Python workers under a stream into a sink, and the count of its rows.

``python -m tests.sinks.campaign --target delta --kills 300 --seed 1`` has exit code 0 where each row of the
input is in the sink once, the commit record is at the last of them, and nothing is left of what was staged.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from einmal.sinks.sink import Opening
from einmal.spark.environment import class_archive
from tests.sinks.driver import NAME, ROWS_PER_BATCH
from tests.sinks.hooks import HOOKS, OwnHooks
from tests.spark.standalone import StandaloneCluster, die_with_parent, executors_of, kill, session_of

_REPOSITORY: Final = Path(__file__).parents[2]
_MOMENTS: Final = (
    "NameTaken",
    "BatchStarted",
    "PartitionWritten",
    "OutputWritten",
    "BatchWritten",
    "TransactionEnded",
    "BatchFinished",
)
_READY_S: Final = 120.0
_MOMENT_S: Final = 180.0
_ANY_TIME_S: Final = 1.5
_AFTER_BATCHES: Final = 2
_LAST_BATCHES: Final = 3
"""After the last kill the pipeline must commit so many."""
_WORKER_SHARE: Final = 0.3
"""Of the kills, those of an executor or a Python worker, which the driver outlives."""


@dataclass
class Verdict:
    kills: Counter[str] = field(default_factory=Counter)
    batches: int = 0
    wrong: list[str] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)


class DriverProcess:
    """A program of ``driver``, which waits to begin."""

    def __init__(self, directory: Path, settings: dict[str, Any], spark: StandaloneCluster | None) -> None:
        directory.mkdir(parents=True)
        path = directory / "settings.json"
        path.write_text(json.dumps(settings))
        self._spark = spark
        self._log = directory / "driver.log"
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        self.ends: list[dict[str, Any]] = []
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "tests.sinks.driver", str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=_REPOSITORY,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call, no lock
            )
        threading.Thread(target=self._listen, daemon=True).start()
        self._jvm = 0

    def begin(self, hold: str | None, after: int) -> None:
        self._jvm = self.wait("ready", _READY_S)["ready"]
        self._order(begin=True, hold=hold, after=after)

    def wait(self, key: str, seconds: float, **values: object) -> dict[str, Any]:
        """The next line that has this key and these values."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {key} {values} in {seconds} s: {self._log.read_text()[-3000:]}") from None
            if "ended" in line:
                self.ends.append(line)
            if "over" in line:
                raise AssertionError(f"the driver has ended: {self._log.read_text()[-3000:]}")
            if key in line and all(line.get(name) == value for name, value in values.items()):
                return line

    def kill(self) -> None:
        kill(self._jvm, self._process.pid)
        self._process.wait()
        for pid in session_of(self._process.pid):
            kill(pid)

    def kill_worker(self, chance: random.Random) -> bool:
        """An executor of a cluster, or a Python worker; whether there was one."""
        if self._spark is not None:
            pids = [
                pid for name, leader in self._spark.pids.items() if name != "master" for pid in executors_of(leader)
            ]
        else:
            pids = [pid for pid in session_of(self._process.pid) if ".daemon pyspark" in _command(pid)]
        if pids:
            kill(chance.choice(pids))
        return bool(pids)

    def stop(self) -> None:
        self._order(stop=True)
        self.wait("finished", _MOMENT_S)
        self._process.wait(_MOMENT_S)

    def _order(self, **line: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._lines.put(json.loads(line))
        self._lines.put({"over": True})


class Conductor:
    def __init__(self, hooks: OwnHooks, directory: Path, spark: StandaloneCluster | None, seed: int) -> None:
        self._hooks = hooks
        self._directory = directory
        self._spark = spark
        self._chance = random.Random(seed)
        self._launched = 0
        self._next = self._launch()
        self.verdict = Verdict()

    def run(self, kills: int) -> Verdict:
        driver: DriverProcess | None = None
        while self.verdict.kills.total() < kills:
            if driver is None:
                driver, self._next = self._next, self._launch()
            if self._one_kill(driver):
                self._count_ends(driver)
                driver = None
        if driver is not None:
            driver.kill()
        self._next.begin(None, 0)
        for _ in range(_LAST_BATCHES):
            self._next.wait("event", _MOMENT_S, event="TransactionEnded")
        self._next.stop()
        self._count_ends(self._next)
        self._check()
        return self.verdict

    def _one_kill(self, driver: DriverProcess) -> bool:
        """Let the driver live until its moment; whether it is dead then."""
        chance = self._chance
        moment = chance.choice((*_MOMENTS, "any time"))
        is_worker = chance.random() < _WORKER_SHARE
        held = None if is_worker or moment == "any time" else moment
        driver.begin(held, chance.randrange(_AFTER_BATCHES) if moment != "NameTaken" else 0)
        if is_worker:
            driver.wait("event", _MOMENT_S, event="BatchStarted")
            driver.wait("event", _MOMENT_S, event="BatchFinished")
            time.sleep(chance.uniform(0, 0.2))
            if driver.kill_worker(chance):
                self._note("worker")
            # It must continue without a restart of its process.
            driver.wait("event", _MOMENT_S, event="TransactionEnded")
            driver.wait("event", _MOMENT_S, event="TransactionEnded")
        elif held is None:
            time.sleep(chance.uniform(0, _ANY_TIME_S))
        else:
            driver.wait("reached", _MOMENT_S)
        driver.kill()
        self._note(moment if not is_worker else "driver after worker")
        return True

    def _note(self, kind: str) -> None:
        self.verdict.kills[kind] += 1
        print(f"kill {self.verdict.kills.total()}: {kind}", file=sys.stderr, flush=True)

    def _count_ends(self, driver: DriverProcess) -> None:
        for line in driver.ends:
            self.verdict.ends[line["ended"].partition(":")[0]] += 1
            if line["refused"]:
                self.verdict.wrong.append(line["ended"])

    def _launch(self) -> DriverProcess:
        self._launched += 1
        directory = self._directory / f"driver-{self._launched}"
        config = {
            "spark.local.dir": str(directory / "local"),
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
        }
        if self._spark is not None:
            options = " ".join(["-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData", *class_archive.options()])
            config |= {
                "spark.driver.host": "127.0.0.1",
                "spark.executor.memory": "512m",
                "spark.executor.cores": "1",
                "spark.cores.max": "2",
                "spark.executor.extraJavaOptions": options,
                "spark.executorEnv.PYTHONPATH": os.pathsep.join([str(_REPOSITORY / "src"), str(_REPOSITORY)]),
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
            }
        settings = {
            "master": "local[2]" if self._spark is None else self._spark.master,
            "config": config,
            "kind": self._hooks.kind,
            "options": self._hooks.options(self._directory / "sink"),
            "checkpoint": str(self._directory / "checkpoint"),
        }
        return DriverProcess(directory, settings, self._spark)

    def _check(self) -> None:
        location, wrong = self._directory / "sink", self.verdict.wrong
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
        self.verdict.batches = record.batch_id + 1
        # Batch 0 of Spark's source begins at its start, and each batch has as many rows.
        expected = Counter(range((record.batch_id + 1) * ROWS_PER_BATCH))
        rows = self._hooks.rows(location)
        seen = Counter(number for number, _ in rows)
        lost, doubled = expected - seen, seen - expected
        if lost or doubled:
            wrong.append(f"{lost.total()} rows lost, first {sorted(lost)[:3]}; {doubled.total()} too many")
        if any(name != f"row {number}" for number, name in rows):
            wrong.append("a row has another text")
        if staged := self._hooks.staged(location):
            wrong.append(f"still staged: {staged[:3]}")


def run_campaign(kind: str, kills: int, seed: int, directory: Path, spark: StandaloneCluster | None) -> Verdict:
    (directory / "sink").mkdir(parents=True)
    return Conductor(HOOKS[kind](), directory, spark, seed).run(kills)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=HOOKS, action="append")
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    parser.add_argument("--local", action="store_true", help="no Spark cluster: drivers that are their own executors")
    asked = parser.parse_args()
    wrong = False
    for kind in asked.target or HOOKS:
        directory = Path(tempfile.mkdtemp(prefix=f"einmal-{kind}-"))
        print(f"{kind}: seed {asked.seed}, {asked.kills} kills, in {directory}", flush=True)
        with contextlib.ExitStack() as stack:
            spark = None
            if not asked.local:
                (directory / "spark").mkdir()
                spark = stack.enter_context(StandaloneCluster(directory / "spark", cores=6))
            verdict = run_campaign(kind, asked.kills, asked.seed, directory / "campaign", spark)
        print(f"{kind}: {verdict.batches} batches, kills {dict(verdict.kills)}, ends {dict(verdict.ends)}")
        print("\n".join(verdict.wrong) or f"{kind}: every row is there once, and nothing is staged", flush=True)
        wrong = wrong or bool(verdict.wrong)
        if not verdict.wrong:
            shutil.rmtree(directory)
    return 1 if wrong else 0


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
