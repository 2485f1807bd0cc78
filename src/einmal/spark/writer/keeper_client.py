"""How Spark's workers reach the keeper of their query: it is found by its socket, and started where there is none."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing.connection import Client
from pathlib import Path

from einmal.pipeline.errors import PipelineFailed, PipelineRefused
from einmal.spark.writer.messages import READY, Answer, PlanBatch, Question, Refusal, Work


def plan_batch(home: Path, given: Mapping[str, str]) -> Work:
    """The work of the batch that Spark is about to run. ``home``: of the keeper; ``given``: the options of the query.
    Raises PipelineError."""
    if (answer := _asked(home, PlanBatch())) is None:
        _start(given, home)
        answer = _asked(home, PlanBatch())
    if isinstance(answer, Refusal):
        raise answer.error()
    if not isinstance(answer, Work):
        raise _gone()
    return answer


def ask(home: Path, question: Question) -> None:
    """From a commit worker. Raises PipelineError."""
    answer = _asked(home, question)
    if answer is None:
        raise _gone()
    if isinstance(answer, Refusal):
        raise answer.error()


def _gone() -> PipelineFailed:
    return PipelineFailed(
        "the process that has the query's transaction has ended",
        "start the query again: the next start reads from the commit record what is committed",
    )


def _asked(home: Path, question: Question) -> Answer | None:
    """None: nobody listens there. Raises PipelineFailed where the answer does not come."""
    try:
        connection = Client(str(home), "AF_UNIX")
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    with connection:
        try:
            connection.send(question)
            answer: Answer = connection.recv()
        except (EOFError, OSError) as error:
            raise _gone() from error
    return answer


def home_of(given: Mapping[str, str], salt: str = "") -> Path:
    """Return the socket of the keeper of these options in this driver. ``salt``: makes it one of its own. Raises
    PipelineRefused."""
    # Not in Spark's own directory: the path of a socket has at most some hundred characters.
    directory = Path(tempfile.gettempdir()) / f"einmal-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    status = directory.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PipelineRefused(f"{directory} is open to other users", "remove it, or set TMPDIR")
    digest = hashlib.sha256(json.dumps([salt, *sorted(given.items())]).encode()).hexdigest()
    return directory / f"{_driver()}-{digest[:16]}"


def _driver() -> int:
    """The process of Spark's driver: it has started this worker, or the daemon that has forked it."""
    parent = os.getppid()
    main = sys.modules["__main__"].__spec__
    is_forked = main is None or not main.name.startswith("pyspark.sql.worker.")
    return _parent_of(parent) if is_forked else parent


def _parent_of(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat")
    if stat.exists():
        # The name, in parentheses, may have spaces.
        return int(stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
    completed = subprocess.run(["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True, text=True, check=True)
    return int(completed.stdout)


def _start(given: Mapping[str, str], home: Path) -> None:
    """Raises PipelineRefused."""
    home.unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "einmal.spark.writer.keeper", str(home), str(_driver())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # What Spark has added to the path of this worker.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    with process.stdin, process.stdout:
        process.stdin.write(json.dumps(dict(given)))
        process.stdin.close()
        answer = process.stdout.read().strip()
        if answer != READY:
            process.wait()
            raise PipelineRefused(answer or f"no keeper starts with {sys.executable}")
