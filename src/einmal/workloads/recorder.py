"""The history of a run, recorded as it happens.

An operation is recorded when it begins, with an unknown outcome; so the history is true even if the process is killed.
Those with many values are kept packed: a run of an hour has ten million values, all of them read by several readers.
"""

from __future__ import annotations

import asyncio
import pickle
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from einmal.checker.history import History, Key, Op, OpOutcome, Poll, Send
from einmal.client.records import ConsumerRecord

_PACKED_FROM: Final = 100
"""Values of an operation."""


@dataclass(frozen=True, slots=True)
class _Ops:
    """Operations as they are kept."""

    kept: tuple[Op | bytes, ...]

    def __iter__(self) -> Iterator[Op]:
        return map(_unpacked, self.kept)


@dataclass(slots=True)
class _Recorded:
    """``counts``: operations that write, by their outcome. ``sent``: values."""

    ops: list[Op | bytes] = field(default_factory=list)
    counts: Counter[OpOutcome] = field(default_factory=Counter)
    sent: int = 0


class Recorder:
    def __init__(self) -> None:
        self._recorded = _Recorded()

    @property
    def sent(self) -> int:
        """How many values operations sent, or were about to send."""
        return self._recorded.sent

    def begin(self, process: int, *, transactional: bool = False) -> OngoingOp:
        """An operation that writes, with an outcome still unknown."""
        self._recorded.ops.append(
            Op(process=process, actions=(), outcome=OpOutcome.INFO, transactional=transactional, began=_now())
        )
        return OngoingOp(self._recorded)

    def polled(
        self, process: int, records: Iterable[ConsumerRecord], *, read_committed: bool, starts_anew: bool = False
    ) -> None:
        """The records of one poll. It counts as an operation of the moment when it returned."""
        polls = _polls(records)
        op = Op(
            process=process,
            actions=tuple(polls),
            outcome=OpOutcome.OK,
            read_committed=read_committed,
            starts_anew=starts_anew,
            began=_now(),
            ended=_now(),
        )
        self._recorded.ops.append(_packed(op, sum(len(poll.records) for poll in polls)))

    def history(self, *, is_read_to_the_end: bool) -> History:
        return History(_Ops(tuple(self._recorded.ops)), is_read_to_the_end)

    def count(self, outcome: OpOutcome) -> int:
        """Writing operations with this outcome."""
        return self._recorded.counts[outcome]


class OngoingOp:
    """One operation in progress: the last of those recorded so far."""

    __slots__ = ("_index", "_recorded")

    def __init__(self, recorded: _Recorded) -> None:
        self._recorded = recorded
        self._index = len(recorded.ops) - 1

    @property
    def op(self) -> Op:
        return _unpacked(self._recorded.ops[self._index])

    def sends(self, *sends: Send) -> None:
        """Values are about to be sent."""
        if not self.op.sends:
            self._recorded.counts[self.op.outcome] += 1
        self._recorded.sent += len(sends)
        self._recorded.ops[self._index] = replace(self.op, actions=(*self.op.actions, *sends))

    def polled(self, records: Iterable[ConsumerRecord], *, rebalanced: bool = False) -> None:
        """The records of a poll inside of it, by a consumer whose group may have moved it since the one before."""
        polls = _polls(records)
        self._recorded.ops[self._index] = replace(
            self.op, actions=(*self.op.actions, *polls), rebalanced=self.op.rebalanced or rebalanced
        )

    def subscribed(self) -> None:
        """A group decides which partitions are read."""
        self._recorded.ops[self._index] = replace(self.op, subscribed=True)

    def starts_anew(self) -> None:
        """The reader's position was set before."""
        self._recorded.ops[self._index] = replace(self.op, starts_anew=True)

    def ended(self, outcome: OpOutcome, offsets: Sequence[int | None] = (), cause: str = "") -> None:
        """``offsets``: of the sends, in their order, as far as they are known."""
        known = iter([*offsets, *[None] * (len(self.op.sends) - len(offsets))])
        actions = tuple(
            Send(action.key, action.value, next(known)) if isinstance(action, Send) else action
            for action in self.op.actions
        )
        if self.op.sends:
            self._recorded.counts[self.op.outcome] -= 1
            self._recorded.counts[outcome] += 1
        ended = None if outcome is OpOutcome.INFO else _now()
        op = replace(self.op, actions=actions, outcome=outcome, ended=ended, cause=cause)
        self._recorded.ops[self._index] = _packed(op, len(actions))


def _polls(records: Iterable[ConsumerRecord]) -> list[Poll]:
    """One for each partition."""
    read: dict[Key, list[tuple[int, str]]] = {}
    for record in records:
        read.setdefault(record.topic_partition, []).append((record.offset, text_of(record.value)))
    return [Poll(key, tuple(values)) for key, values in read.items()]


def _packed(op: Op, values: int) -> Op | bytes:
    # Made and read in this process only.
    return op if values < _PACKED_FROM else zlib.compress(pickle.dumps(op, pickle.HIGHEST_PROTOCOL), 1)


def _unpacked(kept: Op | bytes) -> Op:
    if isinstance(kept, Op):
        return kept
    op: Op = pickle.loads(zlib.decompress(kept))
    return op


def text_of(value: bytes | None) -> str:
    """Return a value of a record as histories have it."""
    return (value or b"").decode(errors="backslashreplace")


def _now() -> float:
    return asyncio.get_running_loop().time()
