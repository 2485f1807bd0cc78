"""The replicas of this broker: a partition's log, what makes it a leader's, and who waits on it.

High watermark: with an ISR of one, everything appended; with ``log.flush.interval.messages=1`` everything *flushed*, so
that nobody can see, and no coordinator can act on, what a power cut would take back. Flushing is group commit: one
``fdatasync`` in the background covers every append that waits. The metadata log is always kept so.
Offsets that are visible only grow while the process lives.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final
from uuid import UUID

from einmal.broker.config import BrokerConfig
from einmal.log import partition_metadata
from einmal.log.admission import NONE
from einmal.log.config import LogConfig
from einmal.log.disk import Disk
from einmal.log.errors import LogCorruption
from einmal.log.partition_log import AppendResult, PartitionLog
from einmal.log.producer_state import Origin, VerificationGuard
from einmal.metadata.image import CLUSTER_METADATA, TopicImage
from einmal.metadata.topic_configs import TOPIC_SETTINGS
from einmal.seams import Clock
from einmal.types import (
    NO_OFFSET,
    ErrorCode,
    Instant,
    IsolationLevel,
    LeaderEpoch,
    Offset,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)

log = logging.getLogger(__name__)

_DELETED_SUFFIX: Final = "-delete"
_NOT_LEADER: Final = AppendResult(ErrorCode.not_leader_or_follower, NO_OFFSET, NO_OFFSET, -1, NO_OFFSET)


class Partition:
    """A partition that this broker leads."""

    def __init__(
        self, partition_log: PartitionLog, topic_id: UUID, leader_epoch: LeaderEpoch, disk: Disk, *, flush_each: bool
    ) -> None:
        self.log = partition_log
        self.topic_partition = partition_log.topic_partition
        self.topic_id = topic_id
        self.leader_epoch = leader_epoch
        self.min_insync_replicas = 1
        self.is_closed = False
        self.bytes_appended = 0
        """Since this process began; a Fetch that waits for bytes takes the difference."""
        self._disk = disk
        self._flush_each = flush_each
        self._flushing: asyncio.Task[None] | None = None
        self._background = asyncio.Lock()
        """Held by whoever works on the log's files in the background: one at a time, and not while it is closed."""
        self._waiting: deque[tuple[Offset, asyncio.Future[ErrorCode]]] = deque()
        self._watchers: dict[object, Callable[[], None]] = {}
        # What recovery found may be in the page cache only; the log has flushed it by now where only that counts.
        partition_log.advance_high_watermark(
            partition_log.flushed_offset if flush_each else partition_log.log_end_offset
        )

    @property
    def high_watermark(self) -> Offset:
        return self.log.high_watermark

    def visible_end(self, isolation: IsolationLevel) -> Offset:
        """Before which offset a consumer of this isolation may read."""
        if isolation is IsolationLevel.READ_COMMITTED:
            return self.log.last_stable_offset
        return self.log.high_watermark

    def check_leader_epoch(self, current: int) -> ErrorCode:
        """What to answer a client that names the leader epoch it knows; -1: it names none (KIP-320)."""
        if self.is_closed:
            return ErrorCode.not_leader_or_follower
        if current < 0 or current == self.leader_epoch:
            return ErrorCode.none
        return ErrorCode.fenced_leader_epoch if current < self.leader_epoch else ErrorCode.unknown_leader_epoch

    # --- writing -------------------------------------------------------------------------------------------------

    def append(
        self,
        batches: bytearray | memoryview,
        now: Instant,
        origin: Origin = Origin.CLIENT,
        verification: VerificationGuard | None = None,
    ) -> AppendResult:
        """Append as leader; the batches are patched in place. Refusals are in the result."""
        if self.is_closed:
            return _NOT_LEADER
        result = self.log.append(
            batches, leader_epoch=self.leader_epoch, now=now, origin=origin, verification=verification
        )
        if result.error is NONE and not result.is_duplicate:
            self._appended(len(batches))
        return result

    def append_marker(
        self,
        producer: ProducerIdAndEpoch,
        now: Instant,
        *,
        committed: bool,
        coordinator_epoch: int,
        transaction_version: TransactionVersion,
    ) -> AppendResult:
        """Append the marker that ends a transaction here. Refusals are in the result."""
        if self.is_closed:
            return _NOT_LEADER
        result = self.log.append_marker(
            producer,
            committed=committed,
            coordinator_epoch=coordinator_epoch,
            leader_epoch=self.leader_epoch,
            now=now,
            transaction_version=transaction_version,
        )
        if result.error is ErrorCode.none and not result.is_duplicate:
            self._appended(0)
        return result

    def _appended(self, size: int) -> None:
        self.bytes_appended += size
        if self._flush_each:
            self.flush_soon()
        else:
            self._advance()

    def flush_soon(self) -> None:
        """Begin a group commit, unless one is under way: that one goes on until nothing is left."""
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        try:
            while self.log.flushed_offset < self.log.log_end_offset:
                async with self._background:
                    if self.is_closed:
                        return
                    end = self.log.log_end_offset
                    await self._disk.in_background(self.log.flush)
                self.log.mark_flushed(end)
                self._advance()
        except OSError as error:
            self._go_offline(error)
        finally:
            self._flushing = None

    async def flushed(self) -> None:
        """Wait until everything that is appended now is flushed, or the log is offline."""
        if self._flush_each and self.log.flushed_offset < self.log.log_end_offset:
            self.flush_soon()
            await self.when_committed(Offset(self.log.log_end_offset - 1))

    async def checkpoint(self) -> None:
        """Write down how far recovery need not look, if that is due."""
        async with self._background:
            if self.is_closed or not self.log.checkpoint_due:
                return
            checkpoint = self.log.begin_checkpoint()
            try:
                await self._disk.in_background(checkpoint.store)
            except OSError as error:
                self._go_offline(error)
            else:
                self.log.finish_checkpoint(checkpoint)

    def _go_offline(self, error: OSError) -> None:
        log.error("partition %s is offline: %s", self.topic_partition, error)
        self._fail(ErrorCode.kafka_storage_error)

    def _advance(self) -> None:
        """Move the high watermark as far as it may go, and let go whoever waited for it."""
        end = self.log.flushed_offset if self._flush_each else self.log.log_end_offset
        self.log.advance_high_watermark(end)
        waiting = self._waiting
        while waiting and waiting[0][0] < end:
            _offset, future = waiting.popleft()
            if not future.done():
                future.set_result(ErrorCode.none)
        if self._watchers:
            for watcher in list(self._watchers.values()):
                watcher()

    def _fail(self, error: ErrorCode) -> None:
        while self._waiting:
            _offset, future = self._waiting.popleft()
            if not future.done():
                future.set_result(error)

    # --- waiting -------------------------------------------------------------------------------------------------

    def is_committed(self, offset: Offset) -> bool:
        """Whether the record at ``offset`` is below the high watermark."""
        return offset < self.log.high_watermark

    def when_committed(self, offset: Offset) -> asyncio.Future[ErrorCode]:
        """Done when the record at ``offset`` is committed, or can no longer be (kafka_storage_error)."""
        future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        if self.is_committed(offset):
            future.set_result(ErrorCode.none)
        elif self.log.is_offline and self._flushing is None:
            # No flush will come any more.
            future.set_result(ErrorCode.kafka_storage_error)
        else:
            # A duplicate waits for an older offset than those before it; ending a little later does no harm.
            last = self._waiting[-1][0] if self._waiting else offset
            self._waiting.append((max(offset, last), future))
        return future

    async def committed(self, offset: Offset) -> ErrorCode:
        """Wait until the record at ``offset`` is committed."""
        if self.is_committed(offset):
            return ErrorCode.none
        return await self.when_committed(offset)

    def watch(self, key: object, changed: Callable[[], None]) -> None:
        """Call ``changed`` whenever more may be visible."""
        self._watchers[key] = changed

    def unwatch(self, key: object) -> None:
        self._watchers.pop(key, None)

    # --- the end -------------------------------------------------------------------------------------------------

    def retire(self) -> None:
        """Lead no longer: whoever waits is answered not_leader_or_follower."""
        self.is_closed = True
        self._fail(ErrorCode.not_leader_or_follower)
        watchers, self._watchers = self._watchers, {}
        for watcher in watchers.values():
            watcher()

    async def close(self, *, clean: bool = True) -> None:
        self.retire()
        async with self._background:
            self.log.close(clean=clean)


