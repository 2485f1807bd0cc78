"""Cycles of each kind: guilty histories, and innocent ones that look alike. ``allowed`` are those with writes only."""

from __future__ import annotations

import pytest

from einmal.checker.cycles import InformationFlow, find_cycles
from einmal.checker.history import History, Op, OpOutcome, Poll, Send
from einmal.checker.index import Index
from einmal.checker.log import find_allowed, find_anomalies
from einmal.types import TopicPartition

X = TopicPartition("x", 0)
Y = TopicPartition("y", 0)
Z = TopicPartition("z", 0)


def operation(process: int, began: float, ended: float | None, *actions: Send | Poll) -> Op:
    outcome = OpOutcome.INFO if ended is None else OpOutcome.OK
    return Op(process=process, actions=actions, outcome=outcome, transactional=True, began=began, ended=ended)


def told(*ops: Op) -> tuple[set[str], set[str]]:
    """The kinds of what is never allowed, and of what is."""
    history = History(ops)
    return {found.kind for found in find_anomalies(history)}, {found.kind for found in find_allowed(history)}


def flows_forward(*ops: Op) -> bool:
    flow = InformationFlow(Index(History(ops)))
    for op_id, op in enumerate(ops):
        flow.add(op_id, op)
    return not flow.spans()


def sees(key: TopicPartition, *records: tuple[int, str]) -> Poll:
    return Poll(key, records)


NEVER = {
    "G1c": [
        operation(1, 0, 9, Send(X, "a", 0), sees(Y, (0, "b"))),
        operation(2, 0, 9, Send(Y, "b", 0), sees(X, (0, "a"))),
    ],
    "PL-2-cycle-exists": [
        operation(1, 0, 9, Send(X, "a", 0), sees(Z, (0, "c"))),
        operation(2, 0, 9, Send(Y, "b", 0), sees(X, (0, "a"))),
        operation(3, 0, 9, Send(Z, "c", 0), sees(Y, (0, "b"))),
    ],
    "G1c-process": [
        operation(1, 0, 9, Send(X, "a", 0), sees(Y, (0, "b"))),
        operation(2, 0, 1, sees(X, (0, "a"))),
        operation(2, 2, 3, Send(Y, "b", 0)),
    ],
    "strong-session-PL-2-cycle-exists": [
        operation(1, 0, 9, Send(X, "a", 0), sees(Y, (0, "b"))),
        operation(2, 0, 1, sees(X, (0, "a"))),
        operation(2, 2, 3, Send(Y, "b", 0)),
    ],
    "G1c-realtime": [
        operation(1, 0, 9, Send(X, "a", 0), sees(Y, (0, "b"))),
        operation(2, 0, 1, sees(X, (0, "a"))),
        operation(3, 2, 3, Send(Y, "b", 0)),
    ],
    "strong-PL-2-cycle-exists": [
        operation(1, 0, 1, sees(Y, (0, "b"))),
        operation(3, 2, 3, Send(Y, "b", 0)),
    ],
}

ALLOWED = {
    "G0": [
        operation(1, 0, 9, Send(X, "a", 0), Send(Y, "c", 1)),
        operation(2, 0, 9, Send(X, "b", 1), Send(Y, "d", 0)),
    ],
    "PL-1-cycle-exists": [
        operation(1, 0, 9, Send(X, "a", 0), Send(Y, "c", 1)),
        operation(2, 0, 9, Send(X, "b", 1), Send(Y, "d", 0)),
    ],
    "G0-process": [
        operation(1, 0, 1, Send(X, "a", 1)),
        operation(1, 2, 3, Send(Y, "d", 0)),
        operation(2, 0, 9, Send(Y, "c", 1), Send(X, "b", 0)),
    ],
    "strong-session-PL-1-cycle-exists": [
        operation(1, 0, 1, Send(X, "a", 1)),
        operation(1, 2, 3, Send(Y, "d", 0)),
        operation(2, 0, 9, Send(Y, "c", 1), Send(X, "b", 0)),
    ],
    "G0-realtime": [
        operation(1, 0, 1, Send(X, "a", 1)),
        operation(3, 2, 3, Send(Y, "d", 0)),
        operation(2, 0, 9, Send(Y, "c", 1), Send(X, "b", 0)),
    ],
    "strong-PL-1-cycle-exists": [
        operation(1, 0, 1, Send(X, "a", 1)),
        operation(3, 2, 3, Send(Y, "d", 0)),
        operation(2, 0, 9, Send(Y, "c", 1), Send(X, "b", 0)),
    ],
    "G1c": [
        operation(1, 0, 9, Send(X, "a", 0), Send(Y, "c", 1)),
        operation(2, 0, 9, Send(Y, "d", 0), sees(X, (0, "a"))),
    ],
    "PL-2-cycle-exists": [
        operation(1, 0, 9, Send(X, "a", 0), Send(Y, "c", 1)),
        operation(2, 0, 9, Send(Y, "d", 0), sees(X, (0, "a"))),
    ],
    "int-send-skip": [
        operation(1, 0, 9, Send(X, "a", 0), Send(X, "c", 2)),
        operation(2, 0, 9, Send(X, "b", 1)),
    ],
}

