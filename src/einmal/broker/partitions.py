"""All replicas of this broker: which there are, their folders, their settings, and who leads them.

Follows the cluster's image. A replica leads or follows from the moment at which the image says so; its leader epoch
never goes back. The metadata log is kept here too, but led by the quorum.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final
from uuid import UUID

from einmal.broker.config import BrokerConfig
from einmal.broker.high_watermarks import HighWatermarks
from einmal.broker.partition import Partition
from einmal.broker.partition_folders import PartitionFolders
from einmal.broker.supervision import Supervisor
from einmal.log.config import LogConfig
from einmal.log.disk import Disk
from einmal.log.errors import LogCorruption, SyncFailed
from einmal.log.partition_log import PartitionLog
from einmal.metadata.image import (
    CLUSTER_METADATA,
    INTERNAL_TOPICS,
    ClusterImage,
    ImageDelta,
    PartitionImage,
    TopicImage,
)
from einmal.metadata.topic_configs import TOPIC_SETTINGS
from einmal.replication.leader import Leader, Membership
from einmal.seams import Clock
from einmal.types import BrokerId, ErrorCode, LeaderEpoch, Offset, TopicPartition

log = logging.getLogger(__name__)

_OPENED_AT_ONCE: Final = 64
"""New replicas that one change of the image opens at once: each takes a millisecond."""


class Partitions:
    """All replicas of this broker, by topic and partition."""

    def __init__(self, config: BrokerConfig, directory: PurePosixPath, disk: Disk, clock: Clock) -> None:
        self._config = config
        self._directory = directory
        self._disk = disk
        self._clock = clock
        self._supervisor = Supervisor()
        self.folders = PartitionFolders(disk, directory)
        self._marks = HighWatermarks(disk, directory)
        self.lost_power = True
        """Whether the machine may have lost its power since the last process wrote here."""
        self._partitions: dict[TopicPartition, Partition] = {}
        self._eligible: Mapping[BrokerId, int] = {}
        """Brokers that may be in an ISR, with their epochs."""
        self._topics: Mapping[str, TopicImage] = {}
        """Of the whole cluster."""
        self._metadata: Partition | None = None
        """Not among the others: no client's request may reach it."""
        self._offline: dict[TopicPartition, bool] = {}
        """Replicas that could not be opened; True: the disk may have recovered by the next try.

        Not after a failed sync: the next one would seem to succeed, and what is not on the disk be acknowledged.
        """
        self._damaged: dict[TopicPartition, LogCorruption] = {}
        """Those of them whose files cannot be believed."""
        self._unopened: dict[TopicPartition, None] = {}
        """Replicas of topics with many new partitions, which are opened bit by bit: ``catch_up``."""
        self._has_applied = False
        self._leaving: dict[TopicPartition, Partition] = {}
        """Replicas of deleted topics with many partitions, whose folders are removed bit by bit."""
        self._removals: dict[asyncio.Task[None], None] = {}

    def get(self, topic_partition: TopicPartition) -> Partition | None:
        return self._partitions.get(topic_partition)

    def error_of_missing(self, topic_partition: TopicPartition) -> ErrorCode:
        """What to answer where ``get`` gives nothing."""
        if topic_partition in self._offline:
            return ErrorCode.kafka_storage_error
        topic = self._topics.get(topic_partition.topic)
        if topic is not None and 0 <= topic_partition.partition < len(topic.partitions):
            # It is with other brokers.
            return ErrorCode.not_leader_or_follower
        return ErrorCode.unknown_topic_or_partition

    @property
    def may_open_more(self) -> bool:
        """Whether it is worth while to try to open once more what could not be opened."""
        return any(self._offline.values())

    @property
    def is_whole(self) -> bool:
        """Whether all that was written can still be flushed."""
        return not self._offline and not self.is_disk_broken

    @property
    def is_disk_broken(self) -> bool:
        """Whether a log has gone offline, the metadata log or a replica: for as long as this process lives."""
        return any(partition.log.is_offline for partition in self._all())

    def __iter__(self) -> Iterator[Partition]:
        """Of topics; in the order in which they were opened."""
        return iter(list(self._partitions.values()))

    def _all(self) -> list[Partition]:
        return [*self._partitions.values(), *(() if self._metadata is None else (self._metadata,))]

    def __len__(self) -> int:
        return len(self._partitions)

    # --- what the image says -----------------------------------------------------------------------------------------

    def apply(self, delta: ImageDelta, image: ClusterImage) -> None:
        """What has changed in the cluster, as far as it concerns the replicas of this broker."""
        self._topics = image.topics
        if delta.brokers:
            self._brokers_changed(image)
        for name, topic_id in delta.deleted:
            self.delete(name, topic_id)
        # First the settings: what is committed with the replicas of now is judged by the minimum of now.
        for name in image.topics if delta.cluster_configs else delta.configs:
            self.reconfigure(image.topics[name], _settings(image, name))
        room = _OPENED_AT_ONCE if self._has_applied else sys.maxsize
        self._has_applied = True
        for name in delta.topics:
            topic = image.topics[name]
            room -= self._open_replicas(topic, _settings(image, name), sys.maxsize if topic.is_internal else room)

    @property
    def has_put_off(self) -> bool:
        """Whether there are replicas that are to be opened, or removed, bit by bit."""
        return bool(self._unopened or self._leaving)

    def catch_up(self, image: ClusterImage, is_over: Callable[[], bool]) -> None:
        """Remove and open replicas that have been put off, until ``is_over``."""
        while self._leaving and not is_over():
            topic_partition = next(iter(self._leaving))
            self._remove_folder(topic_partition, self._leaving.pop(topic_partition))
        while self._unopened and not is_over():
            topic_partition = next(iter(self._unopened))
            del self._unopened[topic_partition]
            topic = image.topics.get(topic_partition.topic)
            if topic is not None and topic_partition.partition < len(topic.partitions):
                self._bring_in_line(topic, topic_partition, _settings(image, topic.name))

    def _brokers_changed(self, image: ClusterImage) -> None:
        self._eligible = {
            broker.broker_id: broker.broker_epoch for broker in image.brokers.values() if broker.is_active
        }
        for partition in self:
            if partition.replication is not None:
                partition.advance(partition.replication.brokers_changed(self._eligible))
                partition.wake()

    def _open_replicas(self, topic: TopicImage, configs: Mapping[str, str], room: int) -> int:
        """Bring the replicas of a topic in line with the image. Those that cannot be opened are left out.

        How many are new; those above ``room`` are put off, and until then are answered NOT_LEADER_OR_FOLLOWER.
        """
        if topic.name == CLUSTER_METADATA:
            # Written by a controller that did not reserve the name. The directory is the metadata log's.
            log.error("topic %s has the name of the metadata log and is ignored: delete it", topic.name)
            return 0
        count = 0
        for partition_id in range(len(topic.partitions)):
            topic_partition = TopicPartition(topic.name, partition_id)
            count += topic_partition not in self._partitions
            if count > room and topic_partition not in self._partitions:
                self._unopened[topic_partition] = None
            else:
                self._bring_in_line(topic, topic_partition, configs)
        return count

    def _bring_in_line(self, topic: TopicImage, topic_partition: TopicPartition, configs: Mapping[str, str]) -> None:
        image = topic.partitions[topic_partition.partition]
        if self._config.node_id in image.replicas:
            partition = self._opened(topic_partition, topic.topic_id, configs, image.leader_epoch)
            if partition is not None:
                self._assign(partition, image)
        elif topic_partition in self._partitions:
            # It was reassigned to others.
            self._remove_replica(topic_partition, self._partitions[topic_partition])

    def check_internal(self) -> None:
        """Raises LogCorruption where a coordinator's log is damaged: it would forget what it has promised."""
        for topic_partition, error in self._damaged.items():
            if topic_partition.topic in INTERNAL_TOPICS:
                raise error

    def open_all(self, image: ClusterImage) -> None:
        """Try once more what could not be opened."""
        for topic in list(image.topics.values()):
            self._open_replicas(topic, _settings(image, topic.name), sys.maxsize)

    def _opened(
        self, topic_partition: TopicPartition, topic_id: UUID, configs: Mapping[str, str], leader_epoch: LeaderEpoch
    ) -> Partition | None:
        partition = self._partitions.get(topic_partition)
        if partition is not None or self._offline.get(topic_partition) is False:
            return partition
        leaving = self._leaving.pop(topic_partition, None)
        if leaving is not None:
            # The folder has the name that the new one is to have.
            self._remove_folder(topic_partition, leaving)
        try:
            has_mark = self._marks.mark_of(topic_id, topic_partition) > 0
            self.folders.claim(topic_partition, topic_id, has_mark=has_mark, lost_power=self.lost_power)
            partition = self._open(topic_partition, topic_id, log_config(self._config, configs))
            _check_epoch(partition, leader_epoch)
        except (OSError, LogCorruption) as error:
            if topic_partition not in self._offline:
                log.error("partition %s is offline: %s", topic_partition, error)
            if isinstance(error, LogCorruption):
                self._damaged[topic_partition] = error
            self._offline[topic_partition] = isinstance(error, OSError) and not isinstance(error, SyncFailed)
            return None
        self._offline.pop(topic_partition, None)
        self._damaged.pop(topic_partition, None)
        partition.min_insync_replicas = int(setting(self._config, configs, "min.insync.replicas"))
        self._partitions[topic_partition] = partition
        return partition

    def _assign(self, partition: Partition, image: PartitionImage) -> None:
        """Lead or follow, as the image says."""
        is_new_epoch = image.leader_epoch > partition.leader_epoch
        if image.leader != self._config.node_id:
            if is_new_epoch:
                partition.follow(image.leader, image.leader_epoch)
            return
        membership = Membership(image.replicas, image.isr, image.partition_epoch)
        now_ms = self._clock.now().monotonic_ms
        if is_new_epoch:
            partition.lead(self._leader(partition, image.leader_epoch, membership, now_ms), image.leader_epoch)
        elif partition.replication is not None:
            partition.advance(partition.replication.membership_changed(membership, now_ms))

    def _leader(
        self,
        partition: Partition,
        leader_epoch: LeaderEpoch,
        membership: Membership,
        now_ms: int,
    ) -> Leader:
        return Leader(
            BrokerId(self._config.node_id),
            leader_epoch,
            membership,
            epoch_start=partition.log.log_end_offset,
            high_watermark=partition.high_watermark,
            min_insync_replicas=partition.min_insync_replicas,
            lag_max_ms=self._config.replica_lag_time_max_ms,
            now_ms=now_ms,
            eligible=self._eligible,
        )

    def open_metadata(self, topic_partition: TopicPartition, topic_id: UUID) -> Partition:
        """The metadata log: it is not in its own image. Raises OSError or LogCorruption."""
        named = self.folders.topic_id_of(topic_partition)
        if named not in (None, topic_id):
            raise LogCorruption(
                f"{self.folders.path(topic_partition)} belongs to topic id {named}: directories, or files in them, "
                "were exchanged. Restore it from a backup, or exchange them again"
            )
        self._marks.load()
        self._metadata = self._open(topic_partition, topic_id, log_config(self._config, _METADATA_CONFIGS))
        return self._metadata

    def _open(self, topic_partition: TopicPartition, topic_id: UUID, config: LogConfig) -> Partition:
        mark = self._marks.mark_of(topic_id, topic_partition)
        if mark and not self._disk.exists(self.folders.path(topic_partition)):
            raise LogCorruption(f"{self.folders.path(topic_partition)} is missing. {self._ways_out(mark)}")
        partition_log = PartitionLog.open(
            self._disk,
            self._directory / str(topic_partition),
            topic_partition,
            config,
            self._clock.now(),
            topic_id=topic_id,
            lost_power=self.lost_power,
        )
        end = partition_log.log_end_offset
        if end < mark:
            found = f"{self.folders.path(topic_partition)} ends at offset {end}"
            if config.flush_each or not self.lost_power:
                partition_log.close(clean=False)
                raise LogCorruption(f"{found}. {self._ways_out(mark)}")
            log.warning("%s: offsets up to %d were not flushed before the power failed, and are lost", found, mark)
            self._marks.lower(topic_id, topic_partition, end)
        partition = Partition(
            partition_log,
            topic_id,
            self._disk,
            self._clock,
            broker_id=BrokerId(self._config.node_id),
            flush_each=config.flush_each,
        )
        partition.before_cut = lambda offset: self._marks.lower(topic_id, topic_partition, offset)
        return partition

    def _ways_out(self, mark: Offset) -> str:
        return (
            f"It had committed records up to offset {mark}. Restore it from a backup; or, to give them up or to have "
            f"them copied from the leader, remove its line from {self._marks.path}"
        )

    def reconfigure(self, topic: TopicImage, configs: Mapping[str, str]) -> None:
        for partition_id in range(len(topic.partitions)):
            partition = self._partitions.get(TopicPartition(topic.name, partition_id))
            if partition is not None:
                partition.log.config = log_config(self._config, configs)
                partition.min_insync_replicas = int(setting(self._config, configs, "min.insync.replicas"))
                if partition.replication is not None:
                    partition.advance(partition.replication.settings_changed(partition.min_insync_replicas))

    # --- directories ---------------------------------------------------------------------------------------------

    def delete(self, name: str, topic_id: UUID) -> None:
        """Remove the replicas of a topic whose removal is committed.

        The folders get another name first, durably: should the removal stop half-way, no later topic of the same name
        can take them for its own, and the next start removes what is left.
        """
        gone = [
            (topic_partition, partition)
            for topic_partition, partition in self._partitions.items()
            if topic_partition.topic == name and partition.topic_id == topic_id
        ]
        for number, (topic_partition, partition) in enumerate(gone):
            if number < _OPENED_AT_ONCE:
                self._remove_replica(topic_partition, partition)
            else:
                self._retire(topic_partition, partition)
                self._leaving[topic_partition] = partition
        self._offline = {key: again for key, again in self._offline.items() if key.topic != name}

    def _retire(self, topic_partition: TopicPartition, partition: Partition) -> None:
        del self._partitions[topic_partition]
        self._marks.forget(partition.topic_id, topic_partition)
        partition.retire()

    def _remove_replica(self, topic_partition: TopicPartition, partition: Partition) -> None:
        self._retire(topic_partition, partition)
        self._remove_folder(topic_partition, partition)

    def _remove_folder(self, topic_partition: TopicPartition, partition: Partition) -> None:
        try:
            directory = self.folders.begin_removal(topic_partition, partition.topic_id)
        except OSError as error:
            # The folder stays until the next start; its topic id keeps a successor from using it.
            log.error("cannot remove partition %s: %s", topic_partition, error)
            return
        removal = asyncio.get_running_loop().create_task(self._finish_removal(partition, directory))
        self._removals[removal] = None
        removal.add_done_callback(lambda done: self._removals.pop(done, None))

    async def _finish_removal(self, partition: Partition, directory: PurePosixPath) -> None:
        await partition.close(clean=False)
        try:
            self.folders.finish_removal(directory)
        except OSError as error:
            log.error("cannot remove %s: %s", directory, error)

    def sort_out(self, image: ClusterImage, deleted: Container[UUID]) -> None:
        """Finish removals that were cut short, and move aside what the metadata does not know. Raises OSError.

        ``deleted``: topics whose removal was committed while this broker was down.
        """
        self.folders.resume_removals()
        for topic_partition in self.folders.all():
            topic = image.topics.get(topic_partition.topic)
            is_known = topic is not None and topic_partition.partition < len(topic.partitions)
            if is_known or topic_partition in self._partitions or not self.folders.is_ours(topic_partition):
                continue
            topic_id = self.folders.topic_id_of(topic_partition)
            try:
                if topic_id in deleted and topic_id is not None:
                    log.info("removing %s: its topic was deleted", topic_partition)
                    self._marks.forget(topic_id, topic_partition)
                    self.folders.finish_removal(self.folders.begin_removal(topic_partition, topic_id))
                else:
                    self.folders.move_aside(topic_partition, topic_id, "the cluster's metadata has no such partition")
            except OSError as error:
                log.error("cannot move partition %s away: %s", topic_partition, error)

    # --- time ----------------------------------------------------------------------------------------------------

    def retain(self) -> None:
        """Delete segments that are too old or too many, and forget idle producers."""
        now = self._clock.now()
        for partition in self._all():
            try:
                partition.log.retain(now)
            except Exception as error:  # noqa: BLE001 - one bad partition must not keep the others from being cut.
                self._supervisor.report(f"retention of {partition.topic_partition}", error)

    async def checkpoint(self) -> None:
        for partition in self._all():
            partition.check_directory()
            await self._supervisor.attempt(f"the checkpoint of {partition.topic_partition}", partition.checkpoint)
        await self._store_marks()

    async def _store_marks(self) -> None:
        """Raises OSError; the last marks still hold then."""
        data = self._marks.changed(
            {(partition.topic_id, partition.topic_partition): partition.high_watermark for partition in self._all()}
        )
        if data is not None:
            await self._disk.in_background(lambda: self._marks.store(data))

    async def flushed(self) -> None:
        """Wait until what recovery found is flushed where only flushed offsets count."""
        for partition in self._all():
            await partition.flushed()

    async def close(self, *, clean: bool = True) -> None:
        """Close every log, whatever becomes of the others. Raises OSError when not all of them could be flushed."""
        for topic_partition, partition in self._leaving.items():
            self._remove_folder(topic_partition, partition)
        for removal in list(self._removals):
            await removal
        if clean:
            try:
                await self._store_marks()
            except OSError as error:
                log.warning("%s: %s", self._marks.path, error)
        failures: list[OSError] = []
        for partition in self._all():
            try:
                await partition.close(clean=clean)
            except OSError as error:
                failures.append(error)
        self._partitions.clear()
        if failures:
            raise OSError(failures[0].errno, f"{len(failures)} logs could not be flushed, the first: {failures[0]}")


