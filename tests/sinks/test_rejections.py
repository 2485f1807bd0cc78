"""Finding rejected rows by halves, and how many there may be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einmal.pipeline.dead_letters import ToleranceExceeded
from einmal.schemas.settings import ErrorSettings, Limit
from einmal.sinks.commit_point import SinkFailed
from einmal.sinks.rejections import NARROW_MAX, REJECTED_MAX, Rejections, Rows, find_rejected


class Table:
    """Takes rows all together or not at all: not those of ``bad``, no value of ``values`` twice, and no row before the
    one that it needs."""

    def __init__(self, bad: set[int], values: list[int], needs: dict[int, int]) -> None:
        self.bad, self.values, self.needs = bad, values, needs
        self.rows: list[int] = []
        self.statements = 0

    def attempt(self, some: Rows) -> str | None:
        self.statements += 1
        after = [*self.rows, *some]
        for row in some:
            if row in self.bad:
                return "bad"
            if [self.values[each] for each in after].count(self.values[row]) > 1:
                return "twice"
            if self.needs.get(row, row) not in after:
                return "missing"
        self.rows = after
        return None

    def fill(self) -> dict[int, str]:
        every = range(len(self.values))
        error = self.attempt(every) if self.values else None
        return {} if error is None else find_rejected(every, error, self.attempt, depends=lambda why: why == "missing")


@given(st.data())
def test_a_row_is_rejected_if_and_only_if_it_cannot_be_added_to_the_others(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 60))
    rows = st.integers(0, max(count - 1, 0))
    values = data.draw(st.lists(st.integers(0, 40), min_size=count, max_size=count))
    table = Table(data.draw(st.sets(rows)) if count else set(), values, data.draw(st.dictionaries(rows, rows)))
    found = table.fill()
    assert sorted([*table.rows, *found]) == list(range(count))
    assert not table.bad & set(table.rows)
    assert len({values[row] for row in table.rows}) == len(table.rows)
    for row in found:
        assert table.attempt([row]) is not None


@given(st.data())
def test_a_search_that_narrows_few_rows_down_rejects_the_same_kind_of_rows(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 60))
    rows = st.integers(0, count - 1)
    values = data.draw(st.lists(st.integers(0, 40), min_size=count, max_size=count))
    table = Table(data.draw(st.sets(rows)), values, data.draw(st.dictionaries(rows, rows)))

    def narrow(some: Rows) -> tuple[list[tuple[int, str]], Rows] | None:
        if data.draw(st.integers(0, 4)) == 0:
            return None
        tried = data.draw(st.integers(1, len(some)))
        suspects = [(row, why) for row in some[:tried] if (why := table.attempt([row])) is not None]
        return [(row, "" if why == "missing" else why) for row, why in suspects], some[tried:]

    error = table.attempt(range(count))
    found = {} if error is None else find_rejected(
        range(count), error, table.attempt, depends=lambda why: why == "missing", narrow=narrow
    )  # fmt: skip
    assert sorted([*table.rows, *found]) == list(range(count))
    for row in found:
        assert table.attempt([row]) is not None


def test_of_many_rows_only_few_at_a_time_are_narrowed_down() -> None:
    bad = set(range(7, 100_000, 100))
    lengths: list[int] = []

    def attempt(some: Rows) -> str | None:
        lengths.append(len(some))
        return "bad" if bad.intersection(some) else None

    def narrow(some: Rows) -> tuple[list[tuple[int, str]], Rows]:
        assert 1 < len(some) <= NARROW_MAX
        return [(row, f"bad {row % 3}") for row in some if row in bad], []

    found = find_rejected(range(100_000), "bad", attempt, narrow=narrow)
    assert set(found) == bad
    # One for each reason, and those that are narrowed down.
    assert sorted(lengths)[:4] == [1, 1, 1, 100_000 % NARROW_MAX]
    assert len(lengths) == 3 + -(-100_000 // NARROW_MAX)


@given(st.integers(1, 5_000), st.lists(st.integers(0, 4_999), max_size=20, unique=True))
def test_few_rejected_rows_cost_few_statements(count: int, bad: list[int]) -> None:
    table = Table({each for each in bad if each < count}, list(range(count)), {})
    table.attempt = lambda some: _counted(table, some)  # type: ignore[method-assign]
    found = table.fill()
    assert set(found) == table.bad
    assert table.statements <= 1 + 2 * len(table.bad) * count.bit_length()


def _counted(table: Table, some: Rows) -> str | None:
    table.statements += 1
    return "bad" if any(some[0] <= row <= some[-1] for row in table.bad) else None


def test_of_two_equal_rows_the_later_one_is_rejected() -> None:
    table = Table(set(), [1, 2, 1, 3, 2], {})
    assert table.fill() == {2: "twice", 4: "twice"}


def test_the_search_ends_when_there_are_too_many() -> None:
    table = Table(set(range(1_000)), list(range(1_000)), {})
    table.attempt = lambda some: _counted(table, some)  # type: ignore[method-assign]
    rejections = Rejections("loading", ErrorSettings(limit=Limit(count=3)), 7, 1_000)
    with pytest.raises(ToleranceExceeded, match=r"^loading: 4 or more of 1,000 rows of batch 7 .*\.limit"):
        find_rejected(range(1_000), "bad", table.attempt, check=rejections.check)
    assert table.statements < 40


def test_no_limit_allows_more_than_the_driver_can_hold() -> None:
    rejections = Rejections("loading", ErrorSettings(), 7, 10**9)
    rejections.check(REJECTED_MAX)
    with pytest.raises(ToleranceExceeded, match="10,001 or more"):
        rejections.check(REJECTED_MAX + 1)


def test_a_share_is_of_the_rows_of_the_batch() -> None:
    rejections = Rejections("loading", ErrorSettings(limit=Limit(share=0.01)), 7, 1_000)
    for offset in range(10):
        rejections.add(("in", 0, offset), "x.bad", "")
    with pytest.raises(ToleranceExceeded):
        rejections.add(("in", 0, 10), "x.bad", "")


def test_two_rejected_rows_of_one_record_are_one_dead_letter() -> None:
    rejections = Rejections("loading", ErrorSettings(), 7, 10)
    for exception in ("x.first", "x.second"):
        rejections.add(("in", 0, 5), exception, "")
    assert rejections.count == 2
    assert [(each.offset, each.exception) for each in rejections.rejected] == [(5, "x.first")]


def test_a_row_without_a_record_is_no_dead_letter() -> None:
    with pytest.raises(SinkFailed, match="einmal_record is NULL"):
        Rejections("loading", ErrorSettings(), 7, 10).add((None, None, None), "x.bad", "why")
