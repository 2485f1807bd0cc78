"""The picture of a run: acknowledged records and latency by second, and the faults over them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

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
"""Width of a fault's number, on average: with more of them they are a strip of ticks over the plots."""


def draw(seconds: Sequence[Second], faults: Sequence[NotedFault], width: int = WIDTH) -> str:
    """One ``<svg>``, ``width`` pixels wide. Faults have the numbers of their list, from 1 on, as long as these do not
    overlap."""
    end = max([float(len(seconds)), *(fault.seconds for fault in faults)])
    bottom = _TOP + 2 * _PLOT + _GAP

    def x(second: float) -> float:
        return _LEFT + (width - _LEFT - _RIGHT) * second / end

    parts = [
        f'<svg viewBox="0 0 {width} {bottom + 28}" role="img" aria-label="{_label(seconds, faults)}" '
        'font-family="system-ui, sans-serif" font-size="12" fill="currentColor">'
    ]
    counts = [(index + 0.5, float(second.acknowledged)) for index, second in enumerate(seconds)]
    latencies = [
        (index + 0.5, second.latency_ms) for index, second in enumerate(seconds) if second.latency_ms is not None
    ]
    plots = (
        ("records acknowledged per second", counts, "var(--committed)", _TOP),
        ("median latency of an operation, ms", latencies, "var(--read)", _TOP + _PLOT + _GAP),
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
    if len(faults) * _NUMBER <= width - _LEFT - _RIGHT:
        parts += [_fault(number, fault, x(fault.seconds), bottom) for number, fault in enumerate(faults, start=1)]
    else:
        parts.append(f'<text x="{_LEFT - 6}" y="12" text-anchor="end">faults</text>')
        parts += [_tick(number, fault, x(fault.seconds)) for number, fault in enumerate(faults, start=1)]
    step = next(step for step in (1, 2, 5, 10, 30, 60, 300, 600, 3600) if x(step) - _LEFT >= _LABEL or step == 3600)
    parts += [
        f'<text x="{x(second):.1f}" y="{bottom + 20}" text-anchor="middle">{second} s</text>'
        for second in range(0, int(end) + 1, step)
    ]
    return "\n".join([*parts, "</svg>"])


def _fault(number: int, fault: NotedFault, x: float, bottom: int) -> str:
    return (
        f"<g><title>{number}: {escape(fault.text)}</title>"
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 2}" y2="{bottom}" '
        'stroke="var(--aborted)" stroke-dasharray="4 3"/>'
        f'<text x="{x:.1f}" y="12" text-anchor="middle" fill="var(--aborted)">{number}</text></g>'
    )


def _tick(number: int, fault: NotedFault, x: float) -> str:
    return (
        f"<g><title>{number}: {escape(fault.text)}</title>"
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="2" y2="14" stroke="var(--aborted)"/></g>'
    )


def _label(seconds: Sequence[Second], faults: Sequence[NotedFault]) -> str:
    total = sum(second.acknowledged for second in seconds)
    return f"{total} records acknowledged in {len(seconds)} seconds, and {len(faults)} faults"
