"""The compacted topic of commit records, as a pipeline's driver uses it.

One partition holds all records of a pipeline; other pipelines' records, and their open transactions, lie between them.
Knows nothing of Spark.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from einmal.client import OffsetRange, PartitionWriter, RangeReader
from einmal.pipeline.commit_record import COMMIT_TOPIC, CommitRecord, decode
from einmal.spark.cluster import KafkaCluster
from einmal.types import ProducerIdAndEpoch, TopicPartition, TransactionVersion
from einmal.wire.murmur2 import partition_for_key
from einmal.wire.record_batch import NewRecord, encode_batch

PARTITIONS: Final = 16
"""A pipeline waits at its start for the open transactions of those that share its partition."""
TOPIC_CONFIG: Final[Mapping[str, str]] = {"cleanup.policy": "compact", "segment.bytes": str(16 * 1024 * 1024)}
_POLL_S: Final = 0.05


class StillOpen(Exception):
    """Another transaction has kept the records behind it from being readable for too long."""


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
            count = self._cluster.partition_count(COMMIT_TOPIC)
            self._partition = TopicPartition(COMMIT_TOPIC, partition_for_key(self._id.encode(), count))
        return self._partition

    def read(self, *, certain: bool, wait_s: float) -> CommitRecord | None:
        """The last committed record.

        ``certain``: everything below the present high watermark is decided first, which may have to wait for other
        pipelines' transactions. Raises StillOpen after ``wait_s``, UnreadableCommitRecord.
        """
        start = self._cluster.earliest([self.partition])[self.partition]
        if certain:
            end = self._cluster.latest([self.partition], committed=False)[self.partition]
            self._wait_for_stable(end, wait_s)
        else:
            end = self._cluster.latest([self.partition], committed=True)[self.partition]
        bounds = OffsetRange(start, end)
        found: CommitRecord | None = None
        with RangeReader({**self._cluster.common, "isolation.level": "read_committed"}) as reader:
            for batch in reader.read({self.partition: bounds}):
                for record in batch.records(bounds):
                    if record.key == self._id.encode():
                        found = None if record.value is None else decode(record.key, record.value)
        return found

    def write(
        self, record: CommitRecord, identity: ProducerIdAndEpoch, transaction_version: TransactionVersion
    ) -> None:
        """Append the record inside the transaction. Below TV_2 its partition must have been added before."""
        batch = encode_batch(
            [NewRecord(record.key, record.encode(), time.time_ns() // 1_000_000)],
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        with PartitionWriter(self._client, identity, self._id, transaction_version) as writer:
            writer.append(self.partition, batch)
            writer.flush()

    def _wait_for_stable(self, end: int, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while self._cluster.latest([self.partition], committed=True)[self.partition] < end:
            if time.monotonic() > deadline:
                raise StillOpen(
                    f"{self.partition} has been held below offset {end} by an open transaction for {wait_s:.0f} s"
                )
            time.sleep(_POLL_S)
