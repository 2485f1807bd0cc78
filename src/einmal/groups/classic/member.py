"""One member of a group, as its coordinator knows it while the group lives.

Soft state: only its part in ``GroupMetadata`` survives a change of coordinator.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from einmal.groups.records import MemberMetadata, text_bytes
from einmal.groups.requests import Ticket

_OVERHEAD: Final = 100


@dataclass(slots=True, kw_only=True)
class Member:
    """``session_deadline`` is monotonic ms; ``is_new``: has not had the answer to its first join yet."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    session_deadline: int
    assignment: bytes = b""
    is_new: bool = False
    join_ticket: Ticket | None = None
    sync_ticket: Ticket | None = None

    @property
    def size(self) -> int:
        """Bytes of its metadata."""
        return size_of(self.client_id, self.group_instance_id, self.protocols)

    def metadata_for(self, protocol_name: str | None) -> bytes:
        """The member's metadata for one protocol; empty if it does not support it."""
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")

    def vote(self, candidates: dict[str, int]) -> str:
        """The protocol that this member prefers among those that all members support."""
        return next(name for name, _metadata in self.protocols if name in candidates)

    def describe(self, protocol_name: str | None) -> MemberMetadata:
        return MemberMetadata(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata_for(protocol_name),
            assignment=self.assignment,
        )

    @classmethod
    def restore(cls, metadata: MemberMetadata, protocol_name: str | None, now: int) -> Member:
        """A member as a new coordinator finds it in the log, with a new session."""
        return cls(
            member_id=metadata.member_id,
            group_instance_id=metadata.group_instance_id,
            client_id=metadata.client_id,
            client_host=metadata.client_host,
            rebalance_timeout_ms=metadata.rebalance_timeout_ms,
            session_timeout_ms=metadata.session_timeout_ms,
            protocols=((protocol_name or "", metadata.subscription),),
            session_deadline=now + metadata.session_timeout_ms,
            assignment=metadata.assignment,
        )


def size_of(client_id: str, group_instance_id: str | None, protocols: Iterable[tuple[str, bytes]]) -> int:
    """Bytes of a member's metadata in JoinGroup."""
    # Its member id begins with its client id, or with its instance's.
    names = 2 * text_bytes(client_id) + 2 * text_bytes(group_instance_id)
    return _OVERHEAD + names + sum(text_bytes(name) + len(metadata) for name, metadata in protocols)


def size_of_id(member_id: str) -> int:
    """Bytes that a member id takes until it is used in a join."""
    return _OVERHEAD + text_bytes(member_id)
