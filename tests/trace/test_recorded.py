"""Claims about the diagrams of recorded transactions: frames of two clients and both brokers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from einmal.trace import svg, text
from einmal.trace.diagram import Diagram, Tone
from einmal.trace.story import story
from einmal.trace.transactions import transactions
from einmal.trace.words import ADDED_BY_LEADERS, MARKERS_UNSEEN
from tests.trace.recording import replayed

DOCS = Path(__file__).parents[2] / "docs"
RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.jsonl"))


def diagram_of(path: Path) -> Diagram:
    exchanges = replayed(path)
    return story(transactions(exchanges)[-1], exchanges)


def recorded(name: str) -> Diagram:
    return diagram_of(Path(__file__).parent / "recorded" / f"{name}.jsonl")


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_each_side_learns_the_outcome_after_the_decision_was_asked_for(path: Path) -> None:
    diagram = diagram_of(path)
    assert diagram.outcome == "committed"
    coordinator, producer, *readers = diagram.moments
    assert coordinator.latest == producer.latest
    asked = next(row.at for row in diagram.rows if row.label == "EndTxn, commit")
    assert asked is not None and coordinator.earliest == asked
    for each in readers:
        assert each.earliest is not None and each.latest is not None
        assert asked <= each.earliest <= each.latest
    assert [each.side for each in readers] == ["reader"]
    assert MARKERS_UNSEEN in diagram.remarks


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_no_row_shows_a_request_between_brokers(path: Path) -> None:
    diagram = diagram_of(path)
    clients = {0, len(diagram.lanes) - 1}
    assert all({row.source, row.target} & clients for row in diagram.rows)
    assert not any("WriteTxnMarkers" in row.label for row in diagram.rows)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_leaders_hold_the_last_stable_offset_from_the_first_answer_to_the_readers_fetch(path: Path) -> None:
    diagram = diagram_of(path)
    for bar in diagram.bars:
        assert bar.is_released
        first, last = diagram.rows[bar.first], diagram.rows[bar.last]
        assert (first.source, last.source) == (bar.lane, bar.lane)
        assert last.tone is Tone.KNOWS


def test_the_java_client_leaves_partitions_to_their_leaders() -> None:
    java, confluent = recorded("java-apache"), recorded("confluent-apache")
    assert ADDED_BY_LEADERS in java.remarks
    assert not any("AddPartitionsToTxn" in row.label for row in java.rows)
    assert ADDED_BY_LEADERS not in confluent.remarks


def test_the_marker_in_the_readers_answer_is_named_with_its_offset() -> None:
    (label,) = (row.label for row in recorded("confluent-einmal").rows if row.label.startswith("readable"))
    assert label == "readable: orders-0 (commit marker at 3), orders-1 (commit marker at 3)"


def test_a_terminal_has_a_line_for_each_row_with_its_arrow_between_two_lanes() -> None:
    diagram = recorded("confluent-einmal")
    drawn = text.drawn(diagram).splitlines()
    assert drawn[0] == diagram.verdict
    lines = [line for line in drawn if "│" in line]
    assert len(lines) == len(diagram.rows)
    assert all(line.endswith(row.label) for line, row in zip(lines, diagram.rows, strict=True))
    (end,) = (line for line in lines if line.endswith("EndTxn, commit"))
    assert end.split()[1].startswith("│──") and "▶│" in end
    assert sum("●" in line for line in lines) == 2


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_the_pictures_in_the_documentation_are_of_these_recordings(path: Path) -> None:
    picture = DOCS / "images" / f"trace-{path.stem}.svg"
    drawn = svg.drawn(diagram_of(path))
    if os.environ.get("EINMAL_REWRITE"):
        picture.write_text(drawn)
    assert picture.read_text() == drawn
    assert picture.name in (DOCS / "trace.md").read_text()


def test_the_text_in_the_documentation_is_of_this_recording() -> None:
    page = DOCS / "trace.md"
    before, rest = page.read_text().split("```text\n", 1)
    _, after = rest.split("```\n", 1)
    expected = f"{before}```text\n{text.drawn(recorded('confluent-einmal'))}\n```\n{after}"
    if os.environ.get("EINMAL_REWRITE"):
        page.write_text(expected)
    assert page.read_text() == expected
