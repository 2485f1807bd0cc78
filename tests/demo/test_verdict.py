"""Claims about the demo's comparison: a difference cannot hide behind another one."""

from __future__ import annotations

import pytest

from einmal.demo.verdict import Record, compare, compare_counts, compare_sentences, verdict

GOOD = compare({"a": 2}, {"a": 2})
REPEATED = compare({"a": 2}, {"a": 3})


def test_a_loss_and_a_repeat_do_not_cancel() -> None:
    comparison = compare({"a": 2, "b": 2}, {"a": 1, "b": 3})
    assert (comparison.lost, comparison.duplicated) == (1, 1)
    assert comparison.expected == comparison.seen == 4
    assert not comparison.is_exact


def test_records_that_no_producer_wrote_count_as_repeated() -> None:
    assert compare({}, {"x": 2}).duplicated == 2


def test_examples_show_the_largest_differences() -> None:
    assert compare({"a": 9, "b": 1}, {}, examples_max=1).examples == (("a", 9, 0),)


def test_the_verdict_exactly_once_needs_every_condition() -> None:
    killed = ("leader", "driver", "driver")
    assert verdict(GOOD, GOOD, REPEATED, killed, victims=killed) == "exactly-once"
    assert "producer" in verdict(REPEATED, GOOD, REPEATED, killed, killed)
    assert "pipeline" in verdict(GOOD, REPEATED, REPEATED, killed, killed)
    assert "not killed: driver" in verdict(GOOD, GOOD, REPEATED, ("leader", "driver", "leader"), killed)
    assert "control" in verdict(GOOD, GOOD, GOOD, killed, killed)


LINES = ["a b", "a", "b", "a"]
SENTENCES: list[Record] = [(b"0", b"a b"), (b"1", b"a"), (b"2", b"b"), (b"3", b"a")]
COUNTS: list[Record] = [(b"a", b"2"), (b"b", b"1"), (b"a", b"1"), (b"b", b"1")]
WORDS = {"a": 3, "b": 2}


def test_whole_sentences_and_sums_of_counts_are_compared() -> None:
    assert compare_sentences(LINES, reversed(SENTENCES)).is_exact
    assert compare_counts(WORDS, reversed(COUNTS)).is_exact


@pytest.mark.parametrize(
    "records",
    [
        [],
        SENTENCES[1:],
        [*SENTENCES, SENTENCES[0]],
        [(b"0", b"a "), *SENTENCES[1:]],
        [(b"0", b""), *SENTENCES[1:]],
        [(b"0", None), *SENTENCES[1:]],
        [(None, b"a b"), *SENTENCES[1:]],
        [(b"0", b"a"), (b"1", b"a b"), *SENTENCES[2:]],
        [(b"0", b"\xff"), *SENTENCES[1:]],
        [*SENTENCES, (b"4", b"a")],
    ],
    ids=["empty", "lost", "repeated", "torn", "without value", "null", "no key", "exchanged", "no text", "invented"],
)
def test_a_sentence_that_is_not_as_it_was_is_both_lost_and_too_many(records: list[Record]) -> None:
    comparison = compare_sentences(LINES, records)
    assert not comparison.is_exact
    assert verdict(comparison, GOOD, REPEATED, (), ()).startswith("the producer lost")


@pytest.mark.parametrize(
    "records",
    [
        [],
        COUNTS[1:],
        [*COUNTS, COUNTS[0]],
        [(b"a", b""), *COUNTS[1:]],
        [(b"a", b"x"), *COUNTS[1:]],
        [(b"a", b"-2"), (b"a", b"4"), *COUNTS[1:]],
        [(b"a", None), *COUNTS],
        [(None, b"1"), *COUNTS],
        [(b"b", b"2"), (b"a", b"1"), *COUNTS[2:]],
        [*COUNTS, (b"c", b"0")],
    ],
    ids=["empty", "lost", "repeated", "torn", "no number", "cancelled", "null", "no word", "exchanged", "invented"],
)
def test_a_count_that_is_not_as_it_was_is_seen(records: list[Record]) -> None:
    comparison = compare_counts(WORDS, records)
    assert not comparison.is_exact
    assert verdict(GOOD, comparison, REPEATED, (), ()).startswith("the pipeline lost")
