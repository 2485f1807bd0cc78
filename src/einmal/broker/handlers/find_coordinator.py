"""FindCoordinator: which broker coordinates a group or a transactional id.

API: 10. Versions: 0-6.
Behaviour: the leader of the partition that the id's hash falls into, COORDINATOR_NOT_AVAILABLE while nobody leads it.
The coordinator's topic is created when it is first asked for.
Version notes: v1 transactional ids; v4 many keys at once (KIP-699); v5 TRANSACTION_ABORTABLE; v6 share groups, which
are refused with INVALID_REQUEST.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.metadata.image import CONSUMER_OFFSETS, TRANSACTION_STATE, BrokerImage, ClusterImage
from einmal.types import ErrorCode
from einmal.wire.java_hash import partition_for_id

API_KEY: Final = 10
VERSIONS: Final = Versions(0, 6, flexible=3)
_FIRST_WITH_MANY_KEYS: Final = 4
_TOPICS: Final = {0: CONSUMER_OFFSETS, 1: TRANSACTION_STATE}
"""By key type."""


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    key_type = getattr(request, "key_type", 0)
    error = await _prepare(context, key_type)
    if context.api_version >= _FIRST_WITH_MANY_KEYS:
        keys = context.paced(request.coordinator_keys)
        return {"coordinators": [{"key": key, **_found(context, key_type, key, error)} async for key in keys]}
    return _found(context, key_type, request.key, error)


async def _prepare(context: RequestContext, key_type: int) -> ErrorCode:
    """See to it that the topic of the coordinators exists."""
    topic = _TOPICS.get(key_type)
    if topic is None:
        return ErrorCode.invalid_request
    error = await context.node.metadata.ensure_internal_topic(topic)
    return ErrorCode.none if error is ErrorCode.none else ErrorCode.coordinator_not_available


def _found(context: RequestContext, key_type: int, key: str, error: ErrorCode) -> dict[str, Any]:
    leader = None
    if error is ErrorCode.none:
        leader = _leader(context.node.metadata.image, _TOPICS[key_type], key)
        error = ErrorCode.none if leader is not None else ErrorCode.coordinator_not_available
    if leader is None:
        return {"error_code": error, "error_message": error.name, "node_id": -1, "host": "", "port": -1}
    point = leader.end_point(for_brokers=context.for_brokers)
    return {
        "error_code": error,
        "error_message": None,
        "node_id": leader.broker_id,
        "host": point.host,
        "port": point.port,
    }


def _leader(image: ClusterImage, topic_name: str, key: str) -> BrokerImage | None:
    """The broker that leads the key's partition, if it can be reached."""
    topic = image.topics.get(topic_name)
    if topic is None:
        return None
    leader = image.brokers.get(topic.partitions[partition_for_id(key, len(topic.partitions))].leader)
    return None if leader is None or leader.is_fenced else leader
