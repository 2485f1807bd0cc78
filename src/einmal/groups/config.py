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
    """Maximum size of all members' metadata of a group, and of an assignment: both are in one record."""
    max_commit_bytes: int = 3_000_000
    """Maximum size of the offsets of one commit. A group writes them in one batch, which has to fit into a segment."""
    max_shard_bytes: int = 32 * 1024 * 1024
    """Size of all groups of a coordinator: the members' metadata, their assignments and pending member ids. Above it,
    new members with more than a little metadata have to wait; above twice as much, larger assignments, too."""
    max_pending_members: int = 10_000
    """Member ids of one group that were assigned and not yet used in a join."""
    max_shard_pending_members: int = 20_000
    """The same of all groups of a coordinator. Above it, new members have to wait."""
    new_member_join_timeout_ms: int = 300_000
    """Session timeout of a new member, which cannot send heartbeats while its first join waits (Kafka: 5 minutes)."""
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 60 * 60_000
    offsets_retention_check_interval_ms: int = 600_000
