"""Batches refused for now on one connection, so that their producer's later batches in flight are refused as well.

A client sends up to five batches of a partition without waiting for an answer. While the first ones are refused, this
broker may become able to accept the next, because it leads now or has enough replicas again. Checked alone, that batch
has a sequence gap before it; from a producer that is unknown here it would even be accepted, out of order. librdkafka
reacts to a gap with a new producer epoch, under which it sends all unacknowledged batches once more, also those that
an earlier leader has written: duplicates. So a batch behind a refused one gets the same error, until its producer has
read the answer and begins again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from einmal.metadata.topics import is_legal_name
from einmal.types import SEQUENCE_MAX, ErrorCode, ProducerIdAndEpoch
from einmal.wire.errors import WireError
from einmal.wire.primitives import Topic
from einmal.wire.produce import Records
from einmal.wire.record_batch import BatchHeader, read_header

PARTITIONS_MAX: Final = 1_000
"""Bounds the cost of one connection; above it the oldest refusal is forgotten."""


class _Refusal(NamedTuple):
    producer: ProducerIdAndEpoch
    next_sequence: int
    """First sequence of a batch that was sent before the refusal could be read."""
    error: ErrorCode


class RefusedBatches:
    """Per partition, as requests name it, the last refusal; no more than ``PARTITIONS_MAX``."""

    __slots__ = ("_refusals",)

    def __init__(self) -> None:
        self._refusals: dict[tuple[Topic, int], _Refusal] = {}

    def __bool__(self) -> bool:
        return bool(self._refusals)

    def error_behind(self, topic: Topic, partition: int, records: Records | None) -> ErrorCode:
        """``none`` unless the batch continues one that was refused; then that one's error, and it counts as refused."""
        refusal = self._refusals.pop((topic, partition), None)
        if refusal is None:
            return ErrorCode.none
        header = _header(records)
        if header is None or (_producer(header), header.base_sequence) != refusal[:2]:
            return ErrorCode.none
        self._remember(topic, partition, header, refusal.error)
        return refusal.error

    def refuse(self, topic: Topic, partition: int, records: Records | None, error: ErrorCode) -> None:
        """The batch is refused. It affects no later one if it has no sequence or will not be retried, or if no topic
        can have the name: the later one is refused, too."""
        if isinstance(topic, str) and not is_legal_name(topic):
            return
        header = _header(records)
        if header is not None and header.producer_id >= 0 and error.retriable:
            self._remember(topic, partition, header, error)

    def _remember(self, topic: Topic, partition: int, header: BatchHeader, error: ErrorCode) -> None:
        if len(self._refusals) >= PARTITIONS_MAX:
            del self._refusals[next(iter(self._refusals))]
        next_sequence = (header.last_sequence + 1) & SEQUENCE_MAX
        self._refusals[topic, partition] = _Refusal(_producer(header), next_sequence, error)


def _header(records: Records | None) -> BatchHeader | None:
    try:
        return None if records is None else read_header(records)
    except WireError:
        return None


def _producer(header: BatchHeader) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
