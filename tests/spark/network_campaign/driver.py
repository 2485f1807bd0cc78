"""A driver of the campaign: copies a topic by ``write_stream`` and by ``format("einmal")``, and reports.

Run as ``python -m tests.spark.network_campaign.driver <settings.json>``.

    out   {"ready": pid of the JVM}              the session is there; it waits to begin
          {"executors": [...]}                   the ids of those that Spark gives tasks, when that has changed
          {"committed": name}                    a query has committed one batch more
          {"ended": name, "why": text, ...}      a query ended with an error; it is started again
          {"restarted": name, "why": text}       the sink itself has restarted it
          {"finished": true}                     the last words
    in    {"begin": true}, {"stop": true}
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
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from einmal.spark import PipelineError, PipelineQuery, PipelineRefused, register, session, write_stream
from einmal.spark.environment.interpreter import worker_python
from tests.campaigns.reporter import Reporter
from tests.spark.campaign.pipelines import TRIGGER, Place, copy, output_topic
from tests.suite import warm

STREAM: Final = "stream"
FORMAT: Final = "format"
_POLL_S: Final = 0.1
_AGAIN_S: Final = 1.0


class Supervised(threading.Thread):
    """A query that is started again when it ends with an error."""

    def __init__(self, spark: SparkSession, place: Place, name: str, reporter: Reporter) -> None:
        super().__init__(daemon=True)
        self._spark = spark
        self._place = place
        self._name = name
        self._reporter = reporter

    def run(self) -> None:
        while not self._reporter.stop.is_set():
            try:
                query = self._start_query()
                last = None
                while not query.awaitTermination(_POLL_S) and not self._reporter.stop.is_set():  # type: ignore[arg-type]
                    if isinstance(query, StreamingQuery):
                        last = self._report_progress(query, last)
                query.stop()
            except (PySparkException, Py4JError, PipelineError) as error:
                why = f"{type(error).__name__}: {error}"[:3000]
                is_refused = isinstance(error, PipelineRefused) or "PipelineRefused" in why
                self._reporter.report(ended=self._name, why=why, refused=is_refused)
                time.sleep(_AGAIN_S)

    def _start_query(self) -> StreamingQuery | PipelineQuery:
        frame = copy(lambda topic: self._place.source(self._spark, topic))
        options = {
            "kafka.bootstrap.servers": self._place.bootstrap,
            "topic": output_topic(self._name),
            "transactional.id": self._name,
            "checkpointLocation": str(self._place.checkpoint(self._name)),
        }
        if self._name == FORMAT:
            register(self._spark)
            return frame.writeStream.format("einmal").options(**options).trigger(processingTime=TRIGGER).start()
        writer = write_stream(frame).options(**options).trigger(processingTime=TRIGGER)
        return writer.listener(self._hear).start()

    def _report_progress(self, query: StreamingQuery, last: int | None) -> int | None:
        progress = query.lastProgress
        if progress is None or progress["batchId"] == last or not progress["numInputRows"]:
            return last
        self._reporter.report(committed=self._name)
        return int(progress["batchId"])

    def _hear(self, event: Any) -> None:
        if getattr(event, "committed", False):
            self._reporter.report(committed=self._name)
        if type(event).__name__ == "QueryRestarted":
            self._reporter.report(restarted=self._name, why=event.reason[:1000])


def _watch_executors(spark: SparkSession, reporter: Reporter) -> None:
    """By the scheduler. One that was lost registers its blocks again, and Spark's status lists it for good."""
    context: Any = spark.sparkContext._jsc.sc()
    known: list[str] = []
    while not reporter.stop.is_set():
        ids = context.getExecutorIds()
        executors = sorted(ids.apply(index) for index in range(ids.length()))
        if executors != known:
            reporter.report(executors=executors)
            known = executors
        time.sleep(_POLL_S)


def main(settings: dict[str, Any], directory: Path) -> None:
    reporter, place = Reporter(), Place(**settings["place"])
    reporter.listen()
    # Queries start again and again beside executors that do, and Spark gives a source ten seconds to import itself.
    python = str(warm.stream_python(Path(worker_python()), directory))
    os.environ |= {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    spark = session("network-campaign", master=settings["master"], config=settings["config"])
    register(spark)
    jvm: Any = spark._jvm
    reporter.report(ready=jvm.java.lang.ProcessHandle.current().pid())
    reporter.begin.wait()
    threading.Thread(target=_watch_executors, args=(spark, reporter), daemon=True).start()
    queries = [Supervised(spark, place, name, reporter) for name in (STREAM, FORMAT)]
    for each in queries:
        each.start()
    reporter.stop.wait()
    for each in queries:
        each.join()
    reporter.report(finished=True)
    spark.stop()
    warm.end()


if __name__ == "__main__":
    path = Path(sys.argv[1])
    main(json.loads(path.read_text()), path.parent)
    # Nothing that still runs may keep the process from ending.
    os._exit(0)
