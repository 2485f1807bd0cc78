"""Claims about reports of tasks that decode: each counts once, and verdicts that differ are seen."""

from __future__ import annotations

from collections import Counter

from einmal.spark.decoding.reports import Reports, TaskReport, summarized

COUNTS = ((("VALUE_CONVERTER", "WrongType"), 2),)


def test_a_report_that_comes_twice_counts_once() -> None:
    reports = Reports()
    one = TaskReport("1.a", "payments", 0, records=10, counts=COUNTS)
    other = TaskReport("1.a", "payments", 1, records=5, counts=COUNTS)
    found = reports.addInPlace(reports.addInPlace({one: None}, {other: None}), {one: None})
    summary = summarized(found, "1.a")["payments"]
    assert summary.records == 15
    assert summary.dead_letters == Counter({("VALUE_CONVERTER", "WrongType"): 4})


def test_reports_of_another_batch_do_not_count() -> None:
    late = TaskReport("0.z", "payments", 0, records=10, counts=COUNTS)
    assert summarized([late], "1.a") == {}


def test_two_reports_of_one_piece_count_once_and_ids_with_two_verdicts_are_undecided() -> None:
    first = TaskReport("1.a", "payments", 0, records=10, counts=COUNTS, unknown=frozenset({7, 8}))
    again = TaskReport("1.a", "payments", 0, records=10, known=frozenset({7}), unknown=frozenset({8}))
    good = TaskReport("1.a", "payments", None, known=frozenset({1}), drift=frozenset({"$.x"}))
    summary = summarized([first, again, good], "1.a")["payments"]
    assert summary.records == 10
    assert summary.undecided == {7}
    assert summary.drift == {"$.x"}


def test_an_id_with_two_schemas_has_changed() -> None:
    good = TaskReport("1.a", "payments", None, digests=frozenset({(7, "old"), (8, "same")}))
    bad = TaskReport("1.a", "payments", 0, digests=frozenset({(7, "new"), (8, "same")}))
    assert summarized([good, bad], "1.a")["payments"].changed == {7}
