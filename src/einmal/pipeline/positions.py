"""Where a query is in its sources, for people: one JSON value per source, most often Kafka's offsets by partition."""

from __future__ import annotations

from typing import Any, Final

_LONGEST: Final = 200


def offsets_of(end: tuple[Any, ...]) -> dict[str, int] | None:
    """Offsets by ``topic-partition``; None where a source counts in something else."""
    found: dict[str, int] = {}
    for position in end:
        if not isinstance(position, dict):
            return None
        for topic, partitions in position.items():
            if not isinstance(partitions, dict):
                return None
            found |= {f"{topic}-{partition}": int(offset) for partition, offset in partitions.items()}
    return found


def short(end: tuple[Any, ...] | None) -> str:
    """``orders-0:23, orders-1:7``, cut where it is long."""
    if end is None:
        return "an unknown position"
    offsets = offsets_of(end)
    parts = map(str, end) if offsets is None else (f"{place}:{offset}" for place, offset in sorted(offsets.items()))
    text = ", ".join(parts) or "the beginning"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
