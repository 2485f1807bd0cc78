"""Bytes that the connections of a node hold together, against a limit: of requests, and of answers.

Only counts. What is done at the limit is the server's and Fetch's: nothing more is read, answers become shorter, and
whoever holds memory without moving is disconnected.
"""

from __future__ import annotations

from typing import Final

RESPONSE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of answers that their clients have not taken yet. A Fetch reads no more than what is left of it, and one batch."""


class MemoryBudget:
    """``held`` may exceed the limit: a Fetch gives one batch however large, and a request in progress is completed."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    @property
    def room(self) -> int:
        return max(0, self.limit - self.held)

    @property
    def is_exhausted(self) -> bool:
        return self.held >= self.limit


class Share:
    """What one connection holds of a budget."""

    __slots__ = ("_budget", "held")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.held = 0

    def add(self, count: int) -> None:
        self.held += count
        self._budget.held += count

    def set(self, count: int) -> None:
        self.add(count - self.held)
