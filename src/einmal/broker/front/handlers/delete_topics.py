"""DeleteTopics: remove topics with all they hold.

API: 20. Versions: 1-6.
Behaviour: answered when the removal is committed in the metadata log; from then on a topic of the same name is another.
Version notes: v5 error messages, and topics beyond a quota are refused; v6 topics by id.
"""

from __future__ import annotations

from typing import ClassVar, Final
from uuid import UUID

from einmal.broker.config import BrokerConfig
from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.front.client_throttles import ClientThrottles
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.front.mutation_quota import MutationQuota
from einmal.metadata.topics import TopicResult
from einmal.types import ErrorCode
from einmal.wire.api.delete_topics import API, DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse

_FIRST_WITH_TOPIC_IDS: Final = 6
_FIRST_STRICT: Final = 5
"""From this version on topics beyond a quota are refused with THROTTLING_QUOTA_EXCEEDED (KIP-599)."""
_NO_TOPIC_ID: Final = UUID(int=0)


@handler
class DeleteTopicsHandler:
    api: ClassVar = API
    controller: ControllerRuntime
    config: BrokerConfig
    throttles: ClientThrottles

    async def handle(self, context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
        asked: list[tuple[str | None, UUID]]
        if context.api_version >= _FIRST_WITH_TOPIC_IDS:
            asked = [(topic.name, topic.topic_id or _NO_TOPIC_ID) for topic in request.topics]
        else:
            asked = [(name, _NO_TOPIC_ID) for name in request.topic_names]
        results: list[TopicResult] | ErrorCode = ErrorCode.topic_deletion_disabled
        quota = MutationQuota(self.throttles, context, _FIRST_STRICT)
        if self.config.delete_topic_enable:
            results = await self.controller.submit(lambda shard, _: shard.delete_topics(asked, admits=quota.admits))
        if isinstance(results, ErrorCode):
            results = [TopicResult(name=name, topic_id=topic_id, error=results) for name, topic_id in asked]
        return DeleteTopicsResponse(
            quota.throttle_ms,
            [DeletableTopicResult(result.name, result.topic_id, result.error, result.message) for result in results],
        )
