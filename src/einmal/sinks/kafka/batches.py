"""The record batches that one process writes in one transaction, or a part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from einmal.client import PartitionWriter
from einmal.client.cores.fetched import RawBatch
from einmal.client.records import WrittenRange
from einmal.types import ProducerIdAndEpoch, TopicPartition, next_sequence
from einmal.types import Sequence as BatchSequence
from einmal.wire.compression import Compression
from einmal.wire.record_batch import NewRecord, encode_batch, under_producer

_PIECE_BYTES: Final = 512 * 1024


class TransactionBatches:
    """Encodes them under the transaction's identity; the sequences of each partition begin at 0."""

    def __init__(self, identity: ProducerIdAndEpoch) -> None:
        self._identity = identity
        self._next: dict[TopicPartition, BatchSequence] = {}
        self._counts: dict[TopicPartition, int] = {}

    def encode(
        self, partition: TopicPartition, records: Sequence[NewRecord], compression: Compression = Compression.NONE
    ) -> tuple[TopicPartition, bytes]:
        """One batch of at least one record."""
        batch = encode_batch(
            records,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.producer_epoch,
            base_sequence=self._taken(partition, len(records)),
            transactional=True,
            compression=compression,
        )
        return partition, batch

    def copy(self, partition: TopicPartition, batch: RawBatch) -> tuple[TopicPartition, bytes]:
        """A fetched batch, whose records stay as they are, compressed or not: only the header changes."""
        header, identity = batch.header, self._identity
        base_sequence = self._taken(partition, header.record_count)
        return partition, under_producer(
            batch.data, header, identity.producer_id, identity.producer_epoch, base_sequence
        )

    def count(self, partition: TopicPartition) -> int:
        """Records that were encoded."""
        return self._counts.get(partition, 0)

    def _taken(self, partition: TopicPartition, count: int) -> BatchSequence:
        """The base sequence of the partition's next batch."""
        base = self._next.get(partition, BatchSequence(0))
        self._next[partition] = next_sequence(base, count)
        self._counts[partition] = self.count(partition) + count
        return base


def write_all(
    writer: PartitionWriter,
    batches: Iterable[tuple[TopicPartition, bytes]],
    begin: Callable[[TopicPartition], None],
) -> dict[TopicPartition, WrittenRange]:
    """Write encoded batches, and wait for the answers. ``begin``: called before the first batch of each partition.
    Raises what the writer, ``begin`` and ``batches`` raise."""
    begun: set[TopicPartition] = set()
    for piece in _pieces(batches):
        for partition, _ in piece:
            if partition not in begun:
                begun.add(partition)
                begin(partition)
        writer.append_all(piece)
    return writer.flush()


def _pieces(batches: Iterable[tuple[TopicPartition, bytes]]) -> Iterator[list[tuple[TopicPartition, bytes]]]:
    """Lists of some bytes each: a step of the writer's thread costs more than a small batch."""
    piece: list[tuple[TopicPartition, bytes]] = []
    size = 0
    for batch in batches:
        piece.append(batch)
        size += len(batch[1])
        if size >= _PIECE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
