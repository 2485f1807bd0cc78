"""The consumer without I/O: positions, what to fetch next, and which records come out.

Each assigned partition has a *position*, the next offset that the application will be given, and a buffer of fetched
pieces beyond it. Control batches and aborted records are skipped and still move the position. A fetch carries a ticket;
after a seek or a new assignment the answers to older tickets are dropped.

A leader epoch is kept with the position: when a newer leader takes over, its log is compared before it is read, so that
a truncation is noticed and not silently skipped (KIP-320). An older leader is not asked: it was replaced and does not
know it. Times are monotonic ms. Knows no group and no connection.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from einmal.client.errors import InvalidState, KafkaError, NoOffset, RequestRefused, error_for
from einmal.client.fetched import RawBatch, visible_batches, whole_batches
from einmal.client.records import ConsumerRecord, OffsetAndMetadata
from einmal.types import ErrorCode, IsolationLevel, TopicPartition
from einmal.wire.fetch import FetchedPartition
from einmal.wire.record_batch import Record

PIECES_MAX = 2
"""Fetched pieces kept per partition: one is being read while the next one is on its way."""


class Reset(Enum):
    """Where to begin without a position."""

    EARLIEST = auto()
    LATEST = auto()


class FetchTicket(NamedTuple):
    """Which fetch an answer belongs to."""

    topic_partition: TopicPartition
    offset: int
    generation: int


class Advice(Enum):
    """What the driver does after an answer."""

    NOTHING = auto()
    REFRESH_METADATA = auto()
    ASK_ANOTHER = auto()
    """Another broker is asked who leads; the partition waits for ``fetch_failed``."""


class LogTruncated(RequestRefused):
    meaning = "the log was cut off below the position: records that were read are gone"
    what_to_do = "seek to where reading shall go on; work done with the lost records has to be undone"


@dataclass(slots=True)
class _Piece:
    """Fetched batches that are still to be read, and where reading goes on after them."""

    batches: deque[RawBatch]
    end: int


@dataclass(slots=True)
class _Partition:
    position: int = -1
    leader_epoch: int = -1
    validated_epoch: int = -1
    is_being_validated: bool = False
    is_out_of_range: bool = False
    """So said the last leader that was asked: it may be one that was replaced, and does not have the position yet."""
    reset: Reset | None = None
    is_paused: bool = False
    is_fetching: bool = False
    generation: int = -1
    retry_at_ms: int = 0
    pieces: deque[_Piece] = field(default_factory=deque)
    records: deque[Record] = field(default_factory=deque)
    records_epoch: int = -1
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


class ConsumerCore:
    def __init__(self, isolation: IsolationLevel, reset: Reset | None, *, check_crcs: bool = True) -> None:
        self._isolation = isolation
        self._reset = reset
        self._check_crcs = check_crcs
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._errors: deque[KafkaError] = deque()
        self._held: dict[TopicPartition, int] = {}
        """Where an iterator is that has taken records and gives them one by one: the application's real position."""
        # Never used twice, so an answer to a partition that came back cannot be taken for one of its new life.
        self._generations = itertools.count()

    # --- assignment -----------------------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Exactly these from now on; those that stay keep their positions and what was fetched."""
        before, self._partitions = self._partitions, {}
        for each in partitions:
            self._partitions[each] = before.get(each) or _Partition(generation=next(self._generations))
        self._held = {each: offset for each, offset in self._held.items() if each in self._partitions}

    @property
    def assignment(self) -> list[TopicPartition]:
        return list(self._partitions)

    def _get(self, topic_partition: TopicPartition) -> _Partition:
        partition = self._partitions.get(topic_partition)
        if partition is None:
            raise InvalidState(
                meaning=f"{topic_partition} is not assigned to this consumer",
                what_to_do="assign() it, or wait until the group has given it to this member",
            )
        return partition

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        for each in partitions:
            self._get(each).is_paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for each in partitions:
            self._get(each).is_paused = False

    @property
    def paused(self) -> list[TopicPartition]:
        return [each for each, partition in self._partitions.items() if partition.is_paused]

    # --- positions ------------------------------------------------------------------------------------------------

    def seek(self, topic_partition: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        """Read on from here. A leader epoch, where known, lets a truncation be noticed."""
        if offset < 0:
            raise InvalidState(meaning=f"cannot seek to offset {offset}")
        partition = self._get(topic_partition)
        self._drop_fetched(topic_partition, partition)
        partition.position, partition.leader_epoch, partition.reset = offset, leader_epoch, None
        partition.validated_epoch = -1

    def seek_by(self, partitions: Iterable[TopicPartition], reset: Reset) -> None:
        """Read on from an end of the log, once it is known."""
        for each in partitions:
            partition = self._get(each)
            self._drop_fetched(each, partition)
            partition.reset = reset

    def _drop_fetched(self, topic_partition: TopicPartition, partition: _Partition) -> None:
        partition.drop_fetched(next(self._generations))
        self._held.pop(topic_partition, None)

    def without_position(self) -> list[TopicPartition]:
        """Partitions for which the group's committed offset is to be looked up."""
        return [each for each, state in self._partitions.items() if state.position < 0 and state.reset is None]

    def committed_found(self, committed: dict[TopicPartition, OffsetAndMetadata | None]) -> None:
        """The group's offsets; where there is none auto.offset.reset decides. Raises NoOffset."""
        for each, offset in committed.items():
            partition = self._partitions.get(each)
            if partition is None or partition.position >= 0 or partition.reset is not None:
                continue
            if offset is not None:
                self.seek(each, offset.offset, offset.leader_epoch)
            elif self._reset is None:
                raise NoOffset(detail=str(each))
            else:
                partition.reset = self._reset

    def to_reset(self) -> dict[TopicPartition, Reset]:
        return {each: state.reset for each, state in self._partitions.items() if state.reset is not None}

    def reset_found(self, topic_partition: TopicPartition, asked: Reset, offset: int, leader_epoch: int) -> None:
        """The end of the log that was asked for. Forgotten when a seek came between."""
        partition = self._partitions.get(topic_partition)
        if partition is not None and partition.reset is asked:
            self.seek(topic_partition, offset, leader_epoch)

    def position(self, topic_partition: TopicPartition) -> int | None:
        """The next offset that will be given to the application; None while it is not known."""
        partition = self._get(topic_partition)
        return self._held.get(topic_partition, partition.position) if partition.has_position else None

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What to commit: the position of every partition that has one."""
        return {
            each: OffsetAndMetadata(self._held.get(each, state.position), state.leader_epoch)
            for each, state in self._partitions.items()
            if state.has_position
        }

    def lag(self, topic_partition: TopicPartition) -> int | None:
        """Offsets between the position and the end that this consumer may read to, as of the last fetch."""
        partition = self._get(topic_partition)
        end = partition.last_stable_offset if self._isolation else partition.high_watermark
        return max(0, end - partition.position) if end >= 0 and partition.has_position else None

    # --- leader epochs (KIP-320) ----------------------------------------------------------------------------------

    def is_ahead_of(self, topic_partition: TopicPartition, leader_epoch: int) -> bool:
        """Whether the position is from a later leader than this one."""
        return 0 <= leader_epoch < self._get(topic_partition).leader_epoch

    def must_validate(self, topic_partition: TopicPartition, leader_epoch: int) -> int | None:
        """The epoch to ask the new leader about, when its log is to be compared before it is read."""
        partition = self._get(topic_partition)
        if not partition.has_position or leader_epoch <= partition.validated_epoch or leader_epoch < 0:
            return None
        if partition.leader_epoch < 0 or partition.leader_epoch >= leader_epoch:
            partition.validated_epoch = leader_epoch
            return None
        return partition.leader_epoch

    def validation_begun(self, ticket: FetchTicket) -> None:
        """Nothing is fetched until ``validated`` or ``fetch_failed``."""
        self._partitions[ticket.topic_partition].is_being_validated = True

    def validated(self, ticket: FetchTicket, leader_epoch: int, end_epoch: int, end_offset: int) -> None:
        """The leader's answer: where our epoch ends in its log. Below the position: the log was truncated.

        An end of -1: the leader cannot tell.
        """
        partition = self._of(ticket)
        if partition is None or not partition.has_position:
            return
        partition.is_being_validated = False
        partition.validated_epoch = leader_epoch
        if end_offset < 0 or end_epoch < 0 or end_offset >= partition.position:
            # Beyond the end there may be fetched pieces of what is gone.
            if 0 <= end_offset < partition.fetch_offset:
                partition.drop_fetched(next(self._generations))
            return
        if self._reset is None:
            self._errors.append(LogTruncated(detail=f"{ticket.topic_partition} ends at {end_offset}"))
            return
        # An iterator may hold records that it has not given yet.
        given = self._held.get(ticket.topic_partition, end_offset)
        self.seek(ticket.topic_partition, min(end_offset, given), end_epoch)
        partition.validated_epoch = leader_epoch

    def leader_changed(self, topic_partition: TopicPartition) -> None:
        """What waits for its next attempt goes to the new leader at once."""
        if partition := self._partitions.get(topic_partition):
            partition.retry_at_ms = 0

    def fetch_abandoned(self, ticket: FetchTicket) -> None:
        """Another broker leads: an answer that comes all the same is not looked at."""
        if partition := self._of(ticket):
            partition.generation = next(self._generations)
            partition.is_fetching = partition.is_being_validated = False
            partition.retry_at_ms = 0

    # --- fetching -------------------------------------------------------------------------------------------------

    def fetchable(self, now: int) -> list[FetchTicket]:
        """What may be asked for now. ``fetch_begun`` follows for each that is."""
        return [
            FetchTicket(each, state.fetch_offset, state.generation)
            for each, state in self._partitions.items()
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

    def _of(self, ticket: FetchTicket) -> _Partition | None:
        partition = self._partitions.get(ticket.topic_partition)
        return partition if partition is not None and partition.generation == ticket.generation else None

    def fetch_failed(self, ticket: FetchTicket, retry_at_ms: int) -> None:
        """No answer for this partition."""
        if partition := self._of(ticket):
            partition.is_fetching = partition.is_being_validated = False
            partition.retry_at_ms = retry_at_ms

    def next_retry(self, now: int) -> int | None:
        """When the first of the partitions that wait for another attempt may be asked for."""
        return min((state.retry_at_ms for state in self._partitions.values() if state.retry_at_ms > now), default=None)

    def fetched(self, ticket: FetchTicket, told: FetchedPartition, retry_at_ms: int) -> Advice:
        """Take over one partition's answer. ``retry_at_ms``: when to ask again after a passing error."""
        partition = self._of(ticket)
        if partition is None:
            return Advice.NOTHING
        partition.is_fetching = False
        if told.error_code is not ErrorCode.none:
            return self._refused(partition, ticket, told.error_code, retry_at_ms)
        partition.is_out_of_range = False
        partition.high_watermark = told.high_watermark
        partition.last_stable_offset = told.last_stable_offset
        try:
            batches = whole_batches(
                ticket.topic_partition,
                memoryview(told.records),
                first_offset=ticket.offset,
                check_crcs=self._check_crcs,
            )
            aborted = told.aborted_transactions if self._isolation else None
            visible = deque(visible_batches(batches, aborted))
        except KafkaError as error:
            partition.retry_at_ms = retry_at_ms
            self._errors.append(error)
            return Advice.NOTHING
        if batches:
            partition.pieces.append(_Piece(visible, batches[-1].header.next_offset))
        return Advice.NOTHING

    def _refused(self, partition: _Partition, ticket: FetchTicket, code: ErrorCode, retry_at_ms: int) -> Advice:
        partition.retry_at_ms = retry_at_ms
        if code is ErrorCode.offset_out_of_range:
            if not partition.is_out_of_range:
                partition.is_out_of_range = partition.is_being_validated = True
                return Advice.ASK_ANOTHER
            if self._reset is not None:
                partition.drop_fetched(next(self._generations))
                partition.reset = self._reset
            else:
                self._errors.append(error_for(code, f"{ticket.topic_partition} at {ticket.offset}"))
            return Advice.NOTHING
        if not code.retriable:
            self._errors.append(error_for(code, f"Fetch of {ticket.topic_partition}"))
            return Advice.NOTHING
        waits_only = code in (ErrorCode.offset_not_available, ErrorCode.unknown_leader_epoch)
        return Advice.NOTHING if waits_only else Advice.REFRESH_METADATA

    # --- records out ----------------------------------------------------------------------------------------------

    def take(self, max_records: int) -> list[ConsumerRecord]:
        """The next records, at most so many; positions move past them. Raises what a fetch has run into."""
        if self._errors:
            raise self._errors.popleft()
        taken: list[ConsumerRecord] = []
        served: list[TopicPartition] = []
        for each, partition in self._partitions.items():
            if partition.is_paused or not partition.has_position:
                continue
            before = len(taken)
            try:
                self._take_from(each, partition, taken, max_records)
            except KafkaError:
                # Positions have moved past what is taken: that is given first, and the next call meets the error again.
                if not taken:
                    raise
            if len(taken) > before:
                served.append(each)
            if len(taken) >= max_records:
                break
        for each in served:
            # Whoever was served goes to the end: no partition starves behind a busy one.
            self._partitions[each] = self._partitions.pop(each)
        return taken

    def one_by_one(self, records: list[ConsumerRecord]) -> Iterator[ConsumerRecord]:
        """Give records that were taken, each when it is asked for: only then the position moves past it.

        What a seek or a new assignment has overtaken is not given any more.
        """
        last: list[bool] = []
        for record in reversed(records):
            each = TopicPartition(record.topic, record.partition)
            last.append(each not in self._held)
            self._held[each] = record.offset
        for record in records:
            each = TopicPartition(record.topic, record.partition)
            is_last = last.pop()
            if each not in self._held:
                continue
            if is_last:
                del self._held[each]
            else:
                self._held[each] = record.offset + 1
            yield record

    def take_back(self) -> None:
        """Records that an iterator has taken and not given, because it was left, are read once more."""
        for each, offset in list(self._held.items()):
            self.seek(each, offset, self._partitions[each].leader_epoch)

    def _take_from(
        self, topic_partition: TopicPartition, partition: _Partition, taken: list[ConsumerRecord], max_records: int
    ) -> None:
        topic, index = topic_partition
        while len(taken) < max_records:
            if not partition.records and not self._unpack_next(partition):
                return
            records, epoch = partition.records, partition.records_epoch
            while records and len(taken) < max_records:
                offset, timestamp, key, value, headers = records.popleft()
                taken.append(ConsumerRecord(topic, index, offset, timestamp, key, value, headers, epoch))
                partition.position = offset + 1
                partition.leader_epoch = epoch
            if not records:
                self._skip_to_next(partition)

    def _unpack_next(self, partition: _Partition) -> bool:
        """Decode the next batch that has records at or after the position. False: nothing is left."""
        while partition.pieces:
            piece = partition.pieces[0]
            while piece.batches:
                batch = piece.batches[0]
                # One that cannot be read stays: only a seek leads past it, never the next poll.
                records = batch.records() if batch.header.next_offset > partition.position else []
                piece.batches.popleft()
                partition.records_epoch = batch.header.partition_leader_epoch
                # A batch may begin before the position: the broker gives whole batches only.
                partition.records.extend(each for each in records if each.offset >= partition.position)
                if partition.records:
                    return True
            self._skip_to_next(partition)
        return False

    @staticmethod
    def _skip_to_next(partition: _Partition) -> None:
        """A piece without batches is done: the position goes to its end, past markers and aborted records."""
        if partition.pieces and not partition.pieces[0].batches:
            partition.position = max(partition.position, partition.pieces.popleft().end)
