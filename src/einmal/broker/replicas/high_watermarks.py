"""``high-watermarks``: how far each partition was committed when this was last written, every few seconds.

A recovery checkpoint may be older: without this, what was acknowledged after it could be missing after a restart, and
nobody would notice, nor that a whole directory is gone. A mark is a lower bound, it may be older than the log. It never
promises records that this replica has yet to flush, where each write is flushed: the other voters of the metadata
quorum may have committed them without it.

A line per partition: topic id, partition, offset, CRC-32C and the topic's name, so that an operator can remove one.
Knows no log.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final
from uuid import UUID

from google_crc32c import value as crc32c

from einmal.event_log import EventLog
from einmal.log.disk import Disk
from einmal.types import Offset, TopicPartition

log = EventLog(__name__)

FILE_NAME: Final = "high-watermarks"

Marks = Mapping[tuple[UUID, TopicPartition], Offset]


class HighWatermarks:
    def __init__(self, disk: Disk, directory: PurePosixPath) -> None:
        self._disk = disk
        self.path = directory / FILE_NAME
        self._marks: dict[tuple[UUID, TopicPartition], Offset] = {}

    def load(self) -> None:
        """Raises OSError. A line that is damaged promises nothing."""
        if not self._disk.exists(self.path):
            return
        for line in self._disk.read_file(self.path).decode(errors="replace").splitlines():
            try:
                key, offset = _decode(line)
            except ValueError:
                log.warning(
                    "high_watermark_file_damaged",
                    "%(path)s: a line is damaged: what it promised is not checked",
                    path=self.path,
                )
                continue
            self._marks[key] = offset

    def mark_of(self, topic_id: UUID, topic_partition: TopicPartition) -> Offset:
        """Before this offset everything was committed."""
        return self._marks.get((topic_id, topic_partition), Offset(0))

    def changed(self, marks: Marks) -> bytes | None:
        """Take over new marks; the file that has them, None where it has them already. Others stay as they are."""
        if all(self._marks.get(key) == offset for key, offset in marks.items()):
            return None
        self._marks |= marks
        return self._encode()

    def store(self, data: bytes) -> None:
        """Blocking. Raises OSError."""
        self._disk.write_file(self.path, data)

    def lower(self, topic_id: UUID, topic_partition: TopicPartition, offset: Offset) -> None:
        """The log is about to be cut here, as its leader's was. Durable when it returns. Raises OSError."""
        if self.mark_of(topic_id, topic_partition) > offset:
            self._marks[topic_id, topic_partition] = offset
            self.store(self._encode())

    def forget(self, topic_id: UUID, topic_partition: TopicPartition) -> None:
        """The replica was deleted; the file follows with the next marks."""
        self._marks.pop((topic_id, topic_partition), None)

    def _encode(self) -> bytes:
        return b"".join([_encode(*key, offset) for key, offset in self._marks.items()])


def _encode(topic_id: UUID, topic_partition: TopicPartition, offset: Offset) -> bytes:
    fields = f"{topic_id.hex} {topic_partition.partition} {offset}"
    return f"{fields} {crc32c(f'{fields} {topic_partition.topic}'.encode()):08x} {topic_partition.topic}\n".encode()


def _decode(line: str) -> tuple[tuple[UUID, TopicPartition], Offset]:
    """Raises ValueError."""
    topic_id, partition, offset, _, topic = line.split(" ")
    key = UUID(hex=topic_id), TopicPartition(topic, int(partition))
    if _encode(*key, Offset(int(offset))).decode() != line + "\n":
        raise ValueError("the CRC-32C does not match")
    return key, Offset(int(offset))
