"""Kills of containers under three pipelines on YARN: ``python -m tests.spark.yarn.campaign --kills 30 --seed 1``.

A copy, windows and a table of PostgreSQL, one after the other, each submitted with its driver in a container. At random
moments a container dies by kill -9: the driver's, an executor's, or a Python worker. YARN starts the driver again.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

from einmal.chaos.processes import kill, kill_session
from einmal.client import Admin
from tests.interop.einmal_broker import EinmalBroker
from tests.sinks.postgres.server import PASSWORD, PostgresServer
from tests.spark.topics import create, fill, numbers, values
from tests.spark.yarn.cluster import APPLICATION_MASTER, EXECUTOR, YarnCluster, submit
from tests.suite.patience import patient

KINDS: Final = ("copy", "windows", "postgres")
WORKER: Final = ".daemon pyspark.worker"
_VICTIMS: Final = {"driver": APPLICATION_MASTER, "executor": EXECUTOR, "python worker": WORKER}
_PROGRAM: Final = Path(__file__).with_name("program.py")
_ROWS: Final = 2_000
"""Each time that a pipeline is submitted while there are kills left, so many more."""
_WINDOW: Final = 20
_RUN_S: Final = 900.0
_PAUSE_S: Final = (1.0, 8.0)


class Pipeline:
    """One of the three, and what it must have written."""

    def __init__(self, kind: str, broker: EinmalBroker, server: PostgresServer, directory: Path) -> None:
        self.kind = kind
        self.name = f"yarn-{kind}"
        self._broker = broker
        self._server = server
        self._checkpoint = directory / f"{self.name}-checkpoint"
        self._log = directory / f"{self.name}.log"
        self._rows = 0
        create(broker.bootstrap, f"{self.name}-in", f"{self.name}-out")

    def add(self, rows: int) -> None:
        """Write so many more numbers to its source."""
        fill(self._broker.bootstrap, f"{self.name}-in", range(self._rows, self._rows + rows))
        self._rows += rows

    def submit(self, cluster: YarnCluster) -> subprocess.Popen[str]:
        database = [self._server.url, PASSWORD] if self.kind == "postgres" else []
        arguments = [self.kind, self._broker.bootstrap, self.name, self._checkpoint.as_uri(), *database]
        return submit(cluster, _PROGRAM, arguments, self._log)

    @property
    def printed(self) -> str:
        return self._log.read_text()[-3_000:]

    def problems(self) -> list[str]:
        """Compare what it has written with what it has read."""
        written, expected = self._written(), self._expected()
        found = []
        if lost := expected - written:
            found.append(f"{self.name}: {lost.total()} lost, such as {next(iter(lost))!r}")
        if more := written - expected:
            found.append(f"{self.name}: {more.total()} too many, such as {next(iter(more))!r}")
        if self.kind != "postgres":
            with Admin({"bootstrap.servers": self._broker.bootstrap}) as admin:
                positions = sum(position.offset for position in admin.list_group_offsets(self.name).values())
            if positions != self._rows:
                found.append(f"{self.name}: positions are at {positions} of {self._rows}")
        return found

    def _written(self) -> Counter[str]:
        if self.kind == "postgres":
            table = self.name.replace("-", "_")
            return Counter(str(number) for (number,) in self._server.rows(f"SELECT n FROM {table}"))
        if self.kind == "copy":
            return Counter(map(str, numbers(self._broker.bootstrap, f"{self.name}-out")))
        return Counter(
            value
            for value in values(self._broker.bootstrap, f"{self.name}-out")
            # Later ones are closed or not, depending on when the last batch began.
            if int(value.partition(":")[0]) < self._surely_closed
        )

    def _expected(self) -> Counter[str]:
        if self.kind == "windows":
            return Counter(f"{start}:{_WINDOW}" for start in range(0, self._surely_closed, _WINDOW))
        return Counter(map(str, range(self._rows)))

    @property
    def _surely_closed(self) -> int:
        """The watermark is 30 behind, and a batch of 20 late; starts of windows are multiples of 20."""
        return max(0, (self._rows - 100) // _WINDOW * _WINDOW)


def run(directory: Path, kills: int, seed: int, kinds: tuple[str, ...] = KINDS) -> list[str]:
    """Return what is wrong. Raises AssertionError where a pipeline does not come to its end."""
    random_ = random.Random(seed)
    broker, server = EinmalBroker(directory / "broker"), PostgresServer()
    problems, done = [], Counter[str]()
    broker.start()
    server.start()
    try:
        with YarnCluster(directory / "yarn") as cluster:
            for index, kind in enumerate(kinds):
                pipeline = Pipeline(kind, broker, server, directory)
                wanted = kills // len(kinds) + (index < kills % len(kinds))
                killed = Counter[str]()
                while killed.total() < wanted:
                    pipeline.add(_ROWS)
                    killed += _end(pipeline, cluster, wanted - killed.total(), random_)
                # Nobody dies any more.
                pipeline.add(_WINDOW)
                _end(pipeline, cluster, 0, random_)
                found = pipeline.problems()
                print(
                    f"{pipeline.name}: {dict(killed)} killed, {len(found)} wrong {found}", file=sys.stderr, flush=True
                )
                problems += found
                done += killed
    finally:
        server.remove()
        broker.stop()
    who = ", ".join(f"{count} {what}" for what, count in sorted(done.items()))
    print(f"{done.total()} kills ({who}), seed {seed}: {len(problems)} wrong")
    return problems


def _end(pipeline: Pipeline, cluster: YarnCluster, kills: int, random_: random.Random) -> Counter[str]:
    """Submit it, and kill meanwhile, at most so often; who has died."""
    process, killed = pipeline.submit(cluster), Counter[str]()
    deadline = time.monotonic() + patient(_RUN_S)
    try:
        while process.poll() is None:
            assert time.monotonic() < deadline, pipeline.printed + cluster.logs()
            time.sleep(random_.uniform(*_PAUSE_S))
            what = random_.choice(list(_VICTIMS))
            candidates = cluster.containers(_VICTIMS[what])
            # Before a Python worker runs there is nothing to interrupt.
            if killed.total() < kills and candidates and cluster.containers(WORKER):
                kill(random_.choice(candidates))
                killed[what] += 1
    finally:
        kill_session(process.pid)
    assert process.returncode == 0, pipeline.printed + cluster.logs()
    return killed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="einmal-yarn-") as directory:
        return 1 if run(Path(directory), arguments.kills, arguments.seed) else 0


if __name__ == "__main__":
    sys.exit(main())
