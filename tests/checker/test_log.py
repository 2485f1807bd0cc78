"""Each class of anomaly with histories that are guilty of it, and with innocent ones that look alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from einmal.checker.history import History, Op, OpOutcome, Poll, Send
from einmal.checker.index import ValueSentTwice
from einmal.checker.log import find_anomalies
from einmal.types import TopicPartition

X = TopicPartition("x", 0)
Y = TopicPartition("y", 0)
WRITER, OTHER, READER = 1, 2, 9


def sent(*sends: Send, outcome: OpOutcome = OpOutcome.OK, process: int = WRITER, aborted_later: bool = False) -> Op:
    return Op(process=process, actions=sends, outcome=outcome, aborted_later=aborted_later)


def transaction(*actions: Send | Poll, outcome: OpOutcome = OpOutcome.OK, aborted_later: bool = False) -> Op:
    return Op(process=WRITER, actions=actions, outcome=outcome, transactional=True, aborted_later=aborted_later)


def read(key: TopicPartition, *records: tuple[int, str], process: int = READER, **more: Any) -> Op:
    return Op(process=process, actions=(Poll(key, records),), outcome=OpOutcome.OK, **more)


def member(*actions: Send | Poll, rebalanced: bool = False) -> Op:
    """A transaction of a group's member."""
    return replace(transaction(*actions), subscribed=True, rebalanced=rebalanced)


def kinds(*ops: Op, to_the_end: bool = True) -> set[str]:
    return {anomaly.kind for anomaly in find_anomalies(History(ops, to_the_end))}


_A, _B, _C = Send(X, "a", 0), Send(X, "b", 1), Send(X, "c", 2)
_ALL = read(X, (0, "a"), (1, "b"), (2, "c"))

GUILTY = {
    "duplicate": [sent(_A), read(X, (0, "a"), (1, "a"))],
    "duplicate, by its acknowledgement": [sent(Send(X, "a", 5)), read(X, (0, "a"))],
    "lost-write": [sent(_A), sent(_B), sent(_C), read(X, (0, "a"), (2, "c"))],
    "lost-write, of a transaction seen in another key": [
        transaction(_A, Send(Y, "y", 0)),
        sent(_B),
        read(X, (1, "b")),
        read(Y, (0, "y")),
    ],
    "G1a": [sent(_A, outcome=OpOutcome.FAIL), read(X, (0, "a"))],
    "G1a, of a transaction": [transaction(_A, Send(Y, "y"), outcome=OpOutcome.FAIL), read(Y, (4, "y"))],
    "phantom-commit": [transaction(_A, outcome=OpOutcome.INFO, aborted_later=True), read(X, (0, "a"))],
    "inconsistent-offsets": [sent(_A), sent(_B), read(X, (0, "a"), (1, "b")), read(X, (0, "b"), process=8)],
    "precommitted-read": [transaction(_A, Poll(X, ((0, "a"),)))],
    "int-poll-skip": [sent(_A), sent(_B), sent(_C), read(X, (0, "a"), (2, "c")), read(X, (1, "b"), process=8)],
    "int-nonmonotonic-poll": [sent(_A), sent(_B), read(X, (1, "b"), (0, "a"))],
    "int-nonmonotonic-poll, a repeat": [sent(_A), read(X, (0, "a"), (0, "a"))],
    "int-nonmonotonic-send": [transaction(Send(X, "a", 1), Send(X, "b", 0)), read(X, (0, "b"), (1, "a"))],
    "int-nonmonotonic-send, seen by a reader": [
        transaction(Send(X, "a"), Send(X, "b"), outcome=OpOutcome.INFO),
        read(X, (0, "b"), (1, "a")),
    ],
    "nonmonotonic-send": [sent(Send(X, "a", 1)), sent(Send(X, "b", 0)), read(X, (0, "b"), (1, "a"))],
    "poll-skip": [sent(_A), sent(_B), sent(_C), read(X, (0, "a")), read(X, (2, "c")), read(X, (1, "b"), process=8)],
    "nonmonotonic-poll": [sent(_A), sent(_B), read(X, (0, "a"), (1, "b")), read(X, (1, "b"))],
    "poll-skip, of a member that no group moved": [
        sent(_A),
        sent(_B),
        sent(_C),
        transaction(Poll(X, ((0, "a"),))),
        transaction(Poll(X, ((2, "c"),))),
        read(X, (1, "b"), process=8),
    ],
    "int-nonmonotonic-poll, of a member that was not moved inside of its transaction": [
        sent(_A, process=OTHER),
        sent(_B, process=OTHER),
        member(Poll(X, ((0, "a"), (1, "b"))), Poll(X, ((1, "b"),))),
    ],
    "int-poll-skip, of a member that was not moved inside of its transaction": [
        sent(_A, process=OTHER),
        sent(_B, process=OTHER),
        sent(_C, process=OTHER),
        member(Poll(X, ((0, "a"),)), Poll(X, ((2, "c"),))),
        read(X, (1, "b")),
    ],
    "garbage-read": [sent(_A), read(X, (0, "a"), (1, "b"))],
    "garbage-read, in another key": [sent(_A), read(X, (0, "a")), read(Y, (0, "a"))],
    "unseen": [sent(_A), sent(_B), read(X, (0, "a"))],
    "unseen, of a writer that was told no offset": [sent(Send(X, "a")), sent(_B), read(X, (1, "b"))],
    "torn-transaction": [
        transaction(Send(X, "a"), Send(Y, "y"), outcome=OpOutcome.INFO),
        sent(Send(Y, "z", 3), process=OTHER),
        read(X, (0, "a")),
        read(Y, (3, "z")),
    ],
    "torn-transaction, of one that was acknowledged": [transaction(_A, Send(Y, "y", 0)), read(X, (0, "a"))],
    "G1b": [transaction(_A, _B), sent(_C), read(X, (0, "a"), (2, "c")), read(X, (1, "b"), process=8)],
}

