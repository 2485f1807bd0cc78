"""Processes as a campaign needs them: started so that they end with it, found by their session, and killed by pid.

Sessions are read from /proc, so they are found on Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)
_STDERR: Final = 2
_PARENT: Final = 1
_SESSION: Final = 3
"""Indexes of the fields of /proc/PID/stat after the name of the program."""


class ChildProcess(Protocol):
    """A child process, with the methods of ``subprocess.Popen``."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, number: signal.Signals, /) -> None: ...

    def kill(self) -> None: ...


def launch(
    command: Sequence[str],
    log: Path | None,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    with_pipes: bool = False,
) -> subprocess.Popen[str]:
    """Start the leader of a new session, which is killed when the calling thread ends. Append its output to ``log``.

    ``log``: None: our standard error. ``with_pipes``: its standard input and output are pipes, and only its diagnostics
    are logged.
    """
    with contextlib.nullcontext(_STDERR) if log is None else log.open("ab") as opened:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE if with_pipes else None,
            stdout=subprocess.PIPE if with_pipes else opened,
            stderr=opened,
            text=True,
            errors="replace",
            cwd=cwd,
            env=env,
            start_new_session=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509 - one system call, no lock
        )


def end_with_parent() -> None:
    """For ``Popen``: the new process is killed when the thread that started it ends, however that comes about."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def kill(*pids: int) -> None:
    """Kill with -9 those that still exist."""
    for pid in pids:
        # 0 would be the group of the caller.
        assert pid > 0
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_group(process: ChildProcess) -> None:
    """Kill a running process with -9, and its group if it leads one, and wait until it is gone."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
    process.wait()


def kill_session(leader: int) -> None:
    """Kill with -9 the processes that are left of a leader's session."""
    kill(*session_of(leader))


def session_of(leader: int) -> list[int]:
    """The processes of a leader's session, itself included; its children may lead groups of their own."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return sorted(pid for pid in pids if _stat(pid, _SESSION) == leader)


def parent_of(pid: int) -> int:
    """0 for a process that does not exist."""
    return _stat(pid, _PARENT)


def command_of(pid: int) -> str:
    """The arguments, separated by spaces; empty for a process that does not exist."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace").replace("\0", " ")
    except OSError:
        return ""


def _stat(pid: int, index: int) -> int:
    try:
        # The name of the program is in brackets, and may contain anything.
        return int(
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[index]
        )
    except OSError:
        return 0
