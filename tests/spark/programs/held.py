"""The pipelines of a plan, each held at a point of its own, until a program decides what becomes of them.

A plan is a list of {"pipeline": fields of Pipeline, "event": name, "batch_id": number}.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from einmal.pipeline.events import BatchStarted
from einmal.spark import PipelineQuery, session
from tests.spark.pipelines import Pipeline
from tests.spark.programs.few_rows import FEW_ROWS

_ONE_S = 60.0
_ALL_THERE_S = 300.0


class Hold:
    """A listener that stops at one event until it is released, and reports that it has.

    No batch continues before ``go``: so that the pipelines start one by one, while there is time for it.
    """

    def __init__(self, event: str, batch_id: int, go: threading.Event) -> None:
        self._event = event
        self._batch_id = batch_id
        self._go = go
        self.started = threading.Event()
        self.reached = threading.Event()
        self.released = threading.Event()

    def __call__(self, event: Any) -> None:
        if isinstance(event, BatchStarted):
            self.started.set()
            self._go.wait()
        if type(event).__name__ == self._event and event.batch_id == self._batch_id:
            self.reached.set()
            self.released.wait()


@dataclass(frozen=True)
class Held:
    name: str
    query: PipelineQuery
    hold: Hold


def new_session(name: str, directory: Path) -> SparkSession:
    config = {
        "spark.local.dir": directory / "local",
        **FEW_ROWS,
        # One that is held between its tasks keeps its slot.
        "spark.scheduler.mode": "FAIR",
    }
    return session(name, master="local[24]", config=config, quick=True)


def hold_all(spark: SparkSession, plan: list[dict[str, Any]]) -> list[Held]:
    """Start all, and return when each is at its point. Where one never comes, the process ends by SIGTERM."""
    go = threading.Event()
    every = []
    for each in plan:
        pipeline = Pipeline(**each["pipeline"])
        hold = Hold(each["event"], each["batch_id"], go)
        every.append(Held(pipeline.name, pipeline.writer(spark).listener(hold).start(), hold))
        hold.started.wait(_ONE_S)
    go.set()
    late = [held.name for held in every if not held.hold.reached.wait(_ALL_THERE_S)]
    if late:
        print(f"did not come to their point: {late}", file=sys.stderr)
        # What is held would keep the process from ending by itself.
        os.kill(os.getpid(), signal.SIGTERM)
    return every
