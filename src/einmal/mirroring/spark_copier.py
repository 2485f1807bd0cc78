"""A mirror's records by the tasks of a Spark application, split by source partition: for large clusters.

Headers are read by tasks, too: both read every byte. Tasks write under the identity of the mirror's transaction, as
those of a pipeline do, and by the same rules: a partition has one writing task at a time, a task one writing attempt
(``sinks.kafka.claim_service``). A second attempt, be it a retry or a speculative copy, may not write; if the first
one is dead, the transaction is aborted, and the next one copies the ranges again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from einmal.client import OffsetRange, RangeReader
from einmal.client.cores.fetched import RawBatch
from einmal.commit_protocol.claims import Output
from einmal.mirror_protocol.effects import CopyRecords, HeadersScanned, RecordsCopied, ScanHeaders
from einmal.mirror_protocol.offset_map import OffsetRun
from einmal.mirroring.copied_stream import encoded, runs_of, streams_of
from einmal.mirroring.reading import HEADERS_MAX, SourceUnreadable, read, scanned, unreadable
from einmal.security.redaction import RedactedDict
from einmal.sinks.commit_point import SinkFailed
from einmal.sinks.kafka.batches import write_all
from einmal.sinks.kafka.claim_client import Claimant, ClaimRefused, Turn
from einmal.sinks.kafka.commit_point import KafkaCommitPoint
from einmal.sinks.kafka.open_transaction import OpenTransaction, WriteAs
from einmal.spark.environment.python_worker import partition_writer
from einmal.spark.output.task_job import JobFailed, TaskJob
from einmal.types import TopicPartition

_UNREADABLE: Final = SourceUnreadable.__name__
_EffectT = TypeVar("_EffectT", ScanHeaders, CopyRecords)


class SparkCopier:
    """See ``Copier``."""

    def __init__(self, job: TaskJob, source: Mapping[str, str], target: Mapping[str, str]) -> None:
        """``source``, ``target``: client settings under Kafka's names. The caller ends the Spark session."""
        self._job = job
        # Their repr hides secrets: they are part of every task.
        self._source, self._target = RedactedDict(source), RedactedDict(target)

    def scan(self, effect: ScanHeaders) -> HeadersScanned:
        parts = split(effect, self._job.width)
        task = _Scan(self._source, max(1, HEADERS_MAX // len(parts)))
        try:
            answers = self._job.run(parts, task)
        except JobFailed as error:
            raise SourceUnreadable(str(error)) from error
        return HeadersScanned(
            {partition: headers for answer in answers for partition, headers in answer.headers.items()},
            {partition: reached for answer in answers for partition, reached in answer.reached.items()},
        )

    def copy(self, effect: CopyRecords, target: KafkaCommitPoint) -> RecordsCopied:
        if not effect.ranges:
            # Only offsets of groups are committed, or topics left out are recorded.
            return RecordsCopied({})
        copied: list[CopiedPartition] = []

        def run(claims: OpenTransaction, write_as: WriteAs) -> list[Output]:
            task = _Copy(self._job.turn(claims), self._source, self._target, write_as)
            copied.extend(
                partition for answer in self._job.run(split(effect, self._job.width), task) for partition in answer
            )
            return [partition.output for partition in copied]

        try:
            target.stage_by_tasks(effect.identity, self._job.service, run)
        except JobFailed as error:
            if str(error).startswith(_UNREADABLE):
                raise SourceUnreadable(str(error)) from error
            raise SinkFailed(str(error)) from error
        by_source = {partition.source: partition for partition in copied}
        return RecordsCopied(
            {source: by_source[source].runs() if source in by_source else () for source in effect.ranges}
        )

    def close(self) -> None:
        self._job.close()


def split(effect: _EffectT, width: int) -> list[_EffectT]:
    """The effect in at most ``width`` parts, each with about as many offsets; a partition is in one part."""
    by_size = sorted(effect.ranges.items(), key=lambda partition_range: partition_range[1][0] - partition_range[1][1])
    parts: list[dict[TopicPartition, tuple[int, int]]] = [{} for _ in range(min(max(1, width), len(by_size)))]
    sizes = [0] * len(parts)
    for partition, (start, end) in by_size:
        smallest = sizes.index(min(sizes))
        parts[smallest][partition] = (start, end)
        sizes[smallest] += end - start
    return [replace(effect, ranges=ranges) for ranges in parts]


# --- tasks --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CopiedPartition:
    """Records that a task has written of a source partition. ``sources``: see ``CopiedStream``."""

    source: TopicPartition
    output: Output
    sources: tuple[tuple[int, int], ...]

    def runs(self) -> tuple[OffsetRun, ...]:
        """Raises SinkFailed."""
        written = self.output
        target = TopicPartition(written.topic, written.partition)
        return runs_of(target, self.sources, written.first_offset, written.last_offset)


@dataclass(frozen=True, slots=True)
class _Scan:
    source: Mapping[str, str]
    headers_max: int

    def __call__(self, effect: ScanHeaders) -> HeadersScanned:
        with RangeReader({**self.source, "isolation.level": "read_uncommitted"}) as reader:
            return scanned(reader, effect, self.headers_max)


@dataclass(frozen=True, slots=True)
class _Copy:
    turn: Turn
    source: Mapping[str, str]
    target: Mapping[str, str]
    write_as: WriteAs

    def __call__(self, effect: CopyRecords) -> list[CopiedPartition]:
        write_as, streams = self.write_as, streams_of(effect)
        identity = (write_as.identity, write_as.transactional_id, write_as.transaction_version)
        with self.turn.claims() as claims, partition_writer(self.target) as writer:
            writer.begin(*identity)
            batches = encoded(_committed(self.source, effect), streams)
            written = write_all(writer, batches, lambda partition: _claim(claims, partition))
            copied = []
            for source, stream in streams.items():
                if stream.count:
                    first, last, _ = written[stream.target]
                    output = Output(*stream.target, first, last, stream.count)
                    claims.report([output])
                    copied.append(CopiedPartition(source, output, tuple(stream.sources)))
            return copied


def _committed(source: Mapping[str, str], effect: CopyRecords) -> Iterator[tuple[RawBatch, OffsetRange]]:
    """Batches with committed records, and what is to be copied of each. Raises SourceUnreadable, WireError."""
    with unreadable(), RangeReader({**source, "isolation.level": "read_committed"}) as reader:
        for batch in read(reader, effect.ranges, effect.topic_ids, with_markers=False):
            yield batch, OffsetRange(*effect.ranges[batch.topic_partition])


def _claim(claims: Claimant, partition: TopicPartition) -> None:
    base, _count = claims.topic(partition.topic)
    (claim,) = claims.claim([base + partition.partition])
    if claim.sequence:
        raise ClaimRefused(f"{partition} was written by another part of the same transaction")
