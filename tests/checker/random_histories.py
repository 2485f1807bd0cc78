"""Small random histories, most of them with mistakes: of the log, of clients, and of clocks."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from einmal.checker.history import History, Op, OpOutcome, Poll, Send
from einmal.types import TopicPartition

KEYS = (TopicPartition("x", 0), TopicPartition("y", 3))
_WRITERS, _MEMBERS, _READERS = (1, 2), (3, 4), (5, 6, 7)


@dataclass
class _Log:
    """One key. ``chance``: of a mistake, each time."""

    source: random.Random
    mistakes: float
    records: list[tuple[int, str]] = field(default_factory=list)
    end: int = 0

    def __post_init__(self) -> None:
        self.end = self.source.choice((0, 250, 10**12))

    def is_wrong(self) -> bool:
        return self.source.random() < self.mistakes

    def append(self, value: str) -> int:
        self.end += self.source.choice((1, 1, 1, 2))
        offset = self.end - 1
        if self.records and self.is_wrong():
            offset = self.source.choice(self.records)[0]
        self.records.append((offset, value))
        if self.is_wrong():
            self.records.append((self.end, value))
            self.end += 1
        return offset

    def read(self, position: int) -> tuple[tuple[int, str], ...]:
        found = self.records[position : position + self.source.randint(0, 4)]
        if len(found) > 1 and self.is_wrong():
            del found[self.source.randrange(len(found))]
        if len(found) > 1 and self.is_wrong():
            self.source.shuffle(found)
        if found and self.is_wrong():
            offset, value = found[0]
            found[0] = (offset, f"{value} damaged")
        return tuple(found)


def random_history(seed: int) -> History:
    """The same for the same seed."""
    return _Maker(random.Random(seed)).history()


class _Maker:
    def __init__(self, source: random.Random) -> None:
        self._source = source
        mistakes = source.choice((0.0, 0.03, 0.15))
        self._logs = {key: _Log(source, mistakes) for key in KEYS}
        self._positions: dict[tuple[int, TopicPartition], int] = {}
        self._count = 0
        self._now = 0.0

    def history(self) -> History:
        ops = [self._op() for _ in range(self._source.randint(2, 25))]
        if self._logs[KEYS[0]].mistakes and self._source.random() < 0.3:
            self._read_from_the_future(ops)
        return History(tuple(ops), self._source.random() < 0.5)

    def _read_from_the_future(self, ops: list[Op]) -> None:
        """A member of a group gets what a later operation writes, soon after it has written itself."""
        members = [number for number, op in enumerate(ops) if op.process in _MEMBERS]
        if members:
            number = self._source.choice(members)
            later = [send for op in ops[number + 1 : number + 6] for send in op.sends if send.offset is not None]
            polls = tuple(Poll(send.key, ((send.offset or 0, send.value),)) for send in later[:2])
            ops[number] = replace(ops[number], actions=(*ops[number].actions, *polls))

    def _op(self) -> Op:
        source = self._source
        self._now += source.choice((0.0, 0.5, 1.0))
        process = source.choice((*_WRITERS, *_MEMBERS, *_READERS))
        outcome = source.choices((OpOutcome.OK, OpOutcome.FAIL, OpOutcome.INFO), (8, 1, 1))[0]
        began = self._now
        if self._is_wrong():
            began -= source.uniform(0, 5)
        op = Op(process=process, actions=(), outcome=outcome, began=began, ended=self._ended(outcome, began))
        if process in _READERS:
            is_lost = outcome is OpOutcome.FAIL
            polls = tuple(self._polls(process))
            op = replace(op, actions=polls, starts_anew=self._is_rare(), read_committed=not self._is_rare())
            return op if is_lost else replace(op, outcome=OpOutcome.OK, ended=began if op.ended is None else op.ended)
        is_member = process in _MEMBERS
        is_transactional = is_member or source.random() < 0.7
        actions: list[Send | Poll] = [*self._polls(process)] if is_member else []
        actions += [self._send(outcome) for _ in range(source.randint(1, 3) if is_transactional else 1)]
        if is_member and source.random() < 0.3:
            actions += self._polls(process)
        return replace(
            op,
            actions=tuple(actions),
            transactional=is_transactional,
            subscribed=is_member and source.random() < 0.5,
            rebalanced=is_member and self._is_rare(),
            aborted_later=outcome is OpOutcome.INFO and self._is_rare(),
        )

    def _send(self, outcome: OpOutcome) -> Send:
        self._count += 1
        value, key = f"v{self._count}", self._source.choice(KEYS)
        is_there = outcome is OpOutcome.OK or (outcome is OpOutcome.INFO and self._source.random() < 0.5)
        offset = self._logs[key].append(value) if is_there != self._is_wrong() else None
        is_known = outcome is OpOutcome.OK or self._is_rare()
        return Send(key, value, offset if is_known else None)

    def _polls(self, process: int) -> list[Poll]:
        found = []
        for key in self._source.sample(KEYS, self._source.randint(1, len(KEYS))):
            position = self._positions.get((process, key), 0)
            records = self._logs[key].read(position)
            self._positions[process, key] = max(0, position + len(records) - int(self._is_wrong()))
            found.append(Poll(key, records))
        return found

    def _ended(self, outcome: OpOutcome, began: float) -> float | None:
        return None if outcome is OpOutcome.INFO else began + self._source.choice((0.0, 0.5, 3.0))

    def _is_wrong(self) -> bool:
        return self._logs[KEYS[0]].is_wrong()

    def _is_rare(self) -> bool:
        return self._source.random() < 0.1
