"""A Spark driver of the demo as a process, which dies by SIGKILL.

It is a process group of its own, so that its JVM and Python workers die with it. Its messages are JSON lines.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from einmal.chaos.processes import kill_group
from einmal.local.processes import tail

_EVENT_SECONDS_MAX = 300.0
_STOP_SECONDS_MAX = 10.0


class DriverFailed(Exception):
    """A driver ended too early, or has stopped reporting."""


class Driver:
    """Starts up, then follows orders until it is done or killed. Its stderr goes to ``log``."""

    def __init__(self, log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "einmal.demo.pipeline"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                text=True,
                errors="replace",
            )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def wait_until_warm(self) -> None:
        while self.next_event()["event"] != "Warm":
            pass

    def obey(self, orders: dict[str, Any]) -> None:
        self._tell(json.dumps(orders))

    def go_on(self) -> None:
        """After its event BeforeEndTxn."""
        self._tell("")

    def _tell(self, line: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(line + "\n")
        self._child.stdin.flush()

    def next_event(self) -> dict[str, Any]:
        """Raises DriverFailed."""
        while True:
            try:
                line = self._lines.get(timeout=_EVENT_SECONDS_MAX)
            except queue.Empty:
                raise DriverFailed(
                    f"the Spark driver has reported nothing for {_EVENT_SECONDS_MAX:.0f} s; see {self._log}"
                ) from None
            if line is None:
                raise DriverFailed(f"the Spark driver ended; the end of {self._log}:\n{tail(self._log)}")
            if line.startswith("{"):
                event: dict[str, Any] = json.loads(line)
                return event

    def kill(self) -> None:
        """SIGKILL to the whole group, and wait until it is gone."""
        kill_group(self._child)

    def stop(self) -> None:
        """SIGTERM, as an operator would; SIGKILL after ten seconds."""
        if self._child.poll() is None:
            os.killpg(self._child.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(_STOP_SECONDS_MAX)
        kill_group(self._child)
