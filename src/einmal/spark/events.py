"""What a pipeline tells a listener, in the order in which it happens: for progress, for logs, for tests that kill.

A listener runs on the driver, inside the protocol: nothing goes on until it returns. ``PartitionClaimed`` and
``PartitionWritten`` come from the threads that serve the tasks, everything else from the query's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class NameTaken:
    """Whoever had the transactional id before is fenced, and what it left open is aborted."""

    transactional_id: str
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class BatchStarted:
    """``start`` and ``end``: one value per source as in Spark's offset log; None where there is no batch before."""

    batch_id: int
    start: tuple[Any, ...] | None
    end: tuple[Any, ...] | None


@dataclass(frozen=True, slots=True)
class PartitionClaimed:
    """A task has rows for a partition that the transaction did not have yet, which is open from here at the latest."""

    batch_id: int
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class PartitionWritten:
    """A task has every acknowledgement for one partition; nothing of it is committed yet."""

    batch_id: int
    topic: str
    partition: int
    count: int


@dataclass(frozen=True, slots=True)
class OutputWritten:
    """Under exactly-once: all tasks are done, and their output is accounted for. Next comes the commit record."""

    batch_id: int


@dataclass(frozen=True, slots=True)
class BatchWritten:
    """All tasks are done, and under exactly-once the commit record is in the transaction: next comes EndTxn."""

    batch_id: int
    records: int


@dataclass(frozen=True, slots=True)
class TransactionEnded:
    """The coordinator has decided. Spark's own commit file is not written yet."""

    batch_id: int
    committed: bool


@dataclass(frozen=True, slots=True)
class BatchAlreadyIn:
    """A driver before this one committed the batch and died: it is not written again."""

    batch_id: int


@dataclass(frozen=True, slots=True)
class BatchSkipped:
    """At most once: the batch was begun before, so it is not written now. What was missing of it is lost."""

    batch_id: int


@dataclass(frozen=True, slots=True)
class BatchFinished:
    batch_id: int
    duration_ms: int


@dataclass(frozen=True, slots=True)
class QueryRestarted:
    """The query was started again from its checkpoint, after a batch that could not be decided in place."""

    reason: str


Event = (
    NameTaken
    | BatchStarted
    | PartitionClaimed
    | PartitionWritten
    | OutputWritten
    | BatchWritten
    | TransactionEnded
    | BatchAlreadyIn
    | BatchSkipped
    | BatchFinished
    | QueryRestarted
)
