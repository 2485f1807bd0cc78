"""A process that reports in JSON lines on its standard output, and takes orders as JSON lines on its standard input."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from einmal.chaos.processes import launch

_TAIL: Final = 4_000
_GONE_S: Final = 20.0


class ProcessEnded(Exception):
    """A process ended although more was expected of it; the text has the end of its log."""


class ReportingProcess:
    """Runs ``command``. Its diagnostics, and lines of its output that are not JSON, go to ``log``."""

    def __init__(
        self, command: Sequence[str], log: Path, *, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        self._heard = threading.Condition()
        self._messages: deque[dict[str, Any]] = deque()
        self._is_over = False
        self.process = launch(command, log, cwd=cwd, env=env, with_pipes=True)
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def order(self, **message: Any) -> None:
        """Without effect on a process that has ended."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()

    def hear(self, message: dict[str, Any]) -> None:
        """Called for each message, in another thread, while ``wait_for`` does not look. By default it is kept."""
        self._messages.append(message)

    def next_message(self, seconds: float, is_wanted: Callable[[dict[str, Any]], bool] = bool) -> dict[str, Any]:
        """Return the next wanted message; those before it are dropped. Raises ProcessEnded, and TimeoutError."""
        wanted: list[dict[str, Any]] = []

        def find() -> bool:
            while self._messages and not wanted:
                message = self._messages.popleft()
                wanted.extend([message] if is_wanted(message) else [])
            return bool(wanted)

        if not self.wait_for(find, seconds):
            raise TimeoutError(f"no message in {seconds:.0f} s; the end of {self.log}:\n{self.log_tail()}")
        return wanted[0]

    def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether messages have made the condition hold in time. Raises ProcessEnded."""
        with self._heard:
            self._heard.wait_for(lambda: condition() or self._is_over, seconds)
            holds = condition()
            if self._is_over and not holds:
                raise ProcessEnded(self.log_tail())
        return holds

    def close(self) -> None:
        """Release the pipes of a process that has ended."""
        self._reader.join(_GONE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def log_tail(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-_TAIL:]

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                with self._heard:
                    self.hear(json.loads(line))
                    self._heard.notify_all()
            else:
                with self.log.open("a", encoding="utf-8") as log:
                    log.write(line)
        with self._heard:
            self._is_over = True
            self._heard.notify_all()
