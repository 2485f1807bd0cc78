"""Takes a snapshot of the cluster's metadata when enough has been committed since the last one (KIP-630).

In the background, one at a time. Afterwards the log may begin at the snapshot before it: whoever is only a little
behind still finds its records.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.control.metadata_snapshots import MetadataSnapshots
from einmal.broker.replicas.partition import Partition
from einmal.event_log import EventLog
from einmal.metadata import records
from einmal.quorum import snapshot
from einmal.quorum.messages import OffsetAndEpoch
from einmal.seams import Clock
from einmal.types import Offset

log = EventLog(__name__)


class SnapshotWriter:
    """``bytes_between``: so much is appended between two snapshots. ``spawn`` begins what is done in the background."""

    def __init__(
        self,
        partition: Partition,
        snapshots: MetadataSnapshots,
        metadata: ClusterMetadata,
        clock: Clock,
        bytes_between: int,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._partition = partition
        self._snapshots = snapshots
        self._metadata = metadata
        self._clock = clock
        self._bytes_between = bytes_between
        self._spawn = spawn
        self._bytes_covered = -partition.log_size
        """Part of the partition's ``bytes_appended`` that is in a snapshot."""
        self.is_writing = False

    def look(self) -> None:
        """More is committed."""
        is_due = self._partition.bytes_appended - self._bytes_covered >= self._bytes_between
        if is_due and not self.is_writing:
            self.is_writing = True
            self._spawn(self._write())

    async def _write(self) -> None:
        try:
            self._bytes_covered = self._partition.bytes_appended
            await self._write_snapshot()
        except OSError as error:
            log.error("metadata_snapshot_failed", "no snapshot of the metadata log: %(error)s", error=error)
        finally:
            self.is_writing = False

    async def _write_snapshot(self) -> None:
        metadata, now = self._metadata, self._clock.now()
        end = metadata.next_offset
        epoch = self._partition.epoch_of_offset(Offset(end - 1))
        snapshot_id = OffsetAndEpoch(end, epoch)
        values = [records.encode(record)[1] for record in metadata.image.snapshot_records()]
        data = snapshot.encode(values, epoch, last_contained_log_timestamp=now.wall_ms, timestamp=now.wall_ms)
        before = self._snapshots.latest
        if before is not None and snapshot_id <= before:
            return
        await self._snapshots.store(snapshot_id, data)
        if before == self._snapshots.latest:
            self._snapshots.use(snapshot_id)
            if before is not None:
                self._partition.delete_records_before(Offset(before.offset))
