"""A Spark standalone cluster of processes: a master and workers, started from the pyspark distribution on loopback.

Nothing of it is shared with the driver but the machine: executors are JVMs of their own, with Python workers of their
own, in work directories of their own. Every worker has an address of its own, for Spark starts no speculative copy on
the host of the task that it copies. Processes are found by the session that each worker leads, and killed by pid.
Linux only: /proc, and a signal for the children of a process that was killed itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pyspark

from einmal.chaos.processes import command_of, end_with_parent, kill_session, parent_of, session_of
from einmal.spark.environment.java import use_java

_READY_S: Final = 300.0
_GONE_S: Final = 120.0
_POLL_S: Final = 0.05
_MASTER: Final = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED: Final = "Successfully registered with master"
_EXECUTOR: Final = "CoarseGrainedExecutorBackend"


class NotReady(Exception):
    """A master or worker did not come up; the text has its log."""


class Machine(NamedTuple):
    """Where a process runs. ``inside``: what comes before its command."""

    host: str
    inside: Sequence[str] = ()


class StandaloneCluster:
    """``workers`` processes with ``cores`` cores each.

    ``machines``: by the names of the processes; default: loopback addresses. ``options``: of the JVMs of master and
    workers.
    """

    def __init__(
        self,
        directory: Path,
        *,
        workers: int = 2,
        cores: int = 2,
        machines: Mapping[str, Machine] | None = None,
        options: str = "",
    ) -> None:
        self.directory = directory
        self._workers = workers
        self._cores = cores
        self._machines = machines or {}
        self._options = options
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.master = ""

    def __enter__(self) -> StandaloneCluster:
        self.directory.mkdir(exist_ok=True)
        try:
            self._start_master()
            for number in range(self._workers):
                self.launch_worker(f"worker-{number}")
            for number in range(self._workers):
                self.wait_for_worker(f"worker-{number}")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- processes ----------------------------------------------------------------------------------------------

    @property
    def pids(self) -> dict[str, int]:
        """The running processes by name: "master", "worker-0", ..."""
        return {name: process.pid for name, process in self._processes.items() if process.poll() is None}

    def launch_worker(self, name: str) -> None:
        """Start a worker and do not wait."""
        work = self.directory / name
        arguments = ["--cores", str(self._cores), "--memory", "4g", "--work-dir", str(work), self.master]
        default = Machine(f"127.0.0.{2 + int(name.rpartition('-')[2])}")
        self._launch(name, default, "org.apache.spark.deploy.worker.Worker", *arguments)

    def ensure_worker(self, name: str) -> None:
        """A worker that was killed is started again."""
        if self._processes[name].poll() is not None:
            self.launch_worker(name)
            self.wait_for_worker(name)

    def restart_worker(self, name: str) -> None:
        """Kill a worker and its executors, and start it again."""
        process = self._processes[name]
        kill_session(process.pid)
        process.wait(_GONE_S)
        self.ensure_worker(name)

    def wait_for_worker(self, name: str) -> None:
        self._wait(name, re.compile(_REGISTERED))

    def stop(self) -> None:
        """End every process of the cluster, and the executors with it. The work directories stay for who reads them."""
        for process in self._processes.values():
            kill_session(process.pid)
            process.wait(_GONE_S)
        self._processes = {}

    def _start_master(self) -> None:
        self._launch("master", Machine("127.0.0.1"), "org.apache.spark.deploy.master.Master")
        self.master = self._wait("master", _MASTER)[1]

    def _launch(self, name: str, default: Machine, main: str, *arguments: str) -> None:
        host, inside = self._machines.get(name, default)
        home = Path(pyspark.__file__).parent
        environment = os.environ | {
            "JAVA_HOME": str(use_java()),
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {self._options}",
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(self.directory / f"{name}-local"),
        }
        # Port 0 everywhere: others may run clusters here too.
        command = [str(home / "bin" / "spark-class"), main, "--host", host, "--port", "0", "--webui-port", "0"]
        with self._log(name).open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [*inside, *command, *arguments],
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - one system call, no lock
            )

    def _wait(self, name: str, line: re.Pattern[str]) -> re.Match[str]:
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline and self._processes[name].poll() is None:
            found = line.search(self._log(name).read_text())
            if found is not None:
                return found
            time.sleep(_POLL_S)
        raise NotReady(f"{name}: {self._log(name).read_text()[-4000:]}")

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"


def executors_of(worker: int) -> list[int]:
    """The executor JVMs that a worker has started."""
    return [pid for pid in session_of(worker) if _EXECUTOR in command_of(pid)]


def executor_id(pid: int) -> str:
    """By which Spark knows an executor JVM."""
    arguments = command_of(pid).split()
    return arguments[arguments.index("--executor-id") + 1]


def executor_of(pid: int) -> int:
    """The executor JVM above one of its Python workers. Raises ProcessLookupError."""
    while _EXECUTOR not in command_of(pid):
        pid = parent_of(pid)
        if not pid:
            raise ProcessLookupError
    return pid


def holder_of(port: int, workers: list[int]) -> int:
    """The process below these workers whose TCP connection comes from a local port."""
    connections = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    # In hexadecimal; every other field is as it was printed.
    (inode,) = (fields[9] for fields in connections if fields[1].endswith(f":{port:04X}"))
    for worker in workers:
        for pid in session_of(worker):
            with contextlib.suppress(OSError):
                for entry in Path(f"/proc/{pid}/fd").iterdir():
                    if entry.readlink().name == f"socket:[{inode}]":
                        return pid
    raise AssertionError(f"nobody has port {port}")
