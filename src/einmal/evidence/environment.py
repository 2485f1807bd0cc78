"""When, with what and where a run took place: without it nobody can compare or repeat a report."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import einmal
from einmal.security.redaction import redacted_command


@dataclass(frozen=True, slots=True)
class RunEnvironment:
    """``started_at``: ISO 8601, UTC. ``versions``: by program. ``machine``: processors, memory, operating system."""

    started_at: str
    command: str
    versions: dict[str, str]
    machine: str

    def text(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"Started at {self.started_at} with {versions}, on {self.machine}."


def run_environment(arguments: Sequence[str], versions: Mapping[str, str]) -> RunEnvironment:
    """Those of this process. ``arguments``: of the command line, after the program; secrets in them are hidden.

    ``versions``: of more programs.
    """
    return RunEnvironment(
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        command=shlex.join(["einmal", *redacted_command(arguments)]),
        versions={
            "einmal": einmal.__version__,
            "Python": platform.python_version(),
            **versions,
        },
        machine=", ".join([_processors(), *_memory(), f"{platform.system()} {platform.machine()}"]),
    )


def _processors() -> str:
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return f"{usable} processor{'s' if usable > 1 else ''}"


def _memory() -> list[str]:
    """Empty where the system does not report it."""
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return []
    return [f"{size / 2**30:.0f} GiB of memory"]
