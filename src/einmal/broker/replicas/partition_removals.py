"""Removes the folders of deleted replicas: a few at once, many in steps, and interrupted removals after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from pathlib import PurePosixPath
from uuid import UUID

from einmal.broker.replicas.high_watermarks import HighWatermarks
from einmal.broker.replicas.partition import Partition
from einmal.broker.replicas.partition_folders import PartitionFolders
from einmal.event_log import EventLog
from einmal.metadata.image import ClusterImage
from einmal.types import TopicPartition

log = EventLog(__name__)


class PartitionRemovals:
    """Its replicas are retired: no request reaches them any more."""

    def __init__(self, folders: PartitionFolders, marks: HighWatermarks) -> None:
        self._folders = folders
        self._marks = marks
        self._waiting: dict[TopicPartition, Partition] = {}
        """Replicas of topics with many partitions, whose folders are removed in steps."""
        self._running: dict[asyncio.Task[None], None] = {}

    @property
    def are_waiting(self) -> bool:
        return bool(self._waiting)

    def postpone(self, topic_partition: TopicPartition, partition: Partition) -> None:
        self._waiting[topic_partition] = partition

    def catch_up(self, is_over: Callable[[], bool]) -> None:
        """Begin postponed removals, until ``is_over``."""
        while self._waiting and not is_over():
            topic_partition = next(iter(self._waiting))
            self.begin(topic_partition, self._waiting.pop(topic_partition))

    def free_name(self, topic_partition: TopicPartition) -> None:
        """Begin the removal of a folder with the name of a new replica."""
        leaving = self._waiting.pop(topic_partition, None)
        if leaving is not None:
            self.begin(topic_partition, leaving)

    def begin(self, topic_partition: TopicPartition, partition: Partition) -> None:
        try:
            directory = self._folders.begin_removal(topic_partition, partition.topic_id)
        except OSError as error:
            # The folder stays until the next start; its topic id keeps a successor from using it.
            log.error(
                "partition_removal_failed",
                "cannot remove partition %(partition)s: %(error)s",
                partition=topic_partition,
                error=error,
            )
            return
        removal = asyncio.get_running_loop().create_task(self._finish(partition, directory))
        self._running[removal] = None
        removal.add_done_callback(lambda done: self._running.pop(done, None))

    async def _finish(self, partition: Partition, directory: PurePosixPath) -> None:
        await partition.close(clean=False)
        try:
            self._folders.finish_removal(directory)
        except OSError as error:
            log.error("directory_removal_failed", "cannot remove %(path)s: %(error)s", path=directory, error=error)

    async def finish(self) -> None:
        """Begin all postponed removals, and wait until every folder is gone."""
        self.catch_up(lambda: False)
        for removal in list(self._running):
            await removal

    def resume(self, image: ClusterImage, deleted: Container[UUID], opened: Container[TopicPartition]) -> None:
        """Finish interrupted removals, and move aside directories that the metadata does not know.

        ``deleted``: topics whose removal was committed while this broker was down. Raises OSError where the folders
        cannot be listed.
        """
        self._folders.resume_removals()
        for topic_partition in self._folders.all():
            topic = image.topics.get(topic_partition.topic)
            is_known = topic is not None and topic_partition.partition < len(topic.partitions)
            if is_known or topic_partition in opened or not self._folders.is_ours(topic_partition):
                continue
            topic_id = self._folders.topic_id_of(topic_partition)
            try:
                if topic_id in deleted and topic_id is not None:
                    log.info(
                        "partition_removed",
                        "removing %(partition)s: its topic was deleted",
                        partition=topic_partition,
                    )
                    self._marks.forget(topic_id, topic_partition)
                    self._folders.finish_removal(self._folders.begin_removal(topic_partition, topic_id))
                else:
                    self._folders.move_aside(topic_partition, topic_id, "the cluster's metadata has no such partition")
            except OSError as error:
                log.error(
                    "stray_partition_not_moved",
                    "cannot move partition %(partition)s away: %(error)s",
                    partition=topic_partition,
                    error=error,
                )
