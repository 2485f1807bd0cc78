"""The first record of a batch that is not older than some time, found without making objects of the records.

Pure. A batch may decompress to a thousand times its size: what takes long may be looked for in another thread.
"""

from __future__ import annotations

from typing import NamedTuple

from einmal.log.admission import QUICK_BYTES, QUICK_RECORDS, SECTION_BYTES_MAX
from einmal.types import LeaderEpoch, Offset
from einmal.wire.errors import TooLarge
from einmal.wire.record_batch import BatchHeader, records_section
from einmal.wire.record_scan import record_times


class TimestampOffset(NamedTuple):
    """The answer to a search by time."""

    offset: Offset
    timestamp: int
    leader_epoch: LeaderEpoch


class TimeSearch:
    """``data``: the batch. ``position`` None: there is no such record at or after ``start``."""

    __slots__ = ("_data", "_header", "_start", "_timestamp", "position", "is_decided")

    def __init__(self, data: bytes, header: BatchHeader, timestamp: int, start: Offset) -> None:
        self._data = data
        self._header = header
        self._timestamp = timestamp
        self._start = start
        self.position: TimestampOffset | None = None
        self.is_decided = False
        """False: ``decide`` has to look, which takes longer than an event loop may stand."""
        if header.record_count <= QUICK_RECORDS and len(data) <= QUICK_BYTES:
            self.decide(QUICK_BYTES)

    @property
    def next_offset(self) -> Offset:
        return self._header.next_offset

    def decide(self, max_bytes: int = SECTION_BYTES_MAX, max_elements: int | None = None) -> bool:
        """Look, however long it takes. False: more than ``max_bytes`` once decompressed, or ``max_elements`` records.

        Headers are skipped as a whole. Raises CorruptBatch, or TooLarge at ``SECTION_BYTES_MAX``.
        """
        if max_elements is not None and self._header.record_count > max_elements:
            return False
        try:
            section = records_section(self._data, 0, self._header, max_bytes=max_bytes)
        except TooLarge:
            if max_bytes >= SECTION_BYTES_MAX:
                raise
            return False
        base_offset, base_timestamp, append_time = self._header.base_offset, self._header.base_timestamp, None
        if self._header.has_log_append_time:
            append_time = self._header.max_timestamp
        for since, delta in record_times(section, self._header.record_count):
            timestamp = base_timestamp + since if append_time is None else append_time
            if timestamp >= self._timestamp and base_offset + delta >= self._start:
                offset = Offset(base_offset + delta)
                self.position = TimestampOffset(offset, timestamp, self._header.partition_leader_epoch)
                break
        self.is_decided = True
        return True
