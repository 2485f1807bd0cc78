"""Where a query is in its sources: one JSON value per source, most often Kafka's offsets by partition.

A position of our source also names what it is a position in: ``{"orders":{"0":23},"@cluster=ID":{},
"@topic=orders=ID":{}}``. No topic's name contains ``@``, and the values are empty, so that readers of the format of
Spark's own source, and that source itself, find no offsets in them. Positions of older versions and of Spark's source
have no identity: it is unknown, and differs from none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_MARK: Final = "@"
_CLUSTER: Final = "@cluster="
_TOPIC: Final = "@topic="
_START: Final = "@start="
_LONGEST: Final = 200


def topics_in(position: Mapping[str, Any]) -> dict[str, Any]:
    """The position in the format of Spark's own source: offsets by partition, without identity."""
    return {topic: partitions for topic, partitions in position.items() if not topic.startswith(_MARK)}


def cluster_id(position: Mapping[str, Any]) -> str | None:
    return next((key.removeprefix(_CLUSTER) for key in position if key.startswith(_CLUSTER)), None)


def topic_ids(position: Mapping[str, Any]) -> dict[str, str]:
    """The ids of the topics that are known, as Kafka prints them."""
    return dict(_split(key, _TOPIC, 1) for key in position if key.startswith(_TOPIC))


def starts(position: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Where the batch that ends here begins, in partitions where that is not the end of the batch before."""
    offsets: dict[str, dict[str, int]] = {}
    for key in position:
        if key.startswith(_START):
            topic, partition, offset = _split(key, _START, 2)
            offsets.setdefault(topic, {})[partition] = int(offset)
    return offsets


def identity(
    cluster: str | None, topics: Mapping[str, str], starting: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, int]]:
    """Return what is added to the offsets of a position, in order: positions are compared as text, too."""
    keys = [] if cluster is None else [f"{_CLUSTER}{cluster}"]
    keys += [f"{_TOPIC}{topic}={topics[topic]}" for topic in sorted(topics)]
    keys += [
        f"{_START}{topic}={partition}={offset}"
        for topic, partitions in starting.items()
        for partition, offset in partitions.items()
    ]
    return {key: {} for key in keys}


def offsets_of(end: tuple[Any, ...]) -> dict[str, int] | None:
    """Offsets by ``topic-partition``; None where a source counts in something else, or a client wrote what is none."""
    offsets: dict[str, int] = {}
    for position in end:
        if not isinstance(position, dict):
            return None
        for topic, partitions in topics_in(position).items():
            if not isinstance(partitions, dict) or not all(map(_is_offset, partitions, partitions.values())):
                return None
            offsets |= {f"{topic}-{partition}": offset for partition, offset in partitions.items()}
    return offsets


def has_readable_identity(position: object) -> bool:
    """Whether all that it names beside offsets has the form that ``identity`` gives it."""
    if not isinstance(position, dict):
        return True
    try:
        topic_ids(position)
        return all(_is_offset(*entry) for offsets in starts(position).values() for entry in offsets.items())
    except ValueError:
        return False


def is_identified(position: object) -> bool:
    """Whether it names the cluster, or topics by their ids, as those of einmal's own source do."""
    return isinstance(position, dict) and bool(cluster_id(position) is not None or topic_ids(position))


def are_same(one: tuple[Any, ...] | None, other: tuple[Any, ...] | None) -> bool:
    """Whether two positions have the same offsets, in what may be the same topics: an unknown identity fits any."""
    if one is None or other is None or len(one) != len(other):
        return one == other
    return all(map(_is_same, one, other))


def recreated(one: tuple[Any, ...] | None, other: tuple[Any, ...] | None) -> list[str]:
    """Topics that two positions both name and that are different topics by their ids, in order."""
    topics = []
    for first, second in zip(one or (), other or (), strict=False):
        if isinstance(first, dict) and isinstance(second, dict):
            topics += _different(topic_ids(first), topic_ids(second))
    return sorted(set(topics))


def short(end: tuple[Any, ...] | None) -> str:
    """``orders-0:23, orders-1:7``, cut where it is long."""
    if end is None:
        return "an unknown position"
    offsets = offsets_of(end)
    parts = (
        map(str, end) if offsets is None else (f"{partition}:{offset}" for partition, offset in sorted(offsets.items()))
    )
    text = ", ".join(parts) or "the beginning"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _is_offset(partition: str, offset: object) -> bool:
    # A mirror that has not begun with a partition has -1. True is an int, too.
    return partition.isascii() and partition.isdecimal() and type(offset) is int and offset >= -1


def _split(key: str, prefix: str, separators: int) -> list[str]:
    return key.removeprefix(prefix).split("=", separators)


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
