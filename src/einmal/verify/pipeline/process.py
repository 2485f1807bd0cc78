"""The processes of a pipeline's command: killed with everything that they started, and started again."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from einmal.chaos.processes import kill_group, kill_session, launch

_TAIL: Final = 3
"""Lines of its output that a message has."""


class PipelineCommand:
    """``command``: for the shell. ``environment``: variables beside our own."""

    def __init__(self, command: str, environment: Mapping[str, str], log: Path) -> None:
        self._command = command
        self._environment = {**os.environ, **environment}
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = launch(["/bin/sh", "-c", self._command], self._log, env=self._environment)

    def ended(self) -> int | None:
        """The exit status, once: None if it runs, or was reported."""
        if self._process is None or (status := self._process.poll()) is None:
            return None
        self.kill()
        return status

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL, for its session."""
        if self._process is not None:
            leader = self._process.pid
            kill_group(self._process)
            kill_session(leader)
            self._process = None

    def tail(self) -> str:
        """The last lines of its output, in one."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return " / ".join(line.strip() for line in lines[-_TAIL:])
