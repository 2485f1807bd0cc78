"""Batches with a commit record: a pipeline that writes each batch in one transaction, together with the batch's number.

After everything has been read, the commit records must count 1, 2, 3, ... and each batch of them must be there from one
attempt only, whole: what an attempt wrote is in the history, here only attempts are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from einmal.checker.history import Anomaly


class WrittenRecord(NamedTuple):
    """A record that a reader saw: which batch it is of, and which attempt at the batch wrote it."""

    batch: int
    attempt: str


def find_batch_anomalies(committed: Sequence[int], written: Iterable[WrittenRecord]) -> list[Anomaly]:
    """``committed``: the commit records in their order; ``written``: every record of the output."""
    anomalies = []
    for number, batch in enumerate(committed, start=1):
        if batch in committed[: number - 1]:
            anomalies.append(Anomaly("duplicate", f"batch {batch} is committed more than once"))
        elif batch != number:
            anomalies.append(Anomaly("lost-write", f"commit record {number} is of batch {batch}"))
    attempts: dict[int, dict[str, None]] = {}
    for record in written:
        attempts.setdefault(record.batch, {})[record.attempt] = None
    for batch, seen in attempts.items():
        if len(seen) > 1:
            anomalies.append(Anomaly("duplicate", f"batch {batch} is there from the attempts {', '.join(seen)}"))
        if batch not in committed:
            anomalies.append(Anomaly("torn-transaction", f"batch {batch} is there without its commit record"))
    for batch in committed:
        if batch not in attempts:
            anomalies.append(Anomaly("torn-transaction", f"batch {batch} has a commit record and no output"))
    return anomalies
