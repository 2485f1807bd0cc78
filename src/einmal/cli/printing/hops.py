"""The hops of a pipeline as text: each with its guarantee, and the reasons below it."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from einmal.pipeline.reasons import Reason
    from einmal.spark.declare.guarantees import Hop

_SIGNS: Final = {"holds": "+", "if": "~", "not": "-", "unknown": "?"}
LEGEND: Final = "+ holds   ~ holds on a condition   - does not hold   ? could not be looked at"


def print_hops(hops: Sequence[Hop]) -> None:
    """Print them in two columns, as wide as the terminal."""
    width = max(len(_head(hop)) for hop in hops)
    room = max(40, shutil.get_terminal_size((120, 24)).columns - width - 4)
    for hop in hops:
        print(f"{_head(hop):<{width}}  {hop.guarantee}")
        for reason in hop.reasons:
            for line in _lines(reason, room):
                print(f"{'':<{width}}  {line}")


def _head(hop: Hop) -> str:
    return f"{hop.kind} {hop.name}".strip()


def _lines(reason: Reason, room: int) -> list[str]:
    lines = textwrap.wrap(reason.text, room)
    hint = textwrap.wrap(f"hint: {reason.hint}", room) if reason.hint else []
    return [f"{'  ' if number else _SIGNS[reason.verdict] + ' '}{line}" for number, line in enumerate((*lines, *hint))]
