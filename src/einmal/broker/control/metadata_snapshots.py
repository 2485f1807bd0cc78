"""The snapshots of the metadata log on disk (KIP-630): ``<offset>-<epoch>.checkpoint`` beside the segments.

A snapshot holds committed records only and is durable before the log may start behind the one before it. One is kept,
the latest. Knows neither Raft nor what a record means.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from einmal.event_log import EventLog
from einmal.log.disk import Disk
from einmal.log.errors import LogCorruption
from einmal.quorum import snapshot
from einmal.quorum.messages import OffsetAndEpoch
from einmal.types import ErrorCode, Offset
from einmal.wire.errors import WireError
from einmal.wire.record_batch import validate_all

log = EventLog(__name__)


class MetadataSnapshots:
    def __init__(self, disk: Disk, directory: PurePosixPath) -> None:
        self._disk = disk
        self.directory = directory
        self.latest: OffsetAndEpoch | None = None
        """Within the log, or where it starts."""

    def load(self, log_start: Offset) -> tuple[OffsetAndEpoch, list[bytes]] | None:
        """The latest that can be read, with its records' values; None: there is none, and the log is whole.

        Raises OSError, or LogCorruption when a log that starts at ``log_start`` has no snapshot of what was before.
        """
        for snapshot_id in sorted(self._ids(), reverse=True):
            try:
                values = snapshot.decode(self._disk.read_file(self._path(snapshot_id)))
            except WireError as error:
                log.error("metadata_snapshot_damaged", "%(path)s: %(error)s", path=self._path(snapshot_id), error=error)
                continue
            if snapshot_id.offset >= log_start:
                return snapshot_id, values
        if log_start > 0:
            raise LogCorruption(
                f"{self.directory} starts at {log_start}, and no snapshot that can be read has what was before. "
                "Restore it from a backup; or, where a majority of the other controllers is alive, move it away: it is "
                "copied from their leader"
            )
        return None

    def read(self, snapshot_id: OffsetAndEpoch, position: int, size: int) -> tuple[bytes, int] | ErrorCode:
        """A part of the file, and the size of the whole. Raises OSError, or LogCorruption at its beginning."""
        if snapshot_id != self.latest:
            return ErrorCode.snapshot_not_found
        file = self._disk.open(self._path(snapshot_id))
        try:
            total = file.size()
            if not 0 <= position < total:
                return ErrorCode.position_out_of_range
            if position > 0:
                return file.read(position, size), total
            data = file.read(0, total)
        finally:
            file.close()
        # What begins a transfer is verified whole: the receiver could not know that another voter has a good one.
        try:
            validate_all(data)
        except WireError as error:
            raise LogCorruption(f"{self._path(snapshot_id)}: {error}") from error
        return data[:size], total

    async def store(self, snapshot_id: OffsetAndEpoch, data: bytes) -> None:
        """Write a whole snapshot down, durably. Raises OSError."""
        await self._disk.in_background(lambda: self._disk.write_file(self._path(snapshot_id), data))

    def use(self, snapshot_id: OffsetAndEpoch) -> None:
        """Use a stored snapshot as the latest from now on, and remove older ones. Raises OSError."""
        self.latest = snapshot_id
        for other in self._ids():
            if other < snapshot_id:
                self._disk.remove(self._path(other))

    def _ids(self) -> list[OffsetAndEpoch]:
        snapshot_ids = (snapshot.id_of(name) for name in self._disk.list_directory(self.directory))
        return [snapshot_id for snapshot_id in snapshot_ids if snapshot_id is not None]

    def _path(self, snapshot_id: OffsetAndEpoch) -> PurePosixPath:
        return self.directory / snapshot.file_name(snapshot_id)
