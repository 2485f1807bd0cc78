"""FindCoordinator: which broker coordinates a group or a transactional id.

API: 10. Versions: 0-6.
Behaviour: the leader of the partition that the id's hash falls into, COORDINATOR_NOT_AVAILABLE while nobody leads it
who has the listener that the request came to.
The coordinator's topic is created when it is first asked for.
Version notes: v1 transactional ids; v4 many keys at once (KIP-699); v5 TRANSACTION_ABORTABLE; v6 share groups, which
are refused with INVALID_REQUEST.
"""

from __future__ import annotations

from typing import ClassVar, Final

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.control.topic_creation import TopicCreation
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.metadata.image import CONSUMER_OFFSETS, TRANSACTION_STATE, BrokerImage, ClusterImage
from einmal.types import ErrorCode
from einmal.wire.api.find_coordinator import API, Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from einmal.wire.java_hash import partition_for_id

_FIRST_WITH_MANY_KEYS: Final = 4
_TOPICS: Final = {0: CONSUMER_OFFSETS, 1: TRANSACTION_STATE}
"""By key type."""


@handler
class FindCoordinatorHandler:
    api: ClassVar = API
    metadata: ClusterMetadata
    topic_creation: TopicCreation

    async def handle(self, context: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        error = await self._prepare(request.key_type)
        if context.api_version >= _FIRST_WITH_MANY_KEYS:
            keys = context.paced(request.coordinator_keys)
            return FindCoordinatorResponse(
                coordinators=[self._found(context, request.key_type, key, error) async for key in keys]
            )
        found = self._found(context, request.key_type, request.key, error)
        return FindCoordinatorResponse(
            error_code=found.error_code,
            error_message=found.error_message,
            node_id=found.node_id,
            host=found.host,
            port=found.port,
        )

    async def _prepare(self, key_type: int) -> ErrorCode:
        """See to it that the topic of the coordinators exists."""
        topic = _TOPICS.get(key_type)
        if topic is None:
            return ErrorCode.invalid_request
        error = await self.topic_creation.ensure(topic)
        return ErrorCode.none if error is ErrorCode.none else ErrorCode.coordinator_not_available

    def _found(self, context: RequestContext, key_type: int, key: str, error: ErrorCode) -> Coordinator:
        leader = _leader(self.metadata.image, _TOPICS[key_type], key) if error is ErrorCode.none else None
        point = None if leader is None else leader.end_point(context.listener.name)
        if error is ErrorCode.none and point is None:
            error = ErrorCode.coordinator_not_available
        if leader is None or point is None:
            return Coordinator(key, node_id=-1, host="", port=-1, error_code=error, error_message=error.name)
        return Coordinator(key, leader.broker_id, point.host, point.port, error_code=error, error_message=None)


def _leader(image: ClusterImage, topic_name: str, key: str) -> BrokerImage | None:
    """The broker that leads the key's partition, if it can be reached."""
    topic = image.topics.get(topic_name)
    if topic is None:
        return None
    leader = image.brokers.get(topic.partitions[partition_for_id(key, len(topic.partitions))].leader)
    return None if leader is None or leader.is_fenced else leader
