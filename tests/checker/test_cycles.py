"""Cycles of each kind: guilty histories, and innocent ones that look alike. ``allowed`` are those with writes only."""

from __future__ import annotations

import pytest

from einmal.checker.cycles import find_cycles, flows_forward
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
    index = Index(History((write, read)))
    assert flows_forward(index) is is_certain
    assert bool([each for each in find_cycles(index) if not each.is_allowed]) is not is_certain
