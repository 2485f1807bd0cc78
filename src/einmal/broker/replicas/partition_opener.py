"""Opens the logs of replicas; refuses one that holds less than was promised, or another topic's records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from einmal.broker.config import BrokerConfig
from einmal.broker.replicas.high_watermarks import HighWatermarks
from einmal.broker.replicas.partition import Partition
from einmal.broker.replicas.partition_folders import PartitionFolders
from einmal.broker.replicas.topic_settings import log_config, setting
from einmal.event_log import EventLog
from einmal.log.config import LogConfig
from einmal.log.disk import Disk
from einmal.log.errors import LogCorruption
from einmal.log.partition_log import PartitionLog
from einmal.seams import Clock
from einmal.types import BrokerId, LeaderEpoch, Offset, TopicPartition

log = EventLog(__name__)

_METADATA_CONFIGS: Final = {
    "flush.messages": "1",
    "retention.ms": "-1",
    "cleanup.policy": "delete",
    "segment.bytes": "16777216",
}


class PartitionOpener:
    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk,
        clock: Clock,
        folders: PartitionFolders,
        marks: HighWatermarks,
    ) -> None:
        self._config = config
        self._disk = disk
        self._clock = clock
        self._folders = folders
        self._marks = marks
        self.lost_power = True
        """Whether the machine may have lost its power since the last process wrote here."""

    def open(
        self, topic_partition: TopicPartition, topic_id: UUID, configs: Mapping[str, str], leader_epoch: LeaderEpoch
    ) -> Partition:
        """A replica of a topic, with the topic's settings. Raises OSError or LogCorruption."""
        has_mark = self._marks.mark_of(topic_id, topic_partition) > 0
        self._folders.claim(topic_partition, topic_id, has_mark=has_mark, lost_power=self.lost_power)
        partition = self._open(topic_partition, topic_id, log_config(self._config, configs))
        _check_epoch(partition, leader_epoch)
        partition.min_insync_replicas = int(setting(self._config, configs, "min.insync.replicas"))
        return partition

    def open_metadata(self, topic_partition: TopicPartition, topic_id: UUID) -> Partition:
        """The metadata log: it is not in its own image. Raises OSError or LogCorruption."""
        named = self._folders.topic_id_of(topic_partition)
        if named not in (None, topic_id):
            raise LogCorruption(
                f"{self._folders.path(topic_partition)} belongs to topic id {named}: directories, or files in them, "
                "were exchanged. Restore it from a backup, or exchange them again"
            )
        return self._open(topic_partition, topic_id, log_config(self._config, _METADATA_CONFIGS))

    def _open(self, topic_partition: TopicPartition, topic_id: UUID, config: LogConfig) -> Partition:
        mark = self._marks.mark_of(topic_id, topic_partition)
        if mark and not self._disk.exists(self._folders.path(topic_partition)):
            raise LogCorruption(f"{self._folders.path(topic_partition)} is missing. {self._ways_out(mark)}")
        partition_log = PartitionLog.open(
            self._disk,
            self._folders.path(topic_partition),
            topic_partition,
            config,
            self._clock.now(),
            topic_id=topic_id,
            lost_power=self.lost_power,
        )
        end = partition_log.log_end_offset
        if end < mark:
            path = self._folders.path(topic_partition)
            if config.flush_each or not self.lost_power:
                partition_log.close(clean=False)
                raise LogCorruption(f"{path} ends at offset {end}. {self._ways_out(mark)}")
            log.warning(
                "records_lost_with_power",
                "%(path)s ends at offset %(end)d: offsets up to %(offset)d were not flushed before the "
                "power failed, and are lost",
                path=path,
                end=end,
                offset=mark,
            )
            self._marks.lower(topic_id, topic_partition, end)
        partition = Partition(
            partition_log,
            topic_id,
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


def _check_epoch(partition: Partition, leader_epoch: LeaderEpoch) -> None:
    """No CRC covers a batch's leader epoch. Raises LogCorruption for an epoch without a leader."""
    if partition.latest_epoch > leader_epoch:
        raise LogCorruption(
            f"{partition.topic_partition} has batches of leader epoch {partition.latest_epoch}, and the cluster's "
            f"metadata knows none after {leader_epoch}: its log or the metadata is damaged; restore one of them"
        )
