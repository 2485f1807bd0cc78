"""What happened when, and its picture: records in and out over time, kills, fences and replays, and a lane per broker.

The picture is SVG, written by hand: it is one page's only drawing, and a test can read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import Final

WIDTH: Final = 960
_PLOT_HEIGHT: Final = 300
_LANE_HEIGHT: Final = 34
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 16, 96, 30
_COLOURS: Final = {
    "sentences acknowledged": "#2563eb",
    "words counted, exactly once": "#16a34a",
    "words counted, at least once": "#d97706",
}
_EVENT_COLOURS: Final = {
    "kill": "#dc2626",
    "failover": "#2563eb",
    "back": "#64748b",
    "fence": "#7c3aed",
    "abort": "#db2777",
    "already-in": "#0d9488",
}
_LEADS: Final = "#2563eb"
_COORDINATES: Final = "#7c3aed"
_SERVES: Final = "#8886"

_Scale = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Moment:
    """``seconds`` since the demo began; ``kind``: one of those with a colour, or step (not drawn).

    ``broker``: whose lane it belongs to; None: not about one broker.
    """

    seconds: float
    kind: str
    text: str
    broker: int | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """Who plays which part from ``seconds`` on: how many partitions of the input each broker leads, who coordinates."""

    seconds: float
    leads: Mapping[int, int]
    coordinator: int | None


@dataclass(slots=True)
class Timeline:
    """``series``: by name, (seconds, share of the expected total) in order of time; ``parts``: where they change."""

    moments: list[Moment] = field(default_factory=list)
    series: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: {name: [] for name in _COLOURS})
    brokers: tuple[int, ...] = ()
    parts: list[Parts] = field(default_factory=list)

    def drawn(self) -> list[Moment]:
        """The moments that have a number in the picture, from 1 on."""
        return [moment for moment in self.moments if moment.kind in _EVENT_COLOURS]

    def end(self) -> float:
        ends = [points[-1][0] for points in self.series.values() if points]
        return max([moment.seconds for moment in self.moments] + ends + [1.0])


def draw(timeline: Timeline) -> str:
    """One self-contained ``<svg>``."""
    end = timeline.end()
    top_share = max([share for points in timeline.series.values() for _s, share in points] + [1.0])
    height = _lane(len(timeline.brokers)) + _BOTTOM

    def x(seconds: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * seconds / end

    def y(share: float) -> float:
        return _TOP + _PLOT_HEIGHT * (1 - share / top_share)

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="records over time, and three brokers" '
        'font-family="system-ui, sans-serif" font-size="12" fill="currentColor">'
    ]
    parts += _axes(end, top_share, height, x, y)
    parts += [_line(points, _COLOURS[name], x, y) for name, points in timeline.series.items() if points]
    parts += _lanes(timeline, end, x)
    parts += _events(timeline, height, x)
    parts += _legend()
    return "\n".join([*parts, "</svg>"])


def _axes(end: float, top_share: float, height: int, x: _Scale, y: _Scale) -> list[str]:
    step = next(s for s in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600) if end / s <= 12 or s == 600)
    parts = []
    for share in (0.0, 0.5, 1.0):
        parts.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(share):.1f}" y2="{y(share):.1f}" stroke="#8884"/>'
            f'<text x="{_LEFT - 8}" y="{y(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>'
        )
    if top_share > 1.05:
        parts.append(f'<text x="{_LEFT - 8}" y="{y(top_share) + 4:.1f}" text-anchor="end">{top_share:.0%}</text>')
    for second in range(0, int(end) + 1, step):
        parts.append(f'<text x="{x(second):.1f}" y="{height - 8}" text-anchor="middle">{second} s</text>')
    return parts


def _line(points: Sequence[tuple[float, float]], colour: str, x: _Scale, y: _Scale) -> str:
    path = " ".join(f"{x(seconds):.1f},{y(share):.1f}" for seconds, share in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'


# --- the brokers' lanes --------------------------------------------------------------------------------------------


def _lane(index: int) -> int:
    """The middle of a broker's lane."""
    return _TOP + _PLOT_HEIGHT + 24 + index * _LANE_HEIGHT


