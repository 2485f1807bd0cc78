"""A driver on a Spark cluster, which injects faults into its own executors while its pipelines run.

Run as ``python -m tests.spark.programs.on_cluster <plan.json> <result.json>``. A plan has ``master``, Spark settings
(``config``), the pids of the cluster's ``workers``, the number of ``executors`` to wait for before a run and before
a fault, and ``runs``, one after the other: a pipeline, and its fault. The result contains for each run how it
ended and what its listener heard. The pipelines' functions travel to the executors with the program, as any user's do:
they are in the program's main module.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from einmal.chaos.processes import kill
from einmal.pipeline.events import BatchStarted
from einmal.sinks.kafka.claim_service import ClaimService
from einmal.spark import PipelineError, StreamWriter, session, write_stream
from tests.spark.claim_moments import LATER, watch_claims
from tests.spark.standalone import executor_of, executors_of, holder_of

BATCH = 24
"""Offsets per trigger."""
_RUN_S = 300.0
_STRAGGLER_S = 60.0
"""At most: a straggler resumes once Spark has started a copy of it."""
_EXECUTORS_S = 300.0

DISTINCT = 80
FIRST_S = 1000
SECONDS = f"timestamp_seconds({FIRST_S} + cast(value as long))"
"""The records' numbers are their event times. Not from 0 on, which is Spark's first watermark: it would be late."""


def words(source: DataFrame, _straggle: Path) -> DataFrame:
    """Stateless: each record becomes two, after a shuffle that adaptive execution may plan again."""
    doubled = source.selectExpr("key", "explode(array(value, concat('-', value))) as value")
    return doubled.repartition("value").mapInPandas(_as_it_is, "key string, value string")


def _as_it_is(frames: Iterator[Any]) -> Iterator[Any]:
    yield from frames


def windows(source: DataFrame, _straggle: Path) -> DataFrame:
    """How many records each key has in windows of 20, in append mode: each window once."""
    counted = source.withColumn("at", F.expr(SECONDS)).withWatermark("at", "30 seconds")
    counted = counted.groupBy("key", F.window("at", "20 seconds")).count()
    return counted.selectExpr("key", "concat_ws(':', key, cast(window.start as long), count) as value")


def pairs(source: DataFrame, _straggle: Path) -> DataFrame:
    """The stream joined with itself, ten later: an inner join of two streams with a limit in time."""
    left = source.withColumn("at", F.expr(SECONDS)).withWatermark("at", "30 seconds")
    right = source.selectExpr("key as later_key", "value as later_value", f"{SECONDS} as later")
    right = right.withWatermark("later", "30 seconds")
    joined = left.join(right, F.expr("key = later_key and later = at + interval 10 seconds"))
    return joined.selectExpr("key", "concat(value, '-', later_value) as value")


def distinct(source: DataFrame, _straggle: Path) -> DataFrame:
    """Records by their number modulo ``DISTINCT``: the first of each."""
    return source.selectExpr("key", f"cast(cast(value as long) % {DISTINCT} as string) as value").dropDuplicates(
        ["value"]
    )


class Draw(StatefulProcessor):
    """A running sum of numbers drawn at random: a second computation of a batch gives another state.

    The first attempt that finds the file ``straggle`` stands still until a copy of a task is there.
    """

    def __init__(self, straggle: Path) -> None:
        self._straggle = straggle
        self._straggling = straggle.with_suffix(".now")

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._sum = handle.getValueState("sum", "sum long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        count = sum(1 for _ in rows)
        context = TaskContext.get()
        assert context is not None
        self._stand_still(is_copy=context.attemptNumber() > 0)
        (before,) = self._sum.get() or (0,)
        after = before + random.SystemRandom().randint(1, 10**9)
        self._sum.update((after,))
        yield Row(key=key[0], value=json.dumps({"before": before, "after": after, "count": count}))

    def close(self) -> None:
        pass

    def _stand_still(self, *, is_copy: bool) -> None:
        if is_copy:
            self._straggling.unlink(missing_ok=True)
            return
        with contextlib.suppress(FileNotFoundError):
            self._straggle.rename(self._straggling)
            deadline = time.monotonic() + _STRAGGLER_S
            while self._straggling.exists() and time.monotonic() < deadline:
                time.sleep(0.05)


def random_state(source: DataFrame, straggle: Path) -> DataFrame:
    """Stateful and random, by transformWithState."""
    return source.groupBy("key").transformWithState(Draw(straggle), "key string, value string", "update", "none")


PIPELINES: dict[str, Callable[[DataFrame, Path], DataFrame]] = {
    "words": words,
    "windows": windows,
    "pairs": pairs,
    "distinct": distinct,
    "random_state": random_state,
}


@dataclass(frozen=True)
class Harm:
    """What is done, once, when a batch has come so far.

    ``at``: "begun", "claim" (a writer is about to begin, so all shuffle files are written), "granted" (it may write),
    "reported" (it has written its partition, and does not know yet that the driver knows). ``what`` is the
    name of a fault.
    """

    what: str
    batch_id: int
    at: str


@dataclass(frozen=True)
class Run:
    bootstrap: str
    directory: str
    name: str
    pipeline: str
    harms: tuple[Harm, ...] = ()

    @property
    def source_topic(self) -> str:
        return f"{self.name}-in"

    @property
    def topic(self) -> str:
        return f"{self.name}-out"

    @property
    def straggle(self) -> Path:
        return Path(self.directory, f"{self.name}-straggles")

    def writer(self, spark: SparkSession) -> StreamWriter:
        reader = spark.readStream.format("einmal").option("kafka.bootstrap.servers", self.bootstrap)
        reader = reader.option("subscribe", self.source_topic).option("startingOffsets", "earliest")
        # A task per partition, however small: a straggler needs others beside it.
        source = reader.option("maxOffsetsPerTrigger", BATCH).option("minPartitions", 1).load()
        source = source.selectExpr("cast(key as string) as key", "cast(value as string) as value")
        writer = write_stream(PIPELINES[self.pipeline](source, self.straggle)).option(
            "kafka.bootstrap.servers", self.bootstrap
        )
        writer = writer.option("topic", self.topic).option("transactional.id", self.name)
        writer = writer.option("checkpointLocation", str(Path(self.directory, self.name)))
        writer = writer.queryName(self.name)
        return writer.outputMode("update" if self.pipeline == "random_state" else "append").trigger(availableNow=True)


# --- faults -------------------------------------------------------------------------------------------------------


def _kill_other_executors(writer: int, workers: list[int]) -> None:
    """With their shuffle files: they are served by the executors themselves."""
    kill(*(pid for worker in workers for pid in executors_of(worker) if pid != executor_of(writer)))


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


WRITER_STRAGGLES = "the writer stands still"

HARM: dict[str, Callable[[int, list[int]], None]] = {
    "the writer's executor is killed": lambda writer, _: kill(executor_of(writer)),
    "the other executors are killed": _kill_other_executors,
    "the writer's worker is killed": lambda writer, _: kill(os.getsid(writer)),
    "the writer is killed": lambda writer, _: kill(writer),
    WRITER_STRAGGLES: lambda writer, _: _signal(writer, signal.SIGSTOP),
}
"""What can be done to a writer's Python worker, or around it; and to the workers of the cluster."""

