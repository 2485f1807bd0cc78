"""The blocking twins of ``aio.raw``: same names, same arguments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self
from uuid import UUID

from einmal.client.aio import raw as aio
from einmal.client.aio.producing.transaction_requests import KeptTransaction
from einmal.client.blocking.loop_thread import LoopThread
from einmal.client.config import ConsumerSettings, ProducerSettings, parse
from einmal.client.cores.fetched import RawBatch
from einmal.client.prepared_txn_state import PreparedTxnState
from einmal.client.records import GroupMetadata, OffsetAndMetadata, OffsetRange, WrittenRange
from einmal.types import ProducerIdAndEpoch, TopicPartition, TransactionVersion


class TransactionDriver:
    """As ``einmal.client.aio.TransactionDriver``."""

    def __init__(self, config: Mapping[str, Any] | None = None, **settings: Any) -> None:
        self.settings = parse(ProducerSettings, config, settings)
        self._thread = LoopThread(lambda: aio.TransactionDriver(config, **settings), "einmal-transaction-driver")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def transaction_version(self) -> TransactionVersion:
        """TV_2 where the cluster has finalized it, else TV_1."""
        return self._thread.run(lambda driver: driver.transaction_version())

    def init_producer_id(self, previous: ProducerIdAndEpoch | None = None) -> ProducerIdAndEpoch:
        """A new identity; see the asyncio twin."""
        return self._thread.run(lambda driver: driver.init_producer_id(previous))

    def keep_prepared_txn(self) -> KeptTransaction:
        """A new identity; the former owner's open transaction is kept (KIP-939). See the asyncio twin."""
        return self._thread.run(lambda driver: driver.keep_prepared_txn())

    def complete_transaction(self, kept: KeptTransaction, committed: PreparedTxnState) -> ProducerIdAndEpoch:
        """Commit the kept transaction if it is the one that the database has committed, else abort it."""
        return self._thread.run(lambda driver: driver.complete_transaction(kept, committed))

    def add_partitions(self, identity: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]) -> None:
        """Needed below TV_2, before a partition's first batch; under TV_2 nothing is sent."""
        wanted = list(partitions)
        self._thread.run(lambda driver: driver.add_partitions(identity, wanted))

    def txn_offset_commit(
        self,
        identity: ProducerIdAndEpoch,
        group: GroupMetadata | str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
    ) -> None:
        """Commit positions (offset of the next record) with the transaction."""
        self._thread.run(lambda driver: driver.txn_offset_commit(identity, group, offsets))

    def end_txn(self, identity: ProducerIdAndEpoch, *, committed: bool) -> ProducerIdAndEpoch | None:
        """Commit or abort; returns the next transaction's identity under TV_2."""
        return self._thread.run(lambda driver: driver.end_txn(identity, committed=committed))

    def close(self) -> None:
        self._thread.close()


class PartitionWriter:
    """As ``einmal.client.aio.PartitionWriter``."""

    def __init__(
        self,
        config: Mapping[str, Any] | None,
        identity: ProducerIdAndEpoch | None = None,
        transactional_id: str | None = None,
        transaction_version: TransactionVersion = TransactionVersion.TV_2,
        **settings: Any,
    ) -> None:
        self._thread = LoopThread(
            lambda: aio.PartitionWriter(config, identity, transactional_id, transaction_version, **settings),
            "einmal-partition-writer",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(
        self,
        identity: ProducerIdAndEpoch | None,
        transactional_id: str | None,
        transaction_version: TransactionVersion,
        *,
        sends_once: bool = False,
    ) -> None:
        """Write another transaction's batches from now on, over the same connections. Raises InvalidState."""
        self._thread.run(
            lambda writer: writer.begin(identity, transactional_id, transaction_version, sends_once=sends_once)
        )

    def append(self, topic_partition: TopicPartition, batch: bytes) -> None:
        """Queue one encoded batch; waits only while the buffer is full. Raises the first error of any batch so far."""
        self._thread.run(lambda writer: writer.append(topic_partition, batch))

    def append_all(self, batches: Iterable[tuple[TopicPartition, bytes]]) -> None:
        """``append`` each of them, in one step of the client's thread: they must be there already."""
        self._thread.run(lambda writer: writer.append_all(batches))

    def flush(self) -> dict[TopicPartition, WrittenRange]:
        """Wait for every answer; returns the written offsets, by partition, since the last flush."""
        return self._thread.run(lambda writer: writer.flush())

    def close(self) -> None:
        self._thread.close()


class RangeReader:
    """As ``einmal.client.aio.RangeReader``."""

    def __init__(self, config: Mapping[str, Any] | None = None, **settings: Any) -> None:
        self.settings = parse(ConsumerSettings, config, settings)
        self._thread = LoopThread(lambda: aio.RangeReader(config, **settings), "einmal-range-reader")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(
        self,
        ranges: Mapping[TopicPartition, OffsetRange],
        *,
        with_markers: bool = False,
        topic_ids: Mapping[str, UUID] | None = None,
    ) -> Iterator[RawBatch]:
        """The visible data batches of each range, or all of them; a batch may reach over a range's ends."""
        # One step of the client's thread for a list: for each batch it would cost more than the batch.
        for piece in self._thread.iterate(
            lambda reader: reader.read_pieces(ranges, with_markers=with_markers, topic_ids=topic_ids)
        ):
            yield from piece

    def close(self) -> None:
        self._thread.close()
