"""The compacted topic of commit records, as a pipeline's driver uses it.

One partition holds all records of a pipeline; other pipelines' records, and their open transactions, lie between them,
which hold the last stable offset back for up to their timeout: the death of one pipeline must not keep another down.

The partition does not depend on the topic's present number of partitions, which may have grown: a pipeline stays where
its last record is. Only a new one is placed, by its name's hash over the present number, as every release has done. So
a record is in one of the partitions that some smaller number would have given, and where several have one, that of the
largest number is the last: older releases moved with each expansion.

A broker that leads no more, and has not heard of it, answers from the past: whoever must know for certain first writes
behind what is committed, and then reads a log that has what he wrote. Knows nothing of Spark.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from einmal.client import OffsetRange, PartitionWriter, RangeReader
from einmal.client.fetched import CorruptData, RawBatch
from einmal.client.records import WrittenRange
from einmal.pipeline.commit_record import COMMIT_TOPIC, CommitRecord, UnreadableCommitRecord, decode
from einmal.spark.cluster import KafkaCluster
from einmal.types import ProducerIdAndEpoch, TopicPartition, TransactionVersion
from einmal.wire.control_batch import COMMIT, control_type
from einmal.wire.murmur2 import partition_for_key
from einmal.wire.record_batch import NewRecord, Record, encode_batch

PARTITIONS: Final = 16
"""Few enough for a small cluster; pipelines that share one do not wait for each other. Never more are used."""
TOPIC_CONFIG: Final[Mapping[str, str]] = {"cleanup.policy": "compact", "segment.bytes": str(16 * 1024 * 1024)}
_POLL_S: Final = 0.25
_logger = logging.getLogger(__name__)
_warned: Final[set[TopicPartition]] = set()
"""Partitions with a batch that was ignored: each is logged once."""
_PROBE_KEY: Final = b"\xff"
"""No name is encoded like this. All probes of a partition have one key, so that compaction takes them away."""


class Uncertain(Exception):
    """What is committed cannot be found out: the coordinator says that a transaction has ended, but its marker does not
    come."""


class CommitLog:
    def __init__(
        self, cluster: KafkaCluster, client: Mapping[str, str], transactional_id: str, *, is_new: bool = False
    ) -> None:
        """``is_new``: nobody can have used the name before, so nothing is searched."""
        self._is_new = is_new
        self._cluster = cluster
        self._client = client
        self._id = transactional_id
        self._partition: TopicPartition | None = None

    @property
    def partition(self) -> TopicPartition:
        """Where the pipeline's records go: ``read`` has found it. The topic must exist."""
        if self._partition is None:
            self._partition = self._candidates()[0]
        return self._partition

    def _candidates(self) -> list[TopicPartition]:
        """The partitions in which the last record can be, the most likely first."""
        found = candidates(self._id, len(self._cluster.partitions([COMMIT_TOPIC])))
        return found[:1] if self._is_new else found

    def look(self) -> CommitRecord | None:
        """The last record that is known to be committed now. A newer one may be, whose marker has not come yet."""
        return self._find(lambda places: self._cluster.latest(places, committed=False)).readable()

    def read(self, wait_s: float) -> CommitRecord | None:
        """The last record that is committed, for certain: to be called after InitProducerId.

        By then the predecessor's transactions have ended, and their markers are in the log. So everything up to our own
        probe is read, and every record of the pipeline is judged by its own producer's next marker: what others hold
        open here need not be waited for. Raises Uncertain, KafkaError, UnreadableCommitRecord.
        """
        deadline = time.monotonic() + wait_s
        while True:
            found = self._find(self._probe)
            if not found.is_open:
                # It stays there, however many partitions there are later.
                self._partition = found.place
                return found.readable()
            if time.monotonic() > deadline:
                raise Uncertain(f"a commit record of {self._id!r} in {found.place} is not decided after {wait_s} s")
            time.sleep(_POLL_S)

    def _find(self, ends: Callable[[list[TopicPartition]], Mapping[TopicPartition, int]]) -> Found:
        """The first of the candidates that has, or may have, a record; else the first of all. ``ends``: how far each is
        to be read."""
        every = self._candidates()
        # The record is in the first one, unless the topic was expanded: then the others need not be read.
        for places in (every[:1], every[1:]):
            last = self._last(ends(places)) if places else {}
            for place in places:
                if last[place].is_known:
                    return last[place]
        return Found(every[0])

    def _probe(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Write a record that says nothing into each partition; the offsets behind them. Raises KafkaError.

        It is acknowledged when every replica that could succeed this leader has fetched it from him. So none had
        succeeded him when it was written, and what was committed before is in his log. Whoever lets a consumer read as
        far as the probe has that log, be he the leader or not.
        """
        written = self._append_plain(places, _PROBE_KEY)
        return {place: written[place].last_offset + 1 for place in places}

    def _last(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, Found]:
        """What each partition has of this pipeline below its end."""
        found = {place: Found(place) for place in ends}
        for batch in batches_below(self._cluster, ends):
            found[batch.topic_partition].take(batch, self._id.encode())
        return found

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
        self._append_plain([self.partition], self._id.encode())

    def _append_plain(self, places: list[TopicPartition], key: bytes) -> dict[TopicPartition, WrittenRange]:
        """A tombstone in each partition, in no transaction, acknowledged by all replicas."""
        tombstone = NewRecord(key, None, time.time_ns() // 1_000_000)
        with PartitionWriter(self._client) as writer:
            for place in places:
                writer.append(place, encode_batch([tombstone]))
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
    bounds = {place: OffsetRange(starts[place], ends[place]) for place in ends}
    with RangeReader({**cluster.common, "isolation.level": "read_uncommitted"}) as reader:
        yield from reader.read(bounds, with_markers=True)


@dataclass(frozen=True, slots=True)
class Value:
    """``timestamp``: when it was written (ms). ``record`` None: a tombstone, or (``problem``) what cannot be read."""

    record: CommitRecord | None
    timestamp: int
    problem: str = ""


@dataclass(slots=True)
class Found:
    """What has been read of a pipeline in one partition: the last value that is committed, and what is undecided."""

    place: TopicPartition
    last: Value | None = None
    _open: dict[int, Value] = field(default_factory=dict)
    """By producer id."""

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    @property
    def is_known(self) -> bool:
        """Whether the pipeline has been here, or may have."""
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
        mine = [each for each in readable_records(batch) if each.key == key]
        if not mine:
            return
        value = value_of(mine[-1], batch)
        if batch.header.is_transactional:
            self._open[producer_id] = value
        else:
            self.last = value


def readable_records(batch: RawBatch) -> list[Record]:
    """None of a batch that cannot be read although its CRC, which was checked, is right: no pipeline has written it."""
    try:
        return batch.records()
    except CorruptData as error:
        if batch.topic_partition not in _warned:
            _warned.add(batch.topic_partition)
            _logger.warning("ignoring batches that no pipeline has written, the first: %s", error)
        return []


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
