"""The name that somebody probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

_SIMILAR_ENOUGH: Final = 0.7


def nearest_name(given: str, known: Iterable[str], similar: float = _SIMILAR_ENOUGH) -> str | None:
    """The known name most like the given one, whatever their case; None where none is like it. ``similar``: the least
    ratio of ``difflib``."""
    by_lower = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(given.lower(), by_lower, n=1, cutoff=similar)
    return by_lower[matches[0]] if matches else None
