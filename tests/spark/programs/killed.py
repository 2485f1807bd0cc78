"""A driver that is killed at the worst moments: of several pipelines at once, each held at a point of its own.

Run as ``python -m tests.spark.programs.killed <plan.json>``, see ``held``. When all pipelines have come to their points
the program kills its JVM and itself with -9. Any other exit status: one of them never came.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.spark.programs.held import hold_all, new_session


def main(plan: list[dict[str, Any]], directory: Path) -> int:
    spark = new_session("einmal-killed", directory)
    hold_all(spark, plan)
    jvm: Any = spark._jvm
    os.kill(jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    return 1


if __name__ == "__main__":
    path = Path(sys.argv[1])
    sys.exit(main(json.loads(path.read_text()), path.parent))
