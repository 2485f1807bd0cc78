"""The seam between a mirror's machine and its records: who reads headers and copies batches.

The machine, its transactions and everything else stay in the mirror's process. ``LocalCopier`` reads and writes there,
too; ``spark_copier`` lets the tasks of a Spark application do it.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Protocol, TypeVar

from einmal.client import OffsetRange, RangeReader
from einmal.client.cores.fetched import RawBatch
from einmal.mirror_protocol.effects import CopyRecords, HeadersScanned, RecordsCopied, ScanHeaders
from einmal.mirror_protocol.progress import OFFSETS_TOPIC
from einmal.mirror_protocol.scan import Header, MarkerHeader
from einmal.mirroring.copied_stream import encoded, runs_of, streams_of
from einmal.mirroring.reading import SourceUnreadable, read, scanned, unreadable
from einmal.mirroring.scanned_batches import ScannedBatches, ScannedPartition
from einmal.sinks.kafka.commit_point import KafkaCommitPoint
from einmal.types import TopicPartition

_T = TypeVar("_T")


class Copier(Protocol):
    """Calls raise SourceUnreadable, KafkaError, WireError; ``copy`` SinkError, too."""

    def scan(self, effect: ScanHeaders) -> HeadersScanned: ...

    def copy(self, effect: CopyRecords, target: KafkaCommitPoint) -> RecordsCopied: ...

    def close(self) -> None: ...


class LocalCopier:
    """See ``Copier``. A batch is read once, as far as memory allows (``scanned_batches``)."""

    def __init__(self, reader: RangeReader, scanned_batches: ScannedBatches | None = None) -> None:
        """``reader``: of the source's uncommitted records; its owner closes it."""
        self._reader = reader
        self._scanned = scanned_batches or ScannedBatches()

    def scan(self, effect: ScanHeaders) -> HeadersScanned:
        # Nothing of __consumer_offsets is copied as it is.
        starts = {
            partition: start for partition, (start, _) in effect.ranges.items() if partition.topic != OFFSETS_TOPIC
        }
        self._scanned.begin(starts, effect.topic_ids)

        def take(batch: RawBatch, header: Header | None) -> None:
            if batch.topic_partition in starts:
                self._scanned.take(batch, header.committed if isinstance(header, MarkerHeader) else None)

        answer = scanned(self._reader, effect, take=take)
        for partition in starts:
            self._scanned.reach(partition, answer.reached[partition])
        return answer

    def copy(self, effect: CopyRecords, target: KafkaCommitPoint) -> RecordsCopied:
        streams = streams_of(effect)
        # A failure leaves the reader of the source half read.
        with (
            contextlib.closing(self._committed(effect)) as fetched,
            contextlib.closing(encoded(fetched, streams)) as batches,
        ):
            written = target.append(effect.identity, batches)
        runs = {}
        for partition, stream in streams.items():
            written_range = written[stream.target] if stream.count else None
            runs[partition] = (
                () if written_range is None else runs_of(stream.target, stream.sources, *written_range[:2])
            )
            self._scanned.release(partition, effect.ranges[partition][1])
        return RecordsCopied(runs)

    def _committed(self, effect: CopyRecords) -> Generator[tuple[RawBatch, OffsetRange], None, None]:
        """Batches with committed records, and what is to be copied of each. Raises SourceUnreadable, and WireError for
        records that no broker writes."""
        known = {partition: self._known(effect, partition) for partition in effect.ranges}
        # An attempt that has failed has released what it copied, and there may have been no room for the rest.
        yield from self._read(
            effect, known, {partition: (scan.start, scan.kept_from) for partition, scan in known.items()}
        )
        yield from _alternating([_kept(scan, effect.ranges[partition]) for partition, scan in known.items()])
        yield from self._read(effect, known, {partition: (scan.kept_to, scan.end) for partition, scan in known.items()})

    def _known(self, effect: CopyRecords, partition: TopicPartition) -> ScannedPartition:
        start, end = effect.ranges[partition]
        known = self._scanned.of(partition, effect.topic_ids[partition.topic], start, end)
        if known is None:
            raise SourceUnreadable(f"offsets {start} to {end} of {partition} were not read ahead by this process")
        return known

    def _read(
        self,
        effect: CopyRecords,
        known: dict[TopicPartition, ScannedPartition],
        pieces: dict[TopicPartition, tuple[int, int]],
    ) -> Generator[tuple[RawBatch, OffsetRange], None, None]:
        """The same of pieces of the ranges, from the source."""
        within = {partition: _within(effect.ranges[partition], piece) for partition, piece in pieces.items()}
        ranges = {partition: bounds for partition, bounds in within.items() if bounds is not None}
        if not ranges:
            return
        with unreadable(), contextlib.closing(read(self._reader, ranges, effect.topic_ids)) as batches:
            for batch in batches:
                if known[batch.topic_partition].is_visible(batch):
                    yield batch, OffsetRange(*ranges[batch.topic_partition])

    def close(self) -> None:
        """Nothing is open."""


def _kept(scan: ScannedPartition, wanted: tuple[int, int]) -> Iterator[tuple[RawBatch, OffsetRange]]:
    if within := _within(wanted, (scan.kept_from, scan.kept_to)):
        bounds = OffsetRange(*within)
        for batch in scan.kept(bounds):
            yield batch, bounds


def _alternating(streams: Sequence[Iterator[_T]]) -> Iterator[_T]:
    """One of each in turn: a Produce request has one batch of each partition at most."""
    pending = deque(streams)
    while pending:
        try:
            yield next(pending[0])
            pending.rotate(-1)
        except StopIteration:
            pending.popleft()


def _within(bounds: tuple[int, int], piece: tuple[int, int]) -> tuple[int, int] | None:
    start, end = max(bounds[0], piece[0]), min(bounds[1], piece[1])
    return (start, end) if start < end else None
