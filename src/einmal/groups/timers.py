"""Deadlines that are moved far more often than they are met.

A heartbeat only changes a field of its member: the heap keeps the older, earlier entry, and whoever is woken by it
looks at the field and watches again. So the heap has one live entry per key, whatever the rate of heartbeats, and not
many more that an earlier deadline has replaced: deadlines are members' to choose, and may be weeks away.
"""

from __future__ import annotations

import heapq
from typing import Final, Generic, TypeVar

KeyT = TypeVar("KeyT")
_REPLACED_MAX: Final = 1_000
"""Entries that mean nothing any more, beside one for each key."""


class Timers(Generic[KeyT]):
    """Keys to be looked at, not later than watched for."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, KeyT]] = []
        self._due: dict[KeyT, int] = {}
        # Breaks ties in the order of watching, and keeps keys from being compared.
        self._watched = 0

    def watch(self, key: KeyT, deadline: int) -> None:
        """Let ``key`` be popped at ``deadline`` (monotonic ms), or before."""
        due = self._due.get(key)
        if due is not None and due <= deadline:
            return
        self._due[key] = deadline
        self._watched += 1
        heapq.heappush(self._heap, (deadline, self._watched, key))
        if len(self._heap) > 2 * len(self._due) + _REPLACED_MAX:
            self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)

    def next_deadline(self) -> int | None:
        self._drop_replaced()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: int) -> list[KeyT]:
        """The keys whose time has come, once each. What is watched from then on is for the next time, due or not."""
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
