"""Holds keepers and Spark's workers at moments of the protocol: on the path of a driver that is to die there.

Python imports this module at its start, in every process of the driver. ``EINMAL_HOLD`` names a directory; a file
``<transactional.id>`` in it has the moment and the batch at which that query is held, ``*`` for any, and a second
line that makes it unique. The file ``<transactional.id>.reached`` has the id of the process that is there, which waits
until the first file is another one, and that file's text.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Call = Callable[[], Any]

_DIRECTORY = Path(os.environ["EINMAL_HOLD"])
_POLL_S = 0.02


def _reach(name: str, moment: str, batch_id: int) -> None:
    plan, reached = _DIRECTORY / name, _DIRECTORY / f"{name}.reached"
    asked = _asked(plan) if name else None
    if asked is None or asked.partition("\n")[0] not in (f"{moment} {batch_id}", f"{moment} *"):
        return
    # Whoever sees the file sees all of it.
    written = _DIRECTORY / f"{name}.{os.getpid()}"
    written.write_text(f"{os.getpid()} {asked}")
    written.replace(reached)
    while _asked(plan) == asked:
        time.sleep(_POLL_S)


def _asked(plan: Path) -> str | None:
    try:
        return plan.read_text()
    except FileNotFoundError:
        return None


def _hold_keeper() -> None:
    from einmal.sinks.kafka.claim_messages import ClaimPartitions, ReportOutputs
    from einmal.sinks.kafka.claim_service import ClaimService
    from einmal.sinks.kafka.commit_point import KafkaCommitPoint
    from einmal.spark.protocol.transaction_run import TransactionRun

    current: dict[str, int] = {}

    def planned(call: Call, run: Any, batch: Any, _rows: Any) -> Any:
        current[run._id] = batch.batch_id
        _reach(run._id, "planned", batch.batch_id)
        return call()

    def committed(call: Call, point: Any, *_: Any) -> Any:
        _reach(point._id, "written", current[point._id])
        result = call()
        _reach(point._id, "committed", current[point._id])
        return result

    def acquired(call: Call, point: Any, *_: Any) -> Any:
        result = call()
        _reach(point._id, "acquired", -1)
        return result

    def claimed(call: Call, _service: Any, question: Any, _connection: Any) -> Any:
        # Without transactions there is no run, which knows the batch.
        ((name, batch_id),) = current.items() or [("", -1)]
        if isinstance(question, ClaimPartitions):
            _reach(name, "claiming", batch_id)
        result = call()
        if isinstance(question, ReportOutputs):
            _reach(name, "reported", batch_id)
        return result

    _wrap(TransactionRun, "batch", planned)
    _wrap(KafkaCommitPoint, "commit", committed)
    _wrap(KafkaCommitPoint, "acquire", acquired)
    _wrap(ClaimService, "answer", claimed)


def _wrap(owner: Any, method: str, around: Callable[..., Any]) -> None:
    inner = getattr(owner, method)
    setattr(owner, method, lambda *arguments: around(lambda: inner(*arguments), *arguments))


def _hold_workers() -> None:
    from einmal.spark.writer import writer as writers

    def planning(call: Call, writer: Any) -> Any:
        is_first = writer._work is None
        if is_first:
            _reach(writer._given["transactional.id"], "planning", -1)
        state = call()
        if is_first:
            _reach(writer._given["transactional.id"], "granted", state["_work"].batch_id)
        return state

    def task(call: Call, work: Any, grant: Any, *_: Any) -> Any:
        # Without transactions the name is only in what the task's client calls itself.
        name = grant.write_as.transactional_id or work.client["client.id"]
        _reach(name, "in a task", work.batch_id)
        return call()

    def commit(call: Call, writer: Any, _messages: Any, batch_id: int) -> None:
        name = writer._given["transactional.id"]
        _reach(name, "committing", batch_id)
        call()
        _reach(name, "answered", batch_id)

    _wrap(writers.KafkaStreamWriter, "__getstate__", planning)
    _wrap(writers, "_written", task)
    _wrap(writers.KafkaStreamWriter, "commit", commit)


if "einmal.spark.writer.keeper" in sys.orig_argv:
    _hold_keeper()
elif any(each.endswith(".daemon") or each.startswith("pyspark.sql.worker.") for each in sys.orig_argv):
    _hold_workers()
