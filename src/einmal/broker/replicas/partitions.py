"""All replicas of this broker: their folders, their settings and their leaders.

Follows the cluster's image: a replica leads or follows as soon as the image has it so, and its leader epoch never
decreases. The metadata log is kept here too, but led by the quorum.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final
from uuid import UUID

from einmal.broker.config import BrokerConfig
from einmal.broker.replicas.high_watermarks import HighWatermarks
from einmal.broker.replicas.partition import Partition
from einmal.broker.replicas.partition_folders import PartitionFolders
from einmal.broker.replicas.partition_opener import PartitionOpener
from einmal.broker.replicas.partition_removals import PartitionRemovals
from einmal.broker.replicas.topic_settings import log_config, setting
from einmal.broker.resources.counts import CountedTopics
from einmal.broker.resources.supervision import Supervisor
from einmal.event_log import EventLog
from einmal.log.disk import Disk
from einmal.log.errors import LogCorruption, SyncFailed
from einmal.metadata.image import (
    CLUSTER_METADATA,
    INTERNAL_TOPICS,
    ClusterImage,
    ImageDelta,
    PartitionImage,
    TopicImage,
)
from einmal.replication.leader import Leader, Membership
from einmal.seams import Clock
from einmal.types import BrokerId, ErrorCode, LeaderEpoch, TopicPartition

log = EventLog(__name__)

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
        self.opener = PartitionOpener(config, disk, clock, self.folders, self._marks)
        self._removals = PartitionRemovals(self.folders, self._marks)
        self._partitions: dict[TopicPartition, Partition] = {}
        self._eligible: Mapping[BrokerId, int] = {}
        """Brokers that may be in an ISR, with their epochs."""
        self._topics: Mapping[str, TopicImage] = {}
        """Topics of the whole cluster."""
        self._metadata: Partition | None = None
        """The metadata log. Not among the others: no client's request may reach it."""
        self.topics = CountedTopics()
        """The counts of each topic with partitions here."""
        self.isr_shrinks = self.isr_expands = 0
        """Changes of the ISR of partitions that are led here."""
        self.offline: dict[TopicPartition, OSError | LogCorruption] = {}
        """Replicas that could not be opened, and why. Changed here only."""
        self._unopened: dict[TopicPartition, None] = {}
        """Replicas of topics with many new partitions, which are opened in steps: ``catch_up``."""
        self._has_applied = False

    def get(self, topic_partition: TopicPartition) -> Partition | None:
        return self._partitions.get(topic_partition)

    def error_of_missing(self, topic_partition: TopicPartition) -> ErrorCode:
        """The error to answer if ``get`` returns None."""
        if topic_partition in self.offline:
            return ErrorCode.kafka_storage_error
        topic = self._topics.get(topic_partition.topic)
        if topic is not None and 0 <= topic_partition.partition < len(topic.partitions):
            # Other brokers have it.
            return ErrorCode.not_leader_or_follower
        return ErrorCode.unknown_topic_or_partition

    @property
    def may_open_more(self) -> bool:
        """Whether it is worth while to retry opening the failed replicas."""
        return any(map(_may_pass, self.offline.values()))

    @property
    def is_whole(self) -> bool:
        """Whether all written data can still be flushed."""
        return not self.offline and not self.is_disk_broken

    @property
    def is_disk_broken(self) -> bool:
        """Whether a log has gone offline, the metadata log or a replica: for as long as this process lives."""
        return any(partition.is_offline for partition in self._all())

    def __iter__(self) -> Iterator[Partition]:
        """Iterate over the partitions of topics, in the order in which they were opened."""
        return iter(list(self._partitions.values()))

    def _all(self) -> list[Partition]:
        return [*self._partitions.values(), *(() if self._metadata is None else (self._metadata,))]

    def __len__(self) -> int:
        return len(self._partitions)

    # --- changes of the image ----------------------------------------------------------------------------------------

    def apply(self, delta: ImageDelta, image: ClusterImage) -> None:
        """Apply the changes in the cluster that concern this broker's replicas."""
        self._topics = image.topics
        if delta.brokers:
            self._brokers_changed(image)
        for name, topic_id in delta.deleted:
            self.delete(name, topic_id)
        # First the settings: the present replicas commit by the present min.insync.replicas.
        for name in image.topics if delta.cluster_configs else delta.configs:
            self.reconfigure(image.topics[name], image.effective_configs(name))
        room = _OPENED_AT_ONCE if self._has_applied else sys.maxsize
        self._has_applied = True
        for name in delta.topics:
            topic = image.topics[name]
            room -= self._open_replicas(
                topic, image.effective_configs(name), sys.maxsize if topic.is_internal else room
            )

    @property
    def has_put_off(self) -> bool:
        """Whether there are replicas still to be opened, or removed."""
        return bool(self._unopened) or self._removals.are_waiting

    def catch_up(self, image: ClusterImage, is_over: Callable[[], bool]) -> None:
        """Remove and open postponed replicas, until ``is_over``."""
        self._removals.catch_up(is_over)
        while self._unopened and not is_over():
            topic_partition = next(iter(self._unopened))
            del self._unopened[topic_partition]
            topic = image.topics.get(topic_partition.topic)
            if topic is not None and topic_partition.partition < len(topic.partitions):
                self._bring_in_line(topic, topic_partition, image.effective_configs(topic.name))

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

        Returns how many are new. Those above ``room`` are postponed, and requests for them get NOT_LEADER_OR_FOLLOWER.
        """
        if topic.name == CLUSTER_METADATA:
            # Written by a controller that did not reserve the name. The directory is the metadata log's.
            ignored = "topic %(topic)s has the name of the metadata log and is ignored: delete it"
            log.error("topic_ignored", ignored, topic=topic.name)
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
        """Raises LogCorruption where a coordinator's log is damaged: it would forget its promises."""
        for topic_partition, error in self.offline.items():
            if isinstance(error, LogCorruption) and topic_partition.topic in INTERNAL_TOPICS:
                raise error

    def open_all(self, image: ClusterImage) -> None:
        """Retry opening the failed replicas."""
        for topic in list(image.topics.values()):
            self._open_replicas(topic, image.effective_configs(topic.name), sys.maxsize)

    def _opened(
        self, topic_partition: TopicPartition, topic_id: UUID, configs: Mapping[str, str], leader_epoch: LeaderEpoch
    ) -> Partition | None:
        partition = self._partitions.get(topic_partition)
        failure = self.offline.get(topic_partition)
        if partition is not None or (failure is not None and not _may_pass(failure)):
            return partition
        self._removals.free_name(topic_partition)
        try:
            partition = self.opener.open(topic_partition, topic_id, configs, leader_epoch)
        except (OSError, LogCorruption) as error:
            if failure is None:
                log.error(
                    "partition_offline",
                    "partition %(partition)s is offline: %(error)s",
                    partition=topic_partition,
                    error=error,
                )
            self.offline[topic_partition] = error
            return None
        self.offline.pop(topic_partition, None)
        partition.counts = self.topics.opened(topic_partition.topic)
        self._partitions[topic_partition] = partition
        return partition

    def _assign(self, partition: Partition, image: PartitionImage) -> None:
        """Lead or follow, as in the image."""
        is_new_epoch = image.leader_epoch > partition.leader_epoch
        if image.leader != self._config.node_id:
            if is_new_epoch:
                partition.follow(image.leader, image.leader_epoch)
            return
        membership = Membership(image.replicas, image.isr, image.partition_epoch)
        now_ms = self._clock.now().monotonic_ms
        if is_new_epoch:
            leader = Leader(
                BrokerId(self._config.node_id),
                image.leader_epoch,
                membership,
                epoch_start=partition.log_end_offset,
                high_watermark=partition.high_watermark,
                min_insync_replicas=partition.min_insync_replicas,
                lag_max_ms=self._config.replica_lag_time_max_ms,
                now_ms=now_ms,
                eligible=self._eligible,
            )
            partition.lead(leader, image.leader_epoch)
        elif partition.replication is not None:
            grown = len(image.isr) - len(partition.replication.isr)
            self.isr_shrinks += grown < 0
            self.isr_expands += grown > 0
            partition.advance(partition.replication.membership_changed(membership, now_ms))

    def open_metadata(self, topic_partition: TopicPartition, topic_id: UUID) -> Partition:
        """The metadata log: it is not in its own image. Raises OSError or LogCorruption."""
        self._marks.load()
        self._metadata = self.opener.open_metadata(topic_partition, topic_id)
        return self._metadata

    def reconfigure(self, topic: TopicImage, configs: Mapping[str, str]) -> None:
        for partition_id in range(len(topic.partitions)):
            partition = self._partitions.get(TopicPartition(topic.name, partition_id))
            if partition is not None:
                partition.configure(log_config(self._config, configs))
                partition.min_insync_replicas = int(setting(self._config, configs, "min.insync.replicas"))
                if partition.replication is not None:
                    partition.advance(partition.replication.settings_changed(partition.min_insync_replicas))

    # --- directories ---------------------------------------------------------------------------------------------

    def delete(self, name: str, topic_id: UUID) -> None:
        """Remove the replicas of a topic whose removal is committed.

        The folders are renamed first, durably: if the removal stops half-way, no later topic of the same name mistakes
        them for its own, and the next start removes them.
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
                self._removals.postpone(topic_partition, partition)
        self.offline = {key: error for key, error in self.offline.items() if key.topic != name}

    def _retire(self, topic_partition: TopicPartition, partition: Partition) -> None:
        del self._partitions[topic_partition]
        self.topics.closed(topic_partition.topic)
        self._marks.forget(partition.topic_id, topic_partition)
        partition.retire()

    def _remove_replica(self, topic_partition: TopicPartition, partition: Partition) -> None:
        self._retire(topic_partition, partition)
        self._removals.begin(topic_partition, partition)

    def sort_out(self, image: ClusterImage, deleted: Container[UUID]) -> None:
        """See ``PartitionRemovals.resume``; a directory that cannot be listed is logged."""
        try:
            self._removals.resume(image, deleted, self._partitions)
        except OSError as error:
            log.error("directory_unreadable", "cannot list %(path)s: %(error)s", path=self._directory, error=error)

    # --- time ----------------------------------------------------------------------------------------------------

    def retain(self) -> Iterator[None]:
        """Delete segments that are too old or too many, and forget idle producers: in steps, for there are many."""
        for partition in self._all():
            if partition.is_closed:
                continue
            try:
                yield from partition.retain(self._clock.now())
            except Exception as error:  # noqa: BLE001 - one bad partition must not keep the others from being cut.
                self._supervisor.report(f"retention of {partition.topic_partition}", error)

    async def checkpoint(self) -> None:
        await self._check_directories()
        for partition in self._all():
            await self._supervisor.attempt(f"the checkpoint of {partition.topic_partition}", partition.checkpoint)
        await self._store_marks()

    async def _check_directories(self) -> None:
        """In the background: a busy disk may take seconds to answer, and clients must not wait for it."""
        files = [(partition, partition.newest_file) for partition in self._all()]
        missing = await self._disk.in_background(
            lambda: [partition for partition, path in files if not self._disk.exists(path)]
        )
        for partition in missing:
            # The file may have been deleted with its topic, or by retention, in the meantime.
            partition.check_directory()

    async def _store_marks(self) -> None:
        """Raises OSError; the last marks still hold then."""
        data = self._marks.changed(
            {
                (partition.topic_id, partition.topic_partition): partition.durable_high_watermark
                for partition in self._all()
            }
        )
        if data is not None:
            await self._disk.in_background(lambda: self._marks.store(data))

    async def flushed(self) -> None:
        """Wait until recovered records are flushed, if only flushed offsets count."""
        for partition in self._all():
            await partition.flushed()

    async def close(self, *, clean: bool = True) -> None:
        """Close every log, even if others fail. Raises OSError when not all of them could be flushed."""
        await self._removals.finish()
        if clean:
            try:
                await self._store_marks()
            except OSError as error:
                log.warning("high_watermark_file_failed", "%(path)s: %(error)s", path=self._marks.path, error=error)
        failures: list[OSError] = []
        for partition in self._all():
            try:
                await partition.close(clean=clean)
            except OSError as error:
                failures.append(error)
        self._partitions.clear()
        if failures:
            raise OSError(failures[0].errno, f"{len(failures)} logs could not be flushed, the first: {failures[0]}")


def _may_pass(failure: OSError | LogCorruption) -> bool:
    """Whether the disk may have recovered by the next try.

    Not after a failed sync: the next one would seem to succeed, and data that is not on disk would be acknowledged.
    """
    return isinstance(failure, OSError) and not isinstance(failure, SyncFailed)
