"""Batches on their way to a partition: their states, their order, and which of them may be sent next. No I/O.

A broker remembers the last five batches of a producer in each partition. What it does not remember it cannot recognize
as a repetition; so a batch is sent only while it is less than five batches after the oldest one without an outcome.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

from einmal.client.cores.pacing import pause_ms
from einmal.client.errors import (
    ClientClosed,
    KafkaError,
    LocalError,
    RecordTooLarge,
    RetriableError,
    UnknownOutcome,
    error_for,
)
from einmal.types import ErrorCode, Sequence, TopicPartition
from einmal.wire.record_batch import HEADER_SIZE, NewRecord

WINDOW: Final = 5
"""Batches of one producer that a broker remembers in each partition."""

RECORD_OVERHEAD: Final = 16
"""More than the varints of a record without headers take, for estimating sizes before encoding."""


TOPIC_LIMITS: Final = {
    ErrorCode.message_too_large: "max.message.bytes",
    ErrorCode.record_list_too_large: "segment.bytes",
}
"""The topic's setting that a broker refuses a batch by."""


class BatchState(Enum):
    OPEN = auto()
    WAITING = auto()
    IN_FLIGHT = auto()
    SETTLED = auto()


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """Records on their way to one partition. ``tickets[i]`` is the driver's for record i, ``watchers`` for all."""

    topic_partition: TopicPartition
    created_ms: int
    deadline_ms: int
    records: list[NewRecord] = field(default_factory=list)
    tickets: list[Any] = field(default_factory=list)
    size: int = HEADER_SIZE
    state: BatchState = BatchState.OPEN
    data: bytes = b""
    watchers: list[Any] = field(default_factory=list)
    ordinal: int = -1
    node: int = -1
    attempts: int = 0
    retry_at_ms: int = 0
    is_full: bool = False
    is_outcome_unknown: bool = False

    @property
    def is_sealed(self) -> bool:
        return bool(self.data)

    def retry_later(self, now: int, first_pause: int, longest_pause: int) -> None:
        """Wait for the next attempt, longer after each one."""
        self.state = BatchState.WAITING
        self.retry_at_ms = now + pause_ms(self.attempts - 1, first_pause, longest_pause)

    def refused_error(self, code: ErrorCode, message: str | None) -> KafkaError:
        """Return the error of the batch after a broker's error; ``message``: the broker's, if it sends one."""
        detail = f"{self.topic_partition}, {len(self.tickets)} record(s)"
        if code in TOPIC_LIMITS:
            # Apache Kafka names neither the size nor the limit.
            detail += f" in a batch of {len(self.data)} bytes"
            message = message or f"{TOPIC_LIMITS[code]} of the topic is smaller"
        return error_for(code, f"{detail}: {message}" if message else detail)

    def expiry_error(self) -> KafkaError:
        """Return the error of the batch when delivery.timeout.ms has passed."""
        detail = f"{self.topic_partition}, {len(self.tickets)} record(s), {self.attempts} attempt(s)"
        if self.state is BatchState.IN_FLIGHT or self.is_outcome_unknown:
            return UnknownOutcome(ErrorCode.request_timed_out, detail)
        return RetriableError(
            ErrorCode.request_timed_out, detail, meaning="delivery.timeout.ms has passed; the records were not written"
        )

    def encoding_error(self, error: Exception) -> KafkaError:
        """Return the error of the batch when it cannot be encoded."""
        return LocalError(
            meaning="the records cannot be encoded, and were not sent",
            detail=f"{self.topic_partition}, {len(self.tickets)} record(s): {type(error).__name__}: {error}",
            what_to_do="correct the record that the detail describes, and send all of them again",
        )

    def closing_error(self) -> KafkaError:
        """Return the error of the batch when the producer is closed."""
        if self.is_outcome_unknown or self.state is BatchState.IN_FLIGHT:
            return UnknownOutcome(detail=f"{self.topic_partition}: the producer was closed")
        return ClientClosed()


@dataclass(slots=True)
class PartitionQueue:
    """The batches of one partition that have no outcome yet, in the order of their records."""

    batches: deque[ProducerBatch] = field(default_factory=deque)
    next_sequence: Sequence = Sequence(0)
    next_ordinal: int = 0
    is_known: bool = False
    """The broker has acknowledged a batch of this producer id."""

    def sendable(self, now: int, linger_ms: int, *, has_window: bool) -> ProducerBatch | None:
        """The first batch that is not in flight, if it may be sent now. ``has_window``: with idempotence."""
        oldest = self.batches[0]
        for batch in self.batches:
            if batch.state is BatchState.IN_FLIGHT:
                continue
            if batch.state is BatchState.OPEN:
                if not batch.is_full and now < batch.created_ms + linger_ms:
                    return None
            elif now < batch.retry_at_ms:
                return None
            # The next batch to be sealed would get the partition's next ordinal.
            ordinal = batch.ordinal if batch.ordinal >= 0 else self.next_ordinal
            first = oldest.ordinal if oldest.ordinal >= 0 else ordinal
            window = WINDOW if self.is_known else 1
            return batch if not has_window or ordinal - first < window else None
        return None

    def is_behind_another_node(self, batch: ProducerBatch, node: int) -> bool:
        """Whether an earlier batch has no answer from another node yet: only one connection keeps their order."""
        for queued in self.batches:
            if queued is batch:
                return False
            if queued.node != node:
                return True
        return False


def record_size(key: bytes | None, value: bytes | None, headers: tuple[Any, ...]) -> int:
    """An upper estimate of a record's bytes before compression."""
    size = RECORD_OVERHEAD + (0 if key is None else len(key)) + (0 if value is None else len(value))
    for header in headers:
        size += RECORD_OVERHEAD + len(header.key) * 3 + (0 if header.value is None else len(header.value))
    return size


def check_size(topic: str, size: int, max_request_size: int, buffer_memory: int) -> None:
    """Raises RecordTooLarge for a record of ``size`` bytes that this producer can never send."""
    if size + HEADER_SIZE > max_request_size:
        raise over_request_size(f"{topic}: a record", size, max_request_size)
    if size > buffer_memory:
        raise RecordTooLarge(
            ErrorCode.message_too_large,
            f"{topic}: a record of {size} bytes, buffer.memory is {buffer_memory}",
            meaning="a record is larger than the producer's buffer.memory",
            what_to_do="raise buffer.memory of the producer, or send a smaller record",
        )


def over_request_size(what: str, size: int, max_request_size: int, option: str = "max.request.size") -> RecordTooLarge:
    """The error for a record that the producer does not send. ``option``: what the user sets max.request.size by."""
    return RecordTooLarge(
        ErrorCode.message_too_large,
        f"{what} of {size} bytes makes a batch of {size + HEADER_SIZE}, {option} is {max_request_size}",
        meaning="a record is larger than the producer's max.request.size",
        what_to_do=f"raise {option}, or send a smaller record",
    )
