"""A driver of the sinks' campaign: one stream into one sink, which reports every event and pauses where ordered.

Run as ``python -m tests.sinks.driver SETTINGS``. Its standard output has JSON lines; its input has orders:

    out   {"ready": pid of the JVM}, {"event": name, "batch": n}, {"reached": name}, {"ended": text}, {"finished": true}
    in    {"begin": true, "hold": event or null, "after": batches}, {"stop": true}
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

from einmal.spark import PipelineError, PipelineRefused, session, write_stream
from tests.campaigns.reporter import Reporter

NAME: Final = "campaign"
ROWS_PER_BATCH: Final = 200
_POLL_S: Final = 0.05


class EventReporter(Reporter):
    """Listens to the pipeline, and pauses where it is ordered to."""

    def __init__(self) -> None:
        super().__init__()
        self._orders: dict[str, Any] = {}
        self._seen = 0

    def hear(self, event: Any) -> None:
        name = type(event).__name__
        self.report(event=name, batch=getattr(event, "batch_id", -1))
        if name == self._orders.get("hold"):
            self._seen += 1
            if self._seen > self._orders["after"]:
                self.report(reached=name)
                # Until it is killed.
                self.stop.wait()

    def obey(self, order: dict[str, Any]) -> None:
        if "begin" in order:
            self._orders = order
        super().obey(order)


def main(settings: dict[str, Any]) -> int:
    reporter = EventReporter()
    reporter.listen()
    spark = session(NAME, master=settings["master"], config=settings["config"], quick=True)
    jvm: Any = spark._jvm
    reporter.report(ready=jvm.java.lang.ProcessHandle.current().pid())
    reporter.begin.wait()
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_BATCH)
    source = source.option("numPartitions", 2).option("startTimestamp", 0).option("advanceMillisPerBatch", 1)
    while not reporter.stop.is_set():
        try:
            rows = source.load().selectExpr("value AS id", "concat('row ', value) AS name")
            writer = write_stream(rows).format(settings["kind"]).options(**settings["options"])
            writer.option("transactional.id", NAME).option("checkpointLocation", settings["checkpoint"])
            query = writer.trigger(processingTime="0 seconds").listener(reporter.hear).start()
            while not query.awaitTermination(_POLL_S) and not reporter.stop.is_set():
                pass
            query.stop()
        except PipelineError as error:
            # As a supervisor would, it is started again.
            reporter.report(
                ended=f"{type(error).__name__}: {error}"[:1_000], refused=isinstance(error, PipelineRefused)
            )
            time.sleep(_POLL_S)
    reporter.report(finished=True)
    return 0


if __name__ == "__main__":
    code = main(json.loads(Path(sys.argv[1]).read_text()))
    # Nothing that still runs may keep the process from ending.
    os._exit(code)
