"""One partition as a consumer reads it: its position, and the fetched pieces beyond it. No I/O.

Control batches and aborted records are skipped, and still move the position.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from uuid import UUID

from einmal.client.cores.fetched import RawBatch
from einmal.client.records import ConsumerRecord
from einmal.types import TopicPartition
from einmal.wire.record_batch import BatchHeader, Record


class Reset(Enum):
    """Where to begin without a position."""

    EARLIEST = auto()
    LATEST = auto()


@dataclass(slots=True)
class FetchedPiece:
    """Fetched batches that are not read yet, and the offset at which reading resumes after them."""

    batches: deque[RawBatch]
    end: int


@dataclass(slots=True)
class PartitionReading:
    """``position``: the next offset that the application gets; -1 while there is none."""

    position: int = -1
    leader_epoch: int = -1
    validated_epoch: int = -1
    is_being_validated: bool = False
    is_out_of_range: bool = False
    """So said the last leader that was asked: it may be one that was replaced, and does not have the position yet."""
    reset: Reset | None = None
    topic_id: UUID | None = None
    """Id of the topic in which the position is one; None: not known yet."""
    is_topic_confirmed: bool = False
    """Whether a leader has answered a fetch from the topic of this id."""
    is_topic_unknown: bool = False
    """So said the last leader that was asked: the topic may have been deleted."""
    is_topic_gone: bool = False
    """The topic that was read is gone, another one has its name, and only the application may choose a position."""
    is_sought: bool = False
    """The application has chosen the position, whatever topic has the name now."""
    is_paused: bool = False
    is_fetching: bool = False
    generation: int = -1
    retry_at_ms: int = 0
    pieces: deque[FetchedPiece] = field(default_factory=deque)
    records: deque[Record] = field(default_factory=deque)
    records_batch: BatchHeader | None = None
    high_watermark: int = -1
    last_stable_offset: int = -1

    @property
    def has_position(self) -> bool:
        return self.position >= 0 and self.reset is None

    @property
    def fetch_offset(self) -> int:
        return self.pieces[-1].end if self.pieces else self.position

    def drop_fetched(self, generation: int) -> None:
        self.generation = generation
        self.is_fetching = self.is_being_validated = self.is_out_of_range = False
        self.retry_at_ms = 0
        self.pieces.clear()
        self.records.clear()

    def take(self, topic_partition: TopicPartition, taken: list[ConsumerRecord], max_records: int) -> None:
        """Add the next records to ``taken``, up to ``max_records`` there; the position moves past them."""
        topic, index = topic_partition
        while len(taken) < max_records:
            if not self.records and not self._unpack_next():
                return
            records, batch = self.records, self.records_batch
            while records and len(taken) < max_records:
                offset, timestamp, key, value, headers = records.popleft()
                taken.append(ConsumerRecord(topic, index, offset, timestamp, key, value, headers, batch))
                self.position = offset + 1
                self.leader_epoch = -1 if batch is None else batch.partition_leader_epoch
            if not records:
                self._skip_to_next()

    def _unpack_next(self) -> bool:
        """Decode the next batch that has records at or after the position. False: nothing is left."""
        while self.pieces:
            piece = self.pieces[0]
            while piece.batches:
                batch = piece.batches[0]
                # One that cannot be read stays: only a seek leads past it, never the next poll.
                records = batch.records() if batch.header.next_offset > self.position else []
                piece.batches.popleft()
                self.records_batch = batch.header
                # A batch may begin before the position: the broker gives whole batches only.
                self.records.extend(record for record in records if record.offset >= self.position)
                if self.records:
                    return True
            self._skip_to_next()
        return False

    def _skip_to_next(self) -> None:
        """A piece without batches is done: the position goes to its end, past markers and aborted records."""
        if self.pieces and not self.pieces[0].batches:
            self.position = max(self.position, self.pieces.popleft().end)
