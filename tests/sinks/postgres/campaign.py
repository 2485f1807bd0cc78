"""Random kills of two pipelines into PostgreSQL, one that appends and one that upserts: driver, Python worker, session,
server, and its synchronous standby promoted; and second drivers under the same names.

    python -m tests.sinks.postgres.campaign --kills 300 --seed 1

Their source makes the numbers 0, 1, 2 ... So what the tables must hold follows from the position in the commit record
alone: every number below it once, and for every key the last one. Exit code 0 where nothing is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
import psycopg

from tests.sinks.postgres.server import PASSWORD, PostgresServer, Standby, until

ROWS: Final = 40
"""In a batch."""
KEYS: Final = 97
NAMES: Final = ("append", "upsert")
_FAULTS: Final = {"driver": 3, "worker": 2, "session": 4, "server": 4, "standby": 1, "second driver": 1}
"""And how often each is chosen."""
_LIVES_S: Final = (0.0, 2.0)
"""Between one fault and the next, once the pipelines have committed something since."""
_PROGRESS_S: Final = 240.0
_REPOSITORY: Final = Path(__file__).parents[3]


@dataclass
class Report:
    kills: Counter[str] = field(default_factory=Counter)
    batches: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    fenced: int = 0
    wrong: list[str] = field(default_factory=list)


def wrong_with(name: str, found: Iterable[tuple[Any, ...]], count: int) -> list[str]:
    """Of a pipeline's table after ``count`` rows: each of them once, or for each key the last one."""
    expected = Counter(
        (number,) if name == "append" else (number, number % KEYS)
        for number in range(0 if name == "append" else max(0, count - KEYS), count)
    )
    seen = Counter(found)
    missing, surplus = expected - seen, seen - expected
    if not missing and not surplus:
        return []
    return [f"{name}: missing {sorted(missing)[:5]}, too many {sorted(surplus, key=str)[:5]}"]


