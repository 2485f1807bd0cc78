"""The events that a pipeline's listeners receive, in order: for progress, for logs, for fault injection.

A listener runs in the driver process, inside the protocol, which waits until it returns. ``PartitionClaimed`` and
``PartitionWritten`` come from the threads that serve the tasks, all other events from the query's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class NameTaken:
    """The transactional.id is acquired: its previous owner is fenced, and the previous owner's transaction aborted."""

    transactional_id: str
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class BatchStarted:
    """``start`` and ``end``: one value per source as in Spark's offset log; ``start``: None without a batch before."""

    batch_id: int
    start: tuple[Any, ...] | None
    end: tuple[Any, ...] | None


@dataclass(frozen=True, slots=True)
class PartitionClaimed:
    """A task has rows for a partition that is new to the transaction, which is open from here at the latest."""

    batch_id: int
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class PartitionWritten:
    """A task has every acknowledgement for one partition; its records are not committed yet."""

    batch_id: int
    topic: str
    partition: int
    count: int


@dataclass(frozen=True, slots=True)
class OutputWritten:
    """Exactly once: all tasks are done, and every claim is reported. Next: the commit record."""

    batch_id: int


@dataclass(frozen=True, slots=True)
class BatchWritten:
    """All tasks are done. Exactly once: the commit record is in the transaction. Next: EndTxn."""

    batch_id: int
    records: int


@dataclass(frozen=True, slots=True)
class TransactionEnded:
    """The coordinator has decided. Spark's own commit file is not written yet."""

    batch_id: int
    committed: bool


@dataclass(frozen=True, slots=True)
class BatchAlreadyIn:
    """An earlier driver committed the batch and died: the batch is not written again."""

    batch_id: int


@dataclass(frozen=True, slots=True)
class BatchSkipped:
    """At most once: the batch was begun before, so it is not written now. Records that it did not write are lost."""

    batch_id: int


@dataclass(frozen=True, slots=True)
class BatchFinished:
    batch_id: int
    duration_ms: int


@dataclass(frozen=True, slots=True)
class QueryRestarted:
    """The query was restarted from its checkpoint: after a batch that could not be decided in place, or because the
    process of its source was not up in time."""

    reason: str


@dataclass(frozen=True, slots=True)
class SchemaDrifted:
    """Records of the batch have fields that the declared schema of ``source`` does not have. ``contract``: what was
    done with them."""

    batch_id: int
    source: str
    contract: str
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeadLettersWritten:
    """Bad rows of the batch are in the dead-letter ``topic``. ``counts``: by stage and reason."""

    batch_id: int
    source: str
    topic: str
    counts: Mapping[tuple[str, str], int]


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
    | SchemaDrifted
    | DeadLettersWritten
)

Listener = Callable[[Event], None]
