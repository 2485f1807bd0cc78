"""The cleaner of this broker: which compacted log is cleaned next, a slice of work at a time.

Coordinators' topics come first: how long they take to load hangs on it; then the dirtiest. One log at a time, in the
background, and at most half of the time, so that requests are served meanwhile. What a round is, and what it may take
away, is the log's business (``log/compaction.py``). Every replica is cleaned on its own, wherever its leader is.

``cleaner-offset-checkpoint`` tells, in Apache Kafka's format, how far each log is clean. It is written for others: the
logs know it themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from einmal.broker.partition import Partition
from einmal.log.compaction import Cleaning
from einmal.log.errors import LogCorruption
from einmal.metadata.image import INTERNAL_TOPICS
from einmal.types import Offset, TopicPartition
from einmal.wire.errors import WireError

if TYPE_CHECKING:
    from einmal.broker.node import Node

log = logging.getLogger(__name__)

FILE_NAME: Final = "cleaner-offset-checkpoint"
_VERSION: Final = 0
_END: Final = object()


class LogCleaner:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._is_stopping = False
        self._cleaned: dict[TopicPartition, Offset] = {}
        """What the file says."""
        self._uncleanable: list[Partition] = []
        """Damaged ones: they are left alone until the next start."""

    def stop(self) -> None:
        """A round that is under way ends with its next slice, and is done again after the next start."""
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
        now = self._node.clock.now()
        best: tuple[bool, float] | None = None
        chosen = None
        for partition in self._node.partitions:
            if not self._may_clean(partition) or partition in failed:
                continue
            found = partition.log.cleanable(now)
            rank = (partition.topic_partition.topic in INTERNAL_TOPICS, found.dirty_ratio)
            if found.is_due(partition.log.config) and (best is None or rank > best):
                best, chosen = rank, partition
        return chosen

    def _may_clean(self, partition: Partition) -> bool:
        partition_log = partition.log
        is_usable = not partition.is_closed and not partition_log.is_offline
        return is_usable and partition_log.config.is_compacted and partition not in self._uncleanable

    # --- a round -----------------------------------------------------------------------------------------------------

    async def _clean(self, partition: Partition) -> bool:
        """One round; false: it came to nothing."""
        config = self._node.config
        cleaning = partition.log.begin_cleaning(self._node.clock.now(), config.log_cleaner_dedupe_buffer_size)
        try:
            is_whole = await self._run(partition, cleaning)
        except Exception as error:  # noqa: BLE001 - one bad partition must not keep the others from being cleaned.
            is_whole = False
            if not partition.is_closed and not partition.log.is_void(cleaning):
                self._report(partition, error)
        if not is_whole:
            await self._discard(cleaning)
            return False
        partition.log.finish_cleaning(cleaning)
        log.info("cleaned %s up to offset %d", partition.topic_partition, cleaning.end)
        return True

    def _report(self, partition: Partition, error: Exception) -> None:
        """What the disk refuses is tried again; a log that cannot be read is left alone, and the others are cleaned."""
        name = str(partition.topic_partition)
        if not isinstance(error, OSError):
            self._uncleanable.append(partition)
            what = f"{type(error).__name__}: {error}"
            log.error("%s is uncleanable until the next start, and grows meanwhile: %s", name, what)
        if not isinstance(error, (WireError, LogCorruption)):
            self._node.supervisor.report(f"cleaning {name}", error)

    async def _run(self, partition: Partition, cleaning: Cleaning) -> bool:
        mapping = cleaning.map_keys()
        while await self._slice(mapping) is not _END:
            if self._is_void(partition, cleaning):
                return False
        rewriting = cleaning.rewrite()
        while (cleaned := await self._slice(rewriting)) is not _END:
            if self._is_void(partition, cleaning):
                return False
            if cleaned is not None and not await partition.replace_segments(cleaning, cleaned):
                return False
        return True

    def _is_void(self, partition: Partition, cleaning: Cleaning) -> bool:
        return self._is_stopping or not self._may_clean(partition) or partition.log.is_void(cleaning)

    async def _slice(self, work: Iterator[Any]) -> Any:
        """The next step, in the background, and a rest as long as it took. ``_END``: there was none."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        result = await self._node.disk.in_background(partial(next, work, _END))
        await asyncio.sleep(loop.time() - begun)
        return result

    async def _discard(self, cleaning: Cleaning) -> None:
        try:
            await self._node.disk.in_background(cleaning.discard)
        except OSError as error:
            # The folder is gone, or recovery will sweep it.
            log.debug("cannot remove what was begun: %s", error)

    # --- for others --------------------------------------------------------------------------------------------------

    def _write_offsets(self) -> None:
        cleaned = {
            partition.topic_partition: partition.log.cleaned_offset
            for partition in self._node.partitions
            if partition.log.config.is_compacted and partition.log.cleaned_offset > 0
        }
        if cleaned != self._cleaned:
            self._node.disk.write_file(self._node.directory / FILE_NAME, encode_offsets(cleaned))
            self._cleaned = cleaned


def encode_offsets(offsets: dict[TopicPartition, Offset]) -> bytes:
    """The text of the file: version, number of entries, then a line "topic partition offset" each."""
    lines = [str(_VERSION), str(len(offsets))]
    lines += [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    return ("\n".join(lines) + "\n").encode()
