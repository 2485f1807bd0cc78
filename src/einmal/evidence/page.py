"""The frame of a report: one self-contained HTML page in the colours of ``palette.css``, for screens and print."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from typing import Final

_BESIDE_MAX: Final = 3
"""Numbers in a row on a phone."""


def document(title: str, body: str) -> str:
    folder = resources.files("einmal.evidence")
    # An argument of the command line may have bytes that are no text.
    body = body.encode(errors="backslashreplace").decode()
    style = "".join((folder / name).read_text(encoding="utf-8") for name in ("palette.css", "page.css"))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{style}</style></head><body>
{body}
</body></html>
"""


def palette(scheme: str) -> dict[str, str]:
    """The colours by their names. ``scheme``: light or dark."""
    light, dark, *_ = (resources.files("einmal.evidence") / "palette.css").read_text(encoding="utf-8").split("@media")
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", dark if scheme == "dark" else light))


def verdict(kind: str, words: str, explanation: str = "") -> str:
    """``kind``: holds, anomaly or unknown."""
    return f'<p class="verdict {kind}" role="status"><strong>{escape(words)}</strong>{escape(explanation)}</p>'


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int = 0) -> str:
    """``numbers``: so many of the last columns are numbers. On a phone they are below the other columns, with their
    heads."""
    first = len(heads) - numbers

    def line(tag: str, cells: Sequence[str]) -> str:
        opened = [
            f'{tag} class="n" data-head="{escape(head)}"' if index >= first else tag for index, head in enumerate(heads)
        ]
        marked = [f"<{opening}>{escape(cell)}</{tag}>" for opening, cell in zip(opened, cells, strict=True)]
        return "".join(marked)

    head = [f'<tr class="heads">{line("th", heads)}</tr>'] if any(heads) else []
    body = "\n".join([*head, *(f"<tr>{line('td', row)}</tr>" for row in rows)])
    beside = min(max(1, numbers), _BESIDE_MAX)
    return f'<div class="frame"><table style="--numbers: {beside}">\n{body}\n</table></div>'
