"""The directories of partitions: their owners, and what happens to those without one.

Only what the metadata log has deleted is removed. Its directory is renamed to ``<name>.<topic id>-delete`` first,
durably, so that a removal that stops half-way is recognised and finished by the next start. Any other directory that
does not fit the metadata is renamed to ``<name>.<topic id>-stray``, logged and kept: the metadata may be damaged
instead. Both names are Apache Kafka's. Knows no log and no image.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Final
from uuid import UUID

from einmal.event_log import EventLog
from einmal.log import checkpoint, partition_metadata
from einmal.log.disk import Disk
from einmal.log.errors import LogCorruption
from einmal.log.segment_files import LOG
from einmal.metadata.image import CLUSTER_METADATA
from einmal.types import TopicPartition

log = EventLog(__name__)

_DELETE: Final = "-delete"
_STRAY: Final = "-stray"
_DELETED_NAME: Final = re.compile(r".+\.([0-9a-f]{32})-delete")
_NAME_BYTES_MAX: Final = 255
"""Longest name of a directory, on common file systems."""
_NO_ID: Final = UUID(int=0)


class PartitionFolders:
    def __init__(self, disk: Disk, directory: PurePosixPath) -> None:
        self._disk = disk
        self._directory = directory

    def path(self, topic_partition: TopicPartition) -> PurePosixPath:
        return self._directory / str(topic_partition)

    def all(self) -> list[TopicPartition]:
        """The topics' partitions that have directories, by their names. Raises OSError."""
        partitions = []
        for name in self._disk.list_directory(self._directory):
            topic, _, partition_id = name.rpartition("-")
            if topic not in ("", CLUSTER_METADATA) and partition_id.isdecimal():
                partitions.append(TopicPartition(topic, int(partition_id)))
        return partitions

    # --- whose they are ----------------------------------------------------------------------------------------------

    def topic_id_of(self, topic_partition: TopicPartition) -> UUID | None:
        """The topic id in ``partition.metadata``; None: the file is missing or damaged. Raises OSError."""
        path = self.path(topic_partition) / partition_metadata.FILE_NAME
        if not self._disk.exists(path):
            return None
        try:
            return partition_metadata.decode(self._disk.read_file(path))
        except ValueError:
            return None

    def is_ours(self, topic_partition: TopicPartition) -> bool:
        """Whether a broker has created the directory: another one only has such a name."""
        return self._disk.exists(self.path(topic_partition) / partition_metadata.FILE_NAME)

    def claim(self, topic_partition: TopicPartition, topic_id: UUID, *, has_mark: bool, lost_power: bool) -> None:
        """Make the name free for this topic, or check that the existing directory is this topic's.

        The directory of an earlier topic of the same name is moved aside. ``has_mark``: this topic's records have been
        here. ``lost_power``: files that were never flushed may be torn. Raises LogCorruption if the records' topic is
        unknown, or OSError.
        """
        path = self.path(topic_partition)
        if not self._disk.exists(path):
            return
        named = self.topic_id_of(topic_partition)
        if named == topic_id:
            return
        identity = path / partition_metadata.FILE_NAME
        summary = checkpoint.load(self._disk, path)
        checkpointed = None if summary is None else summary.topic_id
        if named is not None:
            if checkpointed == topic_id or has_mark:
                raise LogCorruption(
                    f"{identity} names topic id {named}, but the cluster's metadata and what else is known of these "
                    f"records name {topic_id}: directories, or files in them, were exchanged. Restore them from a "
                    "backup, or exchange them again"
                )
            self.move_aside(topic_partition, named, f"it belongs to topic id {named}, the topic now has {topic_id}")
        elif topic_id == checkpointed or (has_mark and checkpointed is None) or not self._holds_records(path):
            log.warning(
                "partition_metadata_rewritten",
                "%(path)s is missing or damaged: written again for topic id %(topic_id)s",
                path=identity,
                topic_id=topic_id,
            )
        elif checkpointed is not None:
            self.move_aside(
                topic_partition, checkpointed, f"its checkpoint names topic id {checkpointed}, not {topic_id}"
            )
        elif lost_power:
            # Neither file is flushed before the first checkpoint.
            log.warning(
                "partition_metadata_rewritten",
                "%(path)s was not flushed before the power failed: written again for %(topic_id)s",
                path=identity,
                topic_id=topic_id,
            )
        else:
            raise LogCorruption(
                f"{identity} is missing or damaged, and nothing else identifies the topic of these records. "
                f"Restore it from a backup, or move {path} away to start an empty replica"
            )

    def _holds_records(self, path: PurePosixPath) -> bool:
        for name in self._disk.list_directory(path):
            if name.endswith(LOG):
                file = self._disk.open(path / name)
                try:
                    if file.size():
                        return True
                finally:
                    file.close()
        return False

    # --- what belongs to nobody --------------------------------------------------------------------------------------

    def move_aside(self, topic_partition: TopicPartition, topic_id: UUID | None, why: str) -> None:
        """Keep the directory under a name that no topic can have, durably. Raises OSError."""
        source = self.path(topic_partition)
        target = self._free_name(topic_partition, topic_id or _NO_ID, _STRAY)
        self._disk.rename(source, target)
        self._disk.sync_directory(self._directory)
        log.warning(
            "stray_partition_kept",
            "%(path)s is stray and kept as %(kept)s: %(reason)s. Rename it back while the broker is stopped if the "
            "metadata is wrong; remove it if its records are not needed",
            path=source,
            kept=target.name,
            reason=why,
        )

    def _free_name(self, topic_partition: TopicPartition, topic_id: UUID, suffix: str) -> PurePosixPath:
        number = 0
        while True:
            unique = UUID(int=(topic_id.int + number) % 2**128).hex
            ending = f"-{topic_partition.partition}.{unique}{suffix}"
            path = self._directory / f"{topic_partition.topic[: _NAME_BYTES_MAX - len(ending)]}{ending}"
            if not self._disk.exists(path):
                return path
            number += 1

    # --- what is deleted ---------------------------------------------------------------------------------------------

    def begin_removal(self, topic_partition: TopicPartition, topic_id: UUID) -> PurePosixPath:
        """The replica's removal is committed: rename its directory to mark that, durably. Raises OSError."""
        target = self._free_name(topic_partition, topic_id, _DELETE)
        self._disk.rename(self.path(topic_partition), target)
        self._disk.sync_directory(self._directory)
        return target

    def finish_removal(self, directory: PurePosixPath) -> None:
        """Raises OSError."""
        names = self._disk.list_directory(directory)
        # The file with the topic id goes last: the next start may have to resume from here.
        for name in sorted(names, key=lambda name: name == partition_metadata.FILE_NAME):
            self._disk.remove(directory / name)
        self._disk.remove(directory)

    def resume_removals(self) -> None:
        """Finish what the last process began to remove. Raises OSError."""
        for name in self._disk.list_directory(self._directory):
            match = _DELETED_NAME.fullmatch(name)
            if match is None:
                continue
            path = self._directory / name
            try:
                if self._is_removable(path, UUID(hex=match[1])):
                    self.finish_removal(path)
                else:
                    log.error(
                        "partition_removal_refused",
                        "%(path)s is kept: its %(file)s does not name that topic id",
                        path=path,
                        file=partition_metadata.FILE_NAME,
                    )
            except OSError as error:
                log.error("directory_removal_failed", "cannot remove %(path)s: %(error)s", path=path, error=error)

    def _is_removable(self, path: PurePosixPath, topic_id: UUID) -> bool:
        try:
            return partition_metadata.decode(self._disk.read_file(path / partition_metadata.FILE_NAME)) == topic_id
        except (OSError, ValueError):
            return not self._disk.list_directory(path)
