"""FindCoordinator: which broker coordinates a group or a transactional id.

API: 10. Versions: 0-6.
Behaviour: the leader of the partition that the id's hash falls into. The coordinator's topic is created when it is
first asked for.
Version notes: v1 transactional ids; v4 many keys at once (KIP-699); v5 TRANSACTION_ABORTABLE; v6 share groups, which
are refused with INVALID_REQUEST.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.metadata.image import CONSUMER_OFFSETS, TRANSACTION_STATE
from einmal.types import ErrorCode

API_KEY: Final = 10
VERSIONS: Final = Versions(0, 6, flexible=3)
_FIRST_WITH_MANY_KEYS: Final = 4
_TOPICS: Final = {0: CONSUMER_OFFSETS, 1: TRANSACTION_STATE}
"""By key type."""


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    error = await _prepare(context, getattr(request, "key_type", 0))
    if context.api_version >= _FIRST_WITH_MANY_KEYS:
        return {"coordinators": [{"key": key, **_found(context, error)} for key in request.coordinator_keys]}
    return _found(context, error)


async def _prepare(context: RequestContext, key_type: int) -> ErrorCode:
    """See to it that the coordinator exists. With one broker it is the same one for every key."""
    topic = _TOPICS.get(key_type)
    if topic is None:
        return ErrorCode.invalid_request
    error = await context.node.metadata.ensure_internal_topic(topic)
    return ErrorCode.none if error is ErrorCode.none else ErrorCode.coordinator_not_available


def _found(context: RequestContext, error: ErrorCode) -> dict[str, Any]:
    if error is not ErrorCode.none:
        return {"error_code": error, "error_message": error.name, "node_id": -1, "host": "", "port": -1}
    host, port = context.node.endpoint
    node_id = context.node.config.node_id
    return {"error_code": error, "error_message": None, "node_id": node_id, "host": host, "port": port}
