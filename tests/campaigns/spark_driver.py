"""Spark drivers as processes of a campaign: a program, its JVM, and Python workers, each of which can be killed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from einmal.chaos.processes import command_of, kill, kill_session, session_of
from einmal.chaos.reporting import ReportingProcess
from einmal.spark.environment import class_archive
from tests.spark.standalone import StandaloneCluster

REPOSITORY: Final = Path(__file__).parents[2]
READY_S: Final = 300.0
_GONE_S: Final = 20.0


class SparkDriver(ReportingProcess):
    """``module`` with a file of its settings; it reports the pid of its JVM, ``ready``, and waits to begin.

    ``inside``: what comes before its command.
    """

    def __init__(
        self,
        directory: Path,
        module: str,
        settings: dict[str, Any],
        env: Mapping[str, str] | None = None,
        *,
        inside: Sequence[str] = (),
    ) -> None:
        directory.mkdir(parents=True)
        path = directory / "settings.json"
        path.write_text(json.dumps(settings))
        self.jvm = 0
        command = [*inside, sys.executable, "-W", "ignore", "-m", module, str(path)]
        super().__init__(command, directory / "driver.log", cwd=REPOSITORY, env=env)

    def hear(self, message: dict[str, Any]) -> None:
        self.jvm = message.get("ready", self.jvm)
        super().hear(message)

    def wait_until_ready(self) -> None:
        """Its session exists. Raises ProcessEnded."""
        assert self.wait_for(lambda: self.jvm > 0, READY_S), f"the driver is not ready: {self.log_tail()}"

    def kill(self) -> None:
        """Kill the JVM and the program that started it. What they have started finds out by itself."""
        kill(*(pid for pid in session_of(self.process.pid) if pid in (self.jvm, self.process.pid)))
        self.process.wait(_GONE_S)
        self._reader.join(_GONE_S)

    def sweep(self) -> None:
        """End its remaining processes."""
        self.kill()
        kill_session(self.process.pid)
        self.close()


def python_workers(leader: int) -> list[int]:
    """The Python workers in a session, and the daemons that fork them."""
    return [pid for pid in session_of(leader) if ".daemon pyspark" in command_of(pid)]


def java_options() -> str:
    """Of a JVM that starts quickly."""
    return " ".join(["-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData", *class_archive.options()])


def spark_config(directory: Path, cluster: StandaloneCluster | None, *, executor_cores: int) -> dict[str, str]:
    """Settings of a session with folders of its own; on a cluster, with two executors."""
    config = {
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }
    if cluster is not None:
        config |= {
            "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.cores": str(executor_cores),
            "spark.cores.max": str(2 * executor_cores),
            "spark.executor.extraJavaOptions": java_options(),
            "spark.executorEnv.PYTHONPATH": os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)]),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
    return config
