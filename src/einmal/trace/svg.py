"""A diagram as SVG, in the colours of the evidence pages, for light, dark and print."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Final

from einmal.trace.diagram import Arrow, Diagram, Lane, Tone

_FIRST_LANE: Final = 150
_BETWEEN: Final = 236
_MARGIN: Final = 110
_LINE: Final = 14
_CHARACTER: Final = 6.2
_TOP: Final = 56
_STYLE: Final = """
text { font: 11px system-ui, sans-serif; fill: var(--ink); }
.s { fill: var(--soft); } .b { font-weight: 600; } .h { font-size: 14px; font-weight: 600; }
.n { font-variant-numeric: tabular-nums; } .wrong { fill: var(--aborted); }
.lane { stroke: var(--rule); stroke-width: 1.5; }
.arrow { fill: none; stroke: var(--ink); stroke-width: 1.4; }
.answer { stroke: var(--soft); } .missing { stroke: var(--aborted); stroke-dasharray: 4 4; }
.held { fill: var(--open); }
"""
_NO_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_COLOURS: Final = {"committed": "--committed", "aborted": "--aborted", "unknown": "--open", "not_ended": "--open"}


def drawn(diagram: Diagram) -> str:
    return _Page(diagram).text()


@dataclass(frozen=True, slots=True)
class _Page:
    diagram: Diagram

    @property
    def width(self) -> int:
        return max(_FIRST_LANE + _BETWEEN * (len(self.diagram.lanes) - 1) + _MARGIN, 640)

    def text(self) -> str:
        tops, bottom = self._tops()
        body = [*self._heads(bottom), *self._bars(tops, bottom)]
        for row, top in zip(self.diagram.rows, tops, strict=True):
            body += self._row(row, top)
        below, height = self._below(bottom + 30)
        palette = (resources.files("einmal.evidence") / "palette.css").read_text(encoding="utf-8")
        label = _escaped(self.diagram.verdict)
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{height}" '
            f'viewBox="0 0 {self.width} {height}" role="img" aria-label="{label}">',
            f"<title>{label}</title>",
            f"<style>\n{palette}{_STYLE}</style>",
            '<rect width="100%" height="100%" style="fill: var(--card)"/>',
            *_paragraph(self.diagram.verdict, 20, 26, self.width, "h"),
            *body,
            *below,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"

    def _x(self, lane: int) -> int:
        return _FIRST_LANE + _BETWEEN * lane

    def _lines(self, row: Arrow) -> list[str]:
        """The label, as wide as its arrow; bold letters are wider."""
        character = _CHARACTER * (1.1 if row.tone is Tone.KNOWS else 1)
        return textwrap.wrap(row.label, int((_BETWEEN * abs(row.target - row.source) - 20) / character))

    def _tops(self) -> tuple[list[int], int]:
        """The height of each arrow, and where the last lane ends."""
        y = self._lanes_from() + 12
        tops = []
        for row in self.diagram.rows:
            y += _LINE * len(self._lines(row)) + 12
            tops.append(y)
        return tops, y + 16

    def _lanes_from(self) -> int:
        return _TOP + _LINE * (1 + max(len(_subtitles(lane)) for lane in self.diagram.lanes))

    def _heads(self, bottom: int) -> Iterator[str]:
        for index, lane in enumerate(self.diagram.lanes):
            x = self._x(index)
            yield _text(lane.title, x, _TOP, "b", "middle")
            for line, words in enumerate(_subtitles(lane)):
                yield _text(words, x, _TOP + _LINE * (line + 1), "s", "middle")
            yield f'<line class="lane" x1="{x}" x2="{x}" y1="{self._lanes_from()}" y2="{bottom}"/>'
        yield _text("ms", 62, self._lanes_from(), "s", "end")

    def _bars(self, tops: list[int], bottom: int) -> Iterator[str]:
        for bar in self.diagram.bars:
            first, last = tops[bar.first], tops[bar.last] if bar.is_released else bottom
            yield (
                f'<rect class="held" x="{self._x(bar.lane) - 3}" y="{first}" width="6" height="{last - first}" rx="2">'
                "<title>last stable offset held, as far as readers show</title></rect>"
            )

    def _row(self, row: Arrow, y: int) -> Iterator[str]:
        if row.at is not None:
            yield _text(f"{row.at:,.1f}", 62, y + 4, "s n", "end")
        begin, end = self._x(row.source), self._x(row.target)
        sign = 1 if end > begin else -1
        kind = {Tone.REQUEST: "", Tone.WRONG: " missing"}.get(row.tone, " answer")
        colour = f' style="stroke: var({self._outcome})"' if row.tone is Tone.KNOWS else ""
        head = f"m{-7 * sign} -4l{7 * sign} 4l{-7 * sign} 4"
        yield f'<path class="arrow{kind}"{colour} d="M{begin + 4 * sign} {y}H{end - 4 * sign}{head}"/>'
        if row.tone is Tone.KNOWS:
            yield f'<circle cx="{end}" cy="{y}" r="5" style="fill: var({self._outcome})"/>'
        lines = self._lines(row)
        style = {Tone.REQUEST: "", Tone.ANSWER: "s", Tone.KNOWS: "b", Tone.WRONG: "wrong"}[row.tone]
        for number, words in enumerate(lines):
            anchor = "start" if sign > 0 else "end"
            yield _text(words, begin + 10 * sign, y - 6 - _LINE * (len(lines) - 1 - number), style, anchor)

    @property
    def _outcome(self) -> str:
        return _COLOURS[self.diagram.outcome]

    def _below(self, y: int) -> tuple[list[str], int]:
        """Who knows when, what was not seen, and the legend."""
        lines = [_text("Who knows when", 20, y, "b")]
        for moment in self.diagram.moments:
            seen = moment.latest is not None
            colour = self._outcome if seen else "--gone"
            y += _LINE + 6
            lines.append(f'<circle cx="25" cy="{y - 4}" r="5" style="fill: var({colour})"/>')
            paragraph = _paragraph(f"{moment.who} {moment.what}: {moment.words}", 38, y, self.width, "")
            lines += paragraph
            y += _LINE * (len(paragraph) - 1)
        y += 8
        for words in (*self.diagram.remarks, *_legend(self.diagram)):
            y += _LINE + 4
            paragraph = _paragraph(words, 20, y, self.width, "s")
            lines += paragraph
            y += _LINE * (len(paragraph) - 1)
        return lines, y + 20


def _legend(diagram: Diagram) -> Iterator[str]:
    held = " The bar at a leader: its last stable offset is held, as far as readers show." if diagram.bars else ""
    yield f"Rows in the order of time, not to scale. A dot: from here on, a side knows the outcome.{held}"


def _subtitles(lane: Lane) -> list[str]:
    return textwrap.wrap(lane.subtitle, int(_BETWEEN / _CHARACTER) - 4)


def _paragraph(words: str, x: int, y: int, width: int, style: str) -> list[str]:
    size = 1.35 if style == "h" else 1
    lines = textwrap.wrap(words, int((width - x - 20) / _CHARACTER / size))
    return [_text(line, x, y + _LINE * number, style) for number, line in enumerate(lines)]


def _escaped(words: str) -> str:
    return escape(_NO_XML.sub("\N{REPLACEMENT CHARACTER}", words))


def _text(words: str, x: int, y: int, style: str = "", anchor: str = "") -> str:
    styled = f' class="{style}"' if style else ""
    anchored = f' text-anchor="{anchor}"' if anchor and anchor != "start" else ""
    return f'<text x="{x}" y="{y}"{styled}{anchored}>{_escaped(words)}</text>'
