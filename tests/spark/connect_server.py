"""A server of Spark Connect, as a process of the tests: what another machine would be, on loopback.

The server has einmal and its own Python workers. It asks for a token, and speaks no TLS: that is a proxy's, in front of
it (``tls_proxy``).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pyspark

from einmal.chaos.processes import end_with_parent, kill_session
from einmal.spark.environment.java import use_java
from tests.ports import loopback_ports

_READY: Final = re.compile(r"Spark Connect server started at")
_READY_S: Final = 300.0
_POLL_S: Final = 0.1
TOKEN: Final = "secret-of-the-tests"
_HOOKS: Final = Path(__file__).parent / "programs" / "hold_writers"


class NotReady(Exception):
    """The server did not come up; the text has its log."""


class ConnectServer:
    """Killed with SIGKILL where its block ends. ``held``: a directory with what ``programs.hold_writers`` reads."""

    def __init__(self, directory: Path, held: Path | None = None) -> None:
        self._directory = directory
        self._held = held
        self._process: subprocess.Popen[bytes] | None = None
        (self.port,) = loopback_ports(1)

    @property
    def url(self) -> str:
        """In plaintext, which PySpark lets a token have only where the host is named so."""
        return f"sc://localhost:{self.port}/;token={TOKEN}"

    def url_behind(self, proxy_port: int) -> str:
        return f"sc://localhost:{proxy_port}/;use_ssl=true;token={TOKEN}"

    def __enter__(self) -> ConnectServer:
        use_java(vector_module=False)
        home = Path(pyspark.__file__).parent
        jars = ",".join(map(str, (home / "jars").glob("spark-connect_*.jar")))
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": self.port,
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": self._directory,
            "spark.sql.warehouse.dir": self._directory / "warehouse",
            "spark.ui.enabled": "false",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        command = [str(home / "bin" / "spark-submit"), "--master", "local[2]"]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
        paths = [*filter(None, sys.path)]
        if self._held is not None:
            paths.insert(0, str(_HOOKS))
            environment["EINMAL_HOLD"] = str(self._held)
        environment |= {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(paths)}
        environment["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = TOKEN
        with (self._directory / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*command, jars],
                cwd=self._directory,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - one system call, no lock
            )
        self._wait_until_ready()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        kill_session(self._process.pid)
        self._process.wait()

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _READY_S
        while not _READY.search(text := (self._directory / "server.log").read_text(errors="replace")):
            if self._process.poll() is not None or time.monotonic() > deadline:
                kill_session(self._process.pid)
                raise NotReady(text[-3000:])
            time.sleep(_POLL_S)
