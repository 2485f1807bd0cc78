"""Version-independent requests of the classic protocol.

Field names are Kafka's. What only some versions of a request can express has a field of its own here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroup:
    """``fresh_id``: random text for the id of a new member. ``protocols``: (name, metadata), preferred first."""

    group_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    client_id: str
    client_host: str
    fresh_id: str
    requires_known_member_id: bool
    """A new dynamic member gets its id first, and then joins with it (v4+, KIP-394)."""
    supports_skipping_assignment: bool
    """The response can let a restarted static leader skip the assignment (v9+, KIP-814)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroup:
    """``protocol_type``, ``protocol_name``: None where the version does not have them (before v5)."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """An operator removes a static member by its instance id alone: then ``member_id`` is empty."""

    member_id: str
    group_instance_id: str | None


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    group_id: str
    members: tuple[MemberIdentity, ...]
