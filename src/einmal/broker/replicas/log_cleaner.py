"""The cleaner of this broker: which compacted log is cleaned next.

Coordinators' topics come first, since this shortens their load; then the dirtiest. One log at a time. What a round is,
how it shares the processor with requests, and what it may remove, is up to the log (``log/cleaning.py``,
``log/compaction.py``). Every replica is cleaned on its own, wherever its leader is.

``cleaner-offset-checkpoint`` has, in Apache Kafka's format, the offset up to which each log is clean. It is written for
other tools: the logs know it themselves.
"""

from __future__ import annotations

from typing import Final

from einmal.broker.config import BrokerConfig
from einmal.broker.replicas.partition import Partition
from einmal.broker.replicas.partitions import Partitions
from einmal.broker.resources.supervision import Supervisor
from einmal.event_log import EventLog
from einmal.log.disk import Disk
from einmal.log.errors import LogCorruption
from einmal.metadata.image import INTERNAL_TOPICS
from einmal.seams import Clock
from einmal.types import Offset, TopicPartition
from einmal.wire.errors import WireError

log = EventLog(__name__)

FILE_NAME: Final = "cleaner-offset-checkpoint"
_VERSION: Final = 0


class LogCleaner:
    def __init__(self, config: BrokerConfig, partitions: Partitions, disk: Disk, clock: Clock) -> None:
        self._config = config
        self._partitions = partitions
        self._disk = disk
        self._clock = clock
        self._supervisor = Supervisor()
        self._is_stopping = False
        self._cleaned: dict[TopicPartition, Offset] = {}
        """The content of the file."""
        self._uncleanable: list[Partition] = []
        """Damaged ones: they are skipped until the next start."""

    def stop(self) -> None:
        """A running round ends with its next slice, and is repeated after the next start."""
        self._is_stopping = True

    async def clean(self) -> None:
        """Clean whatever is dirty enough. Raises OSError."""
        failed: list[Partition] = []
        while not self._is_stopping:
            partition = self._dirtiest(failed)
            if partition is None:
                break
            if not await self._clean(partition):
                failed.append(partition)
        if not self._is_stopping:
            self._write_offsets()

    def _dirtiest(self, failed: list[Partition]) -> Partition | None:
        now = self._clock.now()
        best: tuple[bool, float] | None = None
        chosen = None
        for partition in self._partitions:
            if not self._may_clean(partition) or partition in failed:
                continue
            cleanable = partition.cleanable(now)
            rank = (partition.topic_partition.topic in INTERNAL_TOPICS, cleanable.dirty_ratio)
            if cleanable.is_due(partition.config) and (best is None or rank > best):
                best, chosen = rank, partition
        return chosen

    def _may_clean(self, partition: Partition) -> bool:
        is_usable = not partition.is_closed and not partition.is_offline
        return is_usable and partition.config.is_compacted and partition not in self._uncleanable

    # --- a round -----------------------------------------------------------------------------------------------------

    async def _clean(self, partition: Partition) -> bool:
        """One round; false: it failed."""
        map_bytes_max = self._config.log_cleaner_dedupe_buffer_size

        def may_go_on() -> bool:
            return not self._is_stopping and self._may_clean(partition)

        try:
            end = await partition.clean(self._clock.now(), map_bytes_max, may_go_on)
        except Exception as error:  # noqa: BLE001 - one bad partition must not keep the others from being cleaned.
            self._report(partition, error)
            return False
        if end is None:
            return False
        log.info(
            "log_cleaned",
            "cleaned %(partition)s up to offset %(offset)d",
            partition=partition.topic_partition,
            offset=end,
        )
        return True

    def _report(self, partition: Partition, error: Exception) -> None:
        """After a disk error retry; skip a log that cannot be read, and clean the others."""
        name = str(partition.topic_partition)
        if not isinstance(error, OSError):
            self._uncleanable.append(partition)
            what = f"{type(error).__name__}: {error}"
            uncleanable = "%(partition)s is uncleanable until the next start, and grows meanwhile: %(error)s"
            log.error("log_uncleanable", uncleanable, partition=name, error=what)
        partition.report(error, is_logged=True)
        if not isinstance(error, (WireError, LogCorruption)):
            self._supervisor.report(f"cleaning {name}", error)

    # --- for others --------------------------------------------------------------------------------------------------

    def _write_offsets(self) -> None:
        cleaned = {
            partition.topic_partition: partition.cleaned_offset
            for partition in self._partitions
            if partition.config.is_compacted and partition.cleaned_offset > 0
        }
        if cleaned != self._cleaned:
            self._disk.write_file(self._config.directory / FILE_NAME, encode_offsets(cleaned))
            self._cleaned = cleaned


def encode_offsets(offsets: dict[TopicPartition, Offset]) -> bytes:
    """The text of the file: version, number of entries, then a line "topic partition offset" each."""
    lines = [str(_VERSION), str(len(offsets))]
    lines += [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    return ("\n".join(lines) + "\n").encode()
