"""Holds writing tasks on executors around their writes, and records which of them wrote to their end afterwards.

Python imports this module at its start, in every process of an executor. ``EINMAL_HOLD`` names a directory; the file
``plan`` in it has the moment at which tasks are held, and a second line that makes it unique. ``claimed``: a partition
is the task's, and nothing is written there yet; ``acknowledged``: everything is, and the driver does not know it. A
task that is there writes the file ``<pid>.held`` and waits until it is removed; ``<pid>.wrote`` follows when the
records of one that was held at ``claimed`` are acknowledged.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

_DIRECTORY = Path(os.environ["EINMAL_HOLD"])
_POLL_S = 0.02


def _reach(moment: str) -> bool:
    """Whether the task was held."""
    try:
        asked = (_DIRECTORY / "plan").read_text()
    except FileNotFoundError:
        return False
    if asked.partition("\n")[0] != moment:
        return False
    held = _DIRECTORY / f"{os.getpid()}.held"
    held.write_text(asked)
    while held.exists():
        time.sleep(_POLL_S)
    return True


def _hold_tasks() -> None:
    from einmal.sinks.kafka.claim_client import ClaimClient

    claim, report = ClaimClient.claim, ClaimClient.report
    held: set[int] = set()

    def claimed(self: ClaimClient, *arguments: Any) -> Any:
        claims = claim(self, *arguments)
        # One that was held before may have failed since, and its id is another client's now.
        held.discard(id(self))
        if _reach("claimed"):
            held.add(id(self))
        return claims

    def reported(self: ClaimClient, *arguments: Any) -> None:
        if id(self) in held:
            held.remove(id(self))
            (_DIRECTORY / f"{os.getpid()}.wrote").touch()
        _reach("acknowledged")
        report(self, *arguments)

    for name, method in (("claim", claimed), ("report", reported)):
        setattr(ClaimClient, name, method)


if any(each.endswith(".daemon") for each in sys.orig_argv):
    _hold_tasks()
