"""FindCoordinator: which broker coordinates a group or a transactional id.

API: 10. Versions: 0-6.
Access: DESCRIBE on Group, DESCRIBE on TransactionalId: by the type of key.
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
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.metadata.image import CONSUMER_OFFSETS, TRANSACTION_STATE, BrokerImage, ClusterImage
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode
from einmal.wire.api.find_coordinator import API, Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from einmal.wire.java_hash import partition_for_id

_FIRST_WITH_MANY_KEYS: Final = 4
_TOPICS: Final = {0: CONSUMER_OFFSETS, 1: TRANSACTION_STATE}
_RESOURCES: Final = {0: ResourceType.GROUP, 1: ResourceType.TRANSACTIONAL_ID}
"""By key type."""


@handler
class FindCoordinatorHandler:
    api: ClassVar = API
    access: Access
    metadata: ClusterMetadata
    topic_creation: TopicCreation

    async def handle(self, context: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        key_type = request.key_type
        many = context.api_version >= _FIRST_WITH_MANY_KEYS
        keys = request.coordinator_keys if many else (request.key,)
        refusals = [self._refusal(context, key_type, key) async for key in context.paced(keys)]
        # A sender who may see none of them makes no topic.
        error = ErrorCode.none if all(refusals) else await self._prepare(key_type)
        coordinators = [
            self._coordinator(context, key_type, key, refused or error)
            async for key, refused in context.paced(zip(keys, refusals, strict=True))
        ]
        if many:
            return FindCoordinatorResponse(coordinators=coordinators)
        (coordinator,) = coordinators
        return FindCoordinatorResponse(
            error_code=coordinator.error_code,
            error_message=coordinator.error_message,
            node_id=coordinator.node_id,
            host=coordinator.host,
            port=coordinator.port,
        )

    def _refusal(self, context: RequestContext, key_type: int, key: str) -> ErrorCode | None:
        resource_type = _RESOURCES.get(key_type)
        if resource_type is None:
            return None
        return self.access.refusal(context, AclOperation.DESCRIBE, resource_type, key)

    async def _prepare(self, key_type: int) -> ErrorCode:
        """See to it that the topic of the coordinators exists."""
        topic = _TOPICS.get(key_type)
        if topic is None:
            return ErrorCode.invalid_request
        error = await self.topic_creation.ensure(topic)
        return ErrorCode.none if error is ErrorCode.none else ErrorCode.coordinator_not_available

    def _coordinator(self, context: RequestContext, key_type: int, key: str, error: ErrorCode) -> Coordinator:
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
