"""The operations of clients and their results: the input of the checker.

An operation is a list of sends and polls of one process, and how it ended. Values are unique within their key (a topic
partition), so that a value names its write. Offsets are those that the client received; None: it received none. Knows
neither a broker nor how the operations were made.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from einmal.types import TopicPartition

Key = TopicPartition
Value = str


class OpOutcome(Enum):
    """OK: it happened. FAIL: it did not and never will. INFO: unknown outcome."""

    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class Send(NamedTuple):
    key: Key
    value: Value
    offset: int | None = None


class Poll(NamedTuple):
    """``records``: (offset, value) in the order in which they were delivered."""

    key: Key
    records: tuple[tuple[int, Value], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """``starts_anew``: the reader's position was set before this (a rebalance, a restart, a rewind after an abort).

    ``aborted_later``: the outcome was unknown to the client, but a later abort of that transaction was acknowledged.
    ``subscribed``: a group decided what was read, so between two operations the position may move; ``rebalanced``: it
    did so inside of this one. ``began`` and ``ended`` are seconds of one clock for all processes (None: never);
    ``cause``: why the outcome is unknown.
    """

    process: int
    actions: tuple[Send | Poll, ...]
    outcome: OpOutcome
    transactional: bool = False
    read_committed: bool = True
    starts_anew: bool = False
    aborted_later: bool = False
    subscribed: bool = False
    rebalanced: bool = False
    began: float = 0.0
    ended: float | None = None
    cause: str = ""

    @property
    def sends(self) -> list[Send]:
        return [action for action in self.actions if isinstance(action, Send)]

    @property
    def polls(self) -> list[Poll]:
        return [action for action in self.actions if isinstance(action, Poll)]


@dataclass(frozen=True, slots=True)
class History:
    """``ops`` in the order in which they began; they are iterated more than once, and may be in a file.

    ``is_read_to_the_end``: a reader has read every key to its end.
    """

    ops: Iterable[Op]
    is_read_to_the_end: bool = False


class Anomaly(NamedTuple):
    """``kind``: the class, by its usual name; ``detail``: in words, for readers of the report.

    ``values``: those that show it, or their first words; ``ops``: the operations that do, by their position in the
    history, where values do not name them.
    """

    kind: str
    detail: str
    values: tuple[Value, ...] = ()
    ops: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"
