"""The picture of a run: acknowledged records and latency over time, and the faults above them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from statistics import median
from typing import Final, TypeAlias

from einmal.verify.evidence import NotedFault, Second

WIDTH: Final = 960
NARROW_WIDTH: Final = 343
"""A phone's 375 pixels without the page's margins."""
_LEFT: Final = 56
_RIGHT: Final = 12
_TOP: Final = 34
_PLOT: Final = 110
_GAP: Final = 30
_LABEL: Final = 60
_NUMBER: Final = 24
"""Width of a fault's number, on average: with more of them they are ticks over the plots."""
_DIGITS: Final = 14
"""Minimum distance of two numbers, of which the later one is left out otherwise."""
_LINE: Final = 16
"""Height of a line of ticks."""
_POINT: Final = 3
"""Minimum width of a point of a plot."""
_STEPS_S: Final = (1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600)
_Point: TypeAlias = tuple[float, float]


def draw(seconds: Sequence[Second], faults: Sequence[NotedFault], width: int = WIDTH) -> str:
    """One ``<svg>``, ``width`` pixels wide. Few faults have the numbers of their list, from 1 on, as far as
    these do not overlap; many are ticks, on a line for what they disturb."""
    end = max([float(len(seconds)), *(fault.seconds for fault in faults)])
    extent = width - _LEFT - _RIGHT
    are_numbered = len(faults) * _NUMBER <= extent
    lines = [] if are_numbered else sorted({fault.of for fault in faults if fault.of})
    first = _TOP + _LINE * max(0, len(lines) - 1)
    bottom = first + 2 * _PLOT + _GAP

    def x(second: float) -> float:
        return _LEFT + extent * second / end

    parts = [
        f'<svg viewBox="0 0 {width} {bottom + 28}" role="img" aria-label="{_label(seconds, faults)}" '
        'font-family="system-ui, sans-serif" font-size="12" fill="currentColor">'
    ]
    each_s = -(-len(seconds) * _POINT // extent) or 1
    means, latencies = _joined(seconds, each_s)
    over = f", mean of {each_s} s" if each_s > 1 else ""
    plots = (
        (f"records acknowledged per second{over}", means, "var(--committed)", first),
        ("median latency of an operation, ms", latencies, "var(--read)", first + _PLOT + _GAP),
    )
    for name, points, colour, top in plots:
        most = max([value for _, value in points] + [1.0])
        line = " ".join(f"{x(at):.1f},{top + _PLOT * (1 - value / most):.1f}" for at, value in points)
        parts.append(f'<text x="{_LEFT}" y="{top - 6}">{name}</text>')
        for share in (0, 1):
            y = top + _PLOT * (1 - share)
            parts.append(f'<line x1="{_LEFT}" x2="{width - _RIGHT}" y1="{y}" y2="{y}" stroke="var(--rule)"/>')
            parts.append(f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{share * most:,.0f}</text>')
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
    parts += [
        f'<text x="{_LEFT - 6}" y="{_LINE * index + 12}" text-anchor="end">{escape(of)}</text>'
        for index, of in enumerate(lines)
    ]
    labelled = -float(_NUMBER)
    for number, fault in enumerate(faults, start=1):
        if are_numbered:
            is_apart = x(fault.seconds) >= labelled + _DIGITS
            labelled = x(fault.seconds) if is_apart else labelled
            parts.append(_fault(number if is_apart else None, fault, x(fault.seconds), bottom))
        elif fault.of:
            parts.append(_tick(number, fault, x(fault.seconds), _LINE * lines.index(fault.of)))
    step = next(step for step in _STEPS_S if x(step) - _LEFT >= _LABEL or step == _STEPS_S[-1])
    parts += [
        f'<text x="{x(second):.1f}" y="{bottom + 20}" text-anchor="{_anchor(x(second), width)}">{second} s</text>'
        for second in range(0, int(end) + 1, step)
    ]
    return "\n".join([*parts, "</svg>"])


def _joined(seconds: Sequence[Second], each_s: int) -> tuple[list[_Point], list[_Point]]:
    """Mean throughput and median latency of so many seconds at a time: more points than pixels are a smear."""
    counts, latencies = [], []
    for start in range(0, len(seconds), each_s):
        part = seconds[start : start + each_s]
        at = start + len(part) / 2
        counts.append((at, sum(second.acknowledged for second in part) / len(part)))
        if known := [second.latency_ms for second in part if second.latency_ms is not None]:
            latencies.append((at, median(known)))
    return counts, latencies


def _anchor(x: float, width: int) -> str:
    """A label at the right edge ends there."""
    return "end" if x > width - _LABEL / 2 else "middle"


def _fault(number: int | None, fault: NotedFault, x: float, bottom: int) -> str:
    """``number``: None where there is one right before."""
    label = "" if number is None else str(number)
    return (
        f"<g><title>{escape(fault.text)}</title>"
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 2}" y2="{bottom}" '
        'stroke="var(--aborted)" stroke-dasharray="4 3"/>'
        f'<text x="{x:.1f}" y="12" text-anchor="middle" fill="var(--aborted)">{label}</text></g>'
    )


def _tick(number: int, fault: NotedFault, x: float, top: int) -> str:
    return (
        f"<g><title>{number}: {escape(fault.text)}</title>"
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top + 2}" y2="{top + 14}" stroke="var(--aborted)"/></g>'
    )


def _label(seconds: Sequence[Second], faults: Sequence[NotedFault]) -> str:
    total = sum(second.acknowledged for second in seconds)
    return f"{total} records acknowledged in {len(seconds)} seconds, and {len(faults)} faults"
