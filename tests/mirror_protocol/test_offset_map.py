from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einmal.mirror_protocol.offset_map import InvalidRun, OffsetMap, OffsetRun


def mapped(*runs: tuple[int, int, int]) -> OffsetMap:
    return OffsetMap.beginning(0, 0).extended(OffsetRun(*run) for run in runs)


def test_an_offset_is_translated_to_the_first_record_at_or_after_it() -> None:
    found = mapped((2, 0, 3), (7, 4, 2))
    assert [found.translate(offset) for offset in range(11)] == [0, 0, 0, 1, 2, 4, 4, 4, 5, 6, 6]


def test_a_map_without_records_begins_at_the_end_of_the_target() -> None:
    found = OffsetMap.beginning(5, 40)
    assert [found.translate(offset) for offset in (4, 5, 9)] == [None, 40, 40]


def test_runs_that_continue_each_other_are_one() -> None:
    assert mapped((2, 0, 3), (5, 3, 1)).runs == (OffsetRun(0, 0, 0), OffsetRun(2, 0, 4))


@pytest.mark.parametrize("run", [(4, 9, 1), (9, 2, 1), (9, 9, -1)], ids=["source", "target", "records"])
def test_a_run_before_another_one_is_refused(run: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidRun):
        mapped((2, 0, 3), run)


@st.composite
def gaps(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Source and target offsets of records, with gaps on either side."""
    source = target = 0
    records = []
    for _ in range(draw(st.integers(0, 12))):
        source += draw(st.integers(0, 2))
        target += draw(st.integers(0, 2))
        records.append((source, target))
        source, target = source + 1, target + 1
    return records


@given(gaps(), st.integers(0, 45), st.integers(0, 45))
def test_dropped_runs_change_no_later_translation(records: list[tuple[int, int]], offset: int, kept: int) -> None:
    found = mapped(*((source, target, 1) for source, target in records))
    following = next((target for source, target in records if source >= offset), None)
    last = records[-1][1] + 1 if records else 0
    assert found.translate(offset) == (last if following is None else following)
    shorter = found.dropped(kept)
    assert shorter.translate(offset) == found.translate(offset) or (offset < kept and shorter.translate(offset) is None)


@given(gaps(), st.integers(0, 45))
def test_a_reader_resumes_alike_wherever_no_record_lies_between(records: list[tuple[int, int]], offset: int) -> None:
    found = mapped(*((source, target, 1) for source, target in records))
    passed = sum(source < offset for source, _ in records)
    for there in range(100):
        assert found.resumes_at(there, offset) == (sum(target < there for _, target in records) == passed)
