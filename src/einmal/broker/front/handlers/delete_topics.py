"""DeleteTopics: remove topics with all they hold.

API: 20. Versions: 1-6.
Access: DELETE on Cluster, or DELETE on Topic; by name DESCRIBE on Topic too, without which an error reveals neither a
name nor that a topic is missing.
Behaviour: answered when the removal is committed in the metadata log; from then on a topic of the same name is another.
INVALID_REQUEST for one that is named twice, or by name and id at once: it is not deleted.
Version notes: v5 error messages, and topics beyond a quota are refused; v6 topics by id.
"""

from __future__ import annotations

from typing import ClassVar, Final
from uuid import UUID

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.config import BrokerConfig
from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.authorization.permitted_items import permitted_items
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.front.quotas.client_throttles import ClientThrottles
from einmal.broker.front.topics.mutation_quota import MutationQuota
from einmal.metadata.topics import TopicResult
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode
from einmal.wire.api.delete_topics import API, DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse

_FIRST_WITH_TOPIC_IDS: Final = 6
_FIRST_STRICT: Final = 5
"""From this version on topics beyond a quota are refused with THROTTLING_QUOTA_EXCEEDED (KIP-599)."""
_NO_TOPIC_ID: Final = UUID(int=0)


@handler
class DeleteTopicsHandler:
    api: ClassVar = API
    access: Access
    controller: ControllerRuntime
    config: BrokerConfig
    metadata: ClusterMetadata
    throttles: ClientThrottles

    async def handle(self, context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
        named: list[tuple[str | None, UUID]]
        if context.api_version >= _FIRST_WITH_TOPIC_IDS:
            named = [(topic.name, topic.topic_id or _NO_TOPIC_ID) for topic in request.topics]
        else:
            named = [(name, _NO_TOPIC_ID) for name in request.topic_names]
        results: list[TopicResult] | ErrorCode = ErrorCode.topic_deletion_disabled
        deletes_all = self.access.allows(context, AclOperation.DELETE, ResourceType.CLUSTER, is_filter=True)
        asked = await permitted_items(
            context, named, lambda topic: None if deletes_all else self._refusal(context, topic)
        )
        quota = MutationQuota(self.throttles, context, _FIRST_STRICT)
        if self.config.delete_topic_enable:
            results = await self.controller.submit(
                lambda shard, _: shard.delete_topics(asked.permitted, admits=quota.admits)
            )
        if isinstance(results, ErrorCode):
            results = [TopicResult(name=name, topic_id=topic_id, error=results) for name, topic_id in asked.permitted]
        results = asked.merge(results, lambda topic, refused: self._refused(context, topic, refused))
        return DeleteTopicsResponse(
            quota.throttle_ms,
            [
                DeletableTopicResult(result.name, result.topic_id, result.error, result.message)
                async for result in context.paced(results)
            ],
        )

    def _refusal(self, context: RequestContext, asked: tuple[str | None, UUID]) -> ErrorCode | None:
        name, topic_id = asked
        if name is None:
            return self._refusal_by_id(context, topic_id)
        if not self.access.describes_topic(context, name, is_asked=True):
            return ErrorCode.topic_authorization_failed
        refused = self.access.refusal(context, AclOperation.DELETE, ResourceType.TOPIC, name)
        if refused and name not in self.metadata.image.topics:
            return ErrorCode.unknown_topic_or_partition
        return refused

    def _refusal_by_id(self, context: RequestContext, topic_id: UUID) -> ErrorCode | None:
        if topic_id == _NO_TOPIC_ID:
            # Refused by the controller, as a request that names nothing.
            return None
        name = self.metadata.image.name_of(topic_id)
        if name is None:
            return ErrorCode.unknown_topic_id
        return self.access.refusal(context, AclOperation.DELETE, ResourceType.TOPIC, name)

    def _refused(self, context: RequestContext, asked: tuple[str | None, UUID], error: ErrorCode) -> TopicResult:
        name, topic_id = asked
        if name is None:
            topic_name = self.metadata.image.name_of(topic_id)
            if topic_name is not None and self.access.describes_topic(context, topic_name, is_asked=True):
                name = topic_name
        return TopicResult(name=name, topic_id=topic_id, error=error)
