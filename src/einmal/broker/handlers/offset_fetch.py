"""OffsetFetch: the positions that groups have committed.

API: 9. Versions: 1-10.
Behaviour: asks each group's shard. A partition without a position has offset -1, also one that does not exist. Stable
positions are never those from before a newer coordinator's, of which this one has not heard yet.
Version notes: v2 all topics (null), and an error of the request; v7 RequireStable (KIP-447); v8 many groups at once; v9
member epochs (KIP-848), which no group here has; v10 topic ids, unknown ones being UNKNOWN_TOPIC_ID.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from einmal.broker.context import Body, RequestContext, Versions
from einmal.groups.coordinator import GroupCoordinator
from einmal.groups.requests import OffsetFetchGroup, Response
from einmal.shard.decision import Decision
from einmal.types import ErrorCode, Instant, TopicPartition

API_KEY: Final = 9
VERSIONS: Final = Versions(1, 10, flexible=6)
_FIRST_WITH_ERROR: Final = 2
_FIRST_WITH_MANY_GROUPS: Final = 8
_FIRST_WITH_TOPIC_IDS: Final = 10


class _Asked(NamedTuple):
    """One group of the request. ``topics`` None: all that it has."""

    group_id: str
    topics: tuple[Any, ...] | None


async def handle(context: RequestContext, request: Any) -> Body:
    require_stable = getattr(request, "require_stable", False)
    if context.api_version >= _FIRST_WITH_MANY_GROUPS:
        asked = [_Asked(group.group_id, group.topics) for group in request.groups]
        # All positions of a group are given once, however often it is named.
        whole = {group.group_id: group for group in asked if group.topics is None}
        asked = [*whole.values(), *(group for group in asked if group.topics is not None)]
        return {"groups": [await _fetch(context, group, require_stable) async for group in context.paced(asked)]}
    fetched = await _fetch(context, _Asked(request.group_id, request.topics), require_stable)
    error = fetched["error_code"]
    if context.api_version < _FIRST_WITH_ERROR and error is not ErrorCode.none:
        return {"topics": _failed(request.topics, error)}
    return fetched


async def _fetch(context: RequestContext, asked: _Asked, require_stable: bool) -> Response:
    by_id = context.api_version >= _FIRST_WITH_TOPIC_IDS
    names = context.node.metadata.image.topic_names if by_id else {}
    topics = None
    unknown: list[dict[str, Any]] = []
    if asked.topics is not None:
        topics = []
        for topic in asked.topics:
            name = names.get(topic.topic_id) if by_id else topic.name
            if name is None:
                unknown.append(_unknown(topic))
            else:
                topics += [TopicPartition(name, index) for index in topic.partition_indexes]
    group = OffsetFetchGroup(asked.group_id, None if topics is None else tuple(topics))
    groups = context.node.groups

    def decide(shard: GroupCoordinator, _now: Instant) -> Decision[Response]:
        return shard.offset_fetch(group, require_stable=require_stable)

    if require_stable:
        response = await groups.ask_for_certain(asked.group_id, decide)
    else:
        response = await groups.ask(asked.group_id, decide, reads_only=True)
    if isinstance(response, ErrorCode):
        return {"group_id": asked.group_id, "topics": (), "error_code": response}
    return {**response, "topics": [*_with_ids(context, response["topics"]), *unknown]} if by_id else response


def _with_ids(context: RequestContext, topics: tuple[Response, ...]) -> list[dict[str, Any]]:
    """The topics by id; what a group still knows of deleted topics has none, and is left out."""
    known = context.node.metadata.image.topics
    return [
        {"topic_id": known[topic["name"]].topic_id, "partitions": topic["partitions"]}
        for topic in topics
        if topic["name"] in known
    ]


def _unknown(topic: Any) -> dict[str, Any]:
    return {"topic_id": topic.topic_id, "partitions": _errors(topic, ErrorCode.unknown_topic_id)}


def _failed(topics: tuple[Any, ...], error: ErrorCode) -> list[dict[str, Any]]:
    return [{"name": topic.name, "partitions": _errors(topic, error)} for topic in topics]


def _errors(topic: Any, error: ErrorCode) -> list[dict[str, Any]]:
    return [
        {
            "partition_index": index,
            "committed_offset": -1,
            "committed_leader_epoch": -1,
            "metadata": "",
            "error_code": error,
        }
        for index in topic.partition_indexes
    ]
