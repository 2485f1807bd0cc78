"""Transactions whose records are written by other processes, and reading bounded pieces of a log.

A ``TransactionDriver`` owns the transactional id: identity, partitions, offsets, end. ``PartitionWriter``s write
encoded record batches under the identity of their caller; each partition has one writer. ``read_ranges`` yields raw
batches. None of them keeps a transaction's state: the caller's protocol decides what is committed, and when.
"""

from __future__ import annotations

import random as random_module
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, Self
from uuid import UUID

from einmal.client.aio.consuming.fetching import FetchLimits, fetch
from einmal.client.aio.network.changes import Changes
from einmal.client.aio.network.cluster import Cluster, by_leader
from einmal.client.aio.network.retry import KNOWN_MS, Retry
from einmal.client.aio.producing.sender import STALE_METADATA, Sender
from einmal.client.aio.producing.transaction_requests import KeptTransaction, TransactionRequests
from einmal.client.config import ClientSettings, ConsumerSettings, ProducerSettings, parse
from einmal.client.cores.fetched import RawBatch, visible_batches, whole_batches
from einmal.client.cores.producer_core import BatchOutcome, ProduceLimits, ProducerCore
from einmal.client.cores.transaction_core import produce_versions
from einmal.client.errors import ClientClosed, Disconnected, InvalidState, KafkaError, error_for
from einmal.client.prepared_txn_state import PreparedTxnState, commits
from einmal.client.records import GroupMetadata, OffsetAndMetadata, OffsetRange, WrittenRange, positions_of
from einmal.seams import Clock, Network, SystemClock, TcpNetwork
from einmal.types import ErrorCode, IsolationLevel, ProducerIdAndEpoch, TopicPartition, TransactionVersion
from einmal.wire.fetch import FetchedPartition, FetchPartition
from einmal.wire.record_batch import BatchHeader, read_header

_NEVER_MS: Final = 2**53
_OF_DRIVER: Final = ("transactional.id", "transaction.two.phase.commit.enable")
"""Settings that a writer leaves to the driver of its transaction."""


def _cluster(
    settings: ClientSettings, network: Network | None, clock: Clock | None, random: random_module.Random | None
) -> Cluster:
    """These are parts of a job that has reached the cluster already: each waits for it until its own deadline."""
    return Cluster(
        replace(settings, bootstrap_timeout_ms=_NEVER_MS),
        network=network or TcpNetwork(),
        clock=clock or SystemClock(),
        source=random or random_module.Random(),
    )


