"""Claims about the demo's picture and page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from html import escape, unescape
from itertools import pairwise
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pytest

import einmal
from einmal.demo.report import Report, write
from einmal.demo.timeline import NARROW_WIDTH, WIDTH, Moment, Parts, Timeline, draw
from einmal.demo.verdict import compare
from einmal.demo.versions import spark_versions
from einmal.evidence.environment import run_environment
from tests.suite.patience import patient

CHROMIUM: Final = shutil.which("chromium")


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


def report() -> Report:
    same, more = compare({"a": 1_000_000}, {"a": 1_000_000}), compare({"a": 1}, {"a": 3_000_000})
    return Report(
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
        environment=run_environment(["demo", "--input", "my notes"], spark_versions()),
    )


def test_the_report_names_what_programs_look_for(tmp_path: Path) -> None:
    as_json, page = write(tmp_path, report(), timeline())
    fields = json.loads(as_json.read_text())
    assert {"input_records", "lost", "duplicated", "kills", "control_duplicated", "verdict"} <= fields.keys()
    assert (fields["lost"], fields["duplicated"], fields["control_duplicated"]) == (0, 0, 2_999_999)
    assert (fields["kills"], fields["killed"]) == (4, ["leader", "coordinator", "driver", "driver"])
    assert "<svg" in page.read_text() and "http" not in page.read_text().replace("http-equiv", "")


def test_the_report_states_when_with_which_versions_by_which_command_and_where(tmp_path: Path) -> None:
    as_json, page = write(tmp_path, report(), timeline())
    fields, text = json.loads(as_json.read_text()), page.read_text()
    assert datetime.now(UTC) - datetime.fromisoformat(fields["started_at"]) < timedelta(minutes=10)
    assert fields["versions"]["einmal"] == einmal.__version__
    assert fields["versions"].keys() == {"einmal", "Python", "Spark", "Java"}
    assert fields["command"] == "einmal demo --input 'my notes'"
    assert "processor" in fields["machine"]
    assert all(escape(each) in text for each in (fields["started_at"], fields["command"], fields["machine"]))


@pytest.mark.parametrize("width", [WIDTH, NARROW_WIDTH])
def test_numbers_do_not_cover_each_other_and_nothing_leaves_the_picture(width: int) -> None:
    crowded = timeline()
    crowded.moments += [Moment(19.0 + number / 10, "fence", "x") for number in range(8)]
    crowded.moments += [Moment(19.5 + number / 10, "back", "x", broker=2) for number in range(5)]
    root = ElementTree.fromstring(draw(crowded, width))
    circles: dict[str, list[float]] = {}
    for circle in root.iter("circle"):
        if "cy" in circle.attrib and circle.attrib["r"] == "8":
            circles.setdefault(circle.attrib["cy"], []).append(float(circle.attrib["cx"]))
    assert sum(map(len, circles.values())) == len(crowded.drawn())
    for places in circles.values():
        assert all(after - before >= 16 for before, after in pairwise(places))
        assert places[-1] <= width - 8
    keys = [each.attrib["transform"] for each in root.iter("g") if "transform" in each.attrib]
    corners = {tuple(map(int, key.removeprefix("translate(").rstrip(")").split())) for key in keys}
    assert len(corners) == len(keys) == 11
    assert all(left < width - 60 for left, _top in corners)


_MEASURE: Final = """<!doctype html><body><iframe width="375" height="2000" srcdoc="{page}"></iframe><p id="told"></p>
<script>onload = () => {{
  const page = document.querySelector("iframe").contentDocument;
  const rights = [...page.querySelectorAll("th, td")].map(cell => cell.getBoundingClientRect().right);
  const numbers = [...page.querySelectorAll("td.n")].filter(cell => cell.getBoundingClientRect().width > 0);
  const heads = new Set(numbers.map(cell => page.defaultView.getComputedStyle(cell, "::before").content));
  const pictures = [...page.querySelectorAll("svg")].map(svg => svg.getBoundingClientRect()).filter(box => box.width);
  const letters = [...page.querySelectorAll("svg text")].map(text => text.getBoundingClientRect().right);
  const widest = Math.max(page.documentElement.scrollWidth, ...rights, ...letters);
  told.textContent = [...heads].join() + ` ${{pictures.length}} picture up to ` + widest;
}}</script>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_a_telephone_shows_what_was_lost_and_repeated(tmp_path: Path) -> None:
    _json, page = write(tmp_path, report(), timeline())
    measured = tmp_path / "measured.html"
    measured.write_text(_MEASURE.format(page=escape(page.read_text())))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    options += ["--disable-background-networking", "--disable-component-update", f"--user-data-dir={tmp_path / 'user'}"]
    assert CHROMIUM is not None
    dumped = subprocess.run(
        [CHROMIUM, *options, "--virtual-time-budget=2000", "--dump-dom", measured.as_uri()],
        capture_output=True,
        text=True,
        timeout=patient(60),
    )
    told = re.search(r'<p id="told">(.*?) up to ([\d.]+)</p>', dumped.stdout)
    assert told is not None, dumped.stderr[-2_000:]
    assert unescape(told[1]) == '"expected","seen","lost","repeated" 1 picture'
    assert float(told[2]) <= 375


def test_the_page_has_its_narrow_form_and_the_picture_takes_the_page_s_colours(tmp_path: Path) -> None:
    _json, page = write(tmp_path, report(), timeline())
    text = page.read_text()
    assert "color-scheme: light dark" in text
    assert "@media (max-width: 40rem)" in text
    inks = {*re.findall(r'<text[^>]* fill="(.*?)"', draw(timeline())), *re.findall(r'<svg[^>]* fill="(.*?)"', text)}
    assert inks <= {"currentColor", "var(--page)"}


@pytest.mark.parametrize("picture", sorted((Path(__file__).parents[2] / "examples").glob("*/*.svg")), ids=str)
def test_a_picture_brings_its_own_background_for_dark_pages(picture: Path) -> None:
    root = ElementTree.fromstring(picture.read_text())
    background = next(each for each in root if each.tag.endswith("rect"))
    size = {"width": root.attrib["width"], "height": root.attrib["height"], "fill": "#ffffff"}
    assert background.attrib == size
