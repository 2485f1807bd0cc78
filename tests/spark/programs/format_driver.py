"""A driver with several queries of ``format("einmal")``, killed with -9 when each is held at its moment.

Run as ``python -m tests.spark.programs.format_driver <plan.json>`` in a process group of its own; the plan is a list of
pipelines. ``hold_writers`` holds them. Any other exit status than that of SIGKILL: a query ended, or never got there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from einmal.spark import register
from tests.spark.pipelines import Pipeline, format_writer
from tests.spark.programs.held import new_session

_REACHED_S = 300.0


def main(plan: list[dict[str, Any]], directory: Path) -> int:
    spark = new_session("einmal-format", directory)
    register(spark)
    queries: list[StreamingQuery] = []
    reached: list[Path] = []
    deadline = time.monotonic() + _REACHED_S

    def fails_before(condition: Callable[[], bool]) -> bool:
        while not condition():
            ended = [query for query in queries if not query.isActive]
            if ended or time.monotonic() > deadline:
                lacking = [each.name for each in reached if not each.exists()]
                sys.stdout.write(f"{[query.exception() for query in ended]} {lacking}")
                return True
            time.sleep(0.05)
        return False

    for pipeline in (Pipeline(**each) for each in plan):
        reached.append(Path(os.environ["EINMAL_HOLD"], f"{pipeline.name}.reached"))
        queries.append(format_writer(pipeline, spark).start())
        # One after the other: Spark waits ten seconds for a Python worker to begin, and every query begins several.
        if fails_before(lambda: reached[-1].exists() or bool(queries[-1].recentProgress)):
            return 1
    if fails_before(lambda: all(each.exists() for each in reached)):
        return 1
    jvm: Any = spark._jvm
    os.kill(jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    return 1


if __name__ == "__main__":
    path = Path(sys.argv[1])
    sys.exit(main(json.loads(path.read_text()), path.parent))