class Partitions:
    """All replicas of this broker, by topic and partition."""

    def __init__(self, config: BrokerConfig, directory: PurePosixPath, disk: Disk, clock: Clock) -> None:
        self._config = config
        self._directory = directory
        self._disk = disk
        self._clock = clock
        self._partitions: dict[TopicPartition, Partition] = {}
        self._metadata: Partition | None = None
        """Not among the others: no client's request may reach it."""
        self._offline: dict[TopicPartition, bool] = {}
        """Replicas that could not be opened; True: the disk may have recovered by the next try."""
        self._removals: list[asyncio.Task[None]] = []

    def get(self, topic_partition: TopicPartition) -> Partition | None:
        return self._partitions.get(topic_partition)

    def error_of_missing(self, topic_partition: TopicPartition) -> ErrorCode:
        """What to answer where ``get`` gives nothing."""
        if topic_partition in self._offline:
            return ErrorCode.kafka_storage_error
        return ErrorCode.unknown_topic_or_partition

    @property
    def may_open_more(self) -> bool:
        """Whether it is worth while to try to open once more what could not be opened."""
        return any(self._offline.values())

    def __iter__(self) -> Iterator[Partition]:
        """Of topics; in the order in which they were opened."""
        return iter(list(self._partitions.values()))

    def _all(self) -> list[Partition]:
        return [*self._partitions.values(), *(() if self._metadata is None else (self._metadata,))]

    def __len__(self) -> int:
        return len(self._partitions)

    def open(self, topic: TopicImage, configs: Mapping[str, str]) -> None:
        """Open, or make, the replicas of a topic that are not open yet. Those that cannot be opened are left out."""
        for partition_id, image in enumerate(topic.partitions):
            topic_partition = TopicPartition(topic.name, partition_id)
            if topic_partition in self._partitions or self._config.node_id not in image.replicas:
                continue
            try:
                self._discard_predecessor(self._directory / str(topic_partition), topic.topic_id)
                partition = self._open(
                    topic_partition, topic.topic_id, image.leader_epoch, log_config(self._config, configs)
                )
            except (OSError, LogCorruption) as error:
                log.error("partition %s is offline: %s", topic_partition, error)
                self._offline[topic_partition] = isinstance(error, OSError)
                continue
            self._offline.pop(topic_partition, None)
            partition.min_insync_replicas = int(setting(self._config, configs, "min.insync.replicas"))
            self._partitions[topic_partition] = partition

    def open_metadata(self, topic_partition: TopicPartition, topic_id: UUID) -> Partition:
        """The metadata log: it is not in its own image. Raises OSError."""
        config = log_config(self._config, _METADATA_CONFIGS)
        self._metadata = self._open(topic_partition, topic_id, LeaderEpoch(0), config)
        return self._metadata

    def _open(
        self, topic_partition: TopicPartition, topic_id: UUID, leader_epoch: LeaderEpoch, config: LogConfig
    ) -> Partition:
        directory = self._directory / str(topic_partition)
        partition_log = PartitionLog.open(
            self._disk, directory, topic_partition, config, self._clock.now(), topic_id=topic_id
        )
        return Partition(partition_log, topic_id, leader_epoch, self._disk, flush_each=config.flush_each)

    def reconfigure(self, topic: TopicImage, configs: Mapping[str, str]) -> None:
        for partition_id in range(len(topic.partitions)):
            partition = self._partitions.get(TopicPartition(topic.name, partition_id))
            if partition is not None:
                partition.log.config = log_config(self._config, configs)
                partition.min_insync_replicas = int(setting(self._config, configs, "min.insync.replicas"))

    # --- folders -------------------------------------------------------------------------------------------------

    def delete(self, name: str, topic_id: UUID) -> None:
        """Remove the replicas of a topic whose removal is committed.

        The folders get another name first, durably: should the removal stop half-way, no later topic of the same name
        can take them for its own, and the next start removes what is left.
        """
        for topic_partition, partition in list(self._partitions.items()):
            if topic_partition.topic == name and partition.topic_id == topic_id:
                del self._partitions[topic_partition]
                partition.retire()
                try:
                    directory = self._rename_away(self._directory / str(topic_partition), topic_id)
                    self._disk.sync_directory(self._directory)
                except OSError as error:
                    # The folder stays until the next start; its topic id keeps a successor from using it.
                    log.error("cannot remove partition %s: %s", topic_partition, error)
                    continue
                removal = self._finish_removal(partition, directory)
                self._removals.append(asyncio.get_running_loop().create_task(removal))
        self._offline = {key: again for key, again in self._offline.items() if key.topic != name}

    async def _finish_removal(self, partition: Partition, directory: PurePosixPath) -> None:
        await partition.close(clean=False)
        try:
            self._remove(directory)
        except OSError as error:
            log.error("cannot remove %s: %s", directory, error)
        self._removals = [task for task in self._removals if not task.done() and task is not asyncio.current_task()]

    def remove_strays(self, topics: Mapping[str, TopicImage]) -> None:
        """Remove what unfinished deletions left. Raises OSError.

        A folder is made only after its topic is committed in the metadata log, which is always flushed: so a folder
        without a topic is one that was being deleted.
        """
        for name in self._disk.list_directory(self._directory):
            if name.endswith(_DELETED_SUFFIX):
                self._remove(self._directory / name)
        for topic_partition in self.folders():
            image = topics.get(topic_partition.topic)
            is_known = image is not None and topic_partition.partition < len(image.partitions)
            directory = self._directory / str(topic_partition)
            # Without our mark it only has such a name.
            is_ours = self._disk.exists(directory / partition_metadata.FILE_NAME)
            if is_ours and not is_known and topic_partition not in self._partitions:
                log.warning("removing %s: its topic was deleted", topic_partition)
                self._remove(directory)

    def folders(self) -> list[TopicPartition]:
        """Of topics: whose folders there are on disk, by their names, opened or not."""
        found = []
        for name in self._disk.list_directory(self._directory):
            topic, _, partition_id = name.rpartition("-")
            if topic not in ("", CLUSTER_METADATA) and partition_id.isdecimal():
                found.append(TopicPartition(topic, int(partition_id)))
        return found

    def _rename_away(self, directory: PurePosixPath, topic_id: UUID) -> PurePosixPath:
        target = directory.with_name(f"{directory.name[:200]}.{topic_id.hex}{_DELETED_SUFFIX}")
        self._disk.rename(directory, target)
        return target

    def _remove(self, directory: PurePosixPath) -> None:
        for name in self._disk.list_directory(directory):
            self._disk.remove(directory / name)
        self._disk.remove(directory)

    def _discard_predecessor(self, directory: PurePosixPath, topic_id: UUID) -> None:
        """Remove a folder that belongs to a deleted topic of the same name."""
        identity = directory / partition_metadata.FILE_NAME
        if not self._disk.exists(identity):
            return
        try:
            belongs_to = partition_metadata.decode(self._disk.read_file(identity))
        except ValueError:
            # Torn by a power cut: then it was just made, for this topic, since ``delete`` syncs.
            return
        if belongs_to != topic_id:
            self._remove(self._rename_away(directory, belongs_to))

    # --- time ----------------------------------------------------------------------------------------------------

    def retain(self) -> None:
        """Delete segments that are too old or too many, and forget idle producers."""
        now = self._clock.now()
        for partition in self._all():
            try:
                partition.log.retain(now)
            except OSError as error:
                log.error("old segments of %s stay: %s", partition.topic_partition, error)

    async def checkpoint(self) -> None:
        for partition in self._all():
            await partition.checkpoint()

    async def flushed(self) -> None:
        """Wait until what recovery found is flushed where only flushed offsets count."""
        for partition in self._all():
            await partition.flushed()

    async def close(self, *, clean: bool = True) -> None:
        for removal in self._removals:
            await removal
        for partition in self._all():
            await partition.close(clean=clean)
        self._partitions.clear()


