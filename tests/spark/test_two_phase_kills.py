"""Claims about one query into a topic and PostgreSQL in one commit, while its driver, the broker and the database's
server are killed with -9.

The query draws a random number for every row: two attempts at a batch never have the same result, so that each half
shows which attempt it has. ``EINMAL_KILLS`` is how often something is killed; the default is 3.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import psycopg
import pytest

from tests.interop.einmal_broker import EinmalBroker
from tests.sinks.postgres.server import PASSWORD, PostgresServer, running
from tests.spark.topics import create, fill, values

pytestmark = [pytest.mark.spark, pytest.mark.long]

KILLS: Final = int(os.environ.get("EINMAL_KILLS", "3"))
SEED: Final = 20_267
NAME: Final = "drawn"
_NUMBERS: Final = 40
"""To be processed between one kill and the next, in several batches."""
_FAULTS: Final = ("driver", "broker", "server", "driver, broker", "driver, server", "driver, broker, server")
_PROGRESS_S: Final = 400.0
_DECLARED: Final = """
transactional.id = "{name}"
checkpointLocation = "{directory}/checkpoint"
kafka.bootstrap.servers = "{bootstrap}"
kafka.transaction.two.phase.commit.enable = "true"
trigger.processingTime = "100 milliseconds"
spark.master = "local[2]"
spark.ui.enabled = "false"

[sources.numbers]
subscribe = "numbers"
startingOffsets = "earliest"
maxOffsetsPerTrigger = 10

[views]
drawn = "SELECT CAST(value AS STRING) AS number, CAST(rand() AS STRING) AS drawn FROM numbers"
events = "SELECT concat(number, ' ', drawn) AS value FROM drawn"

[sinks.events]
from = "events"
topic = "events"

[sinks.rows]
type = "postgres"
from = "drawn"
url = "{url}"
password = "${{env:POSTGRES_PASSWORD}}"
table = "drawn"
"""


class Killed:
    """The pipeline's driver, ``einmal run``, on a broker and a server that can be killed, too."""

    def __init__(self, broker: EinmalBroker, server: PostgresServer, directory: Path, seed: int) -> None:
        self.broker = broker
        self.server = server
        self._directory = directory
        self._chance = random.Random(seed)
        self._file = directory / "pipeline.toml"
        self._file.write_text(
            _DECLARED.format(name=NAME, directory=directory, bootstrap=broker.bootstrap, url=server.url)
        )
        self._driver: subprocess.Popen[bytes] | None = None
        self._filled = 0
        self._faults: list[str] = []
        self.kills: Counter[str] = Counter()
        create(broker.bootstrap, "numbers", "events")

    def run(self, kills: int) -> None:
        """So many kills, then an undisturbed end."""
        self._fill()
        self._progress()
        for _ in range(kills):
            fault = self._next_fault()
            self._fill()
            time.sleep(self._chance.uniform(0, 1.5))
            self._kill(fault)
            self.kills[fault] += 1
            self._progress()
        self._until(lambda: self._count() >= self._filled, "the rest is processed")
        self._stop()

    def close(self) -> None:
        self._kill_driver()

    def in_topic(self) -> list[str]:
        return sorted(values(self.broker.bootstrap, "events"))

    def in_database(self) -> list[str]:
        return sorted(f"{number} {drawn}" for number, drawn in self.server.rows("SELECT number, drawn FROM drawn"))

    def numbers(self) -> list[str]:
        return sorted(map(str, range(self._filled)))

    # --- faults -------------------------------------------------------------------------------------------------

    def _next_fault(self) -> str:
        """Each has its turn."""
        if not self._faults:
            self._faults = self._chance.sample(_FAULTS, len(_FAULTS))
        return self._faults.pop()

    def _kill(self, fault: str) -> None:
        parts = fault.split(", ")
        if "driver" in parts:
            self._kill_driver()
        if "broker" in parts:
            self.broker.kill()
        if "server" in parts:
            self.server.kill()
            self.server.start()
        if "broker" in parts:
            self.broker.start()

    def _kill_driver(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()

    def _start_driver(self) -> None:
        with (self._directory / "driver.log").open("ab") as log:
            self._driver = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "einmal", "run", str(self._file)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"POSTGRES_PASSWORD": PASSWORD},
                start_new_session=True,
            )

    def _stop(self) -> None:
        """Between two batches."""
        assert self._driver is not None
        self._driver.send_signal(signal.SIGTERM)
        assert self._driver.wait(_PROGRESS_S) == 0, self.log()

    # --- progress -----------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        fill(self.broker.bootstrap, "numbers", range(self._filled, self._filled + _NUMBERS))
        self._filled += _NUMBERS

    def _progress(self) -> None:
        """A batch was committed since."""
        before = self._count()
        self._until(lambda: self._count() > before or before == self._filled, f"more than {before} rows")

    def _until(self, claim: Callable[[], bool], what: str) -> None:
        """Meanwhile a driver that has ended is replaced: its errors are those of the broker and of the server."""
        deadline = time.monotonic() + _PROGRESS_S
        while True:
            with contextlib.suppress(psycopg.OperationalError):
                if claim():
                    return
            assert time.monotonic() < deadline, f"not within {_PROGRESS_S:.0f} s: {what}\n{self.log()}"
            status = None if self._driver is None else self._driver.poll()
            if self._driver is None or status is not None:
                self._kill_driver()
                self._start_driver()
            time.sleep(0.1)

    def _count(self) -> int:
        if self.server.rows("SELECT to_regclass('drawn')") == [(None,)]:
            return 0
        return int(self.server.rows("SELECT count(*) FROM drawn")[0][0])

    def log(self) -> str:
        return (self._directory / "driver.log").read_text(errors="replace")[-6000:]


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Killed]:
    broker = EinmalBroker(tmp_path / "broker", {"transaction.two.phase.commit.enable": "true"})
    broker.start()
    try:
        with running() as server:
            pipeline = Killed(broker, server, tmp_path, SEED)
            try:
                yield pipeline
            finally:
                pipeline.close()
    finally:
        broker.stop()


def test_topic_and_table_have_the_same_random_rows_once_whatever_is_killed(killed: Killed) -> None:
    killed.run(KILLS)
    assert killed.in_topic() == killed.in_database(), killed.kills
    assert sorted(each.split()[0] for each in killed.in_database()) == killed.numbers(), killed.kills
    assert sum(killed.kills.values()) == KILLS
