"""The batches of a source partition that were read ahead: kept until they are copied, as far as memory allows.

A mirror reads ahead to find the consistent cut (``mirror_protocol.cut``), and copies what lies below it. What is kept
in between is not fetched twice. Its memory is bounded, over all partitions; what lies beyond the bound is fetched
again.

Which batches are visible follows from the markers that were read, as for a ``read_committed`` reader: those of an
aborted transaction are hidden from its first offset to its marker. A cut excludes undecided transactions, so below it
every batch is decided.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final

from einmal.client.cores.fetched import RawBatch
from einmal.client.records import OffsetRange
from einmal.types import ProducerId, TopicPartition

KEPT_BYTES_MAX: Final = 128 * 1024 * 1024
"""Maximum size of the kept batches of all partitions."""
_OVERHEAD_BYTES: Final = 1024
"""Memory of a kept batch besides its bytes: of small ones it is nearly all."""


class ScannedPartition:
    """Scan of what lies between ``start`` and ``end``: all batches below ``end`` were read. Some of them are kept, in
    one piece without a gap, from ``kept_from`` to ``kept_to``."""

    def __init__(self, topic_id: str, start: int) -> None:
        self.topic_id = topic_id
        self.start = self.end = self.kept_from = self.kept_to = start
        self.kept_bytes = 0
        self._kept: deque[RawBatch] = deque()
        self._first: dict[ProducerId, int] = {}
        """The first offset of each undecided transaction."""
        self._aborted: dict[ProducerId, list[tuple[int, int]]] = {}
        """Spans from the first offset of an aborted transaction to its marker, in order. Transactions of a producer
        that abort one after the other are one span: a producer that always aborts takes no memory for each."""
        self._committed_last: set[ProducerId] = set()
        """Producers with spans whose last transaction was committed."""

    def take(self, batch: RawBatch, room: int, marker: bool | None) -> int:
        """The next batch. ``marker``: of a control batch that ends a transaction, whether it commits. ``room``: bytes
        that may be kept. Returns how many are."""
        header = batch.header
        if header.next_offset <= self.end:
            return 0  # A reader gets whole batches, which may begin before the range.
        is_next = self.kept_to == self.end
        self.end = header.next_offset
        if header.is_control:
            first = None if marker is None else self._first.pop(header.producer_id, None)
            if first is not None:
                self._decide(header.producer_id, first, header.base_offset, committed=bool(marker))
        elif header.is_transactional:
            self._first.setdefault(header.producer_id, header.base_offset)
        size = len(batch.data) + _OVERHEAD_BYTES
        if not is_next or (not header.is_control and size > room):
            return 0
        self.kept_to = self.end
        if header.is_control:
            return 0
        # A copy: the fetched buffer holds batches of other partitions, too, which may be kept for longer.
        self._kept.append(batch._replace(data=memoryview(bytes(batch.data))))
        self.kept_bytes += size
        return size

    def _decide(self, producer_id: ProducerId, first: int, marker: int, *, committed: bool) -> None:
        spans = self._aborted.get(producer_id)
        if committed:
            if spans:
                self._committed_last.add(producer_id)
        elif not spans:
            self._aborted[producer_id] = [(first, marker)]
        elif producer_id in self._committed_last:
            self._committed_last.remove(producer_id)
            spans.append((first, marker))
        else:
            spans[-1] = (spans[-1][0], marker)

    def reach(self, end: int) -> None:
        """Nothing else lies below ``end``."""
        if self.kept_to == self.end:
            self.kept_to = max(self.kept_to, end)
        self.end = max(self.end, end)

    def kept(self, bounds: OffsetRange) -> Iterator[RawBatch]:
        """Those with committed records that reach into the range; below a cut every batch is decided."""
        for batch in self._kept:
            if batch.header.base_offset >= bounds.end:
                return
            if batch.header.next_offset > bounds.start and self.is_visible(batch):
                yield batch

    def is_visible(self, batch: RawBatch) -> bool:
        """Whether it has committed records."""
        header = batch.header
        if header.is_control:
            return False
        spans = self._aborted.get(header.producer_id) if header.is_transactional else None
        if not spans:
            return True
        index = bisect_right(spans, (int(header.base_offset), sys.maxsize)) - 1
        return index < 0 or spans[index][1] < header.base_offset

    def release(self, cut: int) -> int:
        """Keep no batches below ``cut`` any more: they are copied, or were. Returns the bytes that were freed."""
        freed = 0
        while self._kept and self._kept[0].header.next_offset <= cut:
            freed += len(self._kept.popleft().data) + _OVERHEAD_BYTES
        self.kept_bytes -= freed
        self.kept_from = max(self.kept_from, min(cut, self.kept_to))
        return freed

    def forget(self, position: int) -> int:
        """Nothing below ``position`` will be copied again. Returns the bytes that were freed."""
        self.start = max(self.start, min(position, self.end))
        for producer_id, spans in list(self._aborted.items()):
            if spans[-1][1] < position:
                del self._aborted[producer_id]
                self._committed_last.discard(producer_id)
        return self.release(position)


class ScannedBatches:
    """Those of all partitions."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._partitions: dict[TopicPartition, ScannedPartition] = {}
        self.room = bytes_max
        """Bytes that can still be kept."""

    def begin(self, starts: Mapping[TopicPartition, int], topic_ids: Mapping[str, str]) -> None:
        """These partitions are read, from there on: what is known of one ends there, or is void. ``topic_ids``: of all
        topics that the mirror copies."""
        for partition, known in list(self._partitions.items()):
            is_void = known.end != starts.get(partition, known.end)
            if is_void or known.topic_id != topic_ids.get(partition.topic):
                self.room += known.kept_bytes
                del self._partitions[partition]
        for partition, start in starts.items():
            if partition not in self._partitions:
                self._partitions[partition] = ScannedPartition(topic_ids[partition.topic], start)

    def take(self, batch: RawBatch, marker: bool | None) -> None:
        """The next batch of its partition: see ``ScannedPartition.take``."""
        self.room -= self._partitions[batch.topic_partition].take(batch, self.room, marker)

    def reach(self, partition: TopicPartition, end: int) -> None:
        self._partitions[partition].reach(end)

    def of(self, partition: TopicPartition, topic_id: str, start: int, end: int) -> ScannedPartition | None:
        """None: the range was not read in this process, or is another topic's."""
        known = self._partitions.get(partition)
        if known is None or known.topic_id != topic_id or not known.start <= start <= end <= known.end:
            return None
        self.room += known.forget(start)
        return known

    def release(self, partition: TopicPartition, cut: int) -> None:
        self.room += self._partitions[partition].release(cut)
