"""The verdict of a run, from anomalies and evidence. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from einmal.checker.history import Anomaly


class RunVerdict(Enum):
    """``value``: as in JSON and on the page."""

    HOLDS = "holds"
    ANOMALY = "anomaly"
    UNKNOWN = "unknown"

    @property
    def exit_status(self) -> int:
        return {RunVerdict.HOLDS: 0, RunVerdict.ANOMALY: 1, RunVerdict.UNKNOWN: 2}[self]


DEFINITION: Final = (
    "Exactly-once processing holds if, for every reader with isolation.level=read_committed, each acknowledged write "
    "is there once, nothing that was aborted or never written is there, each transaction is there whole or not at all, "
    "and the order within a partition is kept."
)
PIPELINE_DEFINITION: Final = (
    "A pipeline processes exactly once if, for a reader with isolation.level=read_committed, the output holds what the "
    "mapping makes of each committed input record, once, and nothing else, whenever the pipeline was killed."
)
HOLDS: Final = "No anomaly. Every acknowledged write was read once, and nothing that was aborted."
ORDERED_DEFINITION: Final = "The versions of a row are in the order in which they were committed."
PIPELINE_HOLDS: Final = "No anomaly. The output is what the mapping makes of every committed input record, once."
PROJECTED_DEFINITION: Final = (
    f"{PIPELINE_DEFINITION} What --output-sql leaves out of the output records is not compared."
)
PROJECTED_HOLDS: Final = (
    "No anomaly. Apart from what --output-sql leaves out, the output is what the mapping makes of every committed "
    "input record, once."
)
_DEFINITIONS: Final[Mapping[str, str]] = {
    "lost-output": "What a committed input record becomes is not in the output.",
    "duplicate-output": "What input records become is in the output more often than they are in the input.",
    "aborted-output": "The output has what only a record of an aborted transaction of the input becomes.",
    "invented-output": "The output has a value that no input record becomes.",
    "reordered-output": "Versions of one row are in another order in the output than they were committed.",
    "duplicate": "A value that was written once is there more than once.",
    "lost-write": "An acknowledged write is not there, although later ones are.",
    "unseen": "An acknowledged write is not there at the end.",
    "G1a": "Aborted read: a committed reader sees a write that failed or was aborted.",
    "garbage-read": "A committed reader gets a value that nobody wrote to the partition.",
    "G1b": "Intermediate read: a committed reader passes a transaction and sees a part of it only.",
    "torn-transaction": "A part of a transaction is committed, another part is not.",
    "phantom-commit": "A transaction whose abort was acknowledged is visible.",
    "bank-sum": "The balances of all accounts do not add up to the initial sum: a reader saw half of a transfer.",
    "inconsistent-offsets": "An offset of a partition has different values for different clients.",
    "precommitted-read": "A transaction reads its own write before it commits.",
    "nonmonotonic-poll": "A reader goes back in a partition without a change of its position.",
    "poll-skip": "A reader passes over committed records.",
    "nonmonotonic-send": "Writes of one producer are in another order than they were sent.",
    "G1c": "Circular information flow: operations see each other's effects in a circle, or back in time.",
}


def definition(kind: str) -> str:
    """Return what a kind of anomaly means; empty for an unknown one."""
    name = kind.removeprefix("int-")
    return _DEFINITIONS.get(name, _DEFINITIONS["G1c"] if "G1c" in name or "PL-" in name else "")


def decide(anomalies: Sequence[Anomaly], gaps: Sequence[str], holds: str = HOLDS) -> tuple[RunVerdict, str]:
    """The verdict, and a sentence about it. ``gaps``: why evidence is missing; an anomaly needs no more of it.

    ``holds``: the sentence where there is neither.
    """
    if anomalies:
        kinds = Counter(anomaly.kind for anomaly in anomalies)
        return RunVerdict.ANOMALY, "Anomalies: " + ", ".join(f"{count} × {kind}" for kind, count in kinds.items()) + "."
    if gaps:
        return RunVerdict.UNKNOWN, "The evidence is not sufficient: " + "; ".join(gaps) + "."
    return RunVerdict.HOLDS, holds
