"""What happened when, and its picture: records in and out over time, with kills, fences and replays marked.

The picture is SVG, written by hand: it is one page's only drawing, and a test can read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

WIDTH: Final = 960
HEIGHT: Final = 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 92, 34
_COLOURS: Final = {
    "sentences acknowledged": "#2563eb",
    "words counted, exactly once": "#16a34a",
    "words counted, at least once": "#d97706",
}
_EVENT_COLOURS: Final = {"kill": "#dc2626", "fence": "#7c3aed", "abort": "#db2777", "already-in": "#0d9488"}


@dataclass(frozen=True, slots=True)
class Moment:
    """``seconds`` since the demo began; ``kind``: kill, fence, abort, already-in, or step (not drawn)."""

    seconds: float
    kind: str
    text: str


@dataclass(slots=True)
class Timeline:
    """``series``: by name, (seconds, share of the expected total) in order of time."""

    moments: list[Moment] = field(default_factory=list)
    series: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: {name: [] for name in _COLOURS})

    def count(self, kind: str) -> int:
        return sum(moment.kind == kind for moment in self.moments)


def draw(timeline: Timeline) -> str:
    """One self-contained ``<svg>``."""
    end = max(
        [moment.seconds for moment in timeline.moments]
        + [points[-1][0] for points in timeline.series.values() if points]
        + [1.0]
    )
    top_share = max([share for points in timeline.series.values() for _s, share in points] + [1.0])

    def x(seconds: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * seconds / end

    def y(share: float) -> float:
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * share / top_share

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="records over time" '
        'font-family="system-ui, sans-serif" font-size="12" fill="currentColor">'
    ]
    parts += _axes(end, top_share, x, y)
    parts += [_line(points, _COLOURS[name], x, y) for name, points in timeline.series.items() if points]
    parts += _events([m for m in timeline.moments if m.kind in _EVENT_COLOURS], x)
    parts += _legend()
    return "\n".join([*parts, "</svg>"])


def _axes(end: float, top_share: float, x: object, y: object) -> list[str]:
    assert callable(x) and callable(y)
    step = next(s for s in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600) if end / s <= 12 or s == 600)
    parts = []
    for share in (0.0, 0.5, 1.0):
        parts.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(share):.1f}" y2="{y(share):.1f}" stroke="#8884"/>'
            f'<text x="{_LEFT - 8}" y="{y(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>'
        )
    if top_share > 1.005:
        parts.append(f'<text x="{_LEFT - 8}" y="{y(top_share) + 4:.1f}" text-anchor="end">{top_share:.0%}</text>')
    for second in range(0, int(end) + 1, step):
        parts.append(f'<text x="{x(second):.1f}" y="{HEIGHT - 12}" text-anchor="middle">{second} s</text>')
    return parts


def _line(points: Sequence[tuple[float, float]], colour: str, x: object, y: object) -> str:
    assert callable(x) and callable(y)
    path = " ".join(f"{x(seconds):.1f},{y(share):.1f}" for seconds, share in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'


def _events(moments: Sequence[Moment], x: object) -> list[str]:
    assert callable(x)
    parts = []
    for number, moment in enumerate(moments, start=1):
        colour = _EVENT_COLOURS[moment.kind]
        level = _TOP - 22 - 16 * (number % 2)
        parts.append(
            f'<g><title>{escape(moment.text)}</title><line x1="{x(moment.seconds):.1f}" x2="{x(moment.seconds):.1f}" '
            f'y1="{level + 6}" y2="{HEIGHT - _BOTTOM}" stroke="{colour}" stroke-dasharray="4 3"/>'
            f'<circle cx="{x(moment.seconds):.1f}" cy="{level}" r="8" fill="{colour}"/>'
            f'<text x="{x(moment.seconds):.1f}" y="{level + 4}" text-anchor="middle" fill="white">{number}</text></g>'
        )
    return parts


def _legend() -> list[str]:
    parts = []
    for index, (name, colour) in enumerate(_COLOURS.items()):
        left = _LEFT + index * 240
        parts.append(
            f'<rect x="{left}" y="12" width="14" height="4" fill="{colour}"/><text x="{left + 20}" y="18">{name}</text>'
        )
    for index, (kind, colour) in enumerate(_EVENT_COLOURS.items()):
        left = _LEFT + index * 120
        parts.append(
            f'<circle cx="{left + 5}" cy="34" r="5" fill="{colour}"/><text x="{left + 20}" y="38">{kind}</text>'
        )
    return parts
