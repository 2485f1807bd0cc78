"""A diagram for a terminal."""

from __future__ import annotations

from typing import Final

from einmal.trace.diagram import Arrow, Diagram, Tone

_TIME: Final = 9
_LANE: Final = 16
_SIGNS: Final = {Tone.REQUEST: " ", Tone.ANSWER: " ", Tone.KNOWS: "●", Tone.WRONG: "✗"}


def drawn(diagram: Diagram) -> str:
    lanes = diagram.lanes
    lines = [diagram.verdict, ""]
    lines += [_key(chr(ord("A") + index), lane.title, lane.subtitle) for index, lane in enumerate(lanes)]
    head = "".join(chr(ord("A") + index).ljust(_LANE) for index in range(len(lanes))).rstrip()
    lines += ["", f"{'ms':>{_TIME}}   {head}"]
    lines += [_line(diagram, number, row) for number, row in enumerate(diagram.rows)]
    lines += ["", "Who knows when"]
    lines += [f"  {moment.who} {moment.what}: {moment.words}" for moment in diagram.moments]
    lines += ["", *diagram.remarks]
    if diagram.bars:
        lines.append("┃ at a leader: the last stable offset is held there, as far as readers show. ●: somebody knows.")
    return "\n".join(lines)


def _key(letter: str, title: str, subtitle: str) -> str:
    return f"  {letter}  {title}, {subtitle}"


def _line(diagram: Diagram, number: int, row: Arrow) -> str:
    at = "" if row.at is None else f"{row.at:,.1f}"
    held = {bar.lane for bar in diagram.bars if bar.first <= number <= bar.last}
    line = "".join(("┃" if lane in held else "│").ljust(_LANE) for lane in range(len(diagram.lanes))).rstrip()
    left, right = sorted((row.source * _LANE, row.target * _LANE))
    shaft = ("╌" if row.at is None else "─") * (right - left - 2)
    arrow = f"{shaft}▶" if row.target > row.source else f"◀{shaft}"
    return f"{at:>{_TIME}} {_SIGNS[row.tone]} {line[: left + 1]}{arrow}{line[right:]}  {row.label}"
