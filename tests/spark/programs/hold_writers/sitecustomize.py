"""Holds keepers and commit workers at moments of the protocol: on the path of a driver that is to die there.

Python imports this module at its start, in every process of the driver. ``EINMAL_HOLD`` names a directory; a file
``<transactional.id>`` in it has the moment and the batch at which that query is held. ``<transactional.id>.reached``
appears when it is there, and it waits for ever.
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


def _reach(name: str, moment: str, batch_id: int) -> None:
    plan = _DIRECTORY / name
    if plan.exists() and plan.read_text() == f"{moment} {batch_id}":
        (_DIRECTORY / f"{name}.reached").touch()
        while True:
            time.sleep(3600)


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
        ((name, batch_id),) = current.items()
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


def _hold_commit_worker() -> None:
    from einmal.spark.writer.writer import KafkaStreamWriter

    def held(call: Call, writer: Any, _messages: Any, batch_id: int) -> None:
        name = writer._given["transactional.id"]
        _reach(name, "committing", batch_id)
        call()
        _reach(name, "answered", batch_id)

    _wrap(KafkaStreamWriter, "commit", held)


if "einmal.spark.writer.keeper" in sys.orig_argv:
    _hold_keeper()
elif any(each.endswith(".daemon") for each in sys.orig_argv):
    _hold_commit_worker()
