"""Batches and their commit records: guilty and innocent outputs."""

from __future__ import annotations

from einmal.checker.batches import WrittenRecord, find_batch_anomalies


def _kinds(committed: list[int], *written: tuple[int, str]) -> set[str]:
    return {anomaly.kind for anomaly in find_batch_anomalies(committed, [WrittenRecord(*each) for each in written])}


def test_each_batch_once_from_one_attempt() -> None:
    assert _kinds([1, 2], (1, "a"), (1, "a"), (2, "c")) == set()
    assert _kinds([]) == set()


def test_two_attempts_at_one_batch() -> None:
    assert _kinds([1], (1, "a"), (1, "b")) == {"duplicate"}


def test_a_batch_committed_twice() -> None:
    assert "duplicate" in _kinds([1, 1], (1, "a"))


def test_a_batch_that_is_missing() -> None:
    assert "lost-write" in _kinds([1, 3], (1, "a"), (3, "b"))


def test_output_without_its_commit_record_and_a_record_without_output() -> None:
    assert _kinds([1], (1, "a"), (2, "b")) == {"torn-transaction"}
    assert _kinds([1, 2], (1, "a")) == {"torn-transaction"}
