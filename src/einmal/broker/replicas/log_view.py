"""View of a replica's log for whoever serves it: where it begins and ends, what is in it, and who wrote that.

Everything here reads. What changes a log goes through its ``Partition``, which knows who leads and who waits.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from einmal.log.compaction import Cleanable
from einmal.log.config import LogConfig
from einmal.log.partition_log import PartitionLog
from einmal.log.producer_state import ProducerStates
from einmal.log.time_search import TimeSearch
from einmal.types import Instant, IsolationLevel, LeaderEpoch, Offset
from einmal.wire.fetch import AbortedTransaction


class LogView:
    def __init__(self, partition_log: PartitionLog) -> None:
        self._log = partition_log
        self.topic_partition = partition_log.topic_partition

    # --- offsets -----------------------------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> Offset:
        return self._log.log_start_offset

    @property
    def log_end_offset(self) -> Offset:
        return self._log.segments.active.end_offset

    @property
    def high_watermark(self) -> Offset:
        return self._log.high_watermark

    @property
    def last_stable_offset(self) -> Offset:
        """Below it no transaction is undecided."""
        return self._log.last_stable_offset

    @property
    def flushed_offset(self) -> Offset:
        """Batches before it survive a power cut."""
        return self._log.durability.flushed_offset

    @property
    def cleaned_offset(self) -> Offset:
        """How far the log is compacted."""
        return self._log.cleaned_offset

    @property
    def newest_file(self) -> PurePosixPath:
        """The one that is appended to."""
        return self._log.durability.newest_file

    def visible_end(self, isolation: IsolationLevel) -> Offset:
        """Before which offset a consumer of this isolation may read."""
        if isolation is IsolationLevel.READ_COMMITTED:
            return self._log.last_stable_offset
        return self._log.high_watermark

    # --- leader epochs -----------------------------------------------------------------------------------------------

    @property
    def latest_epoch(self) -> LeaderEpoch:
        """Epoch of the last batch, or, where this replica leads, of the next; -1: there is none."""
        return self._log.epochs.latest

    def epoch_of_offset(self, offset: Offset) -> LeaderEpoch:
        """The leader epoch that ``offset`` belongs to; -1 when unknown."""
        return self._log.epochs.epoch_of(offset)

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """The largest epoch here that is not above ``epoch``, and where it ends (KIP-101, KIP-279); else (-1, -1)."""
        return self._log.end_offset_for_epoch(epoch)

    # --- records -----------------------------------------------------------------------------------------------------

    def read(self, offset: Offset, max_bytes: int, *, below: Offset, min_one: bool = True) -> bytes:
        """Whole batches from the one that holds ``offset``, none that reaches ``below``: see ``Segments.read``.

        Raises LogCorruption or OSError.
        """
        return self._log.segments.read(offset, max_bytes, below=below, min_one=min_one)

    def bytes_between(self, offset: Offset, below: Offset, at_most: int) -> int:
        """Return the bytes of the batches between two offsets, counted no further than ``at_most``: see
        ``Segments``."""
        return self._log.segments.bytes_between(offset, below, at_most)

    def search_by_time(self, timestamp: int, start: Offset) -> TimeSearch | Offset | None:
        """In the first batch from ``start`` on with a record that is not older: see ``Segments``.

        Raises LogCorruption or OSError.
        """
        return self._log.search_by_time(timestamp, start)

    @property
    def max_timestamp(self) -> int:
        """The largest of all records, in ms; -1: there is none."""
        return self._log.segments.max_timestamp

    @property
    def log_size(self) -> int:
        """Bytes in all segments."""
        return self._log.segments.size

    @property
    def segment_count(self) -> int:
        return len(self._log.segments.in_order)

    def aborted_transactions(self, first: Offset, end: Offset) -> list[AbortedTransaction]:
        """The aborted transactions with records between ``first`` and before ``end``, by first offset."""
        return self._log.segments.aborted_transactions(first, end)

    @property
    def producers(self) -> ProducerStates:
        """State of the producers that write here."""
        return self._log.producers

    # --- settings and health -----------------------------------------------------------------------------------------

    @property
    def config(self) -> LogConfig:
        return self._log.config

    def cleanable(self, now: Instant) -> Cleanable:
        """How dirty the log is. Raises OSError."""
        return self._log.cleanable(now)

    @property
    def is_offline(self) -> bool:
        """Nothing can be written for as long as the process lives."""
        return self._log.durability.is_offline
