"""The checker and its naive definition find the same in random histories, with the same details."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from einmal.checker.history import Anomaly, History, Op
from einmal.checker.log import find_anomalies
from einmal.checker.witnesses import Witnesses
from tests.checker.naive import naive_anomalies
from tests.checker.random_histories import random_history

_KINDS = (
    "duplicate",
    "lost-write",
    "unseen",
    "G1a",
    "garbage-read",
    "G1b",
    "phantom-commit",
    "torn-transaction",
    "inconsistent-offsets",
    "precommitted-read",
    "int-poll-skip",
    "poll-skip",
    "int-nonmonotonic-poll",
    "nonmonotonic-poll",
    "int-nonmonotonic-send",
    "nonmonotonic-send",
    "G1c",
    "G1c-process",
    "G1c-realtime",
)


def in_order(anomalies: list[Anomaly]) -> list[Anomaly]:
    return sorted(each._replace(values=tuple(sorted(each.values))) for each in anomalies)


def test_the_checker_finds_what_the_definition_does() -> None:
    found: Counter[str] = Counter()
    for seed in range(600):
        history = random_history(seed)
        anomalies = in_order(find_anomalies(history))
        assert anomalies == in_order(naive_anomalies(history)), seed
        found.update({each.kind for each in anomalies} or {"none"})
    assert all(found[kind] for kind in (*_KINDS, "none")), found


def test_every_anomaly_of_a_written_value_is_shown_by_operations() -> None:
    for seed in range(200):
        history = random_history(seed)
        anomalies = find_anomalies(history)
        witnesses = Witnesses(history, anomalies)
        for anomaly in anomalies:
            shown = witnesses.of(anomaly)
            assert shown
            assert all(witnesses.text(op_id, anomaly) for op_id in shown)


def test_operations_are_iterated_and_never_looked_up() -> None:
    class Once:
        """Operations as a file has them."""

        def __init__(self, seed: int) -> None:
            self.seed = seed

        def __iter__(self) -> Iterator[Op]:
            return iter(random_history(self.seed).ops)

    for seed in range(20):
        whole = random_history(seed)
        assert find_anomalies(History(Once(seed), whole.is_read_to_the_end)) == find_anomalies(whole)