class Campaign:
    def __init__(self, directory: Path, seed: int) -> None:
        self._directory = directory
        self._chance = random.Random(seed)
        self._server = PostgresServer()
        self._server.start()
        self._drivers: list[subprocess.Popen[bytes]] = []
        self._report = Report()

    def run(self, kills: int) -> Report:
        """``kills`` faults, then an undisturbed end, and the verdict."""
        try:
            self._start_driver()
            self._progress()
            while self._report.kills.total() < kills:
                fault = self._chance.choices(list(_FAULTS), list(_FAULTS.values()))[0]
                time.sleep(self._chance.uniform(*_LIVES_S))
                if self._happens(fault):
                    self._report.kills[fault] += 1
                    self._progress()
                    print(f"kill {self._report.kills.total()}: {fault}", file=sys.stderr, flush=True)
            self._kill_drivers()
            self._start_driver()
            self._progress()
            self._finish()
            self._verdict()
            return self._report
        finally:
            self._kill_drivers()
            self._server.remove()

    # --- faults -------------------------------------------------------------------------------------------------

    def _happens(self, fault: str) -> bool:
        """Whether there was something to kill."""
        match fault:
            case "driver":
                self._kill_drivers()
                self._start_driver()
            case "second driver":
                # Under the same names, while the first one runs: one of them ends fenced.
                self._start_driver()
            case "worker":
                return self._kill_worker()
            case "session":
                return self._end_session()
            case "server":
                self._server.kill()
                self._server.start()
            case "standby":
                self._promote_standby()
        return True

    def _kill_worker(self) -> bool:
        """A Python worker of Spark's; whether there was one."""
        children = [
            child
            for driver in self._drivers
            if driver.poll() is None
            for child in psutil.Process(driver.pid).children(recursive=True)
        ]
        with contextlib.suppress(psutil.Error):
            workers = [child for child in children if ".daemon pyspark" in " ".join(child.cmdline())]
            if workers:
                self._chance.choice(workers).kill()
                return True
        return False

    def _end_session(self) -> bool:
        with self._server.connect() as connection:
            ended = connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'einmal %%'"
                " ORDER BY hashint4(pid + %s) LIMIT 1",
                (self._chance.randrange(1_000),),
            )
            return bool(ended.fetchall())

    def _promote_standby(self) -> None:
        """A synchronous standby takes over at the same address."""
        standby: Standby = self._server.standby()
        standby.start()
        self._server.reload({"synchronous_standby_names": "'*'"})
        until(
            lambda: self._server.rows("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"),
            "the standby is synchronous",
        )
        time.sleep(self._chance.uniform(0, 1))
        self._server.kill()
        self._server.remove()
        standby.stop()
        standby.port = self._server.port
        standby.start()
        standby.promote()
        self._server = standby

    # --- drivers ------------------------------------------------------------------------------------------------

    def _start_driver(self) -> None:
        with (self._directory / "drivers.log").open("ab") as log:
            arguments = [self._server.url, str(self._directory), str(self._chance.randrange(1 << 30))]
            self._drivers.append(
                subprocess.Popen(
                    [sys.executable, "-W", "ignore", "-m", "tests.sinks.postgres.campaign_driver", *arguments],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=_REPOSITORY,
                    start_new_session=True,
                )
            )

    def _kill_drivers(self) -> None:
        for driver in self._drivers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        self._drivers.clear()

    def _progress(self) -> None:
        """Both pipelines have committed a batch since; a driver that has ended is started again."""
        before = self._batches()
        deadline = time.monotonic() + _PROGRESS_S
        while True:
            with contextlib.suppress(psycopg.OperationalError):
                now = self._batches()
                if all(now.get(name, -1) > before.get(name, -1) for name in NAMES):
                    return
            if time.monotonic() > deadline:
                raise AssertionError(f"no progress since {before}: {self._log()[-6000:]}")
            self._drivers = [driver for driver in self._drivers if driver.poll() is None]
            if not self._drivers:
                self._start_driver()
            time.sleep(0.1)

    def _batches(self) -> dict[str, int]:
        if self._server.rows("SELECT to_regclass('einmal_commits')") == [(None,)]:
            return {}
        return dict(self._server.rows("SELECT pipeline, batch_id FROM einmal_commits WHERE record IS NOT NULL"))

    def _finish(self) -> None:
        """The last driver stops its queries, and ends."""
        (self._directory / "stop").touch()
        for driver in self._drivers:
            assert driver.wait(_PROGRESS_S) == 0, self._log()[-6000:]

    # --- the verdict --------------------------------------------------------------------------------------------

    def _verdict(self) -> None:
        report, rows = self._report, self._server.rows
        report.fenced = self._log().count("PipelineFenced")
        for name, batch_id, end, records in rows("SELECT pipeline, batch_id, end_offsets, records FROM einmal_commits"):
            report.batches[name] = batch_id
            # Batch 0 of this source has rows, so batch N ends before this number.
            report.rows[name] = count = (batch_id + 1) * ROWS
            if records != ROWS:
                report.wrong.append(f"{name}: the record of batch {batch_id} counts {records} rows")
            if end is None or [each["offset"] for each in end] != [count]:
                report.wrong.append(f"{name}: the record of batch {batch_id} ends at {end}")
            columns = "n" if name == "append" else "n, key"
            report.wrong += wrong_with(name, rows(f"SELECT {columns} FROM {name}"), count)
        if unwritten := set(NAMES) - report.batches.keys():
            report.wrong.append(f"{sorted(unwritten)} have committed nothing: nothing is shown")
        if left := rows("SELECT relname FROM pg_class WHERE relname LIKE 'einmal_staging%'"):
            report.wrong.append(f"staging tables are left: {left}")
        if PASSWORD in self._log():
            report.wrong.append("the password is in the drivers' log")

    def _log(self) -> str:
        return (self._directory / "drivers.log").read_text(errors="replace")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    parser.add_argument("--keep", action="store_true", help="keep logs, data and checkpoints also of a clean run")
    asked = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="einmal-postgres-"))
    directory.chmod(0o711)
    print(f"seed {asked.seed}, {asked.kills} kills, in {directory}", flush=True)
    report = Campaign(directory, asked.seed).run(asked.kills)
    print(report, flush=True)
    if report.wrong or asked.keep:
        print(f"kept: {directory}")
    else:
        shutil.rmtree(directory)
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
