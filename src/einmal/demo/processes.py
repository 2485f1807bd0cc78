"""The processes of the demo: a broker and Spark drivers, real ones, which die by SIGKILL.

Each is a process group of its own, so that a driver's JVM and Python workers die with it.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

_READY_SECONDS_MAX = 120.0


class ProcessFailed(Exception):
    """A process of the demo ended, or never became ready; its last words are in ``log``."""

    def __init__(self, what: str, log: Path) -> None:
        tail = log.read_text(errors="replace").splitlines()[-15:] if log.exists() else []
        super().__init__("\n".join([f"{what}; the end of {log}:", *tail]))


class Process:
    """A child that talks in lines on stdout; its stderr goes to ``log``."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self.log = log
        with log.open("ab") as errors:
            self._child = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._lines.put(line.decode(errors="replace").rstrip("\n"))
        self._lines.put(None)

    def line(self, timeout: float = _READY_SECONDS_MAX) -> str | None:
        """The next line; None at the end. Raises queue.Empty after ``timeout`` seconds."""
        return self._lines.get(timeout=timeout)

    def tell(self, line: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(line.encode() + b"\n")
        self._child.stdin.flush()

    def kill(self) -> None:
        """SIGKILL to the whole group, and wait until it is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, as an operator would; SIGKILL after ten seconds."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._child.poll() is None:
            os.killpg(self._child.pid, how)
        try:
            self._child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()


class Broker:
    """One broker, started again on the same port and data after it was killed."""

    def __init__(self, data: Path, log: Path) -> None:
        self._data = data
        self._log = log
        self._port = 0
        self._process: Process | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        arguments = ["-m", "einmal", "start", "--port", str(self._port), "--data-dir", str(self._data)]
        self._process = Process(arguments, self._log)
        while True:
            try:
                line = self._process.line(timeout=30)
            except queue.Empty:
                raise ProcessFailed("the broker did not become ready", self._log) from None
            if line is None:
                raise ProcessFailed("the broker ended", self._log)
            if "bootstrap.servers=" in line:
                self._port = int(line.rsplit(":", 1)[1])
                return

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()


class Driver:
    """One Spark driver: warm after a while, then under orders until it is done or killed."""

    def __init__(self, log: Path) -> None:
        self._process = Process(["-m", "einmal.demo.pipeline"], log)
        self._log = log

    def wait_until_warm(self) -> None:
        while self.next_event()["event"] != "Warm":
            pass

    def obey(self, orders: dict[str, Any]) -> None:
        self._process.tell(json.dumps(orders))

    def next_event(self, timeout: float = _READY_SECONDS_MAX) -> dict[str, Any]:
        """Raises ProcessFailed when the driver has ended, queue.Empty after ``timeout`` seconds."""
        while True:
            line = self._process.line(timeout)
            if line is None:
                raise ProcessFailed("the Spark driver ended", self._log)
            if line.startswith("{"):
                event: dict[str, Any] = json.loads(line)
                return event

    def kill(self) -> None:
        self._process.kill()

    def stop(self) -> None:
        self._process.stop()
