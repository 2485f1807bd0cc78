"""Timeline of the demo, and its picture: records in and out over time, kills, fences and replays, and a lane per
broker.

The picture is SVG, written by hand: it is one page's only drawing, and a test can read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import Final

WIDTH: Final = 960
NARROW_WIDTH: Final = 343
"""A phone's 375 pixels without the page's margins."""
_PLOT_HEIGHT: Final = 300
_LANE_HEIGHT: Final = 34
_LEFT, _RIGHT, _BOTTOM = 72, 16, 30
_LEGEND_ROW: Final = 20
_AXIS_LABEL: Final = 70
_NUMBER: Final = 17
"""Width of a number in a circle, with the space around it."""
_COLOURS: Final = {
    "sentences acknowledged": "var(--read)",
    "words counted, exactly once": "var(--committed)",
    "words counted, at least once": "var(--open)",
}
_EVENT_COLOURS: Final = {
    "kill": "var(--aborted)",
    "failover": "var(--read)",
    "back": "var(--soft)",
    "fence": "var(--control)",
    "abort": "var(--aborted)",
    "already-in": "var(--committed)",
}
_LEADS: Final = "var(--read)"
_COORDINATES: Final = "var(--control)"
_SERVES: Final = "var(--gone)"


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


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where things are in a picture. Pixels; ``end`` in seconds; ``top``: of the plot, below the legend."""

    width: int
    top: int
    end: float
    top_share: float
    brokers: int

    @property
    def height(self) -> int:
        return self.lane(self.brokers) + _BOTTOM

    @property
    def plot_width(self) -> int:
        return self.width - _LEFT - _RIGHT

    def x(self, seconds: float) -> float:
        return _LEFT + self.plot_width * seconds / self.end

    def y(self, share: float) -> float:
        return self.top + _PLOT_HEIGHT * (1 - share / self.top_share)

    def lane(self, index: int) -> int:
        """The middle of a broker's lane."""
        return self.top + _PLOT_HEIGHT + 24 + index * _LANE_HEIGHT


def draw(timeline: Timeline, width: int = WIDTH) -> str:
    """One self-contained ``<svg>``, ``width`` pixels wide."""
    legend, rows = _legend(width)
    frame = _Frame(
        width=width,
        top=rows * _LEGEND_ROW + 36,
        end=timeline.end(),
        top_share=max([share for points in timeline.series.values() for _s, share in points] + [1.0]),
        brokers=len(timeline.brokers),
    )
    parts = [
        f'<svg viewBox="0 0 {width} {frame.height}" role="img" aria-label="records over time, and three brokers" '
        'font-family="system-ui, sans-serif" font-size="12" fill="currentColor">'
    ]
    parts += _axes(frame)
    parts += [_line(points, _COLOURS[name], frame) for name, points in timeline.series.items() if points]
    parts += _lanes(timeline, frame)
    parts += _events(timeline, frame)
    return "\n".join([*parts, *legend, "</svg>"])


def _axes(frame: _Frame) -> list[str]:
    labels = frame.plot_width // _AXIS_LABEL
    step = next(s for s in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600) if frame.end / s <= labels or s == 600)
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = frame.y(share)
        parts.append(
            f'<line x1="{_LEFT}" x2="{frame.width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--rule)"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>'
        )
    if frame.top_share > 1.05:
        top = frame.y(frame.top_share) + 4
        parts.append(f'<text x="{_LEFT - 8}" y="{top:.1f}" text-anchor="end">{frame.top_share:.0%}</text>')
    for second in range(0, int(frame.end) + 1, step):
        parts.append(f'<text x="{frame.x(second):.1f}" y="{frame.height - 8}" text-anchor="middle">{second} s</text>')
    return parts


def _line(points: Sequence[tuple[float, float]], colour: str, frame: _Frame) -> str:
    path = " ".join(f"{frame.x(seconds):.1f},{frame.y(share):.1f}" for seconds, share in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'


# --- the brokers' lanes --------------------------------------------------------------------------------------------


def _lanes(timeline: Timeline, frame: _Frame) -> list[str]:
    x, end = frame.x, frame.end
    drawn = []
    for index, broker in enumerate(timeline.brokers):
        middle = frame.lane(index)
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


def _events(timeline: Timeline, frame: _Frame) -> list[str]:
    """Numbered: in its broker's lane, else above the plot. Kills have a line through all of it."""
    lanes: dict[int | None, int] = {broker: frame.lane(index) for index, broker in enumerate(timeline.brokers)}
    numbered = list(enumerate(timeline.drawn(), start=1))
    levels = {number: lanes.get(moment.broker, frame.top - 18) for number, moment in numbered}
    circles: dict[int, float] = {}
    for level in {*levels.values()}:
        there = [number for number, _moment in numbered if levels[number] == level]
        positions = [frame.x(timeline.drawn()[number - 1].seconds) for number in there]
        circles.update(zip(there, _spread(positions, frame.width - _NUMBER / 2), strict=True))
    drawn = []
    for number, moment in numbered:
        colour = _EVENT_COLOURS[moment.kind]
        at, level = frame.x(moment.seconds), levels[number]
        line = ""
        if moment.kind == "kill" or moment.broker is None:
            line = (
                f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{frame.top - 10}" y2="{frame.height - _BOTTOM}" '
                f'stroke="{colour}" stroke-dasharray="4 3" opacity="0.7"/>'
            )
        drawn.append(
            f"<g><title>{escape(moment.text)}</title>{line}"
            f'<circle cx="{circles[number]:.1f}" cy="{level}" r="8" fill="{colour}"/>'
            f'<text x="{circles[number]:.1f}" y="{level + 4}" text-anchor="middle" fill="var(--page)">'
            f"{number}</text></g>"
        )
    return drawn


def _spread(positions: Sequence[float], right: float) -> list[float]:
    """The same positions in the same order, moved as little as keeps numbers apart; the last one left of ``right``."""
    spread: list[float] = []
    for position in positions:
        spread.append(max(position, spread[-1] + _NUMBER) if spread else position)
    limit = right
    for index in range(len(spread) - 1, -1, -1):
        spread[index] = min(spread[index], limit)
        limit = spread[index] - _NUMBER
    return spread


def _legend(width: int) -> tuple[list[str], int]:
    """The signs with their names, line by line, and the number of lines."""
    bars = (("leads sentences (height: partitions)", _LEADS, 10), ("coordinates counts", _COORDINATES, 4))
    lines = (
        [(name, f'<rect y="6" width="14" height="4" fill="{colour}"/>') for name, colour in _COLOURS.items()],
        [
            (name, f'<rect y="{8 - high // 2}" width="14" height="{high}" fill="{colour}" opacity="0.75"/>')
            for name, colour, high in bars
        ],
        [(kind, f'<circle cx="7" cy="8" r="5" fill="{colour}"/>') for kind, colour in _EVENT_COLOURS.items()],
    )
    parts, row = [], 0
    for line in lines:
        left = _LEFT if width >= WIDTH else _RIGHT
        begin = left
        for name, sign in line:
            # About 6.5 pixels a letter, in a font that is not known here.
            size = 44 + int(6.5 * len(name))
            if left + size > width and left > begin:
                left, row = begin, row + 1
            parts.append(_key(left, 12 + row * _LEGEND_ROW, name, sign))
            left += size
        row += 1
    return parts, row


def _key(left: int, top: int, name: str, sign: str) -> str:
    return f'<g transform="translate({left} {top - 8})">{sign}<text x="20" y="12">{name}</text></g>'