INNOCENT = {
    "one after the other": [
        operation(1, 0, 1, Send(X, "a", 0), Send(Y, "c", 0)),
        operation(2, 2, 3, Send(X, "b", 1), Send(Y, "d", 1), sees(X, (0, "a"))),
        operation(3, 4, 5, sees(X, (0, "a"), (1, "b")), sees(Y, (0, "c"), (1, "d"))),
    ],
    "each reads the one before": [
        operation(1, 0, 1, Send(X, "a", 0)),
        operation(2, 2, 3, Send(Y, "b", 0), sees(X, (0, "a"))),
        operation(1, 4, 5, sees(Y, (0, "b"))),
    ],
    "both run at the same time": [
        operation(1, 0, 3, Send(X, "a", 0)),
        operation(2, 1, 2, sees(X, (0, "a"))),
        operation(2, 2.5, 4, Send(X, "b", 1)),
    ],
    "it reads what ends later": [
        operation(1, 0, 9, Send(X, "a", 0)),
        operation(2, 1, 2, sees(X, (0, "a"))),
    ],
    "one that was never seen has no place": [
        operation(1, 0, None, Send(X, "a"), sees(Y, (0, "b"))),
        operation(2, 0, 9, Send(Y, "b", 0)),
    ],
}


@pytest.mark.parametrize("kind", NEVER)
def test_a_circle_of_information_is_an_anomaly(kind: str) -> None:
    never, _ = told(*NEVER[kind])
    assert kind in never


@pytest.mark.parametrize("kind", ALLOWED)
def test_what_writes_without_isolation_show_is_allowed(kind: str) -> None:
    never, allowed = told(*ALLOWED[kind])
    assert kind in allowed
    assert never == set()


@pytest.mark.parametrize("name", INNOCENT)
def test_the_innocent_are_left_alone(name: str) -> None:
    assert told(*INNOCENT[name]) == (set(), set())


@pytest.mark.parametrize(("read_at", "is_certain"), [(2.0, True), (0.5, False)])
def test_histories_without_a_read_from_the_future_need_no_graph(read_at: float, is_certain: bool) -> None:
    key = TopicPartition("t", 0)
    write = Op(process=1, actions=(Send(key, "a", 0),), outcome=OpOutcome.OK, began=1.0, ended=1.5)
    read = Op(process=2, actions=(Poll(key, ((0, "a"),)),), outcome=OpOutcome.OK, began=read_at, ended=read_at)
    assert flows_forward(write, read) is is_certain
    index = Index(History((write, read)))
    assert bool([each for each in find_cycles(index) if not each.is_allowed]) is not is_certain


def test_processors_that_read_and_write_need_no_graph() -> None:
    order = operation(1, 0, 1, Send(X, "order", 0))
    first = operation(2, 2, 5, sees(X, (0, "order")), Send(Y, "transfer", 0))
    second = operation(3, 3, 4, sees(Y, (0, "transfer")), Send(Z, "total", 0))
    assert flows_forward(order, first, second)
    assert told(order, first, second) == (set(), set())


def test_information_that_comes_back_in_time_through_a_processor_is_no_forward_flow() -> None:
    late = operation(1, 6, 7, Send(X, "order", 0))
    processor = operation(2, 0, 9, sees(X, (0, "order")), Send(Y, "transfer", 0))
    reader = operation(3, 4, 5, sees(Y, (0, "transfer")))
    assert not flows_forward(processor, reader, late)
    assert told(processor, reader, late)[0] == {"G1c-realtime", "strong-PL-2-cycle-exists"}


def test_only_operations_around_a_sign_of_a_cycle_are_searched() -> None:
    before, after = (operation(5, at, at + 1, Send(X, f"v{at}", at)) for at in (0, 90))
    reader, writer = operation(1, 10, 11, sees(Y, (0, "b"))), operation(3, 12, 13, Send(Y, "b", 0))
    history = History((before, reader, writer, after))
    index = Index(history)
    flow = InformationFlow(index)
    for op_id, op in enumerate((before, reader, writer, after)):
        flow.add(op_id, op)
    assert flow.spans() == [(11, 12)]
    assert [cycle.ops for cycle in find_cycles(index, flow.spans())] == [(1, 2), (1, 2)]


def test_the_cycle_with_the_fewest_operations_is_shown() -> None:
    reader = operation(1, 0, 1, sees(Y, (0, "c")), sees(X, (0, "a")))
    ended = [operation(10 + at, at, at, sees(X)) for at in range(2, 8)]
    writer = operation(3, 10, 11, Send(X, "a", 0))
    middle = operation(2, 0, 9, Send(Y, "c", 0), sees(Z, (0, "b")))
    far = operation(4, 1.5, 1.6, Send(Z, "b", 0))
    ops = (reader, middle, far, *ended, writer)
    (cycle,) = {found.ops for found in find_anomalies(History(ops)) if found.ops}
    assert cycle == (0, ops.index(writer))
