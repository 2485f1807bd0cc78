"""The consumer without I/O: positions, what to fetch next, and which records to return.

Each assigned partition has a *position*, the next offset that the application will receive, and a buffer of fetched
pieces beyond it. Control batches and aborted records are skipped and still move the position. A fetch carries a ticket;
after a seek or a new assignment the answers to older tickets are dropped.

A leader epoch is kept with the position: when a newer leader takes over, its log is compared before it is read, so that
a truncation is detected (KIP-320). No request goes to an older leader: it was replaced and does not know it. Times are
monotonic ms. Knows no group and no connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from uuid import UUID

from einmal.client.cores.fetch_core import FetchCore, FetchTicket
from einmal.client.cores.partition_reading import PartitionReading, Reset
from einmal.client.errors import InvalidState, KafkaError, NoOffset, RequestRefused
from einmal.client.records import ConsumerRecord, LogEnds, OffsetAndMetadata
from einmal.types import IsolationLevel, TopicPartition


class LogTruncated(RequestRefused):
    meaning = "the log was truncated below the position: records that were read are gone"
    what_to_do = "seek to the offset to resume from; work done with the lost records has to be undone"


class TopicRecreated(RequestRefused):
    meaning = "the topic was deleted and created again: its records have nothing to do with the position"
    what_to_do = "seek to the offset to read the new topic from"


class ConsumerCore:
    def __init__(self, isolation: IsolationLevel, reset: Reset | None, *, check_crcs: bool = True) -> None:
        self._isolation = isolation
        self._reset = reset
        self._partitions: dict[TopicPartition, PartitionReading] = {}
        self.fetches = FetchCore(self._partitions, isolation, reset, check_crcs=check_crcs)
        self._held: dict[TopicPartition, int] = {}
        """The position of an iterator that yields its records one by one: the application's real position."""
        self.lookup_errors: dict[TopicPartition, KafkaError] = {}
        """Why the position of a partition cannot be found; to be raised."""
        self._has_just_raised = False

    # --- assignment -----------------------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Exactly these from now on; those that stay keep their positions and fetched records."""
        before = dict(self._partitions)
        self._partitions.clear()
        for partition in partitions:
            self._partitions[partition] = before.get(partition) or PartitionReading(
                generation=self.fetches.next_generation()
            )
        for left in [partition for partition in before if partition not in self._partitions]:
            self._held.pop(left, None)
            self.lookup_errors.pop(left, None)

    @property
    def assignment(self) -> list[TopicPartition]:
        return list(self._partitions)

    def _get(self, topic_partition: TopicPartition) -> PartitionReading:
        partition = self._partitions.get(topic_partition)
        if partition is None:
            raise InvalidState(
                meaning=f"{topic_partition} is not assigned to this consumer",
                what_to_do="assign() it, or wait until the group has assigned it to this member",
            )
        return partition

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._get(partition).is_paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._get(partition).is_paused = False

    @property
    def paused(self) -> list[TopicPartition]:
        return [topic_partition for topic_partition, partition in self._partitions.items() if partition.is_paused]

    # --- positions ------------------------------------------------------------------------------------------------

    def seek(self, topic_partition: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        """Continue from here. A leader epoch, if known, lets a truncation be detected."""
        if offset < 0:
            raise InvalidState(meaning=f"cannot seek to offset {offset}")
        partition = self._get(topic_partition)
        self._set_position(topic_partition, partition, offset, leader_epoch)
        partition.topic_id, partition.is_topic_confirmed = None, False
        partition.is_topic_gone, partition.is_sought = False, True

    def _set_position(
        self, topic_partition: TopicPartition, partition: PartitionReading, offset: int, leader_epoch: int
    ) -> None:
        self._drop_fetched(topic_partition, partition)
        partition.position, partition.leader_epoch, partition.reset = offset, leader_epoch, None
        partition.validated_epoch = -1

    def seek_by(self, partitions: Iterable[TopicPartition], reset: Reset) -> None:
        """Continue from an end of the log, once it is known."""
        for topic_partition in partitions:
            partition = self._get(topic_partition)
            self._drop_fetched(topic_partition, partition)
            partition.reset = reset
            partition.is_topic_gone = False

    def _drop_fetched(self, topic_partition: TopicPartition, partition: PartitionReading) -> None:
        partition.drop_fetched(self.fetches.next_generation())
        self._held.pop(topic_partition, None)
        self.lookup_errors.pop(topic_partition, None)

    def without_position(self, now: int) -> list[TopicPartition]:
        """Partitions whose committed offset must be looked up now."""
        return [
            topic_partition
            for topic_partition, state in self._partitions.items()
            if state.position < 0 and state.reset is None and state.retry_at_ms <= now
        ]

    def to_reset(self, now: int) -> dict[TopicPartition, Reset]:
        """Partitions that wait for an end of the log, to be looked up now."""
        return {
            topic_partition: state.reset
            for topic_partition, state in self._partitions.items()
            if state.reset is not None and state.retry_at_ms <= now
        }

    def lookup_begun(self, partitions: Iterable[TopicPartition], topic_ids: Mapping[str, UUID]) -> None:
        """Note that what is looked up now will be a position in the topics that have these ids."""
        for topic_partition in partitions:
            if (partition := self._partitions.get(topic_partition)) is not None:
                partition.topic_id = topic_ids.get(topic_partition.topic)
                partition.is_topic_confirmed = partition.is_topic_unknown = partition.is_sought = False

    def committed_found(
        self, committed: Mapping[TopicPartition, OffsetAndMetadata | None], retry_at_ms: int = 0
    ) -> None:
        """The group's offsets; without one auto.offset.reset decides. If that is none, the error is raised by ``take``,
        and the offset looked up again from ``retry_at_ms`` on."""
        for topic_partition, offset in committed.items():
            partition = self._partitions.get(topic_partition)
            if partition is None or partition.position >= 0 or partition.reset is not None:
                continue
            if partition.is_topic_gone:
                self.lookup_failed(topic_partition, retry_at_ms, TopicRecreated(detail=str(topic_partition)))
            elif offset is not None:
                self._set_position(topic_partition, partition, offset.offset, offset.leader_epoch)
            elif self._reset is None:
                self.lookup_failed(topic_partition, retry_at_ms, NoOffset(detail=str(topic_partition)))
            else:
                partition.reset = self._reset

    def lookup_failed(self, topic_partition: TopicPartition, retry_at_ms: int, error: KafkaError | None) -> None:
        """The position was not found, which holds back no other partition. ``error``: does not pass by itself."""
        partition = self._partitions.get(topic_partition)
        if partition is None or partition.has_position:
            return
        partition.retry_at_ms = retry_at_ms
        if error is not None:
            self.lookup_errors[topic_partition] = error

    def reset_found(self, topic_partition: TopicPartition, asked: Reset, offset: int, leader_epoch: int) -> None:
        """The end of the log that was asked for. Ignored after a seek in between."""
        partition = self._partitions.get(topic_partition)
        if partition is not None and partition.reset is asked:
            self._set_position(topic_partition, partition, offset, leader_epoch)

    def position(self, topic_partition: TopicPartition) -> int | None:
        """The next offset that the application will receive; None while it is not known."""
        partition = self._get(topic_partition)
        return self._held.get(topic_partition, partition.position) if partition.has_position else None

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what to commit: the position of every partition that has one."""
        return {
            topic_partition: OffsetAndMetadata(self._held.get(topic_partition, state.position), state.leader_epoch)
            for topic_partition, state in self._partitions.items()
            if state.has_position
        }

    def lag(self, topic_partition: TopicPartition) -> int | None:
        """Offsets between the position and the end that this consumer may read to, as of the last fetch."""
        partition = self._get(topic_partition)
        end = partition.last_stable_offset if self._isolation else partition.high_watermark
        return max(0, end - partition.position) if end >= 0 and partition.has_position else None

    def ends(self, topic_partition: TopicPartition) -> LogEnds:
        """The partition's ends, as of the last fetch; -1 where it is not read any more."""
        partition = self._partitions.get(topic_partition)
        return LogEnds(-1, -1) if partition is None else LogEnds(partition.last_stable_offset, partition.high_watermark)

    # --- topic ids (KIP-516) --------------------------------------------------------------------------------------

    def topic_to_fetch(self, topic_partition: TopicPartition, known: UUID) -> UUID:
        """The id of the topic in which the position is one; ``known``: what has the topic's name now."""
        partition = self._get(topic_partition)
        partition.topic_id = partition.topic_id or known
        return partition.topic_id

    def is_of_former_topic(self, topic_partition: TopicPartition, known: UUID) -> bool:
        """Whether the leader does not know the topic that was read, and another one has its name now.

        That one is read from its first record: it has none that was read before.
        """
        partition = self._get(topic_partition)
        if not partition.is_topic_unknown or partition.topic_id in (None, known):
            return False
        was_read, was_sought = partition.is_topic_confirmed, partition.is_sought
        partition.is_topic_unknown = partition.is_topic_confirmed = False
        partition.topic_id = known
        if not was_read and was_sought:
            return False
        self._drop_fetched(topic_partition, partition)
        partition.position = partition.leader_epoch = partition.validated_epoch = -1
        partition.high_watermark = partition.last_stable_offset = -1
        if was_read and self._reset is not None:
            partition.reset = Reset.EARLIEST
        partition.is_topic_gone = was_read and self._reset is None
        return True

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

    def validated(self, ticket: FetchTicket, leader_epoch: int, end_epoch: int, end_offset: int) -> None:
        """The leader's answer: where our epoch ends in its log. Below the position: the log was truncated.

        An end of -1: the leader does not know.
        """
        partition = self.fetches.reading_of(ticket)
        if partition is None or not partition.has_position:
            return
        partition.is_being_validated = False
        partition.validated_epoch = leader_epoch
        if end_offset < 0 or end_epoch < 0 or end_offset >= partition.position:
            # Beyond the end there may be fetched pieces of the truncated records.
            if 0 <= end_offset < partition.fetch_offset:
                partition.drop_fetched(self.fetches.next_generation())
            return
        if self._reset is None:
            self.fetches.errors.append(LogTruncated(detail=f"{ticket.topic_partition} ends at {end_offset}"))
            return
        # An iterator may hold records that it has not yielded yet.
        given = self._held.get(ticket.topic_partition, end_offset)
        self._set_position(ticket.topic_partition, partition, min(end_offset, given), end_epoch)
        partition.validated_epoch = leader_epoch

    # --- records out ----------------------------------------------------------------------------------------------

    def take(self, max_records: int) -> list[ConsumerRecord]:
        """The next records, at most so many; positions move past them.

        Raises the errors of fetches and of positions, but no two of them in succession while there are records: a
        partition that cannot be read holds back no other.
        """
        if not self._has_just_raised:
            self._raise_next()
        taken = self._take(max_records)
        if not taken:
            self._raise_next()
        self._has_just_raised = False
        return taken

    def _raise_next(self) -> None:
        if self.fetches.errors:
            self._has_just_raised = True
            raise self.fetches.errors.popleft()
        if self.lookup_errors:
            self._has_just_raised = True
            raise self.lookup_errors.pop(next(iter(self.lookup_errors)))

    def _take(self, max_records: int) -> list[ConsumerRecord]:
        taken: list[ConsumerRecord] = []
        served: list[TopicPartition] = []
        for topic_partition, partition in self._partitions.items():
            if partition.is_paused or not partition.has_position:
                continue
            before = len(taken)
            try:
                partition.take(topic_partition, taken, max_records)
            except KafkaError:
                # Positions have moved past the records taken: return these first. A later call raises the error.
                if not taken:
                    self._partitions[topic_partition] = self._partitions.pop(topic_partition)
                    raise
            if len(taken) > before:
                served.append(topic_partition)
            if len(taken) >= max_records:
                break
        for topic_partition in served:
            # Served partitions go to the end: none starves behind a busy one.
            self._partitions[topic_partition] = self._partitions.pop(topic_partition)
        return taken

    def one_by_one(self, records: list[ConsumerRecord]) -> Iterator[ConsumerRecord]:
        """Yield the taken records. The position moves past each one only when it is requested.

        After a seek or a new assignment the remaining ones are dropped.
        """
        last: list[bool] = []
        for record in reversed(records):
            topic_partition = TopicPartition(record.topic, record.partition)
            last.append(topic_partition not in self._held)
            self._held[topic_partition] = record.offset
        for record in records:
            topic_partition = TopicPartition(record.topic, record.partition)
            is_last = last.pop()
            if topic_partition not in self._held:
                continue
            if is_last:
                del self._held[topic_partition]
            else:
                self._held[topic_partition] = record.offset + 1
            yield record

    def take_back(self, records: Iterable[ConsumerRecord] = ()) -> None:
        """Records that an abandoned iterator has taken and not yielded are read once more, and so are these, which the
        application did not get."""
        first = dict(self._held)
        for record in records:
            first.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        for topic_partition, offset in first.items():
            if (partition := self._partitions.get(topic_partition)) is not None and partition.has_position:
                self._set_position(topic_partition, partition, offset, partition.leader_epoch)
