"""Bytes that the connections of a node hold together, against a limit: of requests, and of answers.

Only counts. At the limit the server and Fetch act: nothing more is read, answers become shorter, and stalled
connections that hold memory are disconnected.
"""

from __future__ import annotations

from typing import Final

RESPONSE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Memory for answers that their clients have not received yet. A Fetch reads at most the free part of it, and one
batch."""


class MemoryBudget:
    """``held`` may exceed the limit: a Fetch reads one batch however large, and a request in progress is completed."""

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
    """The share of one connection in a budget."""

    __slots__ = ("budget", "held")

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.held = 0

    def add(self, count: int) -> None:
        self.held += count
        self.budget.held += count

    def set(self, count: int) -> None:
        self.add(count - self.held)
