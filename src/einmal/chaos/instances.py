"""The processes of one program: usually one; several compete, as where an operator starts it twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from einmal.chaos.processes import ChildProcess, kill_group

P = TypeVar("P", bound=ChildProcess)


class Instances(Generic[P]):
    """``launch`` starts one, with arguments of ``start``, and appends its output to ``log``."""

    def __init__(self, launch: Callable[..., P], log: Path) -> None:
        self._launch = launch
        self._log = log
        self._started: list[P] = []

    def start(self, *arguments: str) -> P:
        process = self._launch(*arguments)
        self._started.append(process)
        return process

    @property
    def running(self) -> list[P]:
        """The oldest first."""
        self._started = [process for process in self._started if process.poll() is None]
        return self._started

    def ensure(self) -> None:
        """Start one if all have ended, as a supervisor does."""
        if not self.running:
            self.start()

    def kill(self) -> None:
        """Kill all of them with -9."""
        for process in self.release():
            kill_group(process)

    def release(self) -> list[P]:
        """Return all that were started, and manage them no longer."""
        released, self._started = self._started, []
        return released

    def log(self) -> str:
        """The output of all of them so far."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""
