"""A group as the shared part of the coordinator sees it, whatever its protocol."""

from __future__ import annotations

from collections.abc import Set
from typing import Protocol

from einmal.groups.requests import OffsetCommit, TxnOffsetCommit
from einmal.types import ErrorCode
from einmal.wire.api.describe_groups import DescribedGroup
from einmal.wire.api.list_groups import ListedGroup


class Group(Protocol):
    """Interface of a group to committed offsets, lists and expiry."""

    @property
    def is_empty(self) -> bool:
        """It has no members, but perhaps offsets."""

    @property
    def is_dead(self) -> bool:
        """It does not exist, or no more."""

    @property
    def is_awaited(self) -> bool:
        """Somebody has announced to join it."""

    @property
    def has_known_subscriptions(self) -> bool:
        """Whether ``wanted`` can read what its members subscribe to."""

    def wanted(self, topics: Set[str]) -> Set[str]:
        """Those of the topics that a member is, or may be, subscribed to."""

    def kept(self, topics: Set[str]) -> Set[str]:
        """Those of the topics whose offsets do not expire while it has members."""

    def commit_refusal(self, request: OffsetCommit | TxnOffsetCommit, *, is_transactional: bool) -> ErrorCode:
        """The error for a commit as this member, in this generation."""

    def describe(self) -> DescribedGroup:
        """Its part of the answer to DescribeGroups."""

    def entry(self) -> ListedGroup:
        """Its entry in the answer to ListGroups."""
