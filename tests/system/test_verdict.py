"""Claims about the verdict: the innocent pass it, and no guilty history does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.system.load import COPIES, PLAIN, TRANSACTIONS
from tests.system.verdict import Reports, Values, judge_copies, judge_plain, judge_reader, judge_transactions


def plain(*values: str, topic: str = PLAIN) -> Values:
    return {(topic, 0, offset): value for offset, value in enumerate(values)}


def acknowledged(*places: tuple[int, str], wrote: int) -> Reports:
    lines: list[dict[str, Any]] = [{"partition": 0, "offset": offset, "value": value} for offset, value in places]
    return {"idempotent-0": [*lines, {"wrote": [wrote]}]}


TWO = ((0, "0:0:0"), (1, "0:0:1"))


def test_what_is_acknowledged_and_there_in_order_passes() -> None:
    assert judge_plain(plain("0:0:0", "0:0:1"), acknowledged(*TWO, wrote=2)) == 2


@pytest.mark.parametrize(
    "found",
    [
        plain("0:0:0"),
        plain("0:0:0", "0:0:1", "0:0:1"),
        plain("0:0:0", "0:0:1", "0:0:0"),
        plain("0:0:1", "0:0:0"),
        plain("0:0:0", "0:0:2"),
        plain("0:0:0", "0:0:1", "0:0:2"),
    ],
    ids=["lost", "doubled", "doubled-later", "out-of-order", "another", "never-written"],
)
def test_what_is_lost_doubled_or_moved_does_not(found: Values) -> None:
    with pytest.raises(AssertionError):
        judge_plain(found, acknowledged(*TWO, wrote=2))


def transactions(*outcomes: str) -> Reports:
    lines: list[dict[str, Any]] = []
    for number, outcome in enumerate(outcomes):
        lines.append({"transaction": number, "values": [f"0:{number}:0", f"0:{number}:1"]})
        lines.append({"transaction": number, "outcome": outcome})
    return {"transactional-0": lines}


@pytest.mark.parametrize("outcome", ["committed", "unknown"])
def test_a_whole_transaction_passes(outcome: str) -> None:
    found = plain("0:0:0", "0:0:1", topic=TRANSACTIONS)
    assert judge_transactions(found, transactions(outcome)) == {outcome: 1}


@pytest.mark.parametrize("outcome", ["aborted", "unknown"])
def test_a_transaction_of_which_nothing_is_there_passes(outcome: str) -> None:
    assert judge_transactions({}, transactions(outcome)) == {outcome: 1}


@pytest.mark.parametrize(
    ("found", "outcomes"),
    [
        ((), ("committed",)),
        (("0:0:0", "0:0:1"), ("aborted",)),
        (("0:0:0",), ("aborted",)),
        (("0:0:0",), ("committed",)),
        (("0:0:1",), ("unknown",)),
        (("0:0:0", "0:0:1", "0:0:1"), ("committed",)),
        (("0:1:0", "0:1:1", "0:0:0", "0:0:1"), ("committed", "committed")),
    ],
    ids=["lost", "aborted-seen", "aborted-part", "part-lost", "torn", "doubled", "out-of-order"],
)
def test_a_torn_lost_or_aborted_one_that_is_seen_does_not(found: tuple[str, ...], outcomes: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError):
        judge_transactions(plain(*found, topic=TRANSACTIONS), transactions(*outcomes))


def seen(*places: tuple[int, str]) -> Reports:
    return {"reader-0": [{"at": [PLAIN, 0, offset], "value": value} for offset, value in places]}


def test_a_reader_that_saw_all_records_passes() -> None:
    assert judge_reader(plain("a", "b"), seen((0, "a"), (1, "b"))) == 2


@pytest.mark.parametrize(
    "reports",
    [seen((0, "a"), (2, "c")), seen((0, "b")), seen((0, "a"), (0, "a")), seen((1, "b"), (0, "a"))],
    ids=["gone", "another", "twice", "backwards"],
)
def test_a_reader_that_saw_anything_else_does_not(reports: Reports) -> None:
    with pytest.raises(AssertionError):
        judge_reader(plain("a", "b"), reports)


def test_copies_must_be_their_originals() -> None:
    judge_copies(plain("a", "b") | plain("a", "b", topic=COPIES[0]))
    for copies in (("a",), ("a", "b", "b"), ("b", "a")):
        with pytest.raises(AssertionError):
            judge_copies(plain("a", "b") | plain(*copies, topic=COPIES[0]))


def test_every_copier_is_checked() -> None:
    originals = plain("a", "b")
    judge_copies(originals | plain("a", "b", topic=COPIES[0]) | plain("a", "b", topic=COPIES[1]), copiers=2)
    with pytest.raises(AssertionError):
        judge_copies(originals | plain("a", "b", topic=COPIES[0]), copiers=2)
