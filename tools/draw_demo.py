"""Draw the README's picture of the demo, for light and dark pages, from the report of a run.

Usage: python tools/draw_demo.py build/demo/report.html
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

from einmal.evidence.page import palette

FOLDER: Final = Path(__file__).parent.parent / "docs" / "images"
SCHEMES: Final = {"light": ("#1f2328", "#ffffff"), "dark": ("#d1d7e0", "#0d1117")}
"""Colours of text and background: GitHub's. The other ones are the palette's for the scheme."""


def draw(report: str, scheme: str) -> str:
    """The report's timeline as a file of its own: an image inherits no colour from the page that shows it."""
    ink, paper = SCHEMES[scheme]
    match = re.search(r"<svg (.*?)>(.*?)</svg>", report, re.DOTALL)
    if match is None:
        sys.exit("the report has no timeline")
    shapes = re.sub(r'points="([^"]*)"', lambda points: f'points="{_without_flat(points[1])}"', match[2])
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {match[1]} color="{ink}">'
    shapes = re.sub(
        r"var\(--([a-z-]+)\)", lambda name: {"page": paper}.get(name[1]) or palette(scheme)[name[1]], shapes
    )
    return f'{opening}\n<rect width="100%" height="100%" fill="{paper}"/>{shapes}</svg>\n'


def _without_flat(points: str) -> str:
    """The same line without the points inside of its horizontal pieces, which are most of them."""
    kept = [point.split(",") for point in points.split()]
    for number in range(len(kept) - 2, 0, -1):
        if kept[number - 1][1] == kept[number][1] == kept[number + 1][1]:
            del kept[number]
    return " ".join(map(",".join, kept))


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python tools/draw_demo.py build/demo/report.html")
    report = Path(sys.argv[1]).read_text()
    FOLDER.mkdir(exist_ok=True)
    for scheme in SCHEMES:
        (FOLDER / f"demo-{scheme}.svg").write_text(draw(report, scheme))


if __name__ == "__main__":
    main()
