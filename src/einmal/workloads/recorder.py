"""The history of a run, recorded as it happens.

An operation is recorded when it begins, with an unknown outcome; so the history is true even if the process is killed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from einmal.checker.history import History, Key, Op, OpOutcome, Poll, Send
from einmal.client.records import ConsumerRecord


class Recorder:
    def __init__(self) -> None:
        self._ops: list[Op] = []
        self._counts: Counter[OpOutcome] = Counter()

    def begin(self, process: int, *, transactional: bool = False) -> OngoingOp:
        """An operation that writes, with an outcome still unknown."""
        self._ops.append(
            Op(process=process, actions=(), outcome=OpOutcome.INFO, transactional=transactional, began=_now())
        )
        return OngoingOp(self._ops, len(self._ops) - 1, self._counts)

    def polled(
        self, process: int, records: Iterable[ConsumerRecord], *, read_committed: bool, starts_anew: bool = False
    ) -> None:
        """The records of one poll. It counts as an operation of the moment when it returned."""
        polls: dict[Key, list[tuple[int, str]]] = {}
        for record in records:
            polls.setdefault(record.topic_partition, []).append(
                (record.offset, (record.value or b"").decode(errors="backslashreplace"))
            )
        self._ops.append(
            Op(
                process=process,
                actions=tuple(Poll(key, tuple(read)) for key, read in polls.items()),
                outcome=OpOutcome.OK,
                read_committed=read_committed,
                starts_anew=starts_anew,
                began=_now(),
                ended=_now(),
            )
        )

    def history(self, *, is_read_to_the_end: bool) -> History:
        return History(tuple(self._ops), is_read_to_the_end)

    def count(self, outcome: OpOutcome) -> int:
        """Writing operations with this outcome."""
        return self._counts[outcome]


class OngoingOp:
    """One operation in progress. ``counts``: of the operations that write."""

    __slots__ = ("_counts", "_index", "_ops")

    def __init__(self, ops: list[Op], index: int, counts: Counter[OpOutcome]) -> None:
        self._ops = ops
        self._index = index
        self._counts = counts

    @property
    def op(self) -> Op:
        return self._ops[self._index]

    def sends(self, key: Key, value: str) -> None:
        """A value is about to be sent."""
        if not self.op.sends:
            self._counts[self.op.outcome] += 1
        self._ops[self._index] = replace(self.op, actions=(*self.op.actions, Send(key, value)))

    def polled(self, records: Iterable[ConsumerRecord], *, rebalanced: bool = False) -> None:
        """The records of a poll inside of it, by a consumer whose group may have moved it since the one before."""
        polls: dict[Key, list[tuple[int, str]]] = {}
        for record in records:
            polls.setdefault(record.topic_partition, []).append(
                (record.offset, (record.value or b"").decode(errors="backslashreplace"))
            )
        actions = [Poll(key, tuple(read)) for key, read in polls.items()]
        self._ops[self._index] = replace(
            self.op, actions=(*self.op.actions, *actions), rebalanced=self.op.rebalanced or rebalanced
        )

    def subscribed(self) -> None:
        """A group decides which partitions are read."""
        self._ops[self._index] = replace(self.op, subscribed=True)

    def starts_anew(self) -> None:
        """The reader's position was set before."""
        self._ops[self._index] = replace(self.op, starts_anew=True)

    def ended(self, outcome: OpOutcome, offsets: Sequence[int | None] = (), cause: str = "") -> None:
        """``offsets``: of the sends, in their order, as far as they are known."""
        known = iter([*offsets, *[None] * (len(self.op.sends) - len(offsets))])
        actions = tuple(
            Send(action.key, action.value, next(known)) if isinstance(action, Send) else action
            for action in self.op.actions
        )
        if self.op.sends:
            self._counts[self.op.outcome] -= 1
            self._counts[outcome] += 1
        ended = None if outcome is OpOutcome.INFO else _now()
        self._ops[self._index] = replace(self.op, actions=actions, outcome=outcome, ended=ended, cause=cause)


def text_of(value: bytes | None) -> str:
    """Return a value of a record as histories have it."""
    return (value or b"").decode(errors="backslashreplace")


def _now() -> float:
    return asyncio.get_running_loop().time()
