"""As much of a mirror's source cluster as the mirror can see: logs with batches and markers, and their transactions.

Many producers write transactions over several partitions at once. Markers are written one by one, coordinators fail
and write them again, retention and compaction remove records, topics get partitions or are created again. Values are
unique, so that a checker recognises each record in the target.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

from einmal.mirror_protocol.progress import OFFSETS_TOPIC
from einmal.mirror_protocol.scan import DataHeader, GroupCommit, Header, MarkerHeader
from einmal.types import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition, TransactionVersion

NO_TRANSACTION: Final = 0
OFFSETS_PARTITIONS: Final = 2


class SourceState(Enum):
    """State of one producer's transaction; what ``__transaction_state`` has last."""

    AT_REST = auto()
    ONGOING = auto()
    PREPARE_COMMIT = auto()
    PREPARE_ABORT = auto()


@dataclass(frozen=True, slots=True)
class SourceRecord:
    offset: int
    value: Any


@dataclass(slots=True)
class SourceBatch:
    """``committed``: of a marker; None for records."""

    first: int
    last: int
    producer: ProducerIdAndEpoch | None
    transaction: int
    records: list[SourceRecord] = field(default_factory=list)
    committed: bool | None = None

    def header(self) -> Header:
        if self.committed is not None:
            assert self.producer is not None
            return MarkerHeader(self.first, self.producer, self.committed)
        commits = tuple(record.value for record in self.records if isinstance(record.value, GroupCommit))
        return DataHeader(self.first, self.last, self.producer, commits)


@dataclass(slots=True)
class SourceLog:
    """One partition. ``ended``: transactions with a marker in it."""

    start: int = 0
    end: int = 0
    batches: list[SourceBatch] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)

    def append(self, producer: ProducerIdAndEpoch | None, transaction: int, values: tuple[Any, ...]) -> None:
        records = [SourceRecord(self.end + index, value) for index, value in enumerate(values)]
        self.batches.append(SourceBatch(self.end, self.end + len(values) - 1, producer, transaction, records))
        self.end += len(values)

    def mark(self, producer: ProducerIdAndEpoch, transaction: int, committed: bool) -> None:
        self.batches.append(SourceBatch(self.end, self.end, producer, transaction, committed=committed))
        self.ended.add(transaction)
        self.end += 1

    @property
    def last_stable_offset(self) -> int:
        for batch in self.batches:
            if batch.transaction != NO_TRANSACTION and batch.transaction not in self.ended:
                return batch.first
        return self.end

    def records(self) -> Iterator[tuple[SourceRecord, SourceBatch]]:
        for batch in self.batches:
            for record in batch.records:
                yield record, batch


@dataclass(slots=True)
class SourceTopicModel:
    topic_id: str
    logs: list[SourceLog]


@dataclass(slots=True)
class SourceProducer:
    """A transactional producer, and its coordinator's state."""

    producer_id: ProducerId
    version: TransactionVersion
    epoch: int = 0
    state: SourceState = SourceState.AT_REST
    transaction: int = NO_TRANSACTION
    partitions: list[tuple[str, TopicPartition]] = field(default_factory=list)
    """With the ids of their topics."""

    @property
    def identity(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.producer_id, ProducerEpoch(self.epoch))


