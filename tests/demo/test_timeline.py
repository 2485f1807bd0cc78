"""Claims about the demo's picture and page."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from einmal.demo.report import Report, write
from einmal.demo.timeline import Moment, Parts, Timeline, draw
from einmal.demo.verdict import compare


def timeline() -> Timeline:
    result = Timeline()
    result.series["sentences acknowledged"] += [(0.0, 0.0), (10.0, 1.0)]
    result.series["words counted, at least once"] += [(5.0, 0.2), (20.0, 1.3)]
    result.brokers = (1, 2, 3)
    result.parts += [Parts(0.0, {1: 2, 2: 1, 3: 1}, None), Parts(4.2, {2: 3, 3: 1}, 2)]
    result.moments += [
        Moment(1.0, "step", "ready"),
        Moment(4.0, "kill", "broker <killed>", broker=1),
        Moment(6.0, "back", "broker", broker=1),
        Moment(9.0, "fence", "x"),
    ]
    return result


def test_the_picture_is_well_formed_and_marks_every_kill() -> None:
    root = ElementTree.fromstring(draw(timeline()))
    titles = [element.text for element in root.iter() if element.tag.endswith("title")]
    assert titles == ["broker <killed>", "broker", "x"]


def test_a_lane_shows_when_a_broker_served_led_and_coordinated() -> None:
    bars = [element for element in ElementTree.fromstring(draw(timeline())).iter() if "opacity" in element.attrib]
    by_top: dict[str, list[tuple[str, float, float]]] = {}
    for bar in bars:
        if bar.tag.endswith("rect") and "x" in bar.attrib:
            left, width = float(bar.attrib["x"]), float(bar.attrib["width"])
            by_top.setdefault(bar.attrib["fill"], []).append((bar.attrib["height"], left, left + width))
    grey, blue, purple = by_top.values()
    first_life, second_life = grey[:2]
    assert first_life[2] < second_life[1], "between its kill and its return it does not serve"
    assert [height for height, _left, _right in blue] == ["6", "3", "9", "3", "3"]
    assert len(purple) == 1


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
        killed=("leader", "coordinator", "driver", "driver"),
        replayed_batches=1,
        aborted_records=7,
        seconds=1.0,
        verdict="exactly-once",
    )
    as_json, page = write(tmp_path, report, timeline())
    fields = json.loads(as_json.read_text())
    assert {"input_records", "lost", "duplicated", "kills", "control_duplicated", "verdict"} <= fields.keys()
    assert (fields["lost"], fields["duplicated"], fields["control_duplicated"]) == (0, 0, 2)
    assert (fields["kills"], fields["killed"]) == (4, ["leader", "coordinator", "driver", "driver"])
    assert "<svg" in page.read_text() and "http" not in page.read_text().replace("http-equiv", "")
