"""The compacted topic of commit records, as a pipeline's driver uses it.

One partition holds all records of a pipeline; other pipelines' records, and their open transactions, lie between them,
which hold the last stable offset back for up to their timeout: the death of one pipeline must not keep another down.
A broker that leads no more, and has not heard of it, answers from the past: whoever must know for certain first writes
behind what is committed, and then reads a log that has what he wrote. Knows nothing of Spark.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Final

from einmal.client import OffsetRange, PartitionWriter, RangeReader
from einmal.client.fetched import RawBatch
from einmal.client.records import WrittenRange
from einmal.pipeline.commit_record import COMMIT_TOPIC, CommitRecord, decode
from einmal.spark.cluster import KafkaCluster
from einmal.types import ProducerIdAndEpoch, TopicPartition, TransactionVersion
from einmal.wire.control_batch import COMMIT, control_type
from einmal.wire.murmur2 import partition_for_key
from einmal.wire.record_batch import NewRecord, encode_batch

PARTITIONS: Final = 16
"""Few enough for a small cluster; pipelines that share one do not wait for each other. Never more are used: a topic to
which somebody adds partitions must not hide the records that it has."""
TOPIC_CONFIG: Final[Mapping[str, str]] = {"cleanup.policy": "compact", "segment.bytes": str(16 * 1024 * 1024)}
_POLL_S: Final = 0.25
_PROBE_KEY: Final = b"\xff"
"""No name is encoded like this. All probes of a partition have one key, so that compaction takes them away."""


class Uncertain(Exception):
    """What is committed cannot be found out: the coordinator says that a transaction has ended, but its marker does not
    come."""


class CommitLog:
    def __init__(self, cluster: KafkaCluster, client: Mapping[str, str], transactional_id: str) -> None:
        self._cluster = cluster
        self._client = client
        self._id = transactional_id
        self._partition: TopicPartition | None = None

    @property
    def partition(self) -> TopicPartition:
        """Where the pipeline's records are. The topic must exist."""
        if self._partition is None:
            count = min(self._cluster.partition_count(COMMIT_TOPIC), PARTITIONS)
            self._partition = TopicPartition(COMMIT_TOPIC, partition_for_key(self._id.encode(), count))
        return self._partition

    def look(self) -> CommitRecord | None:
        """The last record that is known to be committed now. A newer one may be, whose marker has not come yet."""
        return self._last(self._cluster.latest([self.partition], committed=False)[self.partition])[0]

    def read(self, wait_s: float) -> CommitRecord | None:
        """The last record that is committed, for certain: to be called after InitProducerId.

        By then the predecessor's transactions have ended, and their markers are in the log. So everything up to our own
        probe is read, and every record of the pipeline is judged by its own producer's next marker: what others hold
        open here need not be waited for. Raises Uncertain, KafkaError, UnreadableCommitRecord.
        """
        deadline = time.monotonic() + wait_s
        while True:
            found, is_open = self._last(self._probe())
            if not is_open:
                return found
            if time.monotonic() > deadline:
                raise Uncertain(f"a commit record of {self._id!r} in {self.partition} is not decided after {wait_s} s")
            time.sleep(_POLL_S)

    def _probe(self) -> int:
        """Write a record that says nothing; the offset behind it. Raises KafkaError.

        It is acknowledged when every replica that could succeed this leader has fetched it from him. So none had
        succeeded him when it was written, and what was committed before is in his log. Whoever lets a consumer read as
        far as the probe has that log, be he the leader or not.
        """
        return self._append_plain(_PROBE_KEY).last_offset + 1

    def _last(self, end: int) -> tuple[CommitRecord | None, bool]:
        """The last committed record below ``end``, and whether one is undecided there."""
        found: CommitRecord | None = None
        open_records: dict[int, CommitRecord | None] = {}
        for batch in self._batches(end):
            producer_id = batch.header.producer_id
            if batch.header.is_control:
                if producer_id in open_records:
                    record = open_records.pop(producer_id)
                    found = record if _is_commit(batch) else found
            elif not batch.header.is_transactional:
                found = self._mine(batch, found)
            elif self._has_mine(batch):
                open_records[producer_id] = self._mine(batch, None)
        return found, bool(open_records)

    def _batches(self, end: int) -> Iterator[RawBatch]:
        bounds = OffsetRange(self._cluster.earliest([self.partition])[self.partition], end)
        with RangeReader({**self._cluster.common, "isolation.level": "read_uncommitted"}) as reader:
            yield from reader.read({self.partition: bounds}, with_markers=True)

    def _has_mine(self, batch: RawBatch) -> bool:
        return any(record.key == self._id.encode() for record in batch.records())

    def _mine(self, batch: RawBatch, otherwise: CommitRecord | None) -> CommitRecord | None:
        """The last record of this pipeline in the batch."""
        for record in batch.records():
            if record.key == self._id.encode():
                otherwise = None if record.value is None else decode(record.key, record.value)
        return otherwise

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
        with PartitionWriter(self._client, identity, self._id, transaction_version) as writer:
            writer.append(self.partition, batch)
            writer.flush()

    def forget(self) -> None:
        """Append a tombstone, in no transaction: compaction takes the pipeline's record away. Raises KafkaError."""
        self._append_plain(self._id.encode())

    def _append_plain(self, key: bytes) -> WrittenRange:
        """A tombstone, in no transaction, acknowledged by all replicas."""
        tombstone = NewRecord(key, None, time.time_ns() // 1_000_000)
        with PartitionWriter(self._client) as writer:
            writer.append(self.partition, encode_batch([tombstone]))
            return writer.flush()[self.partition]


def _is_commit(batch: RawBatch) -> bool:
    return any(control_type(record) == COMMIT for record in batch.records())
