"""A driver that is killed at the worst moments: of several pipelines at once, each held at a point of its own.

Run as ``python -m tests.spark.programs.killed <plan.json>``; the plan is a list of {"pipeline": fields of Pipeline,
"event": name, "batch_id": number}. Each pipeline's listener never returns from its event; when all have come to theirs,
the program kills its JVM and itself with -9. Exit status 1: one of them never came.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from einmal.spark import session
from einmal.spark.events import BatchStarted
from tests.spark.pipelines import Pipeline

_ONE_S = 60.0
_ALL_THERE_S = 120.0


class Hold:
    """A listener that stops for good at one event, and says that it has.

    No batch goes on before ``go``: so that the pipelines start one by one, while there is time for it.
    """

    def __init__(self, event: str, batch_id: int, go: threading.Event) -> None:
        self._event = event
        self._batch_id = batch_id
        self._go = go
        self.started = threading.Event()
        self.reached = threading.Event()

    def __call__(self, event: Any) -> None:
        if isinstance(event, BatchStarted):
            self.started.set()
            self._go.wait()
        if type(event).__name__ == self._event and event.batch_id == self._batch_id:
            self.reached.set()
            threading.Event().wait()


def main(plan: list[dict[str, Any]], directory: Path) -> int:
    config = {
        "spark.local.dir": directory / "local",
        "spark.sql.shuffle.partitions": 2,
        # One that is held between its tasks keeps its place.
        "spark.scheduler.mode": "FAIR",
    }
    spark = session("einmal-killed", master="local[24]", config=config, quick=True)
    holds = []
    go = threading.Event()
    for each in plan:
        hold = Hold(each["event"], each["batch_id"], go)
        Pipeline(**each["pipeline"]).writer(spark).listener(hold).start()
        holds.append(hold)
        hold.started.wait(_ONE_S)
    go.set()
    late = [each for hold, each in zip(holds, plan, strict=True) if not hold.reached.wait(_ALL_THERE_S)]
    if late:
        print(f"did not come to their point: {late}", file=sys.stderr)
        os.kill(os.getpid(), signal.SIGTERM)
    jvm: Any = spark._jvm
    os.kill(jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    return 1


if __name__ == "__main__":
    path = Path(sys.argv[1])
    sys.exit(main(json.loads(path.read_text()), path.parent))
