"""Pipelines whose drivers have been killed with -9, each at a point of the protocol: by one program for all of them.

The program may be suspended before.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from tests.spark.pipelines import Pipeline

_REPOSITORY: Final = Path(__file__).parents[2]
_KILLED_S: Final = 400.0


Points = Iterable[tuple[Pipeline, str, int]]
"""Pipelines, and the event of the batch at which each is held."""


def run_until_killed(
    directory: Path, points: Points, suspended: Points = (), meanwhile: Callable[[], None] | None = None
) -> str:
    """Run the pipelines until each is at its event of its batch, and kill them; what the program has printed.

    With ``meanwhile``, the program is stopped when all are there, and continued after ``meanwhile``; it is killed when
    the ``suspended`` ones have ended. ``ends.json`` in the directory has how they did.
    """
    plan, log = directory / "plan.json", directory / "killed.log"
    entries = [
        {"pipeline": asdict(pipeline), "event": event, "batch_id": batch_id, "suspended": is_suspended}
        for some, is_suspended in ((points, False), (suspended, True))
        for pipeline, event, batch_id in some
    ]
    plan.write_text(json.dumps(entries))
    with log.open("w") as output:
        command = [sys.executable, "-m", "tests.spark.programs.killed", str(plan)]
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=_REPOSITORY, start_new_session=True
        )
        try:
            if meanwhile is not None:
                _wait_until_stopped(process, log)
                meanwhile()
                os.killpg(process.pid, signal.SIGCONT)
            status = process.wait(_KILLED_S)
        finally:
            # The source's planners and Spark's Python workers outlive their JVM for a moment; not this.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(_KILLED_S)
    printed = log.read_text()
    assert status == -signal.SIGKILL, printed[-4000:]
    return printed


def _wait_until_stopped(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _KILLED_S
    state = None
    while state is None and time.monotonic() < deadline:
        time.sleep(0.05)
        # Looked at, not taken: the process stays Popen's to wait for.
        state = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT)
    assert state is not None and state.si_code == os.CLD_STOPPED, log.read_text()[-4000:]
