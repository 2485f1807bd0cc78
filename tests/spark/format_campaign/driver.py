"""A driver of the campaign: runs the four pipelines through ``writeStream.format("einmal")``, and reports.

Run as ``python -m tests.spark.format_campaign.driver <settings.json>``. Its processes are held by ``hold_writers``.

    out   {"ready": pid of the JVM, "application": id}    the session is there; it waits to begin
          {"committed": name}                             a query has one batch more
          {"ended": name, "why": text}                    a query ended with an error; it is started again
          {"state": {...}}, {"finished": true}            the last words
    in    {"begin": true}, {"restart": name}, {"stop": true}
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from einmal.spark import register, session
from tests.campaigns.reporter import Reporter
from tests.spark.campaign.driver import state_of
from tests.spark.campaign.pipelines import NAMES, TRIGGER, Place, join, output_topic, state, windows
from tests.spark.campaign.pipelines import copy as copied

_POLL_S: Final = 0.1
_AGAIN_S: Final = 1.0


_QUERIES: Final[dict[str, Callable[[Callable[[str], DataFrame]], DataFrame]]] = {
    "copy": copied,
    "windows": windows,
    "join": join,
    "state": lambda read: state(read, is_random=False),
}


def started(spark: SparkSession, place: Place, name: str) -> StreamingQuery:
    """The pipeline as a user of the format writes it. Its state is no draw: the format keeps no state for Spark."""
    writer = _QUERIES[name](lambda topic: place.source(spark, topic)).writeStream.format("einmal")
    writer = writer.option("kafka.bootstrap.servers", place.bootstrap).option("topic", output_topic(name))
    writer = writer.option("transactional.id", name).option("checkpointLocation", str(place.checkpoint(name)))
    writer = writer.option("processing.guarantee", place.guarantee)
    return writer.trigger(processingTime=TRIGGER).start()


class Supervised:
    """A pipeline that is started again when it ends."""

    def __init__(self, spark: SparkSession, place: Place, name: str, reporter: Orders) -> None:
        self._spark = spark
        self._place = place
        self._name = name
        self._reporter = reporter
        self._query: StreamingQuery | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def restart(self) -> None:
        if self._query is not None:
            self._query.stop()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        register(self._spark)
        while not self._reporter.stop.is_set():
            try:
                self._follow(started(self._spark, self._place, self._name))
            except (PySparkException, Py4JError) as error:
                self._reporter.report(ended=self._name, why=f"{type(error).__name__}: {error}"[:3000])
                time.sleep(_AGAIN_S)

    def _follow(self, query: StreamingQuery) -> None:
        self._query = query
        last = None
        try:
            while not query.awaitTermination(_POLL_S):  # type: ignore[arg-type]
                progress = query.lastProgress
                if progress is not None and progress["batchId"] != last and progress["numInputRows"]:
                    self._reporter.report(committed=self._name)
                    last = progress["batchId"]
                if self._reporter.stop.is_set():
                    return
        finally:
            query.stop()


class Orders(Reporter):
    def __init__(self) -> None:
        super().__init__()
        self.supervised: dict[str, Supervised] = {}

    def obey(self, order: dict[str, Any]) -> None:
        if "restart" in order:
            # Spark waits until the query has stopped, which may be held.
            threading.Thread(target=self.supervised[order["restart"]].restart, daemon=True).start()
        else:
            super().obey(order)


def main(settings: dict[str, Any]) -> None:
    reporter, place = Orders(), Place(**settings["place"])
    spark = session("format-campaign", master=settings["master"], config=settings["config"], quick=True)
    register(spark)
    reporter.supervised = {name: Supervised(spark, place, name, reporter) for name in NAMES}
    reporter.listen()
    jvm: Any = spark._jvm
    reporter.report(ready=jvm.java.lang.ProcessHandle.current().pid(), application=spark.sparkContext.applicationId)
    reporter.begin.wait()
    for each in reporter.supervised.values():
        each.start()
    reporter.stop.wait()
    for each in reporter.supervised.values():
        each.join()
    reporter.report(state=state_of(spark, place))
    reporter.report(finished=True)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
    # Nothing that still runs may keep the process from ending.
    os._exit(0)
