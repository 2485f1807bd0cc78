"""The compacted topic of commit records, as a pipeline's driver uses it.

One partition holds all records of a pipeline, between the records of other pipelines. Open transactions of others hold
the last stable offset back for up to their timeout, so it is not the end that is read to: the death of one pipeline
must not stop another.

The partition of an existing pipeline does not depend on the topic's current number of partitions, which may have grown:
a pipeline stays where its last record is. Only a new pipeline is placed, by its name's hash over the current number, as
in every release. So a record is in one of the partitions that some smaller number would have given. Where several have
one, the record for the largest number is the last: older releases moved with each expansion.

A broker that has been replaced as leader, and does not know it yet, returns old data. A certain read therefore first
writes a probe behind the committed records, and then reads a log that contains the probe. Knows nothing of Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from einmal.client import OffsetRange, PartitionWriter, RangeReader
from einmal.client.cores.fetched import CorruptData, RawBatch
from einmal.client.records import WrittenRange
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.commit_protocol.commit_record import COMMIT_TOPIC, CommitRecord, UnreadableCommitRecord, decode
from einmal.event_log import EventLog
from einmal.sinks.kafka.transaction_writer import TransactionWriter
from einmal.types import ProducerIdAndEpoch, TopicPartition, TransactionVersion
from einmal.wire.control_batch import COMMIT, control_type
from einmal.wire.murmur2 import partition_for_key
from einmal.wire.record_batch import NewRecord, Record, encode_batch

PARTITIONS: Final = 16
"""Few enough for a small cluster; pipelines that share a partition do not wait for each other. The maximum, too."""
TOPIC_CONFIG: Final[Mapping[str, str]] = {"cleanup.policy": "compact", "segment.bytes": str(16 * 1024 * 1024)}
_POLL_S: Final = 0.25
_logger = EventLog(__name__)
_PROBE_KEY: Final = b"\xff"
"""No name is encoded like this. All probes of a partition have one key, so that compaction deletes them."""


class Uncertain(Exception):
    """The last commit record cannot be determined: according to the coordinator a transaction has ended, but its marker
    does not appear."""


class CommitLog:
    def __init__(
        self, cluster: KafkaCluster, client: Mapping[str, str], transactional_id: str, *, is_new: bool = False
    ) -> None:
        """``is_new``: nobody can have used the name before, so one partition is read."""
        self._is_new = is_new
        self._cluster = cluster
        self._client = client
        self._id = transactional_id
        self._partition: TopicPartition | None = None
        self._reader = BatchReader()
        self.writer = TransactionWriter(client, transactional_id)
        """For everything else that is written in the transactions, too."""

    def close(self) -> None:
        self.writer.close()

    @property
    def partition(self) -> TopicPartition:
        """The partition of the pipeline's records: found by ``read``. The topic must exist."""
        if self._partition is None:
            self._partition = self._candidates()[0]
        return self._partition

    def _candidates(self) -> list[TopicPartition]:
        """The partitions in which the last record can be, the most likely first."""
        partitions = candidates(self._id, len(self._cluster.partitions([COMMIT_TOPIC])))
        return partitions[:1] if self._is_new else partitions

    def look(self) -> CommitRecord | None:
        """The last record that is known to be committed. A newer one may be, whose marker is not written yet."""
        return self._find(lambda partitions: self._cluster.latest(partitions, committed=False)).readable()

    def read(self, wait_s: float) -> CommitRecord | None:
        """The last record that is committed, for certain: to be called after InitProducerId.

        By then the predecessor's transactions have ended, and their markers are in the log. So the log is read up to
        our own probe, and every record of the pipeline counts by its own producer's next marker: open transactions of
        others do not matter. Raises Uncertain, KafkaError, UnreadableCommitRecord.
        """
        deadline = time.monotonic() + wait_s
        while True:
            records = self._find(self._probe)
            if not records.is_open:
                # It stays there, however many partitions there are later.
                self._partition = records.partition
                return records.readable()
            if time.monotonic() > deadline:
                raise Uncertain(
                    f"a commit record of {self._id!r} in {records.partition} is not decided after {wait_s} s"
                )
            time.sleep(_POLL_S)

    def _find(self, ends: Callable[[list[TopicPartition]], Mapping[TopicPartition, int]]) -> PartitionRecords:
        """The first of the candidates that has, or may have, a record; else the first of all. ``ends``: how far each is
        to be read."""
        every = self._candidates()
        # The record is in the first one, unless the topic was expanded: then the others need not be read.
        for partitions in (every[:1], every[1:]):
            last = self._last(ends(partitions)) if partitions else {}
            for partition in partitions:
                if last[partition].is_known:
                    return last[partition]
        return PartitionRecords(every[0])

    def _probe(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Write a probe into each partition; the offsets behind them. Raises KafkaError.

        A probe is acknowledged when every replica that could succeed this leader has fetched it from this leader. So
        none had succeeded it when the probe was written, and its log has all that was committed before. A broker that
        lets a consumer read as far as the probe has that log, whether it leads or not.
        """
        written = self._append_plain(partitions, _PROBE_KEY)
        return {partition: written[partition].last_offset + 1 for partition in partitions}

    def _last(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, PartitionRecords]:
        """Return what each partition has of this pipeline below its end."""
        records = {partition: PartitionRecords(partition, reader=self._reader) for partition in ends}
        for batch in batches_below(self._cluster, ends):
            records[batch.topic_partition].take(batch, self._id.encode())
        return records

    def write(
        self, record: CommitRecord | None, identity: ProducerIdAndEpoch, transaction_version: TransactionVersion
    ) -> None:
        """Append the record (None: a tombstone) inside the transaction. Below TV_2 its partition must have been added
        before."""
        value = None if record is None else record.encode()
        batch = encode_batch(
            [NewRecord(self._id.encode(), value, time.time_ns() // 1_000_000)],
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        with self.writer.begun(identity, transaction_version) as writer:
            writer.append(self.partition, batch)
            writer.flush()

    def forget(self) -> None:
        """Append a tombstone, in no transaction: compaction deletes the pipeline's record. Raises KafkaError."""
        self._append_plain([self.partition], self._id.encode())

    def _append_plain(self, partitions: list[TopicPartition], key: bytes) -> dict[TopicPartition, WrittenRange]:
        """A tombstone in each partition, in no transaction, acknowledged by all replicas."""
        tombstone = NewRecord(key, None, time.time_ns() // 1_000_000)
        with PartitionWriter(self._client) as writer:
            for partition in partitions:
                writer.append(partition, encode_batch([tombstone]))
            return writer.flush()


def candidates(transactional_id: str, partitions: int) -> list[TopicPartition]:
    """The partitions in which a pipeline's last record can be, the most likely first; ``partitions``: of the topic.

    Of two that have one the first is the last: see the head of this module.
    """
    key, count = transactional_id.encode(), min(partitions, PARTITIONS)
    indexes = dict.fromkeys(partition_for_key(key, former) for former in range(count, 0, -1))
    return [TopicPartition(COMMIT_TOPIC, index) for index in indexes]


def batches_below(cluster: KafkaCluster, ends: Mapping[TopicPartition, int]) -> Iterator[RawBatch]:
    """Every batch and marker of these partitions of the commit topic. Raises KafkaError."""
    starts = cluster.earliest(ends)
    bounds = {partition: OffsetRange(starts[partition], ends[partition]) for partition in ends}
    with RangeReader({**cluster.common, "isolation.level": "read_uncommitted"}) as reader:
        yield from reader.read(bounds, with_markers=True)


class BatchReader:
    """The records of batches that may be anybody's. Logs once for each partition that some are ignored."""

    def __init__(self) -> None:
        self._ignored: set[TopicPartition] = set()

    def records(self, batch: RawBatch) -> list[Record]:
        """None, if the batch is unreadable although its CRC is right: no pipeline has written it."""
        try:
            return batch.records()
        except CorruptData as error:
            if batch.topic_partition not in self._ignored:
                self._ignored.add(batch.topic_partition)
                ignored = "ignoring batches that no pipeline has written, the first: %(error)s"
                _logger.warning("commit_log_batches_ignored", ignored, error=error)
            return []


@dataclass(frozen=True, slots=True)
class Value:
    """``timestamp``: when it was written (ms). ``record`` None: a tombstone, or (``problem``) an unreadable record."""

    record: CommitRecord | None
    timestamp: int
    problem: str = ""


@dataclass(slots=True)
class PartitionRecords:
    """Records that one partition has of a pipeline, as far as it was read: the last committed value, and undecided
    ones."""

    partition: TopicPartition
    last: Value | None = None
    _open: dict[int, Value] = field(default_factory=dict)
    """By producer id."""
    reader: BatchReader = field(default_factory=BatchReader)

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    @property
    def is_known(self) -> bool:
        """Whether the partition has, or may have, a record of the pipeline."""
        return self.last is not None or self.is_open

    def readable(self) -> CommitRecord | None:
        """The last committed record. Raises UnreadableCommitRecord."""
        if self.last is None:
            return None
        if self.last.problem:
            raise UnreadableCommitRecord(self.last.problem)
        return self.last.record

    def take(self, batch: RawBatch, key: bytes) -> None:
        """The next batch of the partition, in order."""
        producer_id = batch.header.producer_id
        if batch.header.is_control:
            undecided = self._open.pop(producer_id, None)
            if undecided is not None and is_commit(batch):
                self.last = undecided
            return
        mine = [record for record in self.reader.records(batch) if record.key == key]
        if not mine:
            return
        value = value_of(mine[-1], batch)
        if batch.header.is_transactional:
            self._open[producer_id] = value
        else:
            self.last = value


def value_of(record: Record, batch: RawBatch) -> Value:
    key = record.key or b""
    if record.value is None:
        return Value(None, record.timestamp)
    where = f"the record of {key.decode(errors='replace')!r} at offset {record.offset} of {batch.topic_partition}"
    if not batch.header.is_transactional:
        return Value(None, record.timestamp, f"{where} was written outside of a transaction: no pipeline does that")
    try:
        return Value(decode(key, record.value), record.timestamp)
    except UnreadableCommitRecord as error:
        return Value(None, record.timestamp, f"{where}: {error}")


def is_commit(batch: RawBatch) -> bool:
    return any(control_type(record) == COMMIT for record in batch.records())