_METADATA_CONFIGS: Final = {
    "flush.messages": "1",
    "retention.ms": "-1",
    "cleanup.policy": "delete",
    "segment.bytes": "16777216",
}


def log_config(config: BrokerConfig, configs: Mapping[str, str]) -> LogConfig:
    """What the settings of a topic, given and inherited, mean to its logs."""

    def number(name: str) -> int:
        return int(setting(config, configs, name))

    cleanup_policy = setting(config, configs, "cleanup.policy")
    # What must be compacted within some time must be in a closed segment by then (KIP-354).
    lag_max_ms = number("max.compaction.lag.ms")
    return LogConfig(
        segment_bytes=number("segment.bytes"),
        segment_ms=min(number("segment.ms"), lag_max_ms) if "compact" in cleanup_policy else number("segment.ms"),
        retention_ms=number("retention.ms"),
        retention_bytes=number("retention.bytes"),
        index_interval_bytes=number("index.interval.bytes"),
        max_message_bytes=number("max.message.bytes"),
        timestamp_type=setting(config, configs, "message.timestamp.type"),
        message_timestamp_before_max_ms=number("message.timestamp.before.max.ms"),
        message_timestamp_after_max_ms=number("message.timestamp.after.max.ms"),
        cleanup_policy=cleanup_policy,
        min_cleanable_dirty_ratio=float(setting(config, configs, "min.cleanable.dirty.ratio")),
        delete_retention_ms=number("delete.retention.ms"),
        min_compaction_lag_ms=number("min.compaction.lag.ms"),
        max_compaction_lag_ms=lag_max_ms,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        flush_each=number("flush.messages") == 1,
    )


def _check_epoch(partition: Partition, leader_epoch: LeaderEpoch) -> None:
    """No CRC covers a batch's leader epoch. Raises LogCorruption for one that no leader has had."""
    if partition.log.latest_epoch > leader_epoch:
        raise LogCorruption(
            f"{partition.topic_partition} has batches of leader epoch {partition.log.latest_epoch}, and the cluster's "
            f"metadata knows none after {leader_epoch}: its log or the metadata is damaged; restore one of them"
        )


def _settings(image: ClusterImage, topic: str) -> Mapping[str, str]:
    """What was given for the topic, and for the topics of all brokers."""
    return {name: value for name in TOPIC_SETTINGS if (value := image.setting(topic, name)) is not None}


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
