"""``einmal start`` as a process of the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path


class BrokerProcess:
    """Started at once; ``port`` and ``lines`` (its standard output so far) after ``wait_until_ready``.

    ``open_files``: the process's limit of file descriptors.
    """

    def __init__(self, data_dir: Path, *options: str, port: int = 0, open_files: int | None = None) -> None:
        self.lines: list[str] = []
        self.port = 0
        command = [sys.executable, "-m", "einmal", "start", "--port", str(port), "--data-dir", str(data_dir), *options]
        if open_files is not None:
            command = ["sh", "-c", f'ulimit -n {open_files} && exec "$@"', "sh", *command]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"}
        )

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=180)

    def wait_until_ready(self) -> BrokerProcess:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if "bootstrap" in line:
                self.port = int("".join(filter(str.isdigit, line.rsplit("127.0.0.1:", 1)[1].split()[0].split('"')[0])))
                if "ready" in line:
                    return self
        raise AssertionError(self.process.communicate(timeout=180))

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self) -> tuple[int, str]:
        """SIGTERM; the exit status and what it said on standard error."""
        return self.end(signal.SIGTERM)

    def end(self, how: signal.Signals) -> tuple[int, str]:
        self.process.send_signal(how)
        _output, errors = self.process.communicate(timeout=180)
        return self.process.returncode, errors
