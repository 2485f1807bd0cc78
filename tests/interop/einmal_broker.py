"""Our own broker, as a process of the tests: ``python -m einmal start`` on a free loopback port.

Has the same methods as ``ApacheKafka``, so that a test can be given either.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_READY: Final = re.compile(r"bootstrap\.servers=(?P<host>[\d.]+):(?P<port>\d+)")
_STOP_S: Final = 20.0


class EinmalDied(Exception):
    """The process ended before it was ready; the text has its log."""


class EinmalBroker:
    """A broker that can be killed and started again on the same port and data."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        """``settings``: broker settings under Kafka's names."""
        self._directory = directory
        # As the Apache Kafka of these tests: a group's first member need not wait for others.
        self._settings = {"group.initial.rebalance.delay.ms": "0", **(settings or {})}
        self._process: subprocess.Popen[str] | None = None
        self.host = "127.0.0.1"
        self.port = 0
        self.transaction_version = 2
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    def start(self) -> None:
        """Start, and return once the broker says that it is ready. Raises EinmalDied."""
        assert self._process is None, "already running"
        command = [sys.executable, "-m", "einmal", "start", "--port", str(self.port)]
        command += ["--data-dir", str(self._directory / "data")]
        for key, value in self._settings.items():
            command += ["-X", f"{key}={value}"]
        with (self._directory / "einmal.log").open("a") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if ready := _READY.search(line):
                self.host, self.port = ready["host"], int(ready["port"])
                return
        self.kill()
        raise EinmalDied((self._directory / "einmal.log").read_text()[-4000:])

    def kill(self) -> None:
        """kill -9, and wait until the process is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """A clean stop; kill -9 where that takes too long."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_STOP_S)
        assert process.stdout is not None
        process.stdout.close()
