"""What the clients of the load write where, and what each of them reports.

``python -m tests.system.run_load <role> --bootstrap HOST:PORT,... --report FILE --seed N --library confluent|einmal``;
ends on SIGTERM, having finished what it had begun. A report is one JSON document per line:

- ``idempotent``: writes numbers in order to each partition of PLAIN; a line for each acknowledgement;
- ``transactional``: writes transactions over the partitions of TRANSACTIONS, some of which it aborts; a line when one
  begins, and one with its outcome: ``committed``, ``aborted`` or ``unknown``, and an
  ``error`` if it got one;
- ``copier``: moves PLAIN to a topic of its own, positions in the same transactions; ends when it has reached the end;
- ``reader``: a line for each record that it saw under read_committed.

A client with a fatal error replaces itself, as an application does.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any, Final, NamedTuple

PLAIN: Final = "plain"
TRANSACTIONS: Final = "transactions"
COPIES: Final = ("copies-0", "copies-1")
"""By the copier's seed."""
TOPICS: Final = (PLAIN, TRANSACTIONS, *COPIES)
PARTITIONS: Final = 3
ABORTED_SHARE: Final = 0.25
PACE_S: Final = 0.02 if "EINMAL_KILLS" in os.environ else 0.05
"""Between two writes of a client: a campaign is for records, a few faults in a run of all tests need not be."""

stopped = threading.Event()
"""Set by SIGTERM."""


class Outcome(NamedTuple):
    """How a transaction ended, and the errors that its client got meanwhile."""

    name: str
    error: str | None = None

    def told(self) -> dict[str, str]:
        error = {} if self.error is None else {"error": self.error}
        return {"outcome": self.name, **error}


class Report:
    def __init__(self, path: Path) -> None:
        self._file = path.open("a")

    def tell(self, **fields: Any) -> None:
        self._file.write(json.dumps(fields) + "\n")
        self._file.flush()
