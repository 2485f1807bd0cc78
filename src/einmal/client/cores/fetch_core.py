"""Next fetches of a consumer, and the meaning of their answers. No I/O.

A fetch carries a ticket; after a seek or a new assignment the answers to older tickets are dropped. Times are monotonic
ms. Knows the partitions that ``ConsumerCore`` reads, but neither a group nor where records go.
"""

from __future__ import annotations

import itertools
from collections import deque
from enum import Enum, auto
from typing import Final, NamedTuple

from einmal.client.cores.fetched import visible_batches, whole_batches
from einmal.client.cores.partition_reading import FetchedPiece, PartitionReading, Reset
from einmal.client.errors import KafkaError, error_for
from einmal.types import ErrorCode, IsolationLevel, TopicPartition
from einmal.wire.fetch import FetchedPartition

PIECES_MAX: Final = 2
"""Fetched pieces kept per partition: one is being read while the next one is on its way."""


class FetchTicket(NamedTuple):
    """Which fetch an answer belongs to."""

    topic_partition: TopicPartition
    offset: int
    generation: int


class Advice(Enum):
    """Action of the driver after an answer."""

    NOTHING = auto()
    REFRESH_METADATA = auto()
    ASK_ANOTHER = auto()
    """Another broker is asked who leads; the partition waits for ``fetch_failed``."""


class FetchCore:
    """``partitions`` is shared with the ``ConsumerCore`` that assigns them."""

    def __init__(
        self,
        partitions: dict[TopicPartition, PartitionReading],
        isolation: IsolationLevel,
        reset: Reset | None,
        *,
        check_crcs: bool,
    ) -> None:
        self.errors: deque[KafkaError] = deque()
        """Errors that fetches have run into, to be raised in order."""
        self._partitions = partitions
        self._isolation = isolation
        self._reset = reset
        self._check_crcs = check_crcs
        # Never used twice, so an answer to a partition that came back cannot be taken for one of its new life.
        self._generations = itertools.count()

    def next_generation(self) -> int:
        """The generation of a partition's new life; answers to tickets of earlier ones are dropped."""
        return next(self._generations)

    def fetchable(self, now: int) -> list[FetchTicket]:
        """Return what may be asked for now. ``fetch_begun`` follows for each that is."""
        return [
            FetchTicket(topic_partition, state.fetch_offset, state.generation)
            for topic_partition, state in self._partitions.items()
            if state.has_position
            and not state.is_paused
            and not state.is_fetching
            and not state.is_being_validated
            and len(state.pieces) < PIECES_MAX
            and state.retry_at_ms <= now
        ]

    def fetch_begun(self, ticket: FetchTicket) -> None:
        self._partitions[ticket.topic_partition].is_fetching = True

    @property
    def has_fetched(self) -> bool:
        """Whether records or pieces wait to be taken."""
        return any((state.pieces or state.records) and not state.is_paused for state in self._partitions.values())

    def reading_of(self, ticket: FetchTicket) -> PartitionReading | None:
        """The partition, unless a seek or a new assignment has come since: then the answer is dropped."""
        partition = self._partitions.get(ticket.topic_partition)
        return partition if partition is not None and partition.generation == ticket.generation else None

    def fetch_failed(self, ticket: FetchTicket, retry_at_ms: int) -> None:
        """No answer for this partition."""
        if partition := self.reading_of(ticket):
            partition.is_fetching = partition.is_being_validated = False
            partition.retry_at_ms = retry_at_ms

    def next_retry(self, now: int) -> int | None:
        """When the first of the partitions that wait for another attempt may be asked for."""
        return min((state.retry_at_ms for state in self._partitions.values() if state.retry_at_ms > now), default=None)

    def fetched(self, ticket: FetchTicket, result: FetchedPartition, retry_at_ms: int) -> Advice:
        """Take over one partition's answer. ``retry_at_ms``: when to ask again after a passing error."""
        partition = self.reading_of(ticket)
        if partition is None:
            return Advice.NOTHING
        partition.is_fetching = False
        if result.error_code is not ErrorCode.none:
            return self._refused(partition, ticket, result.error_code, retry_at_ms)
        partition.is_out_of_range = partition.is_topic_unknown = False
        partition.is_topic_confirmed = True
        partition.high_watermark = result.high_watermark
        partition.last_stable_offset = result.last_stable_offset
        try:
            batches = whole_batches(
                ticket.topic_partition,
                memoryview(result.records),
                first_offset=ticket.offset,
                check_crcs=self._check_crcs,
            )
            aborted = result.aborted_transactions if self._isolation else None
            visible = deque(visible_batches(batches, aborted))
        except KafkaError as error:
            partition.retry_at_ms = retry_at_ms
            self.errors.append(error)
            return Advice.NOTHING
        if batches:
            partition.pieces.append(FetchedPiece(visible, batches[-1].header.next_offset))
        return Advice.NOTHING

    def _refused(self, partition: PartitionReading, ticket: FetchTicket, code: ErrorCode, retry_at_ms: int) -> Advice:
        partition.retry_at_ms = retry_at_ms
        if code is ErrorCode.offset_out_of_range:
            if not partition.is_out_of_range:
                partition.is_out_of_range = partition.is_being_validated = True
                return Advice.ASK_ANOTHER
            if self._reset is not None:
                partition.drop_fetched(self.next_generation())
                partition.reset = self._reset
            else:
                self.errors.append(error_for(code, f"{ticket.topic_partition} at {ticket.offset}"))
            return Advice.NOTHING
        if not code.retriable:
            self.errors.append(error_for(code, f"Fetch of {ticket.topic_partition}"))
            return Advice.NOTHING
        partition.is_topic_unknown = code in (ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition)
        waits_only = code in (ErrorCode.offset_not_available, ErrorCode.unknown_leader_epoch)
        return Advice.NOTHING if waits_only else Advice.REFRESH_METADATA

    def leader_changed(self, topic_partition: TopicPartition) -> None:
        """Let what waits for its next attempt go to the new leader at once."""
        if partition := self._partitions.get(topic_partition):
            partition.retry_at_ms = 0

    def fetch_abandoned(self, ticket: FetchTicket) -> None:
        """Another broker leads: an answer that comes all the same is not looked at."""
        if partition := self.reading_of(ticket):
            partition.generation = self.next_generation()
            partition.is_fetching = partition.is_being_validated = False
            partition.retry_at_ms = 0

    def validation_begun(self, ticket: FetchTicket) -> None:
        """Nothing is fetched until ``validated`` or ``fetch_failed``."""
        self._partitions[ticket.topic_partition].is_being_validated = True