class TransactionDriver:
    """The requests of a transaction under identities that the caller keeps. Needs transactional.id.

    Every call is retried until max.block.ms. Raises ProducerFenced (47, 90), FatalError (49, 53, ...), AbortableError,
    RequestRefused; RetriableError when nothing was sent in time; UnknownOutcome when no answer came.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        network: Network | None = None,
        clock: Clock | None = None,
        random: random_module.Random | None = None,
        **settings: Any,
    ) -> None:
        self.settings = parse(ProducerSettings, config, settings)
        if self.settings.transactional_id is None:
            raise InvalidState(meaning="a TransactionDriver needs a transactional.id", what_to_do="set it")
        self._cluster = _cluster(self.settings, network, clock, random)
        self._requests = TransactionRequests(
            self._cluster,
            self.settings.transactional_id,
            timeout_ms=self.settings.transaction_timeout_ms,
            max_block_ms=self.settings.max_block_ms,
            has_two_phase_commit=self.settings.transaction_two_phase_commit_enable,
        )
        self._version: TransactionVersion | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def transaction_version(self) -> TransactionVersion:
        """TV_2 if the cluster has finalized it, else TV_1; fetched once, so one transaction uses one version."""
        if self._version is None:
            self._version = await self._requests.version()
        return self._version

    async def init_producer_id(self, previous: ProducerIdAndEpoch | None = None) -> ProducerIdAndEpoch:
        """A new identity; the former owner is fenced and its open transaction aborted.

        ``previous``: keep the producer id and bump its epoch (KIP-360). Never with an open transaction: abort it first.
        """
        self._version = None
        return await self._requests.init_producer_id(previous)

    async def keep_prepared_txn(self) -> KeptTransaction:
        """A new identity; the former owner is fenced, its open transaction kept for ``complete_transaction`` (KIP-939).

        Nothing can be added to it. To prepare a transaction: wait for all writers' answers; its name is
        ``PreparedTxnState(identity)``. One without records has no name: it is not at the coordinator, and ``end_txn``
        does not commit it.
        """
        self._version = None
        return await self._requests.keep_prepared_txn()

    async def complete_transaction(self, kept: KeptTransaction, committed: PreparedTxnState) -> ProducerIdAndEpoch:
        """Commit the kept transaction if it is the one that the database has committed, else abort it.

        Returns the identity of the next transaction. Nothing is sent where nothing was kept. Raises InvalidState for
        what is no state, and FatalError for a later transaction's.
        """
        committed_it = commits(kept.prepared, committed, kept.identity)
        if not kept.prepared.has_transaction:
            return kept.identity
        following = await self._requests.end_txn(kept.identity, TransactionVersion.TV_2, committed=committed_it)
        assert following is not None, "EndTxn of version 2 brings an identity"
        return following

    async def add_partitions(self, identity: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]) -> None:
        """Needed below TV_2, before a partition's first batch; under TV_2 nothing is sent."""
        if await self.transaction_version() < TransactionVersion.TV_2:
            await self._requests.add_partitions(identity, partitions)

    async def txn_offset_commit(
        self,
        identity: ProducerIdAndEpoch,
        group: GroupMetadata | str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
    ) -> None:
        """Commit positions (offset of the next record) with the transaction; below TV_2 the group is added first.

        A bare group name means a group without members: only the producer's epoch is checked then.
        """
        metadata = GroupMetadata(group) if isinstance(group, str) else group
        version = await self.transaction_version()
        positions = positions_of(offsets)
        if not positions:
            return
        if version < TransactionVersion.TV_2:
            await self._requests.add_offsets(identity, metadata.group_id)
        await self._requests.commit_offsets(identity, version, metadata, positions)

    async def end_txn(self, identity: ProducerIdAndEpoch, *, committed: bool) -> ProducerIdAndEpoch | None:
        """Commit or abort. Returns the next transaction's identity under TV_2, None below: request a new epoch then.

        All writers must have all their answers before a commit. Below TV_2 an abort of a transaction to which nothing
        was added is answered with INVALID_TXN_STATE.
        """
        return await self._requests.end_txn(identity, await self.transaction_version(), committed=committed)

    async def close(self) -> None:
        await self._cluster.close()


