"""A driver on a Spark cluster that kills an executor of its own between two sinks of one batch.

Run as ``python -m tests.spark.programs.two_sinks <plan.json> <result.json>``. A plan has ``master``, Spark settings
(``config``), the pids of the cluster's ``workers``, the declared pipeline (``file``) and ``harms``: the numbers of the
batches before whose last sink an executor is killed. The result has the batches in which that happened, how often a
transaction was aborted, and how the starts before the last one ended.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from einmal.chaos.processes import kill
from einmal.commit_protocol.claims import Output
from einmal.pipeline.events import TransactionEnded
from einmal.sinks.batch_rows import BatchRows
from einmal.sinks.commit_point import Identity
from einmal.sinks.embedded import EmbeddedCommitPoint
from einmal.spark import PipelineError, session
from einmal.spark.api.program import load, writer
from tests.spark.standalone import executor_id, executors_of

LAST = "drawn"
"""The table that is written last."""
_STARTS_MAX = 4
_RUN_S = 240.0
_EXECUTORS = 2
_EXECUTORS_S = 300.0


class Harms:
    """``done``: the batches that lost an executor between their sinks."""

    def __init__(self, spark: SparkSession, plan: dict[str, Any]) -> None:
        self._spark = spark
        self._due: list[int] = list(plan["harms"])
        self._workers: list[int] = plan["workers"]
        self.done: list[int] = []

    def before_stage(self, table: str, batch_id: int) -> None:
        if table != LAST or batch_id not in self._due:
            return
        self._due.remove(batch_id)
        self.wait_for_executors()
        executors = {executor_id(pid): pid for worker in self._workers for pid in executors_of(worker)}
        assert len(executors) == _EXECUTORS, executors
        kill(executors[self._id_of_a_holder()])
        self.done.append(batch_id)

    def _id_of_a_holder(self) -> str:
        """Of an executor that has parts of the batch: the one that has most. Where one of the two stands still, the
        other may have them all."""
        store: Any = self._spark.sparkContext._jsc.sc().statusStore()
        deadline = time.monotonic() + _EXECUTORS_S
        while True:
            found = store.executorList(True)
            blocks = {each.id(): each.rddBlocks() for each in (found.apply(at) for at in range(found.size()))}
            if any(blocks.values()):
                return str(max(blocks, key=lambda each: blocks[each]))
            assert time.monotonic() < deadline, f"no executor has a part of the batch: {blocks}"
            time.sleep(0.1)

    def wait_for_executors(self) -> None:
        tracker: Any = self._spark.sparkContext._jsc.sc().statusTracker()
        deadline = time.monotonic() + _EXECUTORS_S
        # The driver counts as one.
        while len(tracker.getExecutorInfos()) - 1 < _EXECUTORS:
            assert time.monotonic() < deadline, "executors are missing"
            time.sleep(0.1)


def _watch(harms: Harms) -> None:
    stage = EmbeddedCommitPoint.stage

    def watched(self: EmbeddedCommitPoint, identity: Identity, batch_id: int, rows: BatchRows) -> tuple[Output, ...]:
        harms.before_stage(self._table, batch_id)
        return stage(self, identity, batch_id, rows)

    EmbeddedCommitPoint.stage = watched  # type: ignore[method-assign]


def main(plan: dict[str, Any]) -> dict[str, Any]:
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    config = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": quick,
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": quick,
        "spark.cores.max": str(_EXECUTORS),
        # Or the tasks of a small batch would all run where the first one does.
        "spark.locality.wait": "0",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    spark = session("einmal-two-sinks", master=plan["master"], config=config | plan["config"])
    harms = Harms(spark, plan)
    _watch(harms)
    aborted = 0
    ended: list[str] = []

    def hear(event: object) -> None:
        nonlocal aborted
        aborted += isinstance(event, TransactionEnded) and not event.committed

    while True:
        harms.wait_for_executors()
        try:
            query = writer(load(Path(plan["file"]), {}), spark).listener(hear).start()
            assert query.awaitTermination(_RUN_S), "it did not come to its end"
            break
        except PipelineError as error:
            ended.append(f"{type(error).__name__}: {error}")
            assert len(ended) < _STARTS_MAX, ended
    return {"done": harms.done, "aborted": aborted, "ended": ended}


if __name__ == "__main__":
    plan_path, result_path = Path(sys.argv[1]), Path(sys.argv[2])
    result_path.write_text(json.dumps(main(json.loads(plan_path.read_text()))))
    # Nothing that still runs may keep the process from ending.
    os._exit(0)