STATE_STRAGGLES = "the state stands still"
"""Done by the pipeline itself, of ``random_state``, in the stage that keeps state."""


class Hurt:
    """Injects a run's fault when it is time, and keeps what its listener heard."""

    def __init__(self, run: Run, workers: list[int], wait_for_executors: Callable[[], None]) -> None:
        self._run = run
        self._workers = workers
        self._wait_for_executors = wait_for_executors
        self._batch_id = -1
        self._lock = threading.Lock()
        self._standing_still: list[int] = []
        self.heard: list[str] = []
        self.done: list[Harm] = []

    def __call__(self, event: Any) -> None:
        self._batch_id = getattr(event, "batch_id", self._batch_id)
        self.heard.append(f"{type(event).__name__}({self._batch_id})")
        if isinstance(event, BatchStarted) and any(harm.batch_id == self._batch_id for harm in self._run.harms):
            # One that was killed before is replaced within seconds; this fault is to meet all of them.
            self._wait_for_executors()
            if self._is_due("begun"):
                self._run.straggle.touch()

    def at(self, point: str, port: int) -> None:
        """``port``: where the writer's connection to the claim service comes from."""
        harm = self._is_due(point)
        if harm is not None:
            writer = holder_of(port, self._workers)
            HARM[harm.what](writer, self._workers)
            if harm.what == WRITER_STRAGGLES:
                self._standing_still.append(writer)
                threading.Timer(_STRAGGLER_S, self.go_on).start()

    def go_on(self) -> None:
        """Paused tasks resume: a copy of each waits at its claim."""
        while self._standing_still:
            _signal(self._standing_still.pop(), signal.SIGCONT)

    def _is_due(self, point: str) -> Harm | None:
        # Writers ask all at once.
        with self._lock:
            for harm in self._run.harms:
                if harm not in self.done and (harm.at, harm.batch_id) == (point, self._batch_id):
                    self.done.append(harm)
                    return harm
        return None


