"""Random kills of two pipelines into PostgreSQL, one that appends and one that upserts: driver, Python worker, session,
server, and its synchronous standby promoted; and second drivers under the same names.

    python -m tests.sinks.postgres.campaign --kills 300 --seed 1

Their source makes the numbers 0, 1, 2 ... So what the tables must hold follows from the position in the commit record
alone: every number below it once, and for every key the last one. Exit code 0 where nothing is wrong.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg

from einmal.chaos.campaign import RandomFaults
from einmal.chaos.instances import Instances
from einmal.chaos.processes import kill, launch
from einmal.chaos.report import CampaignReport, differences
from einmal.chaos.waiting import wait_until
from tests.campaigns.command import parser, run_in_folder, with_keep
from tests.campaigns.spark_driver import REPOSITORY, python_workers
from tests.sinks.postgres.server import PASSWORD, PostgresServer, Standby, until

ROWS: Final = 40
"""In a batch."""
KEYS: Final = 97
NAMES: Final = ("append", "upsert")
_FAULTS: Final = {"driver": 3, "worker": 2, "session": 4, "server": 4, "standby": 1, "second driver": 1}
"""And how often each is chosen."""
_CALM_S: Final = (0.0, 2.0)
"""Between one fault and the next, once the pipelines have committed something since."""
_PROGRESS_S: Final = 240.0


@dataclass(kw_only=True)
class PostgresReport(CampaignReport):
    batches: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    fenced: int = 0


def wrong_with(name: str, found: Iterable[tuple[Any, ...]], count: int) -> list[str]:
    """Of a pipeline's table after ``count`` rows: each of them once, or for each key the last one."""
    if name == "append":
        return differences(name, found, ((number,) for number in range(count)))
    return differences(name, found, ((number, number % KEYS) for number in range(max(0, count - KEYS), count)))


class PostgresCampaign(RandomFaults[PostgresReport]):
    def __init__(self, directory: Path, seed: int) -> None:
        super().__init__(PostgresReport(), seed, _FAULTS, _CALM_S)
        self._directory = directory
        self._server = PostgresServer()
        self._drivers = Instances(self._launch, directory / "drivers.log")

    def start(self) -> None:
        self._server.start()
        self._drivers.start()

    # --- faults -------------------------------------------------------------------------------------------------

    def inject(self, fault: str) -> str:
        match fault:
            case "driver":
                self._drivers.kill()
                self._drivers.start()
            case "second driver":
                # Under the same names, while the first one runs: one of them ends fenced.
                self._drivers.start()
            case "worker":
                return fault if self._kill_worker() else ""
            case "session":
                return fault if self._end_session() else ""
            case "server":
                self._server.kill()
                self._server.start()
            case "standby":
                self._promote_standby()
        return fault

    def _kill_worker(self) -> bool:
        """A Python worker of Spark's; whether there was one."""
        workers = [pid for driver in self._drivers.running for pid in python_workers(driver.pid)]
        if workers:
            kill(self.chance.choice(workers))
        return bool(workers)

    def _end_session(self) -> bool:
        with self._server.connect() as connection:
            ended = connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'einmal %%'"
                " ORDER BY hashint4(pid + %s) LIMIT 1",
                (self.chance.randrange(1_000),),
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
        time.sleep(self.chance.uniform(0, 1))
        self._server.kill()
        self._server.remove()
        standby.stop()
        standby.port = self._server.port
        standby.start()
        standby.promote()
        self._server = standby

    # --- drivers ------------------------------------------------------------------------------------------------

    def _launch(self) -> subprocess.Popen[str]:
        arguments = [self._server.url, str(self._directory), str(self.chance.randrange(1 << 30))]
        command = [sys.executable, "-W", "ignore", "-m", "tests.sinks.postgres.campaign_driver", *arguments]
        return launch(command, self._directory / "drivers.log", cwd=REPOSITORY)

    def await_progress(self) -> None:
        """Both pipelines have committed a batch since; a driver that has ended is started again."""
        before = self._batches()

        def has_progress() -> bool:
            with suppress(psycopg.OperationalError):
                now = self._batches()
                if all(now.get(name, -1) > before.get(name, -1) for name in NAMES):
                    return True
            self._drivers.ensure()
            return False

        wait_until(has_progress, _PROGRESS_S, lambda: f"no progress since {before}: {self._drivers.log()[-6000:]}")

    def _batches(self) -> dict[str, int]:
        if self._server.rows("SELECT to_regclass('einmal_commits')") == [(None,)]:
            return {}
        return dict(self._server.rows("SELECT pipeline, batch_id FROM einmal_commits WHERE record IS NOT NULL"))

    def finish(self) -> None:
        """The last driver stops its queries, and ends."""
        self._drivers.kill()
        self._drivers.start()
        self.await_progress()
        drivers = list(self._drivers.running)
        (self._directory / "stop").touch()
        for driver in drivers:
            assert driver.wait(_PROGRESS_S) == 0, self._drivers.log()[-6000:]

    def close(self) -> None:
        self._drivers.kill()
        self._server.remove()

    # --- the verdict --------------------------------------------------------------------------------------------

    def check(self) -> None:
        report, rows = self.report, self._server.rows
        report.fenced = self._drivers.log().count("PipelineFenced")
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
        if PASSWORD in self._drivers.log():
            report.wrong.append("the password is in the drivers' log")


def main() -> int:
    asked = with_keep(parser(__doc__, kills=300)).parse_args()
    return not run_in_folder("postgres", asked, lambda folder: PostgresCampaign(folder, asked.seed).run(asked.kills))


if __name__ == "__main__":
    sys.exit(main())
