"""Histories of Jepsen's Kafka workload (``jepsen.tests.kafka``): each operation is an invocation and a completion.

A process of Jepsen runs one operation at a time, and ends with the first of unknown outcome. A process of ours with
several at the same time therefore becomes several of Jepsen's. Jepsen knows readers of committed records only, so
operations with ``isolation.level=read_uncommitted`` are left out; a position that was set is an assignment of no
partition.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from einmal.checker.history import Key, Op, OpOutcome, Poll, Send
from einmal.types import TopicPartition
from einmal.verify.histories.edn import EdnValue, Keyword

Event: TypeAlias = Mapping[EdnValue, EdnValue]
_NS: Final = 1_000_000_000
_LANES: Final = 1_000_000
"""Between the numbers of the processes that one process of ours becomes."""
_CLIENT_OPS: Final = ("txn", "send", "poll")
_ASSIGNMENTS: Final = ("assign", "subscribe")


class NotAnOperation(ValueError):
    """An event that does not have the form of the workload."""


# --- to Jepsen --------------------------------------------------------------------------------------------------------


def events(ops: Iterable[Op]) -> Iterator[Event]:
    """The operations as Jepsen has them. ``ops`` in the order in which they began."""
    for index, event in enumerate(_Writer().events(ops)):
        yield {**event, Keyword("index"): index}


class _Writer:
    """``_open``: completions that are due, by their time. ``_busy``: until when each process runs an operation."""

    def __init__(self) -> None:
        self._open: list[tuple[float, int, Event]] = []
        self._busy: dict[int, float] = {}
        self._count = 0

    def events(self, ops: Iterable[Op]) -> Iterator[Event]:
        for op in ops:
            if op.read_committed:
                # What ended at this moment runs beside it: only a later beginning is an order.
                yield from self._completions(op.began)
                if op.process in self._busy and self._busy[op.process] == op.began:
                    yield from self._completions(op.began, inclusive=True)
                yield from self._begin(op, self._free(op))
        yield from self._completions(float("inf"), inclusive=True)

    def _completions(self, now: float, *, inclusive: bool = False) -> Iterator[Event]:
        while self._open and (self._open[0][0] < now or (inclusive and self._open[0][0] <= now)):
            ended, _, event = heapq.heappop(self._open)
            process = event[Keyword("process")]
            if isinstance(process, int) and self._busy.get(process) == ended:
                del self._busy[process]
            yield event

    def _free(self, op: Op) -> int:
        process = op.process
        while process in self._busy:
            process += _LANES
        return process

    def _begin(self, op: Op, process: int) -> Iterator[Event]:
        if op.subscribed or op.starts_anew:
            name = "subscribe" if op.subscribed else "assign"
            yield _event("invoke", name, [], process, op.began)
            yield _event("ok", name, [], process, op.began)
        name = "txn" if op.transactional else "send" if op.sends else "poll"
        yield _event("invoke", name, [_invoked(action) for action in op.actions], process, op.began)
        completion = _event(
            op.outcome.value, name, [_completed(op, action) for action in op.actions], process, op.began
        )
        if op.rebalanced:
            completion[Keyword("rebalance-log")] = [{Keyword("keys"): []}]
        if op.cause:
            completion[Keyword("error")] = op.cause
        if op.outcome is OpOutcome.INFO:
            self._busy[process] = float("inf")
            yield completion
            return
        ended = op.began if op.ended is None else op.ended
        completion[Keyword("time")] = int(ended * _NS)
        self._busy[process] = ended
        self._count += 1
        heapq.heappush(self._open, (ended, self._count, completion))


def _event(kind: str, name: str, value: EdnValue, process: int, time: float) -> dict[EdnValue, EdnValue]:
    return {
        Keyword("type"): Keyword(kind),
        Keyword("f"): Keyword(name),
        Keyword("value"): value,
        Keyword("process"): process,
        Keyword("time"): int(time * _NS),
    }


def _invoked(action: Send | Poll) -> EdnValue:
    return [Keyword("send"), str(action.key), action.value] if isinstance(action, Send) else [Keyword("poll")]


def _completed(op: Op, action: Send | Poll) -> EdnValue:
    if isinstance(action, Poll):
        return [Keyword("poll"), {str(action.key): [[offset, value] for offset, value in action.records]}]
    if op.outcome is not OpOutcome.OK and action.offset is None:
        return _invoked(action)
    return [Keyword("send"), str(action.key), [action.offset, action.value]]


# --- from Jepsen ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Process:
    """``pending``: the running operation, by its number. ``read``: the keys whose positions matter."""

    pending: int | None = None
    is_subscribed: bool = False
    is_anew: bool = False
    read: dict[Key, None] = field(default_factory=dict)


class _Reader:
    """Operations in the order of their invocations; those that wait are completed, or the history ends before."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Op, bool]] = deque()
        self._passed = 0
        self._processes: dict[int, _Process] = defaultdict(_Process)

    def ops(self, history: Iterable[Event]) -> Iterator[Op]:
        last = -1
        for number, event in enumerate(history):
            index = event.get("index")
            if isinstance(index, int) and index >= 0:
                # Jepsen's events have -1 before they are numbered.
                if index <= last:
                    raise NotAnOperation(f":index {index} comes after {last}; events are in order, each once")
                last = index
            process = event.get("process")
            if isinstance(process, int):
                self._add(event, process, number)
                while self._waiting and self._waiting[0][1]:
                    self._passed += 1
                    yield self._waiting.popleft()[0]
        for op, _ in self._waiting:
            yield op

    def _add(self, event: Event, number: int, position: int) -> None:
        kind, name = event.get("type"), event.get("f")
        process = self._processes[number]
        time = event.get("time", position)
        seconds = time / _NS if isinstance(time, (int, float)) else 0.0
        if name in _ASSIGNMENTS:
            if kind not in ("invoke", "fail"):
                _assign(process, event, is_subscribed=name == "subscribe")
        elif name not in _CLIENT_OPS:
            return
        elif kind == "invoke":
            self._waiting.append((_op(event, number, process, seconds), False))
            process.pending = self._passed + len(self._waiting) - 1
        elif kind in ("ok", "fail", "info"):
            self._complete(event, number, process, seconds, OpOutcome(kind))
        else:
            raise NotAnOperation(f"unexpected :type {kind!r}; expected :invoke, :ok, :fail or :info")

    def _complete(self, event: Event, number: int, process: _Process, seconds: float, outcome: OpOutcome) -> None:
        completed = _op(event, number, process, seconds)
        if process.pending is None:
            self._waiting.append((completed, False))
            process.pending = self._passed + len(self._waiting) - 1
        at = process.pending - self._passed
        process.pending = None
        invoked = self._waiting[at][0]
        op = replace(
            completed,
            actions=completed.actions or invoked.actions,
            outcome=outcome,
            began=invoked.began,
            ended=None if outcome is OpOutcome.INFO else seconds,
            cause=str(event.get("error") or ""),
            rebalanced=bool(event.get("rebalance-log")),
        )
        self._waiting[at] = (op, True)
        process.is_anew = False
        process.read |= dict.fromkeys(poll.key for poll in op.polls)
        if op.polls and outcome is not OpOutcome.OK:
            # The next transaction reads again what this one has read.
            process.is_anew = True


