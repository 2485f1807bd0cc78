"""Drivers in processes of their own, killed with SIGKILL.

A process joins the Spark session of the test, and is a fork of one that has imported what it needs, so that it starts
in a second; the jobs of one that is killed run on for a moment, as they do on a cluster.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from einmal.testing.targets.driving import VERBS, RunUnderTest, rows_of
from einmal.testing.targets.hooks import Row, TargetHooks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "battery"
_ANSWER_S: Final = 120.0
_MOMENTS: Final = ("after acquire", "in stage", "after stage", "in record", "after record", "in commit", "after commit")
_IN_S: Final = 0.02
"""A kill inside of a verb comes within this time of its beginning."""


class ProcessTests(TargetHooks):
    def joining(self, spark: SparkSession) -> Callable[[], SparkSession]:
        """How a process of its own gets a session in the JVM of this one; it is pickled."""
        gateway = spark.sparkContext._gateway.gateway_parameters  # type: ignore[union-attr]
        return partial(_joined, gateway.port, gateway.auth_token)

    def test_killed_process_leaves_the_batch_whole(self, tmp_path: Path, spark: SparkSession) -> None:
        chance = random.Random(1)
        expected: list[Row] = []
        for batch_id, moment in enumerate(_MOMENTS):
            killed = rows_of(batch_id, "killed")
            _kill_at(self, tmp_path, spark, moment, batch_id, killed, chance)
            successor = RunUnderTest(self, tmp_path, NAME, spark)
            found = successor.start()
            is_in = found is not None and found.batch_id == batch_id
            assert is_in or moment != "after commit", "an answered commit is lost"
            assert not is_in or "commit" in moment, f"committed {moment}"
            if not is_in:
                successor.write(batch_id, rows_of(batch_id, "successor"))
            successor.die()
            expected += killed if is_in else rows_of(batch_id, "successor")
            assert sorted(self.rows(tmp_path)) == sorted(expected), f"killed {moment}"
        _settle(spark)
        last = RunUnderTest(self, tmp_path, NAME, spark)
        last.start()
        last.die()
        assert self.staged(tmp_path) == []


def _kill_at(
    hooks: ProcessTests,
    location: Path,
    spark: SparkSession,
    moment: str,
    batch_id: int,
    rows: Sequence[Row],
    chance: random.Random,
) -> None:
    when, _, last = moment.partition(" ")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([type(hooks).__module__, "pyspark.sql", "pandas", "pyarrow"])
    ours, theirs = context.Pipe()
    arguments = (type(hooks), str(location), hooks.joining(spark), theirs)
    process = context.Process(target=_drive, args=arguments, daemon=True)
    process.start()
    try:
        for verb in VERBS[: VERBS.index(last) + 1]:
            ours.send((verb, batch_id, rows))
            if when == "in" and verb == last:
                time.sleep(chance.uniform(0, _IN_S))
            else:
                assert ours.poll(_ANSWER_S), f"{verb} has no answer"
                assert (answer := ours.recv()) == "", f"{verb}: {answer}"
    finally:
        process.kill()
        process.join()
        ours.close()


def _settle(spark: SparkSession) -> None:
    """The jobs of killed drivers have ended."""
    tracker = spark.sparkContext.statusTracker()
    deadline = time.monotonic() + _ANSWER_S
    while tracker.getActiveJobsIds():
        assert time.monotonic() < deadline, "a job does not end"
        time.sleep(_IN_S)


# --- in the process ---------------------------------------------------------------------------------------------------


def _drive(hooks: type[TargetHooks], location: str, joining: Callable[[], SparkSession], pipe: Connection) -> None:
    run = RunUnderTest(hooks(), Path(location), NAME, joining())
    while True:
        verb, batch_id, rows = pipe.recv()
        try:
            run.perform(verb, batch_id, rows)
            pipe.send("")
        except Exception as error:  # noqa: BLE001 - the test reports it
            pipe.send(repr(error))


def _joined(port: int, token: str) -> SparkSession:
    """A session in the JVM of another Python process, as spark-submit starts one."""
    os.environ |= {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": token}
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession as Session

    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    jvm: Any = gateway.jvm
    java = jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(
        jvm.org.apache.spark.SparkContext.getOrCreate()
    )
    conf = SparkConf(loadDefaults=False, _jvm=jvm, _jconf=java.getConf())
    return Session(SparkContext(gateway=gateway, jsc=java, conf=conf))
