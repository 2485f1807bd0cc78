"""Reads of one Fetch of a consumer, and whether its response can be sent now.

Knows neither versions nor encodings, and waits for nothing: ``fetch_waiting`` does. What grows with the number of
partitions goes in steps, between which a wide Fetch waits for its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from einmal.broker.front.fetch.fetch_sessions import FetchSession, Wanted
from einmal.broker.replicas.partition import Partition
from einmal.broker.replicas.partitions import Partitions
from einmal.broker.resources.memory_budget import MemoryBudget
from einmal.log.errors import LogCorruption
from einmal.metadata.image import ClusterImage
from einmal.replication.follower import divergence
from einmal.types import ErrorCode, IsolationLevel, Offset, TopicPartition
from einmal.wire.fetch import EpochEndOffset, FetchedPartition, FetchPartition, FetchRequest
from einmal.wire.primitives import Topic
from einmal.wire.record_batch import iter_headers

WIDE: Final = 500
"""Above so many partitions a Fetch is read when it is its turn."""


class ConsumerFetch:
    """``refusal_of``: the error for a topic that may not be read, by its name. ``bytes_most``: of any answer of this
    broker. ``response_memory``: what clients have not taken yet."""

    def __init__(
        self,
        request: FetchRequest,
        wanted: Wanted,
        image: ClusterImage,
        partitions: Partitions,
        *,
        refusal_of: Callable[[str], ErrorCode | None],
        bytes_most: int,
        response_memory: MemoryBudget,
    ) -> None:
        self.request = request
        self.image = image
        self.session: FetchSession | None = wanted.session
        self.is_incremental = wanted.is_incremental
        self.bytes_max = max(0, min(request.max_bytes, bytes_most))
        # Nobody waits for more than an answer may have.
        self.min_bytes = min(request.min_bytes, max(1, self.bytes_max))
        self._isolation = IsolationLevel.READ_COMMITTED if request.isolation_level else IsolationLevel.READ_UNCOMMITTED
        self._response_memory = response_memory
        self._refusal_of = refusal_of
        self._partitions = partitions
        self._named = wanted.partitions
        self._wanted: list[tuple[Topic, FetchPartition, Partition | ErrorCode]] = []
        self.is_ready = False
        """Whether what the last reading found can be sent now."""
        self.results: list[tuple[Topic, FetchedPartition]] = []
        """As the last reading found them, in the order of the request."""
        self._bytes_read = self._room = 0
        self.ended: dict[int, Partition] = {}
        """Partitions whose log ends before the requested offset, by their index in ``results``."""

    @property
    def is_wide(self) -> bool:
        return len(self._named) > WIDE

    @property
    def partition_count(self) -> int:
        return len(self._named)

    @property
    def partitions(self) -> Iterator[tuple[int, Partition]]:
        """The partitions of this broker, with their indexes in the request."""
        for index, (_topic, _wanted, partition) in enumerate(self._wanted):
            if isinstance(partition, Partition):
                yield index, partition

    def finding(self) -> Iterator[None]:
        """Find all partitions, before anything else."""
        refusals: dict[str, ErrorCode | None] = {}
        for topic, partition in self._named:
            name = self.image.name_of_topic(topic)
            outcome: Partition | ErrorCode = ErrorCode.unknown_topic_id
            if name is not None:
                if name not in refusals:
                    refusals[name] = self._refusal_of(name)
                wanted = TopicPartition(name, partition.partition)
                outcome = refusals[name] or self._partitions.get(wanted) or self._partitions.error_of_missing(wanted)
            self._wanted.append((topic, partition, outcome))
            yield

    def read(self) -> bool:
        """Read all partitions at once; return whether the response can be sent now."""
        for _ in self.reading():
            pass
        return self.is_ready

    def reading(self) -> Iterator[None]:
        """Read all partitions into ``results``."""
        self.results.clear()
        self.ended.clear()
        self._bytes_read = 0
        # Answers that other clients have not taken yet leave less for this one; the first batch comes all the same.
        self._room = min(self.bytes_max, self._response_memory.room)
        must_answer = not self._wanted
        for topic, wanted, partition in self._wanted:
            if isinstance(partition, ErrorCode):
                fetched = FetchedPartition(wanted.partition, partition)
            else:
                fetched = self._read(wanted, partition)
                self._bytes_read += len(fetched.records)
            if fetched.error_code is not ErrorCode.none or fetched.diverging_epoch is not None:
                must_answer = True
            self.results.append((topic, fetched))
            yield
        self.is_ready = must_answer or self._bytes_read >= self.min_bytes
        if not self.is_ready and self._bytes_read > 0:
            total = 0
            for index in range(len(self._wanted)):
                total += self.available(index)
                if total >= self.min_bytes:
                    self.is_ready = True
                    return
                yield

    def loses_access(self) -> bool:
        """Whether something may not be read any more, because ACLs have changed; it is refused from now on.

        Raises WireError.
        """
        refusals: dict[str, ErrorCode | None] = {}
        for index, partition in self.partitions:
            name = partition.topic_partition.topic
            if name not in refusals:
                refusals[name] = self._refusal_of(name)
            refused = refusals[name]
            if refused is not None:
                topic, wanted, _partition = self._wanted[index]
                self._wanted[index] = topic, wanted, refused
        return any(refusals.values())

    def refuse(self, index: int, error: ErrorCode) -> None:
        """Replace the error of a result."""
        topic, fetched = self.results[index]
        self.results[index] = topic, fetched._replace(error_code=error)

    def available(self, index: int) -> int:
        """Bytes that could be read, whether this answer has room for them or not; counted no further than needed.

        ``min_bytes`` where only reading can find out.
        """
        _topic, wanted, partition = self._wanted[index]
        if isinstance(partition, ErrorCode) or not partition.is_leader:
            return self.min_bytes
        below, at_most = partition.visible_end(self._isolation), min(wanted.partition_max_bytes, self.min_bytes)
        try:
            return partition.bytes_between(Offset(wanted.fetch_offset), below, max(0, at_most))
        except (LogCorruption, OSError):
            return self.min_bytes

    def count_sent(self, index: int) -> None:
        """The records of a result are sent."""
        partition = self._wanted[index][2]
        if isinstance(partition, Partition):
            partition.counts.bytes_out += len(self.results[index][1].records)

    def _read(self, wanted: FetchPartition, partition: Partition) -> FetchedPartition:
        partition.counts.fetches += 1
        error = partition.check_leader_epoch(wanted.current_leader_epoch)
        if error is not ErrorCode.none:
            return FetchedPartition(wanted.partition, error)
        diverging = divergence(partition, wanted)
        if diverging is not None:
            if diverging.epoch < 0:
                # To clients an undefined epoch is no divergence: they would ask for the same again, and for ever.
                return FetchedPartition(wanted.partition, ErrorCode.offset_out_of_range)
            return self._fetched(wanted, partition, b"", diverging)
        offset = Offset(wanted.fetch_offset)
        if not partition.log_start_offset <= offset <= partition.log_end_offset:
            if offset > partition.log_end_offset:
                self.ended[len(self.results)] = partition
            return FetchedPartition(wanted.partition, ErrorCode.offset_out_of_range)
        below = partition.visible_end(self._isolation)
        room = min(wanted.partition_max_bytes, self._room - self._bytes_read)
        if offset >= below or (room <= 0 and self._bytes_read):
            return self._fetched(wanted, partition, b"")
        try:
            # Only the first records of an answer may exceed the limits: else a large batch could never be read.
            records = partition.read(offset, max(room, 0), below=below, min_one=not self._bytes_read)
        except (LogCorruption, OSError) as failure:
            partition.counts.failed_fetches += 1
            return FetchedPartition(wanted.partition, partition.report(failure))
        return self._fetched(wanted, partition, records)

    def _fetched(
        self, wanted: FetchPartition, partition: Partition, records: bytes, diverging: EpochEndOffset | None = None
    ) -> FetchedPartition:
        aborted: list[tuple[int, int]] | None = None
        if self._isolation is IsolationLevel.READ_COMMITTED:
            aborted = _aborted(partition, Offset(wanted.fetch_offset), records) if records else []
        return FetchedPartition(
            wanted.partition,
            ErrorCode.none,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log_start_offset,
            aborted,
            records,
            diverging_epoch=diverging,
        )


def _aborted(partition: Partition, offset: Offset, records: bytes) -> list[tuple[int, int]]:
    """The aborted transactions with records in what is returned."""
    candidates = partition.aborted_transactions(offset, partition.last_stable_offset)
    if not candidates:
        return []
    end = offset
    for _position, header in iter_headers(records):
        end = header.next_offset
    return [(item.producer_id, item.first_offset) for item in candidates if item.first_offset < end]