class SourceCluster:
    def __init__(self, partitions: dict[str, int]) -> None:
        self.topics: dict[str, SourceTopicModel] = {}
        self.topic_ids: list[str] = []
        """In the order of creation."""
        self.decided: dict[int, bool] = {}
        self.members: dict[int, list[Any]] = {}
        """The values of each transaction."""
        self.order: dict[tuple[str, TopicPartition], list[tuple[int, Any, int]]] = {}
        """Offset, value and transaction of everything that was ever written, by topic id and partition."""
        self.removed: set[Any] = set()
        """Values that retention, compaction or the end of a topic has removed."""
        self.producers: list[SourceProducer] = []
        self._transactions = 0
        self._values = 0
        for name, count in {**partitions, OFFSETS_TOPIC: OFFSETS_PARTITIONS}.items():
            self.create(name, count)

    # --- topics -----------------------------------------------------------------------------------------------------

    def create(self, name: str, count: int) -> None:
        self.topic_ids.append(f"source-{len(self.topic_ids)}")
        self.topics[name] = SourceTopicModel(self.topic_ids[-1], [SourceLog() for _ in range(count)])

    def recreate(self, name: str) -> None:
        """Delete a topic and create it again. The offsets of groups are deleted with it."""
        topic = self.topics[name]
        for log in topic.logs:
            self.removed.update(record.value for record, _ in log.records())
        self.create(name, len(topic.logs))

    def add_partition(self, name: str) -> None:
        self.topics[name].logs.append(SourceLog())

    def log(self, partition: TopicPartition, topic_id: str | None = None) -> SourceLog | None:
        """None: no such partition, or not in the topic with this id."""
        topic = self.topics.get(partition.topic)
        if topic is None or partition.partition >= len(topic.logs) or topic_id not in (None, topic.topic_id):
            return None
        return topic.logs[partition.partition]

    def known_log(self, partition: TopicPartition) -> SourceLog:
        log = self.log(partition)
        assert log is not None
        return log

    def delete_before(self, partition: TopicPartition, offset: int) -> None:
        """Retention: whole batches below ``offset``."""
        log = self.known_log(partition)
        while log.batches and log.batches[0].last < min(offset, log.last_stable_offset):
            self.removed.update(record.value for record in log.batches[0].records)
            log.start = log.batches.pop(0).last + 1

    def compact(self, partition: TopicPartition, record: SourceRecord) -> None:
        """A later record has this one's key."""
        log = self.known_log(partition)
        for batch in log.batches:
            if record in batch.records and batch.last < log.last_stable_offset:
                batch.records.remove(record)
                self.removed.add(record.value)

    # --- writing ----------------------------------------------------------------------------------------------------

    def new_value(self) -> int:
        self._values += 1
        return self._values

    def new_producer(self, version: TransactionVersion) -> SourceProducer:
        producer = SourceProducer(ProducerId(1000 + len(self.producers)), version)
        self.producers.append(producer)
        return producer

    def write(self, partition: TopicPartition, values: tuple[Any, ...], producer: SourceProducer | None = None) -> None:
        """``producer``: within its transaction, which begins with its first record."""
        log, topic_id = self.known_log(partition), self.topics[partition.topic].topic_id
        transaction, identity = NO_TRANSACTION, None
        if producer is not None:
            if producer.state is not SourceState.ONGOING:
                self._begin(producer)
            if (topic_id, partition) not in producer.partitions:
                producer.partitions.append((topic_id, partition))
            transaction, identity = producer.transaction, producer.identity
            self.members[transaction] += values
        written = self.order.setdefault((topic_id, partition), [])
        written += [(log.end + index, value, transaction) for index, value in enumerate(values)]
        log.append(identity, transaction, values)

    def _begin(self, producer: SourceProducer) -> None:
        assert producer.state is SourceState.AT_REST
        self._transactions += 1
        producer.transaction, producer.state = self._transactions, SourceState.ONGOING
        producer.partitions = []
        self.members[producer.transaction] = []

    def prepare(self, producer: SourceProducer, *, committed: bool, is_fenced: bool = False) -> None:
        """EndTxn, or (``is_fenced``) the abort by a coordinator: markers follow."""
        assert producer.state is SourceState.ONGOING
        self.decided[producer.transaction] = committed
        producer.state = SourceState.PREPARE_COMMIT if committed else SourceState.PREPARE_ABORT
        if producer.version is TransactionVersion.TV_2 or is_fenced:
            producer.epoch += 1

    def mark(self, producer: SourceProducer, topic_id: str, partition: TopicPartition) -> None:
        """Write one marker of a prepared transaction; none where the topic is gone."""
        log = self.log(partition, topic_id)
        if log is not None:
            log.mark(producer.identity, producer.transaction, producer.state is SourceState.PREPARE_COMMIT)

    def complete(self, producer: SourceProducer) -> None:
        producer.state = SourceState.AT_REST

    def commit_offset(
        self, group: str, partition: TopicPartition, offset: int | None, producer: SourceProducer | None = None
    ) -> None:
        self.write(offsets_partition(group), (GroupCommit(group, partition, offset),), producer)

    # --- reading ----------------------------------------------------------------------------------------------------

    def committed(
        self, partition: TopicPartition, start: int, topic_id: str | None = None
    ) -> list[SourceRecord] | None:
        """Everything from ``start`` on, read_committed; None: the topic is gone, or the offset out of range."""
        log = self.log(partition, topic_id)
        if log is None or not log.start <= start <= log.end:
            return None
        end = log.last_stable_offset
        return [
            record
            for record, batch in log.records()
            if start <= record.offset < end and (batch.transaction == NO_TRANSACTION or self.decided[batch.transaction])
        ]

    def is_committed(self, transaction: int) -> bool:
        return transaction == NO_TRANSACTION or self.decided.get(transaction, False)


def offsets_partition(group: str) -> TopicPartition:
    return TopicPartition(OFFSETS_TOPIC, zlib.crc32(group.encode()) % OFFSETS_PARTITIONS)
