"""A driver of the sinks' campaign: one stream into one sink, which reports every event and pauses where ordered.

Run as ``python -m tests.sinks.driver SETTINGS``. Its standard output has JSON lines; its input has orders:

    out   {"ready": pid of the JVM}, {"event": name, "batch": n}, {"reached": name}, {"ended": text}, {"finished": true}
    in    {"begin": true, "hold": event or null, "after": batches}, {"stop": true}
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from einmal.spark import PipelineError, PipelineRefused, session, write_stream

NAME: Final = "campaign"
ROWS_PER_BATCH: Final = 200
_POLL_S: Final = 0.05


class Reporter:
    """Listens to the pipeline, and to the conductor."""

    def __init__(self) -> None:
        self._orders: dict[str, Any] = {}
        self._seen = 0
        self.begin, self.stop = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._obey, daemon=True).start()

    def write(self, **line: Any) -> None:
        with self._lock:
            print(json.dumps(line), flush=True)

    def hear(self, event: Any) -> None:
        name = type(event).__name__
        self.write(event=name, batch=getattr(event, "batch_id", -1))
        if name == self._orders.get("hold"):
            self._seen += 1
            if self._seen > self._orders["after"]:
                self.write(reached=name)
                # Until it is killed.
                self.stop.wait()

    def _obey(self) -> None:
        for line in sys.stdin:
            order = json.loads(line)
            if "begin" in order:
                self._orders = order
                self.begin.set()
            else:
                self.stop.set()
        # A driver without its conductor has nothing to do.
        os._exit(1)


def main(settings: dict[str, Any]) -> int:
    reporter = Reporter()
    spark = session(NAME, master=settings["master"], config=settings["config"], quick=True)
    jvm: Any = spark._jvm
    reporter.write(ready=jvm.java.lang.ProcessHandle.current().pid())
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
            reporter.write(ended=f"{type(error).__name__}: {error}"[:1_000], refused=isinstance(error, PipelineRefused))
            time.sleep(_POLL_S)
    reporter.write(finished=True)
    return 0


if __name__ == "__main__":
    code = main(json.loads(Path(sys.argv[1]).read_text()))
    # Nothing that still runs may keep the process from ending.
    os._exit(code)
