"""A command that a run starts: killed with everything that it started, paused, and started again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from einmal.chaos.processes import kill_group, kill_session, launch, session_of

_TAIL: Final = 3
"""Lines of its output that a message has."""
_TAIL_BYTES: Final = 4_096
_LOOK_S: Final = 0.05
_DOWN_S: Final = (0.0, 1.0)
_PAUSE_S: Final = (0.3, 12.0)
"""Shorter and longer than the session of a group, and than a broker waits for a request."""
_WEIGHTS: Final = {"kill -9": 3, "SIGSTOP": 2}


class RestartedCommand:
    """``environment``: variables beside our own. ``log``: of its output; None: our standard error."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path | None) -> None:
        self._arguments = arguments
        self._environment = {**os.environ, **environment}
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Raises OSError where there is no such program."""
        self._process = launch(self._arguments, self._log, env=self._environment)

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

    def signal(self, number: signal.Signals) -> None:
        """For every process of its session."""
        if self._process is not None and self._process.poll() is None:
            for pid in session_of(self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def tail(self) -> str:
        """The last lines of its output, in one."""
        lines = []
        if self._log is not None and self._log.exists():
            with self._log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        return " / ".join(line.strip() for line in lines[-_TAIL:])


class CommandFaults:
    """A command that is disturbed until it ends by itself."""

    calm_s: ClassVar = (1.0, 6.0)

    def __init__(self, command: RestartedCommand) -> None:
        self._command = command

    async def ended(self) -> int:
        """The exit status with which it ended without being killed."""
        while True:
            if (status := self._command.ended()) is not None:
                return status
            await asyncio.sleep(_LOOK_S)

    async def inject(self, chance: random.Random, note: Callable[[str], None]) -> None:
        """Kill the command and start it again, or pause it. Raises OSError."""
        (fault,) = chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        seconds = chance.uniform(*(_DOWN_S if fault == "kill -9" else _PAUSE_S))
        if not self._command.is_running:
            return
        note(f"{fault} of the command")
        if fault == "SIGSTOP":
            self._command.signal(signal.SIGSTOP)
            try:
                await asyncio.sleep(seconds)
            finally:
                self._command.signal(signal.SIGCONT)
            note("the command continues")
            return
        self._command.kill()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._command.start()
        note("the command is started again")

    async def calm(self) -> None:
        """Nothing lasts longer than ``inject``."""
