"""Deadlines of a coordinator that are moved or dropped far more often than they are met.

A heap with lazy deletion: moving a deadline leaves its old entry in the heap, and whoever comes upon an entry that is
not its key's deadline any more drops it. So moving is one push, and a heap of a million members costs nothing while
nobody is late. Deadlines are clients' to choose and may be weeks away, so entries without a meaning are also counted,
and swept out before there are many more of them than keys.
"""

from __future__ import annotations

import heapq
from typing import Final, Generic, TypeVar

KeyT = TypeVar("KeyT")
_REPLACED_MAX: Final = 100
"""Entries without a meaning, beside one for each key."""


class Timers(Generic[KeyT]):
    """A deadline in monotonic ms for each key that has one."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, KeyT]] = []
        self._due: dict[KeyT, int] = {}
        # Breaks ties in the order of setting, and keeps keys from being compared.
        self._order = 0

    def set(self, key: KeyT, deadline: int) -> None:
        """Let ``key`` be popped at ``deadline``, and not at the one that it had."""
        if self._due.get(key) == deadline:
            return
        self._due[key] = deadline
        self._order += 1
        heapq.heappush(self._heap, (deadline, self._order, key))
        if len(self._heap) > 2 * len(self._due) + _REPLACED_MAX:
            self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)

    def watch(self, key: KeyT, deadline: int) -> None:
        """Let ``key`` be popped at ``deadline``, or before if it has an earlier one.

        For deadlines that are put off all the time: a heartbeat changes a field of its member only, and whoever is
        woken by the old deadline looks at the field and watches again.
        """
        due = self._due.get(key)
        if due is None or deadline < due:
            self.set(key, deadline)

    def drop(self, key: KeyT) -> None:
        """It has no deadline any more."""
        self._due.pop(key, None)

    def next_deadline(self) -> int | None:
        self._drop_replaced()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: int) -> list[KeyT]:
        """The keys whose time has come, once each. What is set from then on is for the next time, due or not."""
        due: list[KeyT] = []
        while True:
            self._drop_replaced()
            if not self._heap or self._heap[0][0] > now:
                return due
            _deadline, _order, key = heapq.heappop(self._heap)
            del self._due[key]
            due.append(key)

    def _drop_replaced(self) -> None:
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