def ops(history: Iterable[Event]) -> Iterator[Op]:
    """The operations of a history of Jepsen; seconds of its clock. Raises NotAnOperation."""
    return _Reader().ops(history)


def _assign(process: _Process, event: Event, *, is_subscribed: bool) -> None:
    """Jepsen keeps the positions of the keys that remain assigned; so does this, if all remain."""
    process.is_subscribed = is_subscribed
    keys = dict.fromkeys(_key(assigned) for assigned in _sequence(event.get("value")))
    if event.get("seek-to-beginning?") or any(key not in keys for key in process.read):
        process.is_anew = True
        process.read = {}


def _op(event: Event, number: int, process: _Process, seconds: float) -> Op:
    actions = tuple(action for micro_op in _sequence(event.get("value")) for action in _actions(micro_op))
    return Op(
        process=number,
        actions=actions,
        outcome=OpOutcome.INFO,
        transactional=event.get("f") == "txn" or len(actions) > 1,
        starts_anew=process.is_anew and not process.is_subscribed,
        subscribed=process.is_subscribed,
        began=seconds,
    )


def _actions(micro_op: EdnValue) -> Iterator[Send | Poll]:
    match micro_op:
        case ["send", key, [offset, value]] if offset is None or isinstance(offset, int):
            # A client that does not wait for an answer has -1.
            yield Send(_key(key), _text(value), None if offset is None or offset < 0 else offset)
        case ["send", key, value]:
            yield Send(_key(key), _text(value))
        case ["poll"]:
            return
        case ["poll", polled] if isinstance(polled, Mapping):
            for polled_key, records in polled.items():
                yield Poll(_key(polled_key), tuple(_record(record) for record in _sequence(records)))
        case _:
            raise NotAnOperation(
                f"{micro_op!r} is neither [:send key [offset value]] nor [:poll {{key [[offset value]]}}]"
            )


def _record(record: EdnValue) -> tuple[int, str]:
    match record:
        case [int(offset), value] if offset >= 0:
            return offset, _text(value)
    raise NotAnOperation(f"{record!r} is not [offset value]")


def _sequence(value: EdnValue) -> Sequence[EdnValue]:
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise NotAnOperation(f"{value!r} is not a vector")
    return value


def _key(key: EdnValue) -> Key:
    """``topic-partition``; any other key is a topic with one partition."""
    topic, _, partition = str(key).rpartition("-")
    return TopicPartition(topic, int(partition)) if topic and partition.isdecimal() else TopicPartition(str(key), 0)


def _text(value: EdnValue) -> str:
    return value if isinstance(value, str) else str(value)
