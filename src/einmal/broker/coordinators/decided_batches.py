"""The record batches of a decision: one, or where its records may be separated as many as their bytes need.

Pure. A batch must fit into a segment: the log refuses a larger one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from einmal.shard.decision import Decision, RecordT
from einmal.types import ProducerId
from einmal.wire.record_batch import NewRecord, encode_batch

BATCH_BYTES_MAX: Final = 256 * 1024
"""Maximum of one batch among several: what replicas fetch, and a later coordinator replays, in one go."""
_HEADER_BYTES: Final = 61
_RECORD_OVERHEAD: Final = 32
"""Lengths and deltas of a record with the longest varints that they need, without headers."""


class Codec(Protocol[RecordT]):
    """A module of a shard's records, or anything like it."""

    def encode(self, record: RecordT) -> tuple[bytes | None, bytes | None]:
        """Key and value."""

    def decode(self, key: bytes | None, value: bytes | None, producer_id: ProducerId | None) -> RecordT | None:
        """The record; None for one that is none of this shard's. ``producer_id``: of a transactional batch."""


def decided_batches(
    decision: Decision[RecordT, object, object], codec: Codec[RecordT], wall_ms: int, segment_bytes: int
) -> Iterator[tuple[Sequence[RecordT], bytearray]]:
    """The records of each batch, and its bytes; none for a decision without records.

    A batch is encoded when it is asked for: nobody may want the rest once the log has refused one.
    """
    limit = min(BATCH_BYTES_MAX, segment_bytes) - _HEADER_BYTES
    encoded: list[NewRecord] = []
    start = size = 0
    for index, record in enumerate(decision.records):
        new = NewRecord(*codec.encode(record), wall_ms)
        added = _RECORD_OVERHEAD + len(new.key or b"") + len(new.value or b"")
        if encoded and size + added > limit and not decision.is_atomic:
            yield decision.records[start:index], _batch(decision, encoded)
            encoded, start, size = [], index, 0
        encoded.append(new)
        size += added
    if encoded:
        yield decision.records[start:], _batch(decision, encoded)


def _batch(decision: Decision[RecordT, object, object], records: Sequence[NewRecord]) -> bytearray:
    if decision.producer is None:
        return bytearray(encode_batch(records))
    producer_id, producer_epoch = decision.producer
    return bytearray(encode_batch(records, producer_id=producer_id, producer_epoch=producer_epoch, transactional=True))
