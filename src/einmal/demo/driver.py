"""A Spark driver of the demo as a process, which dies by SIGKILL, with its JVM and Python workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from einmal.chaos.processes import kill_group
from einmal.chaos.reporting import ProcessEnded, ReportingProcess

_EVENT_SECONDS_MAX: Final = 300.0
_STOP_SECONDS_MAX: Final = 10.0


class DriverFailed(Exception):
    """A driver ended too early, or has stopped reporting."""


class Driver:
    """Starts up, then follows orders until it is done or killed. Its stderr goes to ``log``."""

    def __init__(self, log: Path) -> None:
        self._reporting = ReportingProcess([sys.executable, "-m", "einmal.demo.pipeline"], log)

    def wait_until_warm(self) -> None:
        """Raises DriverFailed."""
        self._next(lambda event: bool(event["event"] == "Warm"))

    def obey(self, orders: Mapping[str, Any]) -> None:
        self._reporting.order(**orders)

    def resume(self) -> None:
        """After its event BeforeEndTxn."""
        self._reporting.order()

    def next_event(self) -> dict[str, Any]:
        """Raises DriverFailed."""
        return self._next(bool)

    def _next(self, is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        log = self._reporting.log
        try:
            return self._reporting.next_message(_EVENT_SECONDS_MAX, is_wanted)
        except TimeoutError:
            raise DriverFailed(
                f"the Spark driver has reported nothing for {_EVENT_SECONDS_MAX:.0f} s; see {log}"
            ) from None
        except ProcessEnded as error:
            raise DriverFailed(f"the Spark driver ended; the end of {log}:\n{error}") from None

    def kill(self) -> None:
        """SIGKILL to the whole group, and wait until it is gone."""
        kill_group(self._reporting.process)

    def stop(self) -> None:
        """SIGTERM, as an operator would; SIGKILL after ten seconds."""
        process = self._reporting.process
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS_MAX)
        self.kill()