def _lanes(timeline: Timeline, end: float, x: _Scale) -> list[str]:
    drawn = []
    for index, broker in enumerate(timeline.brokers):
        middle = _lane(index)
        drawn.append(f'<text x="{_LEFT - 8}" y="{middle + 4}" text-anchor="end">broker {broker}</text>')
        for since, until in _lives(timeline, broker, end):
            drawn.append(_bar(x(since), x(until), middle - 1, 2, _SERVES))
        for now, then in pairwise([*timeline.parts, Parts(end, {}, None)]):
            if count := now.leads.get(broker, 0):
                drawn.append(_bar(x(now.seconds), x(then.seconds), middle - 2 - 3 * count, 3 * count, _LEADS))
            if now.coordinator == broker:
                drawn.append(_bar(x(now.seconds), x(then.seconds), middle + 2, 4, _COORDINATES))
    return drawn


def _lives(timeline: Timeline, broker: int, end: float) -> Iterator[tuple[float, float]]:
    """From when until when it served."""
    since: float | None = 0.0
    for moment in timeline.moments:
        if moment.broker == broker and moment.kind == "kill" and since is not None:
            yield since, moment.seconds
            since = None
        elif moment.broker == broker and moment.kind == "back":
            since = moment.seconds
    if since is not None:
        yield since, end


def _bar(left: float, right: float, top: int, height: int, colour: str) -> str:
    return (
        f'<rect x="{left:.1f}" y="{top}" width="{max(0.0, right - left):.1f}" height="{height}" '
        f'fill="{colour}" opacity="0.75"/>'
    )


# --- what is marked --------------------------------------------------------------------------------------------------


def _events(timeline: Timeline, height: int, x: _Scale) -> list[str]:
    """Numbered: in its broker's lane, else above the plot. Kills have a line through all of it."""
    lanes: dict[int | None, int] = {broker: _lane(index) for index, broker in enumerate(timeline.brokers)}
    drawn = []
    for number, moment in enumerate(timeline.drawn(), start=1):
        colour = _EVENT_COLOURS[moment.kind]
        at = x(moment.seconds)
        level = lanes.get(moment.broker, _TOP - 18)
        line = ""
        if moment.kind == "kill" or moment.broker is None:
            line = (
                f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP - 10}" y2="{height - _BOTTOM}" stroke="{colour}" '
                'stroke-dasharray="4 3" opacity="0.7"/>'
            )
        drawn.append(
            f"<g><title>{escape(moment.text)}</title>{line}"
            f'<circle cx="{at:.1f}" cy="{level}" r="8" fill="{colour}"/>'
            f'<text x="{at:.1f}" y="{level + 4}" text-anchor="middle" fill="white">{number}</text></g>'
        )
    return drawn


def _legend() -> list[str]:
    parts = []
    for index, (name, colour) in enumerate(_COLOURS.items()):
        parts.append(_key(_LEFT + index * 220, 12, name, f'<rect y="6" width="14" height="4" fill="{colour}"/>'))
    bars = (("leads sentences (height: partitions)", _LEADS, 10), ("coordinates counts", _COORDINATES, 4))
    for index, (name, colour, height) in enumerate(bars):
        bar = f'<rect y="{8 - height // 2}" width="14" height="{height}" fill="{colour}" opacity="0.75"/>'
        parts.append(_key(_LEFT + index * 280, 32, name, bar))
    for index, (kind, colour) in enumerate(_EVENT_COLOURS.items()):
        parts.append(_key(_LEFT + index * 100, 52, kind, f'<circle cx="7" cy="8" r="5" fill="{colour}"/>'))
    return parts


def _key(left: int, top: int, name: str, sign: str) -> str:
    return f'<g transform="translate({left} {top - 8})">{sign}<text x="20" y="12">{name}</text></g>'
