"""Pipelines whose drivers have been killed with -9, each at a point of the protocol: by one program for all of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from tests.spark.pipelines import Pipeline

_REPOSITORY: Final = Path(__file__).parents[2]
_KILLED_S: Final = 400.0


def run_until_killed(directory: Path, points: Iterable[tuple[Pipeline, str, int]]) -> str:
    """Run the pipelines until each is at its event of its batch, and kill them; what the program has printed."""
    plan, log = directory / "plan.json", directory / "killed.log"
    entries = [
        {"pipeline": asdict(pipeline), "event": event, "batch_id": batch_id} for pipeline, event, batch_id in points
    ]
    plan.write_text(json.dumps(entries))
    with log.open("w") as output:
        command = [sys.executable, "-m", "tests.spark.programs.killed", str(plan)]
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=_REPOSITORY, start_new_session=True
        )
        try:
            status = process.wait(_KILLED_S)
        finally:
            # The source's planners and Spark's Python workers outlive their JVM for a moment; not this.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    printed = log.read_text()
    assert status == -signal.SIGKILL, printed[-4000:]
    return printed
