"""Claims about the demo's picture and page."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from einmal.demo.report import Report, write
from einmal.demo.timeline import Moment, Timeline, draw
from einmal.demo.verdict import compare


def timeline() -> Timeline:
    result = Timeline()
    result.series["sentences acknowledged"] += [(0.0, 0.0), (10.0, 1.0)]
    result.series["words counted, at least once"] += [(5.0, 0.2), (20.0, 1.3)]
    result.moments += [Moment(1.0, "step", "ready"), Moment(4.0, "kill", "broker <killed>"), Moment(9.0, "fence", "x")]
    return result


def test_the_picture_is_well_formed_and_marks_every_kill() -> None:
    root = ElementTree.fromstring(draw(timeline()))
    titles = [element.text for element in root.iter() if element.tag.endswith("title")]
    assert titles == ["broker <killed>", "x"]


def test_an_empty_timeline_can_be_drawn() -> None:
    ElementTree.fromstring(draw(Timeline()))


def test_the_report_names_what_programs_look_for(tmp_path: Path) -> None:
    same, more = compare({"a": 1}, {"a": 1}), compare({"a": 1}, {"a": 3})
    report = Report(
        source="text",
        input_records=1,
        input_words=1,
        loaded=same,
        counted=same,
        control=more,
        kills=4,
        replayed_batches=1,
        aborted_records=7,
        seconds=1.0,
        verdict="exactly-once",
    )
    as_json, page = write(tmp_path, report, timeline())
    fields = json.loads(as_json.read_text())
    assert {"input_records", "lost", "duplicated", "kills", "control_duplicated", "verdict"} <= fields.keys()
    assert (fields["lost"], fields["duplicated"], fields["control_duplicated"]) == (0, 0, 2)
    assert "<svg" in page.read_text() and "http" not in page.read_text().replace("http-equiv", "")
