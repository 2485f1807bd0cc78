"""A driver that is killed at the worst moments: of several pipelines at once, each held at a point of its own.

Run as ``python -m tests.spark.programs.killed <plan.json>``, see ``held``, in a process group of its own. When all
pipelines have come to their points the program kills its JVM and itself with -9. Any other exit status: one of them
never came.

Entries of the plan with ``"suspended": true`` are pipelines of which others take the driver for dead: the program first
stops its group with SIGSTOP. Continued, it lets go of them, waits for their ends, and writes beside the plan how each
ended: {name: name of the exception and its text, or null}.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from einmal.pipeline.errors import PipelineError
from tests.spark.programs.held import Held, hold_all, new_session

_END_S = 240.0


def main(plan: list[dict[str, Any]], directory: Path) -> int:
    spark = new_session("einmal-killed", directory)
    every = hold_all(spark, plan)
    suspended = [held for held, each in zip(every, plan, strict=True) if each["suspended"]]
    if suspended:
        os.killpg(0, signal.SIGSTOP)
        for held in suspended:
            held.hold.released.set()
        (directory / "ends.json").write_text(json.dumps({held.name: _end(held) for held in suspended}))
    jvm: Any = spark._jvm
    os.kill(jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    return 1


def _end(held: Held) -> str | None:
    try:
        return None if held.query.awaitTermination(_END_S) else "it runs on"
    except PipelineError as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    sys.exit(main(json.loads(path.read_text()), path.parent))
