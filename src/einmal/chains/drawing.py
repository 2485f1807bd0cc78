"""A chain as a picture (SVG), and as text for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Final

from einmal.chains.graph import Chain, ChainStep, Link, LinkKind, Location
from einmal.options.sink import AT_LEAST_ONCE, EXACTLY_ONCE

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 210, 46, 150, 26, 20
_COLORS: Final = {EXACTLY_ONCE: "#1a7f37", AT_LEAST_ONCE: "#9a6700"}
_WEAK: Final = "#cf222e"
_SIGNS: Final = {LinkKind.PIPELINE: "==>", LinkKind.MIRROR: "~~>", LinkKind.INGESTER: "-->"}
_LONGEST: Final = 30
_NO_TOPIC: Final = "(no topic that is known yet)"
"""Instead of topics that match a pattern, are copied, or are named by a prefix."""


def text(chain: Chain, notes: Mapping[Link, str]) -> Iterator[str]:
    """A line for each link, below one for each location that it writes. ``notes``: by link, as two may have one
    name."""
    for step in chain.steps:
        inputs = ", ".join(_named(source) for source in step.inputs) or _NO_TOPIC
        outputs = ", ".join(_named(output) for output in step.outputs) or _NO_TOPIC
        yield f"{inputs}  {_SIGNS[step.link.kind]}  {outputs}"
        texts = [f"{step.link.kind.value} {step.link.name}: {step.guarantee}", step.why, notes.get(step.link, "")]
        yield "    " + "; ".join(filter(None, texts))


def svg(chain: Chain, notes: Mapping[Link, str]) -> str:
    """Locations as boxes in columns, links as arrows in the colour of their guarantee."""
    where = _positions(chain)
    width = max((x for x, _ in where.values()), default=0) + _WIDTH + _MARGIN
    height = max((y for _, y in where.values()), default=0) + _HEIGHT + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'font-family="system-ui, sans-serif" font-size="13">',
        "<title>Chain of pipelines</title>",
        "<style>text{fill:#1f2328}rect{fill:#fff;stroke:#57606a}"
        "@media(prefers-color-scheme:dark){text{fill:#e6edf3}rect{fill:#161b22;stroke:#8b949e}}</style>",
    ]
    for step in chain.steps:
        parts += _arrows(step, where, notes.get(step.link, ""))
    for location, (x, y) in where.items():
        parts.append(f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6"/>')
        parts.append(_label(x + 10, y + 19, location.name, weight="600"))
        parts.append(_label(x + 10, y + 36, f"{location.kind.value} in {location.system}", size=11))
    return "\n".join([*parts, "</svg>", ""])


def _positions(chain: Chain) -> dict[Location, tuple[int, int]]:
    rows: dict[int, int] = {}
    positions = {}
    for location, depth in sorted(chain.depths.items(), key=lambda pair: (pair[1], pair[0])):
        row = rows.get(depth, 0)
        rows[depth] = row + 1
        positions[location] = (_MARGIN + depth * (_WIDTH + _GAP_X), _MARGIN + row * (_HEIGHT + _GAP_Y))
    return positions


def _arrows(step: ChainStep, where: Mapping[Location, tuple[int, int]], note: str) -> Iterator[str]:
    color = _COLORS.get(step.guarantee, _WEAK)
    dashes = ' stroke-dasharray="6 4"' if step.link.kind is LinkKind.MIRROR else ""
    labelled = False
    for source in step.inputs:
        for target in step.outputs:
            (left, top), (right, bottom) = where[source], where[target]
            x, y, end, down = left + _WIDTH, top + _HEIGHT // 2, right - 8, bottom + _HEIGHT // 2
            bend = (x + end) // 2
            curve = f"M{x} {y}C{bend} {y} {bend} {down} {end} {down}"
            yield f'<path d="{curve}" fill="none" stroke="{color}" stroke-width="2"{dashes}/>'
            yield f'<path d="M{end} {down - 5}l8 5l-8 5z" fill="{color}"/>'
            if not labelled:
                labelled = True
                middle = (y + down) // 2
                yield _label(bend, middle - 6, step.link.name, size=11, anchor="middle")
                yield _label(bend, middle + 14, note, size=10, anchor="middle")


def _label(x: int, y: int, words: str, *, size: int = 13, weight: str = "400", anchor: str = "start") -> str:
    shown = words if len(words) <= _LONGEST else words[: _LONGEST - 1] + "…"
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}">{escape(shown)}</text>'
    )


def _named(location: Location) -> str:
    return f"{location.name} [{location.kind.value}, {location.system}]"
