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
from pathlib import Path
from typing import Any

from einmal.spark import register
from tests.spark.pipelines import Pipeline, format_writer
from tests.spark.programs.held import new_session

_REACHED_S = 300.0


def main(plan: list[dict[str, Any]], directory: Path) -> int:
    spark = new_session("einmal-format", directory)
    register(spark)
    pipelines = [Pipeline(**each) for each in plan]
    queries = [format_writer(each, spark).start() for each in pipelines]
    deadline = time.monotonic() + _REACHED_S
    reached = [Path(os.environ["EINMAL_HOLD"], f"{each.name}.reached") for each in pipelines]
    while not all(each.exists() for each in reached):
        ended = [query for query in queries if not query.isActive]
        if ended or time.monotonic() > deadline:
            sys.stdout.write(
                f"{[query.exception() for query in ended]} {[each for each in reached if not each.exists()]}"
            )
            return 1
        time.sleep(0.05)
    jvm: Any = spark._jvm
    os.kill(jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    return 1


if __name__ == "__main__":
    path = Path(sys.argv[1])
    sys.exit(main(json.loads(path.read_text()), path.parent))
