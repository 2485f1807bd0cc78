"""Spark's Python workers over Unix domain sockets: a batch that is stopped prints nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from einmal.spark.environment import spark_session

_LATE = """\
import os, socket
from pyspark_einmal.daemon import worker

connection, jvm = socket.socketpair()
jvm.close()
worker(connection, True)
"""
_STOPS = """\
import time
from einmal.spark import session

def slowly(batches):
    for batch in batches:
        time.sleep(0.02)
        yield batch

spark = session(master="local[2]", quick=True, config={"spark.log.level": "OFF"})
print(spark.conf.get("spark.python.unix.domain.socket.enabled"), spark.conf.get("spark.python.unix.domain.socket.dir"))
for number in range(4):
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 300_000).option("numPartitions", 2).load()
    query = rows.mapInArrow(slowly, rows.schema).writeStream.format("noop").start()
    while query.lastProgress is None:
        time.sleep(0.05)
    time.sleep(number * 0.15)
    query.stop()
"""
_IMPORTS = """\
import sys
import pyspark_einmal.daemon
print([name for name in sys.modules if name.startswith("einmal")])
"""


def _run(tmp_path: Path, text: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(text)
    return subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=timeout)


def test_a_worker_whose_task_has_been_ended_ends_without_a_traceback(tmp_path: Path) -> None:
    done = _run(tmp_path, _LATE)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_worker_imports_nothing_of_einmals_for_other_functions(tmp_path: Path) -> None:
    assert _run(tmp_path, _IMPORTS).stdout == "[]\n"


def test_a_long_path_of_temporary_files_leaves_the_workers_on_tcp(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("t" * 40)))
    assert not spark_session._unix_sockets()


@pytest.mark.spark
@pytest.mark.slow
def test_queries_that_are_stopped_in_the_middle_of_a_batch_print_nothing(tmp_path: Path) -> None:
    done = _run(tmp_path, _STOPS)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    is_used, folder = done.stdout.split()
    assert is_used == "true"
    assert not Path(folder).exists()
