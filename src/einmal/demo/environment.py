"""When, with what and where a run took place: without it nobody can compare or repeat a report."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import einmal
from einmal.spark.environment.java import probe


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


def run_environment(arguments: Sequence[str]) -> RunEnvironment:
    """Those of this process. ``arguments``: of the command line, without the program."""
    return RunEnvironment(
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        command=shlex.join(["einmal", *arguments]),
        versions={
            "einmal": einmal.__version__,
            "Python": platform.python_version(),
            "Spark": version("pyspark"),
            "Java": _java_version(),
        },
        machine=", ".join([_processors(), *_memory(), f"{platform.system()} {platform.machine()}"]),
    )


def _java_version() -> str:
    """Return the version of the Java that Spark starts: ``JAVA_HOME`` is set by then."""
    runtime = probe(Path(os.environ.get("JAVA_HOME", ""), "bin", "java"))
    return "unknown" if runtime is None else str(runtime.version)


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
