"""Settings of a topic as one of its partitions applies them. Field names are Kafka's topic settings in snake case."""

from __future__ import annotations

from dataclasses import dataclass

CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    segment_bytes: int = 1_073_741_824
    segment_ms: int = 604_800_000
    retention_ms: int = 604_800_000
    """-1: no limit."""
    retention_bytes: int = -1
    """-1: no limit."""
    index_interval_bytes: int = 4096
    max_message_bytes: int = 1_048_588
    """Largest batch of a client, header included."""
    timestamp_type: str = CREATE_TIME
    message_timestamp_before_max_ms: int = 2**63 - 1
    """How far a producer's CreateTime may be behind the broker's clock."""
    message_timestamp_after_max_ms: int = 3_600_000
    """How far a producer's CreateTime may be ahead of the broker's clock."""
    cleanup_policy: str = "delete"
    """``delete``, ``compact``, or both with a comma between them."""
    min_cleanable_dirty_ratio: float = 0.5
    delete_retention_ms: int = 86_400_000
    """How long a tombstone stays after the first round that meets it."""
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1
    producer_id_expiration_ms: int = 86_400_000
    flush_each: bool = False
    """``log.flush.interval.messages=1``: nothing counts before it is flushed."""

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy
