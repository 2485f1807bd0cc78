"""Claims about the demo's comparison: a difference cannot hide behind another one."""

from __future__ import annotations

from einmal.demo.verdict import compare, verdict

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
