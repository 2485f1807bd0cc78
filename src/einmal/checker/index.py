"""A history by key, value and offset, for lookups of the checks.

The versions of a key are ordered by the offsets that readers, and senders of committed transactions, received.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict

from einmal.checker.history import History, Key, Op, OpOutcome, Poll, Send, Value


class Index:
    def __init__(self, history: History) -> None:
        self.history = history
        self.writers: dict[tuple[Key, Value], Op] = {}
        self.readers: dict[tuple[Key, Value], list[Op]] = defaultdict(list)
        self.values_at: dict[Key, dict[int, dict[Value, None]]] = defaultdict(lambda: defaultdict(dict))
        self.offsets_of: dict[tuple[Key, Value], dict[int, None]] = defaultdict(dict)
        self.read_up_to: dict[Key, int] = {}
        for op in history.ops:
            for send in op.sends:
                self.writers[send.key, send.value] = op
            for poll in op.polls:
                self._read(op, poll)
        for op in history.ops:
            for send in op.sends:
                if send.offset is not None:
                    self.offsets_of[send.key, send.value][send.offset] = None
                if send.offset is not None and self.is_committed(op, send):
                    self.values_at[send.key][send.offset][send.value] = None
        self.committed_offsets = {
            key: sorted(
                offset
                for offset, values in by_offset.items()
                if any(self.is_visible(key, value) or self._is_written(key, value) for value in values)
            )
            for key, by_offset in self.values_at.items()
        }

    def _read(self, op: Op, poll: Poll) -> None:
        for offset, value in poll.records:
            self.values_at[poll.key][offset][value] = None
            self.offsets_of[poll.key, value][offset] = None
            if op.read_committed:
                self.readers[poll.key, value].append(op)
                self.read_up_to[poll.key] = max(offset, self.read_up_to.get(poll.key, -1))

    def is_visible(self, key: Key, value: Value) -> bool:
        """A ``read_committed`` reader got it."""
        return (key, value) in self.readers

    def _is_written(self, key: Key, value: Value) -> bool:
        writer = self.writers.get((key, value))
        return writer is not None and writer.outcome is OpOutcome.OK

    def is_committed(self, op: Op, send: Send) -> bool:
        """Acknowledged, or of unknown outcome but seen (in a transaction: any of it)."""
        if op.outcome is not OpOutcome.INFO:
            return op.outcome is OpOutcome.OK
        mates = op.sends if op.transactional else [send]
        return any(self.is_visible(mate.key, mate.value) for mate in mates)

    def offset_of(self, key: Key, value: Value) -> int | None:
        return min(self.offsets_of.get((key, value), ()), default=None)

    def is_skipped(self, key: Key, last: int, following: int) -> bool:
        """Whether committed records are known to lie between two offsets."""
        offsets = self.committed_offsets.get(key, [])
        return bisect_right(offsets, last) < bisect_left(offsets, following)
