"""A local checkpoint is written by the manager that starts fewer processes, and is whole after a kill."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from einmal.spark.environment.checkpoint_files import LOCAL_MANAGER, SETTING, local_checkpoint_files
from tests.spark.pipelines import BATCH, Pipeline
from tests.spark.topics import create, fill
from tests.suite.shared import unique

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_REPOSITORY = Path(__file__).parents[2]
_DEFAULT = LOCAL_MANAGER.replace("FileSystemBased", "FileContextBased")
SEED = 17
KILLS = 6


def text_of(number: int) -> str:
    return f"{number:09}\n" * (1 + number % 200)


def manager_of(query: Any) -> str | None:
    """The one that the query was started with."""
    session = query._spark_query._jsq.streamingQuery().sparkSessionForStream()
    name: str | None = session.sessionState().newHadoopConf().get(SETTING)
    return name


def test_a_manager_that_the_user_has_set_stays(spark: SparkSession) -> None:
    spark.conf.set(SETTING, _DEFAULT)
    try:
        with local_checkpoint_files(spark, "file:/data/checkpoint"):
            assert spark.conf.get(SETTING) == _DEFAULT
        assert spark.conf.get(SETTING) == _DEFAULT
    finally:
        spark.conf.unset(SETTING)


@pytest.mark.parametrize("location", ["hdfs://host/checkpoint", "s3a://bucket/checkpoint"])
def test_elsewhere_than_on_a_local_file_system_the_manager_is_sparks_choice(spark: SparkSession, location: str) -> None:
    with local_checkpoint_files(spark, location):
        assert spark.conf.get(SETTING, None) is None


@pytest.mark.long
def test_a_checkpoint_of_the_other_manager_is_continued_by_the_one_that_a_query_keeps_and_its_session_does_not(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    pipeline = Pipeline(bootstrap, str(tmp_path), unique("files"))
    create(bootstrap, pipeline.source_topic, pipeline.topic)
    for start, manager in ((0, _DEFAULT), (BATCH, None), (2 * BATCH, _DEFAULT)):
        fill(bootstrap, pipeline.source_topic, range(start, start + BATCH))
        if manager is not None:
            spark.conf.set(SETTING, manager)
        try:
            query = pipeline.writer(spark).start()
            assert spark.conf.get(SETTING, None) == manager
        finally:
            spark.conf.unset(SETTING)
        query.awaitTermination()
        assert manager_of(query) == (manager or LOCAL_MANAGER)
    commits = sorted(int(each.name) for each in (pipeline.checkpoint / "commits").iterdir() if each.name.isdecimal())
    assert commits == list(range(commits[-1] + 1))
    # Both keep a checksum beside each file.
    assert all((pipeline.checkpoint / "offsets" / f".{each}.crc").exists() for each in commits)


def test_a_file_that_exists_is_not_replaced(spark: SparkSession, tmp_path: Path) -> None:
    manager = _manager(spark, tmp_path)
    path = _jvm(spark).org.apache.hadoop.fs.Path(str(tmp_path), "0")
    for text, is_refused in ((b"first", False), (b"second", True)):
        stream = manager.createAtomic(path, False)
        stream.write(text)
        with pytest.raises(Exception, match="FileAlreadyExists") if is_refused else contextlib.nullcontext():
            stream.close()
    assert (tmp_path / "0").read_text() == "first"


@pytest.mark.long
def test_files_are_whole_after_kills_at_any_moment(spark: SparkSession, tmp_path: Path) -> None:
    """Under its name a file has its whole text and a checksum that fits, or none; and writing resumes after it."""
    chance = random.Random(SEED)
    first = 0
    for _ in range(KILLS):
        written = _write_until_killed(tmp_path, first, chance.uniform(0.05, 0.5))
        there = sorted(int(each.name) for each in tmp_path.iterdir() if each.name.isdecimal())
        assert there == list(range(len(there)))
        # The last one may have been renamed, and not printed.
        assert written in (there[-1], there[-1] - 1)
        first = there[-1] + 1
    manager = _manager(spark, tmp_path)
    jvm = _jvm(spark)
    last = manager.createAtomic(jvm.org.apache.hadoop.fs.Path(str(tmp_path), str(first)), False)
    last.write(text_of(first).encode())
    last.close()
    for number in range(first + 1):
        stream = manager.open(jvm.org.apache.hadoop.fs.Path(str(tmp_path), str(number)))
        assert jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8") == text_of(number)
        stream.close()


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm


def _manager(spark: SparkSession, directory: Path) -> Any:
    package, _, name = LOCAL_MANAGER.rpartition(".")
    jvm = _jvm(spark)
    path, configuration = jvm.org.apache.hadoop.fs.Path(str(directory)), jvm.org.apache.hadoop.conf.Configuration()
    return getattr(getattr(jvm, package), name)(path, configuration)


def _write_until_killed(directory: Path, first: int, seconds: float) -> int:
    """The number of the last file that the program has reported."""
    command = [sys.executable, "-m", "tests.spark.programs.checkpoint_files", str(directory), str(first)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=_REPOSITORY, start_new_session=True
    ) as program:
        assert program.stdout is not None
        try:
            # It has begun to write. How long it writes then is the seed's choice.
            printed = program.stdout.readline()
            time.sleep(seconds)
        finally:
            # The JVM leads no group of its own.
            _kill_group(program.pid)
        return int((printed + program.stdout.read()).splitlines()[-1])


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
