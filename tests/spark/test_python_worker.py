"""Spark's Python workers over Unix domain sockets. Batches that are stopped are in ``test_one_life``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from einmal.spark.environment import spark_session

_LATE = """\
import os, socket
from pyspark_einmal.daemon import worker

connection, jvm = socket.socketpair()
jvm.close()
worker(connection, True)
"""
_LOADED = """\
import importlib, os, sys
from pyspark_einmal.daemon import LOADED_MODULES

for module in LOADED_MODULES:
    importlib.import_module(module)
print(len(os.listdir("/proc/self/task")), [name for name in ("numpy", "pandas", "pyarrow") if name in sys.modules])
"""


def _run(tmp_path: Path, text: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(text)
    return subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=timeout)


def test_a_worker_whose_task_has_been_ended_ends_without_a_traceback(tmp_path: Path) -> None:
    done = _run(tmp_path, _LATE)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_daemon_loads_nothing_that_starts_a_thread_before_it_forks(tmp_path: Path) -> None:
    assert _run(tmp_path, _LOADED).stdout == "1 []\n"


def test_a_long_path_of_temporary_files_leaves_the_workers_on_tcp() -> None:
    assert spark_session._unix_sockets(Path("/tmp/einmal-spark-12345678"))
    assert not spark_session._unix_sockets(Path("/", "t" * 80))
