"""Claims about ``einmal run`` as a process: what it prints, how it ends, and with which status."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from einmal.client import Admin
from tests.cli.running import Cli
from tests.spark import event_log
from tests.spark.standalone import StandaloneCluster
from tests.spark.topics import create, fill, numbers
from tests.suite.shared import unique

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_ENDS_S = 300.0
_JSON = ("--format", "json")
_SHORT = ("--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData")
"""For a JVM that ends within the minute, as in the session of the tests: it compiles nothing for peak speed."""
DECLARED = """
transactional.id = "{name}"
checkpointLocation = "{checkpoint}"
kafka.bootstrap.servers = "{bootstrap}"

[sources.numbers]
subscribe = "{name}-in"
startingOffsets = "earliest"

[sinks.out]
from = "numbers"
topic = "{name}-out"
"""
WHOLE = """
from einmal.spark import session, write_stream

def main():
    spark = session("whole")
    assert spark.sparkContext.master == "local[2]", spark.sparkContext.master
    assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    source = spark.readStream.format("einmal").option("kafka.bootstrap.servers", {bootstrap!r})
    source = source.option("subscribe", "{name}-in").option("startingOffsets", "earliest").load()
    writer = write_stream(source.select("key", "value")).option("kafka.bootstrap.servers", {bootstrap!r})
    writer = writer.option("topic", "{name}-out").option("transactional.id", "{name}")
    writer.option("checkpointLocation", {checkpoint!r}).trigger(availableNow=True).start().awaitTermination()

if __name__ == "__main__":
    main()
"""


def fields_of(tmp_path: Path, bootstrap: str) -> dict[str, str]:
    return {"name": unique("run"), "checkpoint": str(tmp_path / "checkpoint"), "bootstrap": bootstrap}


def started(file: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "einmal", "run", str(file), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, list[dict[str, object]], str]:
    """Status, batches and stderr."""
    try:
        output, talk = process.communicate(timeout=_ENDS_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, [json.loads(line) for line in output.splitlines()], talk


def written(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text)
    return path


def total(batches: Sequence[dict[str, object]]) -> int:
    return sum(int(str(batch["records"])) for batch in batches)


def test_ctrl_c_ends_a_pipeline_between_two_batches_with_status_0(bootstrap: str, tmp_path: Path) -> None:
    fields = fields_of(tmp_path, bootstrap)
    name = fields["name"]
    create(bootstrap, f"{name}-in", f"{name}-out")
    fill(bootstrap, f"{name}-in", range(30))
    file = written(tmp_path, "pipeline.toml", DECLARED.format(**fields))
    process = started(file, "--format", "json", "--master", "local[2]", "--trigger", "100 milliseconds", *_SHORT)
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    os.kill(process.pid, signal.SIGINT)
    status, rest, talk = ended(process)
    assert status == 0, talk
    assert "stopping after this batch" in talk
    batches = [first, *rest]
    assert [batch["batch_id"] for batch in batches] == list(range(len(batches)))
    # The reported batches are the committed ones: nothing was begun and left open.
    assert len(numbers(bootstrap, f"{name}-out", committed=False)) == total(batches)
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        assert admin.describe_transactions([name])[name].partitions == ()


def is_sparks_jvm(process: psutil.Process) -> bool:
    """Not the one that only puts its command together."""
    with contextlib.suppress(psutil.Error):
        return "org.apache.spark.deploy.SparkSubmit" in process.cmdline()
    return False


@pytest.mark.long
def test_ctrl_c_while_spark_starts_ends_without_a_traceback(tmp_path: Path) -> None:
    process = started(written(tmp_path, "pipeline.toml", DECLARED.format(**fields_of(tmp_path, "127.0.0.1:1"))))
    deadline = time.monotonic() + _ENDS_S
    while not any(is_sparks_jvm(child) for child in psutil.Process(process.pid).children(recursive=True)):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    # Its JVM ends too: it holds the same stderr.
    status, batches, talk = ended(process)
    assert (status, batches) == (130, [])
    assert "Traceback" not in talk


@pytest.mark.long
def test_a_whole_program_runs_unchanged_in_the_session_of_the_command_line(bootstrap: str, tmp_path: Path) -> None:
    fields = fields_of(tmp_path, bootstrap)
    name = fields["name"]
    create(bootstrap, f"{name}-in", f"{name}-out")
    fill(bootstrap, f"{name}-in", range(10))
    file = written(tmp_path, "whole.py", WHOLE.format(**fields))
    options = ("--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=3", "--format", "json")
    status, batches, talk = ended(started(file, *options))
    assert status == 0, talk
    assert total(batches) == 10
    assert batches[-1]["lag"] == 0
    assert numbers(bootstrap, f"{name}-out") == list(range(10))
    assert talk.startswith("whole: starting Spark\n"), "something is seen from the first second"
    assert "\nwhole: Spark " in talk
    assert "batch 0 begins" in talk
    assert "WARNING" not in talk and "still waiting" not in talk


@pytest.fixture
def _handlers() -> Iterator[None]:
    """``einmal run`` takes signals for itself, in this process those of the tests."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("_handlers")
def test_a_query_that_spark_refuses_ends_with_status_3_and_sparks_error_class(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("einmal.cli.commands.run.new_session", lambda *_: spark)
    file = refused_file(bootstrap, tmp_path)
    assert_refused(*Cli(bootstrap)("run", str(file), "--available-now", status=3)[1:])


@pytest.mark.long
def test_a_process_whose_query_spark_refuses_ends_with_status_3_and_sparks_error_class(
    bootstrap: str, tmp_path: Path
) -> None:
    status, batches, talk = ended(started(refused_file(bootstrap, tmp_path), "--available-now"))
    assert status == 3, talk
    assert_refused(batches, talk.splitlines())


def refused_file(bootstrap: str, tmp_path: Path) -> Path:
    fields = fields_of(tmp_path, bootstrap)
    create(bootstrap, f"{fields['name']}-in", f"{fields['name']}-out")
    return written(tmp_path, "pipeline.toml", 'outputMode = "complete"\n' + DECLARED.format(**fields))


def assert_refused(batches: Sequence[object], talk: Sequence[str]) -> None:
    assert not batches
    assert "[STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION]" in "\n".join(talk)
    assert "Traceback" not in "\n".join(talk)


@pytest.mark.long
def test_a_declaration_runs_on_the_spark_cluster_that_the_command_line_names(
    bootstrap: str, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    fields = fields_of(tmp_path, bootstrap)
    name = fields["name"]
    create(bootstrap, f"{name}-in", f"{name}-out")
    fill(bootstrap, f"{name}-in", range(10))
    file = written(tmp_path, "pipeline.toml", DECLARED.format(**fields))
    (tmp_path / "events").mkdir()
    places = {"spark.driver.host": "127.0.0.1", "spark.eventLog.dir": (tmp_path / "events").as_uri()}
    confs = event_log.SETTINGS | places
    options = [word for key, value in confs.items() for word in ("--conf", f"{key}={value}")]
    status, batches, talk = ended(started(file, "--master", cluster.master, "--available-now", *options, *_JSON))
    assert status == 0, talk
    assert total(batches) == 10
    assert numbers(bootstrap, f"{name}-out") == list(range(10))
    (log,) = (tmp_path / "events").iterdir()
    told = map(json.loads, log.read_text().splitlines())
    executors = {each["Task Info"]["Executor ID"] for each in told if each["Event"] == "SparkListenerTaskEnd"}
    assert executors and "driver" not in executors