INNOCENT = {
    "a group's member comes back to what it has read": [
        sent(_A, process=OTHER),
        sent(_B, process=OTHER),
        member(Poll(X, ((0, "a"), (1, "b")))),
        member(Poll(X, ((0, "a"),))),
    ],
    "a group's member goes on where another one was": [
        sent(_A, process=OTHER),
        sent(_B, process=OTHER),
        sent(_C, process=OTHER),
        member(Poll(X, ((0, "a"),))),
        read(X, (1, "b")),
        member(Poll(X, ((2, "c"),))),
    ],
    "a group's member is moved inside of a transaction": [
        sent(_A, process=OTHER),
        sent(_B, process=OTHER),
        member(Poll(X, ((0, "a"), (1, "b"))), Poll(X, ((0, "a"),)), rebalanced=True),
    ],
    "everything is read once": [sent(_A), sent(_B), sent(_C), _ALL],
    "offsets have gaps where markers are": [sent(_A), sent(Send(X, "b", 7)), read(X, (0, "a"), (7, "b"))],
    "a failed write is not seen": [sent(_A), sent(_B, outcome=OpOutcome.FAIL), sent(_C), read(X, (0, "a"), (2, "c"))],
    "an unknown write is not seen": [sent(_A), sent(Send(X, "b"), outcome=OpOutcome.INFO), read(X, (0, "a"))],
    "an unknown write is seen": [sent(_A), sent(Send(X, "b"), outcome=OpOutcome.INFO), read(X, (0, "a"), (1, "b"))],
    "a transaction of unknown outcome is seen whole": [
        transaction(Send(X, "a"), Send(Y, "y"), outcome=OpOutcome.INFO),
        read(X, (0, "a")),
        read(Y, (0, "y")),
    ],
    "an aborted transaction is not seen": [
        transaction(_A, Send(Y, "y"), outcome=OpOutcome.INFO, aborted_later=True),
        sent(_B),
        read(X, (1, "b")),
    ],
    "a read_uncommitted reader sees what aborts": [
        transaction(_A, outcome=OpOutcome.FAIL),
        sent(_B),
        read(X, (0, "a"), (1, "b"), read_committed=False, process=8),
        read(X, (1, "b")),
    ],
    "a reader starts anew after an abort": [
        sent(_A),
        sent(_B),
        read(X, (0, "a"), (1, "b")),
        read(X, (0, "a"), (1, "b"), starts_anew=True),
    ],
    "a reader that starts late does not skip": [sent(_A), sent(_B), _ALL, sent(_C), read(X, (2, "c"), process=8)],
    "others write between a transaction's sends": [
        transaction(_A, _C),
        sent(_B, process=OTHER),
        _ALL,
    ],
    "two processes' sends have no order": [
        sent(Send(X, "a", 1)),
        sent(Send(X, "b", 0), process=OTHER),
        read(X, (0, "b"), (1, "a")),
    ],
    "a failed send has no place in the order": [
        sent(Send(X, "a", 5), outcome=OpOutcome.FAIL),
        sent(Send(X, "b", 1)),
        read(X, (1, "b")),
    ],
    "a transaction reads others' values": [
        sent(_A, process=OTHER),
        transaction(Poll(X, ((0, "a"),)), _B),
        read(X, (0, "a"), (1, "b")),
    ],
    "a reader is in the middle of a transaction": [transaction(_A, _B), read(X, (0, "a")), read(X, (1, "b"))],
    "members of a group read parts of a transaction": [
        transaction(*(Send(X, value, offset) for offset, value in enumerate("abcd"))),
        read(X, (0, "a"), process=7, subscribed=True),
        read(X, (1, "b"), (2, "c"), process=8, subscribed=True, rebalanced=True),
        read(X, (3, "d"), process=7, subscribed=True, rebalanced=True),
        read(X, (0, "a"), (1, "b"), (2, "c"), (3, "d")),
    ],
}


@pytest.mark.parametrize("name", GUILTY)
def test_the_guilty_are_found(name: str) -> None:
    assert name.partition(",")[0] in kinds(*GUILTY[name])


@pytest.mark.parametrize("name", INNOCENT)
def test_the_innocent_are_left_alone(name: str) -> None:
    assert kinds(*INNOCENT[name]) == set()


def test_nothing_is_unseen_or_torn_before_the_end_is_read() -> None:
    ops = [sent(_A), sent(_B), transaction(_C, Send(Y, "y", 0)), read(X, (0, "a"))]
    assert kinds(*ops, to_the_end=False) == set()


def test_the_report_has_the_same_order_each_time() -> None:
    for ops in GUILTY.values():
        assert find_anomalies(History(ops, True)) == find_anomalies(History(list(ops), True))


@pytest.mark.parametrize(
    "ops",
    [
        [sent(_A), sent(Send(X, "a"), outcome=OpOutcome.INFO), sent(_B), read(X, (1, "b"))],
        [transaction(_A, outcome=OpOutcome.FAIL), transaction(_A), read(X, (0, "a"))],
        [transaction(_A, Send(X, "a", 1)), read(X, (0, "a"), (1, "a"))],
    ],
)
def test_a_value_that_is_sent_twice_is_no_evidence(ops: list[Op]) -> None:
    with pytest.raises(ValueSentTwice, match="send 'a' to x-0"):
        find_anomalies(History(ops, True))
