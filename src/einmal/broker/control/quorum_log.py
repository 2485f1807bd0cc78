"""The quorum's view of the metadata log: a partition's log, and the snapshot that it may begin with."""

from __future__ import annotations

from einmal.broker.control.metadata_snapshots import MetadataSnapshots
from einmal.broker.replicas.log_view import LogView
from einmal.quorum.messages import OffsetAndEpoch
from einmal.types import LeaderEpoch, Offset


class QuorumLog:
    def __init__(self, log: LogView, snapshots: MetadataSnapshots) -> None:
        self._log = log
        self._snapshots = snapshots

    @property
    def start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self._log.log_end_offset

    @property
    def flushed_offset(self) -> int:
        return self._log.flushed_offset

    @property
    def high_watermark(self) -> Offset:
        return self._log.high_watermark

    @property
    def snapshot_id(self) -> OffsetAndEpoch | None:
        return self._snapshots.latest

    @property
    def last_epoch(self) -> int:
        if self._log.latest_epoch >= 0:
            return self._log.latest_epoch
        return 0 if self.snapshot_id is None else self.snapshot_id.epoch

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch | None:
        latest = self.last_epoch
        if epoch >= latest:
            return OffsetAndEpoch(self.end_offset, latest)
        known, end = self._log.end_offset_for_epoch(LeaderEpoch(epoch))
        # For an epoch before its first one, the log returns the start of the first one.
        is_known = known >= 0 and self._log.epoch_of_offset(Offset(end - 1)) == known
        return OffsetAndEpoch(end, known) if is_known else None