class PartitionWriter:
    """Writes encoded batches, pipelined. A retry sends the identical bytes.

    ``identity``, ``transactional_id`` and ``transaction_version`` must be those with which the batches were encoded and
    the transaction began. Without an identity the batches are plain (acks=all): at least once, or with ``sends_once``
    at most once.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None,
        identity: ProducerIdAndEpoch | None = None,
        transactional_id: str | None = None,
        transaction_version: TransactionVersion = TransactionVersion.TV_2,
        *,
        sends_once: bool = False,
        network: Network | None = None,
        clock: Clock | None = None,
        random: random_module.Random | None = None,
        **settings: Any,
    ) -> None:
        keywords = {name: value for name, value in settings.items() if name.replace("_", ".") not in _OF_DRIVER}
        plain = {name: value for name, value in (config or {}).items() if name not in _OF_DRIVER}
        self.settings = parse(ProducerSettings, plain, keywords)
        self._cluster = _cluster(self.settings, network, clock, random)
        self._changes = Changes()
        self._is_closed = False
        self._start(identity, transactional_id, transaction_version, sends_once=sends_once)

    def _start(
        self,
        identity: ProducerIdAndEpoch | None,
        transactional_id: str | None,
        transaction_version: TransactionVersion,
        *,
        sends_once: bool,
    ) -> None:
        self._identity = identity
        self._core = ProducerCore(
            ProduceLimits(
                is_idempotent=identity is not None,
                transactional_id=transactional_id,
                max_request_size=self.settings.max_request_size,
                max_in_flight=self.settings.max_in_flight_requests_per_connection,
                delivery_timeout_ms=self.settings.delivery_timeout_ms,
                retry_backoff_ms=self.settings.retry_backoff_ms,
                retry_backoff_max_ms=self.settings.retry_backoff_max_ms,
                sends_once=sends_once,
            )
        )
        versions = produce_versions(None if transactional_id is None else transaction_version)
        self._sender = Sender(self._core, self._cluster, acks=-1, settle=self._settle, versions=lambda: versions)
        self._written: dict[TopicPartition, WrittenRange] = {}
        self._error: KafkaError | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def begin(
        self,
        identity: ProducerIdAndEpoch | None,
        transactional_id: str | None,
        transaction_version: TransactionVersion,
        *,
        sends_once: bool = False,
    ) -> None:
        """Write another transaction's batches from now on, over the same connections.

        Raises InvalidState after an error, and before every batch has its answer.
        """
        if self._error is not None or not self._core.is_empty:
            raise InvalidState(
                meaning="the writer has batches without an answer, or has failed", what_to_do="close it; make a new one"
            )
        self._check()
        await self._sender.close()
        self._start(identity, transactional_id, transaction_version, sends_once=sends_once)

    async def append(self, topic_partition: TopicPartition, batch: bytes) -> None:
        """Queue one encoded batch; its base sequence must follow the partition's previous one.

        Waits only for a topic's metadata and for room in buffer.memory. Raises the first error of any batch so far.
        """
        self._check()
        header = read_header(batch)
        if self._identity is not None:
            identity = (header.producer_id, header.producer_epoch)
            assert identity == self._identity, f"a batch of {identity} in a writer of {self._identity}"
        if self._cluster.metadata.leader(topic_partition) is None:
            deadline = self._cluster.deadline(self.settings.max_block_ms)
            await self._cluster.leader(topic_partition, deadline=deadline)
        self._core.append_sealed(topic_partition, batch, header, self._cluster.now_ms())
        self._sender.wake()
        while self._core.buffered_bytes > self.settings.buffer_memory and not self._has_ended:
            await self._changes.wait()
        self._check()

    async def append_all(self, batches: Iterable[tuple[TopicPartition, bytes]]) -> None:
        """``append`` each of them."""
        for topic_partition, batch in batches:
            await self.append(topic_partition, batch)

    async def flush(self) -> dict[TopicPartition, WrittenRange]:
        """Wait for every answer; returns the written offsets, by partition, since the last flush.

        Raises the first error of any batch; then the transaction can only be aborted.
        """
        self._sender.wake()
        while not self._core.is_empty and not self._has_ended:
            await self._changes.wait()
        self._check()
        written, self._written = self._written, {}
        return written

    @property
    def _has_ended(self) -> bool:
        return self._is_closed or self._error is not None

    def _check(self) -> None:
        if self._is_closed:
            raise ClientClosed()
        if self._error is not None:
            raise self._error

    def _settle(self, outcomes: Iterable[BatchOutcome]) -> None:
        for outcome in outcomes:
            if outcome.error is not None:
                self._error = self._error or outcome.error
                continue
            (header,) = outcome.batch.tickets
            assert isinstance(header, BatchHeader)
            self._note(outcome.batch.topic_partition, outcome.base_offset, header.last_offset_delta)
        self._changes.announce()

    def _note(self, topic_partition: TopicPartition, base_offset: int, last_offset_delta: int) -> None:
        before = self._written.get(topic_partition)
        last = base_offset + last_offset_delta if base_offset >= 0 else -1
        if before is None:
            self._written[topic_partition] = WrittenRange(base_offset, last, 1)
        else:
            self._written[topic_partition] = WrittenRange(
                before.first_offset, max(last, before.last_offset), before.batches + 1
            )

    async def close(self) -> None:
        """Stop at once; batches without an answer may be written or not. Call ``flush`` first."""
        self._is_closed = True
        self._changes.announce()
        await self._sender.close()
        await self._cluster.close()


class RangeReader:
    """Reads bounded pieces of partitions as raw batches. Takes the consumer's settings; no group, no position."""

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        network: Network | None = None,
        clock: Clock | None = None,
        random: random_module.Random | None = None,
        **settings: Any,
    ) -> None:
        self.settings = parse(ConsumerSettings, config, settings)
        self.isolation = IsolationLevel[self.settings.isolation_level.upper()]
        self._cluster = _cluster(self.settings, network, clock, random)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def read(
        self,
        ranges: Mapping[TopicPartition, OffsetRange],
        *,
        with_markers: bool = False,
        topic_ids: Mapping[str, UUID] | None = None,
    ) -> AsyncIterator[RawBatch]:
        """The visible data batches of each range, in order per partition; a batch may reach over a range's ends.

        ``with_markers``: every batch instead, including markers and aborted batches, for callers that filter
        themselves. ``topic_ids``: the topics of the ranges; another topic under the same name is not read. Brokers
        without topic ids (before 2.8) are not checked. Ends must be reachable: at most the last stable offset under
        read_committed, else the high watermark. Raises OffsetOutOfRange, UnknownTopic within seconds where a topic is
        gone, or RetriableError when a range makes no progress for default.api.timeout.ms.
        """
        async with aclosing(self.read_pieces(ranges, with_markers=with_markers, topic_ids=topic_ids)) as pieces:
            async for piece in pieces:
                for batch in piece:
                    yield batch

    async def read_pieces(
        self,
        ranges: Mapping[TopicPartition, OffsetRange],
        *,
        with_markers: bool = False,
        topic_ids: Mapping[str, UUID] | None = None,
    ) -> AsyncGenerator[list[RawBatch], None]:
        """As ``read``, in lists: of one answer each, never empty."""
        ids = topic_ids or {}
        positions = {partition: bounds.start for partition, bounds in ranges.items() if bounds.start < bounds.end}
        retry = self._new_retry()
        while positions:
            for partition in positions:
                await self._find(partition, ids.get(partition.topic))
            led, _leaderless = by_leader(self._cluster.metadata, positions)
            before = dict(positions)
            code = ErrorCode.offset_not_available
            for node_id, partitions in led.items():
                asked = [(partition, self._asked(partition, positions[partition])) for partition in partitions]
                try:
                    answer = await fetch(self._cluster, node_id, asked, self._limits(), topic_ids=topic_ids)
                except Disconnected as error:
                    self._cluster.refresh_soon()
                    await retry.after_disconnect(error)
                    continue
                piece: list[RawBatch] = []
                try:
                    for partition, result in answer:
                        code = self._check(partition, result.error_code) or code
                        piece += self._advance(
                            partition, result, positions, ranges[partition], with_markers=with_markers
                        )
                finally:
                    # Also before an error: it is one of what follows.
                    if piece:
                        yield piece
            if positions != before:
                retry = self._new_retry()
            elif positions:
                retry.what = f"reading {next(iter(positions))}"
                for node_id in led:
                    # A replaced leader that is partitioned from its peers does not know the newer records.
                    await self._cluster.doubt(node_id)
                await retry.after_refusal(code)

    async def _find(self, topic_partition: TopicPartition, topic_id: UUID | None) -> None:
        """Wait until the partition of this topic id has a leader. Raises UnknownTopic, RetriableError."""
        name = topic_partition.topic
        retry = Retry(self._cluster, f"topic {name!r} with id {topic_id}", self._cluster.deadline(), appear_ms=KNOWN_MS)
        while True:
            await self._cluster.leader(topic_partition, deadline=self._cluster.deadline(), appear_ms=KNOWN_MS)
            if self._cluster.metadata.is_topic(name, topic_id):
                return
            # The metadata may be older than the wanted id, or newer.
            await self._cluster.refresh_soon()
            if not self._cluster.metadata.is_topic(name, topic_id):
                await retry.after_refusal(ErrorCode.unknown_topic_id)

    def _advance(
        self,
        topic_partition: TopicPartition,
        result: FetchedPartition,
        positions: dict[TopicPartition, int],
        bounds: OffsetRange,
        *,
        with_markers: bool,
    ) -> list[RawBatch]:
        """The part of one answer in the range; the position moves past it, and is dropped at the range's end."""
        position = positions[topic_partition]
        batches = whole_batches(
            topic_partition, memoryview(result.records), first_offset=position, check_crcs=self.settings.check_crcs
        )
        if batches:
            positions[topic_partition] = batches[-1].header.next_offset
        if positions[topic_partition] >= bounds.end:
            del positions[topic_partition]
        aborted = result.aborted_transactions if self.isolation else None
        return [
            batch
            for batch in (batches if with_markers else visible_batches(batches, aborted))
            if batch.header.next_offset > position and batch.header.base_offset < bounds.end
        ]

    def _new_retry(self) -> Retry:
        return Retry(self._cluster, "reading a range", self._cluster.deadline())

    def _asked(self, topic_partition: TopicPartition, offset: int) -> FetchPartition:
        leader = self._cluster.metadata.leader(topic_partition)
        epoch = -1 if leader is None else leader.leader_epoch
        return FetchPartition(
            topic_partition.partition, offset, self.settings.max_partition_fetch_bytes, current_leader_epoch=epoch
        )

    def _limits(self) -> FetchLimits:
        settings = self.settings
        return FetchLimits(
            self.isolation, settings.fetch_max_wait_ms, settings.fetch_min_bytes, settings.fetch_max_bytes
        )

    def _check(self, topic_partition: TopicPartition, code: ErrorCode) -> ErrorCode:
        if code is not ErrorCode.none and not code.retriable:
            raise error_for(code, f"Fetch of {topic_partition}")
        if code in STALE_METADATA:
            self._cluster.refresh_soon()
        return code

    async def close(self) -> None:
        await self._cluster.close()
