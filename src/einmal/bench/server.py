"""The broker under measurement: a process of its own, with a folder of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType


class BrokerDidNotStart(Exception):
    pass


class BrokerProcess:
    """``einmal start`` on a free port. ``start_seconds``: from the process's first instruction to its ready line."""

    def __init__(self, *properties: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="einmal-bench-")
        self._properties = properties

    def __enter__(self) -> BrokerProcess:
        log = Path(self._folder.name, "broker.log")
        arguments = [sys.executable, "-m", "einmal", "start", "--port", "0", "--data-dir", f"{self._folder.name}/data"]
        for item in self._properties:
            arguments += ["-X", item]
        began = time.perf_counter()
        with log.open("wb") as errors:
            self._child = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if "bootstrap.servers=" in line:
                self.start_seconds = time.perf_counter() - began
                self.bootstrap_servers = line.rsplit("=", 1)[1].strip()
                return self
        raise BrokerDidNotStart(log.read_text(errors="replace")[-2_000:])

    def resident_bytes(self) -> int:
        """Resident memory now."""
        output = subprocess.run(
            ["ps", "-o", "rss=", "-p", str(self._child.pid)], capture_output=True, text=True, check=True
        ).stdout
        return int(output) * 1024

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.terminate()
        try:
            self._child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        assert self._child.stdout is not None
        self._child.stdout.close()
        self._folder.cleanup()
