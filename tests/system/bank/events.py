"""The bank's half in the topic: events, and what a ``read_committed`` reader knows of them.

Every transaction writes to every partition. An event carries the number of its transaction, and its rank among the
events of that transaction in its partition: so a reader knows when it has a transaction whole, and whether one is
missing. Pure.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Final, NamedTuple

TOPIC: Final = "wallets"
PARTITIONS: Final = 3


class Event(NamedTuple):
    """Event ``entry`` of the ``entries`` events that transaction ``number`` has in this partition."""

    number: int
    entry: int
    entries: int
    transfer: str
    account: int
    delta: int

    def encode(self) -> bytes:
        return json.dumps(self).encode()

    @classmethod
    def decode(cls, value: bytes | None) -> Event:
        return cls(*json.loads(value or b""))


class TopicHalf:
    """What one reader has read so far. ``anomalies``: transactions that are missing, repeated or torn."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last: dict[int, Event] = {}
        self._deltas: Counter[int] = Counter()
        self.anomalies: list[str] = []
        self.torn: dict[int, None] = {}
        """Numbers that are missing, or there more than once, in any partition."""

    def read(self, partition: int, event: Event) -> None:
        """The next event of a partition."""
        last = self._last.get(partition)
        self._deltas[event.number] += event.delta
        expected = _following(last)
        if (event.number, event.entry) != expected:
            self._misplaced(partition, event, expected)
        self._last[partition] = event

    def _misplaced(self, partition: int, event: Event, expected: tuple[int, int]) -> None:
        number, entry = expected
        self.anomalies.append(
            f"{self._name}: partition {partition} has event {event.entry} of transaction {event.number} where "
            f"event {entry} of transaction {number} belongs"
        )
        torn = range(number, event.number) if event.number > number else [event.number]
        self.torn.update(dict.fromkeys(torn))

    def has(self, number: int) -> bool:
        """Every partition has been read up to the end of this transaction, or beyond."""
        return all(self._reached(partition) >= number for partition in range(PARTITIONS))

    def _reached(self, partition: int) -> int:
        """The last transaction of which this partition has everything that it will ever have."""
        return _following(self._last.get(partition))[0] - 1

    def last_number(self) -> int:
        return max((event.number for event in self._last.values()), default=0)

    def total(self, number: int) -> int:
        """The sum of the deltas of every transaction up to this one, and of none after it."""
        return sum(delta for each, delta in self._deltas.items() if each <= number)


def _following(last: Event | None) -> tuple[int, int]:
    if last is None:
        return 1, 0
    return (last.number + 1, 0) if last.entry + 1 == last.entries else (last.number, last.entry + 1)
