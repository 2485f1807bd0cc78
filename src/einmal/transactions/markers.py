"""Action to perform once the outcome of a transaction is committed: end it in every partition it reached."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from einmal.types import ProducerIdAndEpoch, TopicPartition, TransactionVersion


class EndCause(Enum):
    """Who has ended a transaction."""

    COMMIT = "commit"
    ABORT = "abort"
    """Its client."""
    TIMEOUT = "timeout"
    FENCED = "fenced"
    """Another instance, by InitProducerId."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteMarkers:
    """Write a marker to each partition, then report it with ``TransactionCoordinator.markers_written``.

    An action of a Decision, so it never runs before the outcome is committed. May be done more than once:
    after a load of the coordinator every outcome without its completion is done again.
    """

    transactional_id: str
    producer: ProducerIdAndEpoch
    committed: bool
    partitions: tuple[TopicPartition, ...]
    transaction_version: TransactionVersion
    cause: EndCause | None = field(default=None, compare=False)
    """None after a load: only who has decided knows."""
