"""The demo's results: ``report.json`` for programs, one self-contained HTML page for people."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Final

from einmal.demo.timeline import NARROW_WIDTH, Timeline, draw
from einmal.demo.verdict import Comparison
from einmal.evidence.environment import RunEnvironment
from einmal.evidence.page import document, table, verdict

EXACTLY_ONCE: Final = "exactly-once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """``killed``: what each kill hit, in order. Times in seconds.

    ``aborted_records``: written to ``counts``, never visible to ``read_committed``.
    """

    source: str
    input_records: int
    input_words: int
    loaded: Comparison
    counted: Comparison
    control: Comparison
    killed: tuple[str, ...]
    replayed_batches: int
    aborted_records: int
    seconds: float
    verdict: str
    environment: RunEnvironment

    def fields(self) -> dict[str, object]:
        return {
            "input_records": self.input_records,
            "input_words": self.input_words,
            "lost": self.loaded.lost + self.counted.lost,
            "duplicated": self.loaded.duplicated + self.counted.duplicated,
            "kills": len(self.killed),
            "killed": list(self.killed),
            "control_lost": self.control.lost,
            "control_duplicated": self.control.duplicated,
            "replayed_batches": self.replayed_batches,
            "aborted_records": self.aborted_records,
            "seconds": round(self.seconds, 1),
            "source": self.source,
            "verdict": self.verdict,
            "loaded": asdict(self.loaded),
            "counted": asdict(self.counted),
            "control": asdict(self.control),
            **asdict(self.environment),
        }


def rows(report: Report) -> list[tuple[str, str, str, str, str]]:
    """The table of results: what, expected, seen, lost, repeated."""
    return [
        (name, f"{c.expected:,}", f"{c.seen:,}", f"{c.lost:,}", f"{c.duplicated:,}")
        for name, c in (
            ("sentences in the log", report.loaded),
            ("words counted, exactly once", report.counted),
            ("words counted, at least once (control)", report.control),
        )
    ]


def write(folder: Path, report: Report, timeline: Timeline) -> tuple[Path, Path]:
    """Write ``report.json`` and ``report.html``; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    as_json = folder / "report.json"
    as_json.write_text(json.dumps(report.fields(), indent=2) + "\n", encoding="utf-8")
    page = folder / "report.html"
    page.write_text(_page(report, timeline), encoding="utf-8")
    return as_json, page


def _page(report: Report, timeline: Timeline) -> str:
    moments = "\n".join(
        f"<li><b>{moment.seconds:.1f} s</b> <i>{moment.kind}</i> {escape(moment.text)}</li>"
        for moment in timeline.drawn()
    )
    body = f"""<h1>einmal demo</h1>
{verdict("holds" if report.verdict == EXACTLY_ONCE else "anomaly", report.verdict)}
<p>{report.input_records:,} lines of {escape(report.source)} ({report.input_words:,} words) went through three brokers
and a Spark pipeline in {report.seconds:.0f} seconds. {len(report.killed)} of their processes were killed with SIGKILL:
{escape(", ".join(report.killed))}. What a <code>read_committed</code> reader sees was compared, word by word, with an
independent single pass over the text.</p>
{table(("", "expected", "seen", "lost", "repeated"), rows(report), numbers=4)}
<div class="desktop">{draw(timeline)}</div>
<div class="phone">{draw(timeline, NARROW_WIDTH)}</div>
<ol>{moments}</ol>
<p>{report.aborted_records:,} records of aborted attempts lie in the log; <code>read_committed</code> hides them.
Batches that Spark replayed although they were committed, recognised by the commit record:
{report.replayed_batches}. The control run had the same input, the same session and the same kills, with
<code>processing.guarantee=at_least_once</code>: its repeats show that the kills hit.</p>
<p>{escape(report.environment.text())} Run it again: <code>{escape(report.environment.command)}</code></p>
<p>Not shown: brokers on several machines, power loss, effects outside the log.</p>"""
    return document(f"einmal demo: {report.verdict}", body)
