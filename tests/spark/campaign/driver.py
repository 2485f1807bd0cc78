"""A driver of the campaign: runs the four pipelines, reports what happens, and pauses where it is ordered to.

Run as ``python -m tests.spark.campaign.driver <settings.json>``. It writes JSON lines to its standard output and reads
JSON lines from its standard input:

    out   {"ready": pid of the JVM, "application": id}   the session is there; it waits to begin
          {"pipeline": name, "event": name, "batch": n}  of every listener's event
          {"reached": moment, ...}                       it stands still there until it may go, or dies
          {"ended": name, "why": text}                   a query ended with an error; it is started again, as a
                                                         supervisor would
          {"state": {...}}, {"finished": true}           the last words
    in    {"begin": true}, {"hold": moment, "pipeline": name or null}, {"go": true}, {"stop": true}
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from einmal.sinks.kafka.claim_service import ClaimService
from einmal.spark import PipelineError, PipelineQuery, PipelineRefused, register, session
from einmal.spark.protocol.exactly_once import ExactlyOnce
from einmal.spark.protocol.run import CurrentBatch
from einmal.spark.protocol.spark_commit import SparkCommit
from einmal.spark.sinks.kafka.sink import KafkaFrameSink
from tests.campaigns.reporter import Reporter
from tests.spark.campaign.pipelines import NAMES, Place
from tests.spark.claim_moments import watch_claims

_HELD_S: Final = 60.0
_POLL_S: Final = 0.1
_AGAIN_S: Final = 1.0

MOMENT_OF_EVENT: Final = {
    "NameTaken": "name taken",
    "BatchStarted": "batch begun",
    "OutputWritten": "output written",
    "BatchWritten": "before EndTxn",
    "TransactionEnded": "after EndTxn",
}
"""Listeners are called by the protocol, which waits for them."""


class Stage(Reporter):
    """Where the pipelines pass, and may be held: at one moment, once, until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self._held_lock = threading.Lock()
        self._held: dict[str, Any] | None = None
        self._go = threading.Event()

    def obey(self, order: dict[str, Any]) -> None:
        if "hold" in order:
            self._go.clear()
            self._held = order if order["hold"] else None
        elif "go" in order:
            self._go.set()
        else:
            super().obey(order)

    def reach(self, moment: str, pipeline: str, batch_id: int = -1, port: int | None = None) -> None:
        with self._held_lock:
            held = self._held
            if held is None or held["hold"] != moment or held["pipeline"] not in (None, pipeline):
                return
            self._held = None
        self.report(reached=moment, pipeline=pipeline, batch=batch_id, port=port)
        self._go.wait(_HELD_S)


def watch(stage: Stage) -> None:
    """Pass the moments that no listener hears of: what writers ask, and the start that repairs a checkpoint."""
    pipelines: dict[int, str] = {}
    run_batch, finish = ExactlyOnce.batch, SparkCommit.finish_spark_commit

    def watched_batch(self: ExactlyOnce, batch: CurrentBatch) -> None:
        sink = self._setting.sink
        assert isinstance(sink, KafkaFrameSink)
        pipelines[id(sink.resources(self._setting.spark).service)] = self._id
        run_batch(self, batch)

    def watched_finish(self: SparkCommit, record: Any) -> Any:
        if not self._checkpoint.has_commit(record.batch_id):
            stage.reach("before mending", record.transactional_id, record.batch_id)
        return finish(self, record)

    def reach(service: ClaimService, moment: str, port: int) -> None:
        stage.reach(moment, pipelines.get(id(service), ""), port=port)

    ExactlyOnce.batch = watched_batch  # type: ignore[method-assign]
    SparkCommit.finish_spark_commit = watched_finish  # type: ignore[method-assign]
    watch_claims(reach)


class Supervised:
    """A pipeline that is started again when it ends with an error."""

    def __init__(self, spark: SparkSession, place: Place, name: str, stage: Stage) -> None:
        self._spark = spark
        self._place = place
        self._name = name
        self._stage = stage
        self._query: PipelineQuery | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        if self._query is not None:
            self._query.stop()
        self._thread.join()

    def _run(self) -> None:
        while not self._stage.stop.is_set():
            try:
                self._query = self._place.writer(self._spark, self._name).listener(self._hear).start()
                while not self._query.awaitTermination(_POLL_S) and not self._stage.stop.is_set():
                    pass
            except (PipelineError, Py4JError) as error:
                # Spark's own where a Python worker died that was asked what the source is.
                why = f"{type(error).__name__}: {error}"
                self._stage.report(ended=self._name, why=why[:1000], refused=isinstance(error, PipelineRefused))
                time.sleep(_AGAIN_S)

    def _hear(self, event: Any) -> None:
        kind, batch_id = type(event).__name__, getattr(event, "batch_id", -1)
        committed = getattr(event, "committed", None)
        if kind == "BatchFinished" and self._place.guarantee != "exactly_once_v2":
            # There is no transaction that could show it.
            committed = True
        self._stage.report(pipeline=self._name, event=kind, batch=batch_id, committed=committed)
        if kind == "QueryRestarted":
            self._stage.report(restarted=self._name, why=event.reason[:1000])
        if kind in MOMENT_OF_EVENT and committed is not False:
            self._stage.reach(MOMENT_OF_EVENT[kind], self._name, batch_id)


def state_of(spark: SparkSession, place: Place) -> dict[str, list[Any]]:
    """By key what the state of the pipeline "state" is, read with Spark's own reader of state stores."""
    reader = spark.read.format("statestore").option("stateVarName", "drawn")
    rows = reader.load(str(place.checkpoint("state"))).selectExpr("key.key", "value.*").collect()
    return {row["key"]: [row["count"], row["sum"], row["at"]] for row in rows}


def main(settings: dict[str, Any]) -> None:
    stage, place = Stage(), Place(**settings["place"])
    stage.listen()
    watch(stage)
    spark = session("campaign", master=settings["master"], config=settings["config"], quick=True)
    # Spark looks for sources once, and takes a worker's death for "none": no query of this JVM would start again.
    register(spark)
    jvm: Any = spark._jvm
    pid = jvm.java.lang.ProcessHandle.current().pid()
    stage.report(ready=pid, application=spark.sparkContext.applicationId)
    stage.begin.wait()
    supervised = [Supervised(spark, place, name, stage) for name in NAMES]
    for each in supervised:
        each.start()
    stage.stop.wait()
    for each in supervised:
        each.join()
    stage.report(state=state_of(spark, place))
    stage.report(finished=True)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
    # Nothing that still runs may keep the process from ending.
    os._exit(0)
