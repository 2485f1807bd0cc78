"""What is reported of a history beside its anomalies."""

from __future__ import annotations

from einmal.checker.history import History, Op, OpOutcome, Poll, Send
from einmal.checker.report import report_on
from einmal.types import TopicPartition

X = TopicPartition("x", 0)


def sent(value: str, offset: int, ended: float) -> Op:
    return Op(process=1, actions=(Send(X, value, offset),), outcome=OpOutcome.OK, began=ended, ended=ended)


def read(at: float, *records: tuple[int, str], process: int = 9, subscribed: bool = False) -> Op:
    action = Poll(X, records)
    return Op(process=process, actions=(action,), outcome=OpOutcome.OK, began=at, ended=at, subscribed=subscribed)


def test_a_reader_that_has_everything_does_not_lag() -> None:
    history = History([sent("a", 0, 1.0), sent("b", 1, 2.0), read(3.0, (0, "a"), (1, "b"))])
    assert report_on(history).worst_realtime_lag == 0.0


def test_the_lag_is_the_age_of_the_oldest_value_that_was_not_read() -> None:
    history = History([sent("a", 0, 1.0), sent("b", 1, 2.0), sent("c", 2, 3.0), read(10.0, (0, "a"))])
    assert report_on(history).worst_realtime_lag == 8.0


def test_a_value_that_was_acknowledged_after_the_poll_does_not_count() -> None:
    history = History([sent("a", 0, 1.0), read(2.0, (0, "a")), sent("b", 1, 5.0)])
    assert report_on(history).worst_realtime_lag == 0.0


def test_consumed_values_are_counted_by_how_often_groups_saw_them() -> None:
    history = History(
        [
            sent("a", 0, 1.0),
            sent("b", 1, 1.0),
            read(2.0, (0, "a"), (1, "b"), subscribed=True),
            read(3.0, (1, "b"), process=8, subscribed=True),
            read(3.0, (0, "a"), (1, "b"), process=7),
        ]
    )
    assert report_on(history).consumed == {1: 1, 2: 1}


def test_unknown_outcomes_are_counted_by_cause() -> None:
    lost = Op(process=1, actions=(Send(X, "a"),), outcome=OpOutcome.INFO, cause="UnknownOutcome")
    dead = Op(process=2, actions=(Send(X, "b"),), outcome=OpOutcome.INFO)
    assert report_on(History([lost, dead])).causes == {"UnknownOutcome": 1, "unknown": 1}


def test_anomalies_and_allowed_effects_are_distinguished() -> None:
    mine = Op(process=1, actions=(Send(X, "a", 0), Send(X, "c", 2)), outcome=OpOutcome.OK, transactional=True)
    other = Op(process=2, actions=(Send(X, "b", 1),), outcome=OpOutcome.OK)
    report = report_on(History([mine, other]))
    assert report.anomalies == ()
    assert {found.kind for found in report.allowed} == {"int-send-skip", "G0", "PL-1-cycle-exists"}
