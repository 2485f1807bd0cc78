"""Which old segments may go. Decides on summaries; knows no file."""

from __future__ import annotations

from collections.abc import Sequence

from einmal.log.config import LogConfig
from einmal.log.segment import Segment
from einmal.types import Offset


def expired_segments(
    segments: Sequence[Segment], config: LogConfig, *, wall_ms: int, log_start_offset: Offset, limit: Offset
) -> int:
    """How many segments from the first on are to be deleted.

    Only what ends at or below ``limit`` (the high watermark) may go: by age, by size, or because the log starts later.
    """
    excess = sum(segment.size for segment in segments) - config.retention_bytes
    count = 0
    for segment in segments:
        is_active = segment is segments[-1]
        if segment.end_offset > limit or (is_active and not segment.size):
            break
        # Compaction may have emptied a closed one.
        is_empty = not segment.size
        is_old = config.retention_ms >= 0 and 0 <= segment.max_timestamp < wall_ms - config.retention_ms
        is_excess = config.retention_bytes >= 0 and excess >= segment.size
        is_before_start = segment.end_offset <= log_start_offset
        if not (is_before_start or (config.deletes and (is_old or is_excess or is_empty))):
            break
        excess -= segment.size
        count += 1
    return count
