"""Where a query is in its sources: one JSON value per source, most often Kafka's offsets by partition.

A position of our source also names what it is a position in: beside the topics it has the key ``IDENTITY``, which no
topic can have, with the cluster's id and the id of each topic. Positions from before that, and those of Spark's own
source, have no identity: it is unknown, and differs from none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

IDENTITY: Final = "@identity"
"""``{"cluster": id, "topics": {topic: id}, "starts": {topic: {partition: offset}}}``, each part optional. ``starts``:
where the batch that ends here begins in partitions in which it does not begin at the end of the batch before."""

_LONGEST: Final = 200


def topics_in(position: Mapping[str, Any]) -> dict[str, Any]:
    """The position in the format of Spark's own source: offsets by partition, without identity."""
    return {topic: partitions for topic, partitions in position.items() if topic != IDENTITY}


def topic_ids(position: Mapping[str, Any]) -> dict[str, str]:
    """The ids of the topics that are known, as Kafka prints them."""
    return dict(_identity(position).get("topics", {}))


def cluster_id(position: Mapping[str, Any]) -> str | None:
    found = _identity(position).get("cluster")
    return None if found is None else str(found)


def offsets_of(end: tuple[Any, ...]) -> dict[str, int] | None:
    """Offsets by ``topic-partition``; None where a source counts in something else."""
    found: dict[str, int] = {}
    for position in end:
        if not isinstance(position, dict):
            return None
        for topic, partitions in topics_in(position).items():
            if not isinstance(partitions, dict):
                return None
            found |= {f"{topic}-{partition}": int(offset) for partition, offset in partitions.items()}
    return found


def are_same(one: tuple[Any, ...] | None, other: tuple[Any, ...] | None) -> bool:
    """Whether two positions have the same offsets, in what may be the same topics: an unknown identity fits any."""
    if one is None or other is None or len(one) != len(other):
        return one == other
    return all(map(_is_same, one, other))


def recreated(one: tuple[Any, ...] | None, other: tuple[Any, ...] | None) -> list[str]:
    """Topics that two positions both name and that are different topics by their ids, in order."""
    found = []
    for first, second in zip(one or (), other or (), strict=False):
        if isinstance(first, dict) and isinstance(second, dict):
            found += _different(topic_ids(first), topic_ids(second))
    return sorted(set(found))


def short(end: tuple[Any, ...] | None) -> str:
    """``orders-0:23, orders-1:7``, cut where it is long."""
    if end is None:
        return "an unknown position"
    offsets = offsets_of(end)
    parts = map(str, end) if offsets is None else (f"{place}:{offset}" for place, offset in sorted(offsets.items()))
    text = ", ".join(parts) or "the beginning"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _identity(position: Mapping[str, Any]) -> Mapping[str, Any]:
    found = position.get(IDENTITY)
    return found if isinstance(found, dict) else {}


def _is_same(one: Any, other: Any) -> bool:
    if one == other:
        return True
    if not isinstance(one, dict) or not isinstance(other, dict) or topics_in(one) != topics_in(other):
        return False
    ids, others = topic_ids(one), topic_ids(other)
    if ids.keys() & others.keys():
        return not _different(ids, others)
    clusters = {cluster_id(one), cluster_id(other)} - {None}
    return len(clusters) < 2


def _different(ids: Mapping[str, str], others: Mapping[str, str]) -> list[str]:
    return [topic for topic in ids if others.get(topic, ids[topic]) != ids[topic]]
