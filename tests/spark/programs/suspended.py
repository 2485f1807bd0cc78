"""A driver that others take for dead: each of its pipelines is held at a point of its own, then the process stops.

Run as ``python -m tests.spark.programs.suspended <plan.json> <result.json>``, see ``held``, in a process group of its
own. When all pipelines have come to their points the program stops its group with SIGSTOP. Continued, it lets go of
them, waits for their ends, and writes how each ended: {name: name of the exception and its text, or null}.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from einmal.spark.errors import PipelineError
from tests.spark.programs.held import Held, hold_all, new_session

_END_S = 240.0


def main(plan: list[dict[str, Any]], directory: Path, result: Path) -> None:
    spark = new_session("einmal-suspended", directory)
    every = hold_all(spark, plan)
    os.killpg(0, signal.SIGSTOP)
    for held in every:
        held.hold.released.set()
    result.write_text(json.dumps({held.name: _end(held) for held in every}))


def _end(held: Held) -> str | None:
    try:
        return None if held.query.awaitTermination(_END_S) else "it runs on"
    except PipelineError as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    path, result = Path(sys.argv[1]), Path(sys.argv[2])
    main(json.loads(path.read_text()), path.parent, result)
    # What runs on would keep the process from ending by itself; the test ends the group.
    os._exit(0)