_METADATA_CONFIGS: Final = {"flush.messages": "1", "retention.ms": "-1", "cleanup.policy": "delete"}


def log_config(config: BrokerConfig, configs: Mapping[str, str]) -> LogConfig:
    """What the settings of a topic, given and inherited, mean to its logs."""

    def number(name: str) -> int:
        return int(setting(config, configs, name))

    return LogConfig(
        segment_bytes=number("segment.bytes"),
        segment_ms=number("segment.ms"),
        retention_ms=number("retention.ms"),
        retention_bytes=number("retention.bytes"),
        index_interval_bytes=number("index.interval.bytes"),
        max_message_bytes=number("max.message.bytes"),
        timestamp_type=setting(config, configs, "message.timestamp.type"),
        message_timestamp_after_max_ms=number("message.timestamp.after.max.ms"),
        cleanup_policy=setting(config, configs, "cleanup.policy"),
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        flush_each=number("flush.messages") == 1,
    )


def setting(config: BrokerConfig, configs: Mapping[str, str], name: str) -> str:
    """A topic's setting: its own, else the broker's, else Kafka's default."""
    own = configs.get(name)
    if own is not None:
        return own
    described = TOPIC_SETTINGS[name]
    if described.broker_key is None:
        return described.default
    value = getattr(config, described.broker_key.replace(".", "_"))
    return str(value).lower() if isinstance(value, bool) else str(value)
