"""The group coordinator's settings, with Kafka's defaults.

The broker's table of settings has the dotted names: ``group.*`` and ``offsets.*``; its minutes are milliseconds here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    initial_rebalance_delay_ms: int = 3_000
    """For how long an empty group waits for more members after its first."""
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2**31 - 1
    max_bytes: int = 1_500_000
    """Of what the members of a group say of themselves, and of an assignment: both are in one record."""
    max_commit_bytes: int = 3_000_000
    """Of the offsets of one commit. What a group writes at once is one batch, which has to fit into a segment."""
    max_shard_bytes: int = 16 * 1024 * 1024
    """The same of all groups of a coordinator: a new member with more than a little has to wait above this."""
    max_pending_members: int = 10_000
    """Ids of one group that were given out and not yet joined under."""
    new_member_join_timeout_ms: int = 300_000
    """A new member cannot send heartbeats while its first join waits: for so long it is believed (Kafka: 5 minutes)."""
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 60 * 60_000
    offsets_retention_check_interval_ms: int = 600_000
