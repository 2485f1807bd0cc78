"""The classic groups of a shard: those that live, and the generations that the log has."""

from __future__ import annotations

from collections.abc import Iterator

from einmal.groups.classic.group import ClassicGroup, ShardTotals
from einmal.groups.classic.membership import Membership
from einmal.groups.classic.states import GroupState
from einmal.groups.config import GroupConfig
from einmal.groups.records import GroupMetadata, GroupRecord
from einmal.types import Instant


class ClassicGroups:
    """``live``: soft state, which ``membership`` changes. The generations are hard state: ``replay`` alone changes
    them."""

    def __init__(self, config: GroupConfig) -> None:
        self.live: dict[str, ClassicGroup] = {}
        self._totals = ShardTotals()
        self.membership = Membership(config, self.live, self._totals)
        self._generations: dict[str, GroupMetadata] = {}

    def replay(self, record: GroupRecord) -> None:
        if record.value is None:
            self._generations.pop(record.group_id, None)
        else:
            self._generations[record.group_id] = record.value

    def loaded(self, now: Instant) -> None:
        """The whole log was replayed: start the groups' soft state."""
        assert not self.live, "a shard is loaded once"
        for group_id, metadata in self._generations.items():
            group = ClassicGroup.restore(group_id, metadata, now.monotonic_ms, self._totals)
            self.live[group_id] = group
            self.membership.restore(group)

    def has_logged_members(self, group_id: str) -> bool:
        """Also while the removal of the last member is decided, and not written yet."""
        generation = self._generations.get(group_id)
        return generation is not None and bool(generation.members)

    def empty_since(self, group_id: str) -> int | None:
        """When the last member left (wall clock). None: the group never had one."""
        generation = self._generations.get(group_id)
        return None if generation is None else generation.current_state_timestamp

    def forget(self, group_id: str) -> Iterator[GroupRecord]:
        """Drop a group. Yields the tombstone of its generation, if it has one."""
        group = self.live.pop(group_id, None)
        if group is not None:
            self.membership.forget(group)
            group.move_to(GroupState.DEAD)
        if group_id in self._generations:
            yield GroupRecord(group_id, None)
