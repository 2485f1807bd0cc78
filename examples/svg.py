"""SVG pictures of the examples' results: add shapes to a drawing, then convert it to text.

Lengths are pixels; the origin is at the upper left. The same calls produce the same text, so a test can compare a
committed picture with a new one.
"""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape

INK = "#24292f"
FAINT = "#d0d7de"
GREY = "#8c959f"
BLUE = "#2f6fb2"
GREEN = "#2da44e"
RED = "#cf222e"


class Drawing:
    def __init__(self, width: int, height: int, title: str) -> None:
        self.width = width
        self.height = height
        self._shapes = [f"<title>{escape(title)}</title>", f'<rect width="{width}" height="{height}" fill="#ffffff"/>']
        self.text(16, 28, title, size=16)

    def text(self, x: float, y: float, words: str, *, size: int = 12, anchor: str = "start", fill: str = INK) -> None:
        """``y``: the baseline. ``anchor``: which point of the text is at ``x``: start, middle or end."""
        self._shapes.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{fill}">{escape(words)}</text>'
        )

    def bar(self, x: float, y: float, width: float, height: float, fill: str = BLUE) -> None:
        self._shapes.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}"/>')

    def line(self, x1: float, y1: float, x2: float, y2: float, stroke: str = FAINT) -> None:
        self._shapes.append(f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="{stroke}"/>')

    def curve(self, points: Iterable[tuple[float, float]], *, stroke: str = BLUE) -> None:
        """Straight lines from point to point."""
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        self._shapes.append(f'<path d="M{path}" stroke="{stroke}" stroke-width="2" fill="none"/>')

    def dots(self, centres: Iterable[tuple[float, float]], *, size: float = 3, fill: str = BLUE) -> None:
        """Thousands of dots are one path. Each is a line of length 0, which round ends make visible."""
        path = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in centres)
        self._shapes.append(f'<path d="{path}" stroke="{fill}" stroke-width="{size:g}" stroke-linecap="round"/>')

    def __str__(self) -> str:
        opening = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" font-family="system-ui, sans-serif">'
        )
        return "\n".join([opening, *self._shapes, "</svg>"])
