"""Holds keepers and commit workers at moments of the protocol: on the path of a driver whose processes are to die there.

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

_DIRECTORY = Path(os.environ["EINMAL_HOLD"])


def _reach(name: str, moment: str, batch_id: int) -> None:
    plan = _DIRECTORY / name
    if plan.exists() and plan.read_text() == f"{moment} {batch_id}":
        (_DIRECTORY / f"{name}.reached").touch()
        while True:
            time.sleep(3600)


def _hold_keeper() -> None:
    from einmal.sinks.kafka.claim_service import ClaimService
    from einmal.sinks.kafka.commit_point import KafkaCommitPoint
    from einmal.spark.protocol.transaction_run import TransactionRun

    current: dict[str, int] = {}

    def before(owner: type, method: str, moment: str) -> None:
        _wrap(owner, method, lambda call, name: (_reach(name, moment, current.get(name, -1)), call())[1])

    def after(owner: type, method: str, moment: str) -> None:
        def act(call: Callable[[], Any], name: str) -> Any:
            result = call()
            _reach(name, moment, current.get(name, -1))
            return result

        _wrap(owner, method, act)

    batch = TransactionRun.batch

    def known(self: Any, planned: Any, rows: Any) -> Any:
        current[self._id] = planned.batch_id
        _reach(self._id, "planned", planned.batch_id)
        return batch(self, planned, rows)

    TransactionRun.batch = known
    before(KafkaCommitPoint, "commit", "written")
    after(KafkaCommitPoint, "commit", "committed")
    after(KafkaCommitPoint, "acquire", "acquired")
    answer = ClaimService.answer

    def claimed(self: Any, question: Any, connection: Any) -> Any:
        kind = type(question).__name__
        for name, batch_id in current.items():
            if kind == "ClaimPartitions":
                _reach(name, "claiming", batch_id)
        result = answer(self, question, connection)
        for name, batch_id in current.items():
            if kind == "ReportOutputs":
                _reach(name, "reported", batch_id)
        return result

    ClaimService.answer = claimed


def _wrap(owner: Any, method: str, act: Callable[[Callable[[], Any], str], Any]) -> None:
    inner = getattr(owner, method)

    def wrapped(self: Any, *arguments: Any) -> Any:
        return act(lambda: inner(self, *arguments), self._id)

    setattr(owner, method, wrapped)


def _hold_commit_worker() -> None:
    from einmal.spark.writer.writer import KafkaStreamWriter

    commit = KafkaStreamWriter.commit

    def held(self: Any, messages: Any, batch_id: int) -> None:
        name = self._given["transactional.id"]
        _reach(name, "committing", batch_id)
        commit(self, messages, batch_id)
        _reach(name, "answered", batch_id)

    KafkaStreamWriter.commit = held


if "einmal.spark.writer.keeper" in sys.orig_argv:
    _hold_keeper()
elif any(each.endswith(".daemon") for each in sys.orig_argv):
    _hold_commit_worker()