def _watch_claims(hurts: list[Hurt]) -> None:
    """Pass to the last of these faults what writers ask, and the answers that they are about to get."""

    def reach(_service: ClaimService, moment: str, port: int) -> None:
        if moment == LATER:
            hurts[-1].go_on()
        else:
            hurts[-1].at(moment, port)

    watch_claims(reach)


# --- the driver ---------------------------------------------------------------------------------------------------


def main(plan: dict[str, Any]) -> list[dict[str, Any]]:
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    config = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": quick,
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": quick,
        "spark.cores.max": "2",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # An executor that was killed is asked three times more for its shuffle files.
        "spark.shuffle.io.retryWait": "200ms",
    }
    spark = session("einmal-on-cluster", master=plan["master"], config=config | plan["config"])
    hurts: list[Hurt] = []
    _watch_claims(hurts)
    results = []

    def all_there() -> None:
        _wait_until(spark, lambda executors: executors >= plan["executors"])

    for each in plan["runs"]:
        run = Run(**each | {"harms": tuple(Harm(**harm) for harm in each["harms"])})
        hurts.append(Hurt(run, plan["workers"], all_there))
        all_there()
        began = time.monotonic()
        end = _end(run.writer(spark).listener(hurts[-1]))
        result: dict[str, Any] = {"name": run.name, "end": end, "took_s": round(time.monotonic() - began, 1)}
        result |= {"heard": hurts[-1].heard, "done": [asdict(harm) for harm in hurts[-1].done]}
        print(json.dumps(result), flush=True)
        results.append(result)
        # Where Spark allocates by need: what came for the work of this run goes, whatever the next one asks for.
        _wait_until(spark, lambda executors: executors <= plan["executors"])
    spark.stop()
    return results


def _wait_until(spark: SparkSession, suffices: Callable[[int], bool]) -> None:
    """For a number of executors, and not for ever."""
    tracker: Any = spark.sparkContext._jsc.sc().statusTracker()
    deadline = time.monotonic() + _EXECUTORS_S
    # The driver counts as one.
    while not suffices(len(tracker.getExecutorInfos()) - 1) and time.monotonic() < deadline:
        time.sleep(0.1)


def _end(writer: StreamWriter) -> str | None:
    try:
        query = writer.start()
        if query.awaitTermination(_RUN_S):
            return None
        query.stop()
    except PipelineError as error:
        return f"{type(error).__name__}: {error}"
    return "it did not come to its end"


if __name__ == "__main__":
    plan_path, result_path = Path(sys.argv[1]), Path(sys.argv[2])
    result_path.write_text(json.dumps(main(json.loads(plan_path.read_text()))))
    # Nothing that still runs may keep the process from ending.
    os._exit(0)
